"""Feed of a monitor in this process: for demonstrations, without a broker or a daemon."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

import structlog

from ontrack.pipeline.dashboard.feeds.base import Told, now_ms
from ontrack.pipeline.dashboard.feeds.feed import FeedState, Known, Letter, OnOutput, Unavailable
from ontrack.pipeline.dashboard.feeds.pictures import MemoryPictures
from ontrack.pipeline.dashboard.run.model import RunPicture
from ontrack.pipeline.embedded import EmbeddedMonitor, proposal_of
from ontrack.pipeline.folding.quarantine import fault
from ontrack.pipeline.gating.answers import NoAnswer
from ontrack.pipeline.serving.engine import EmbeddedEngine
from ontrack.pipeline.serving.event_memory import EventMemory
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidEvent
from ontrack.topics.events import Event, Step
from ontrack.topics.verdicts import Output

_log = structlog.get_logger(__name__)

ASK_S: Final = 5.0
Source = AsyncIterator[Event]


class EmbeddedFeed:
    """Feeds events to a monitor and tells what it says.

    Parameters
    ----------
    monitor
        Fed by nobody else.
    source
        Events as they happen; the gate is asked about each step before it, as an agent would.
        None: :meth:`take` is called instead.
    name
        For the page's head.
    """

    def __init__(
        self, monitor: EmbeddedMonitor, source: Source | None = None, name: str = "this process"
    ) -> None:
        self.name = name
        self.memory = EventMemory()
        self._monitor = monitor
        self._source = source
        self._told = Told()
        self._engine = EmbeddedEngine(monitor, monitor.settings.gate_decision_ttl_s, self._heard)
        self._engine.taken = self._taken
        self._pictures = MemoryPictures(monitor, self.memory)
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> FeedState:
        """How it stands."""
        return self._told.state

    async def start(self, on_output: OnOutput) -> None:
        """Begin to feed the events of the source."""
        self._told.listen(on_output)
        self._told.become("live", "the monitor runs in this process")
        if self._source is not None:
            self._task = asyncio.create_task(self._play(self._source))

    async def stop(self) -> None:
        """Stop feeding."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._engine.stop()

    async def take(self, event: Event) -> tuple[Output, ...]:
        """Fold an event; a step is asked about at the gate before."""
        event = self._monitor.settings.redaction.plainly(event)
        if isinstance(event, Step):
            with suppress(InvalidEvent, NoAnswer):
                await self._engine.ask(proposal_of(event), ASK_S)
        return await self._engine.take(codecs.encode(event), event, "memory")

    async def picture(self, run_id: str) -> RunPicture:
        """Fold the run again, by a fold of its own."""
        return self._told.heard.complete(await self._pictures.of(run_id))

    def reading(self, run_id: str) -> str:
        """Return how far it has been folded."""
        return self._pictures.folding(run_id)

    async def run_events(self, run_id: str) -> list[bytes]:
        """Return the run's events."""
        found = self.memory.events(run_id)
        if found is None:
            raise Unavailable(self.memory.why_not(run_id))
        return list(found)

    async def known(self) -> Known:
        """Return what the monitor knows now."""
        return Known(*self._monitor.fold.library.current()).ordered()

    async def dead_letters(self, limit: int) -> list[Letter]:
        """Return the latest."""
        return self._told.heard.letters(limit)

    async def _play(self, source: Source) -> None:
        try:
            async for event in source:
                await self.take(event)
        except Exception as error:  # noqa: BLE001
            # A fault of whoever makes the events: the page goes on with what there is, and says so.
            _log.error("source_failed", **fault(error))
            self._told.become("down", f"the events have stopped ({type(error).__name__})")
        else:
            self._told.become("live", "all events have been folded; nothing more will come")

    def _heard(self, output: Output) -> None:
        self._told.said(output, now_ms())

    def _taken(self, value: bytes, event: Event, _made_here: bool) -> None:
        self.memory.add(event.run_id, value)


async def play(
    runs: Sequence[Sequence[Event]], pause_s: float, at_once: int = 4, seed: int = 0
) -> Source:
    """Yield the events of runs as if they happened now, several runs at a time.

    Parameters
    ----------
    pause_s
        Between two events.
    at_once
        Runs that are going on at the same time.
    seed
        Decides whose turn it is.
    """
    chance = random.Random(seed)
    waiting = list(reversed(runs))
    going: list[list[Event]] = []
    while waiting or going:
        while waiting and len(going) < at_once:
            going.append(list(reversed(waiting.pop())))
        run = chance.choice(going)
        if run:
            yield run.pop()
            await asyncio.sleep(pause_s)
        else:
            going.remove(run)
