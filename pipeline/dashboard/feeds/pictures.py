"""Pictures: runs folded again on demand, and the last few kept so that only news are folded."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter

from ontrack.pipeline.dashboard.feeds.feed import Unavailable
from ontrack.pipeline.dashboard.run.model import RunFold, RunPicture
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.serving.event_memory import EventMemory
from ontrack.topics.codecs import Limits

KEPT_MAX: Final = 8
_PICTURE = TypeAdapter(RunPicture)

#: Reads a run's events from a place on (None: from the first) and returns them and the next place.
Read = Callable[[Any], Awaitable[tuple[Sequence[Record], Any]]]


@dataclass(slots=True)
class _Kept:
    folded: RunFold
    place: Any = None


class Pictures:
    """Folds runs in a thread, one at a time, with a fold of its own.

    Parameters
    ----------
    make
        Makes the fold, with its library; called once, in a thread, when the first run is asked for.
    limits
        Of one event, as the fold has them.

    Attributes
    ----------
    turn
        Held while a run is read and folded, until the thread has ended, also where whoever asked
        has gone away: whoever changes the library holds it as well.
    events
        Folded so far.
    """

    def __init__(self, make: Callable[[], Fold], limits: Limits, kept_max: int = KEPT_MAX) -> None:
        self._make = make
        self._limits = limits
        self._kept_max = kept_max
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._fold: Fold | None = None
        self._making = threading.Lock()
        self.turn = asyncio.Lock()
        self._folding: dict[str, str] = {}
        self.events = 0

    def folding(self, run_id: str) -> str:
        """Return how far a run has been folded; empty while it is not."""
        return self._folding.get(run_id, "")

    async def fold(self) -> Fold:
        """Return the fold."""
        return await asyncio.to_thread(self._made)

    async def of(self, run_id: str, read: Read) -> RunPicture:
        """Fold what is new of a run and look at it.

        Raises
        ------
        Unavailable
            None of its events can be folded, or ``read`` says so.
        """
        async with self.turn:
            # Out of the shelf while it changes: who goes away in between leaves nothing half done.
            known = self._kept.pop(run_id, None)
            records, place = await read(None if known is None else known.place)
            kept, picture = await self._in_thread(known, run_id, records)
            kept.place = place
            self._kept[run_id] = kept
            if len(self._kept) > self._kept_max:
                self._kept.popitem(last=False)
        return picture

    def _made(self) -> Fold:
        with self._making:  # a thread goes on when whoever waits for it has gone away
            if self._fold is None:
                self._fold = self._make()
            return self._fold

    async def _in_thread(
        self, kept: _Kept | None, run_id: str, records: Sequence[Record]
    ) -> tuple[_Kept, RunPicture]:
        """Look at the run in a thread; who goes away ends it after the event at hand.

        And waits for that: a thread that went on alone would read a library that the next one in
        turn is changing.
        """
        given_up = threading.Event()
        work = asyncio.ensure_future(
            asyncio.to_thread(self._look, kept, run_id, records, given_up.is_set)
        )
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            given_up.set()
            while not work.done():
                with suppress(asyncio.CancelledError):  # told again once the thread has ended
                    await asyncio.wait({work})
            if not work.cancelled():
                work.exception()  # nobody is left to be told
            raise

    def _look(
        self,
        kept: _Kept | None,
        run_id: str,
        records: Sequence[Record],
        is_given_up: Callable[[], bool],
    ) -> tuple[_Kept, RunPicture]:
        if kept is None:
            kept = _Kept(RunFold(self._made(), run_id, self._limits))
        try:
            for number, record in enumerate(records, start=1):
                if is_given_up():
                    raise Unavailable("nobody waits for this run any more")
                self._folding[run_id] = f"folding: {number:,} of {len(records):,} events"
                kept.folded.feed((record,))
                self.events += 1
            return kept, kept.folded.picture()
        except LookupError as error:
            raise Unavailable(str(error)) from None
        finally:
            self._folding.pop(run_id, None)


class MemoryPictures:
    """Pictures of a monitor in this process, from the memory of its events."""

    def __init__(self, monitor: EmbeddedMonitor, memory: EventMemory) -> None:
        self._memory = memory
        self._pictures = Pictures(monitor.twin, monitor.settings.limits)

    @property
    def events(self) -> int:
        """Folded so far."""
        return self._pictures.events

    def folding(self, run_id: str) -> str:
        """Return how far a run has been folded; empty while it is not."""
        return self._pictures.folding(run_id)

    async def of(self, run_id: str) -> RunPicture:
        """Fold what is new of a run and look at it.

        Raises
        ------
        Unavailable
            Its events are not held, or none of them can be folded.
        """

        async def read(place: int | None) -> tuple[list[Record], int]:
            begin = place or 0
            values = self._memory.since(run_id, begin)
            if values is None:
                raise Unavailable(self._memory.why_not(run_id))
            return [Record(value) for value in values], begin + len(values)

        return await self._pictures.of(run_id, read)

    async def json(self, run_id: str) -> bytes:
        """Return the picture as JSON; written down in a thread, as it holds many numbers.

        Raises
        ------
        LookupError
            Saying why there is none.
        """
        try:
            picture = await self.of(run_id)
        except Unavailable as error:
            raise LookupError(str(error)) from error
        return await asyncio.to_thread(_PICTURE.dump_json, picture)
