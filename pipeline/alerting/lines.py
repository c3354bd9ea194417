"""Alerts without a broker: JSON lines as ``replay``, ``tail`` and ``serve`` print them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from typing import Final

from ontrack.pipeline.alerting.teller import Teller
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.reading.sources import Source
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidEvent, InvalidFile, UnknownEventType

_AHEAD_MAX: Final = 1000
_TICK_S: Final = 0.5

Bad = Callable[[Record, InvalidEvent], None]


async def read_lines(
    sources: Iterable[Source], teller: Teller, stop: asyncio.Event, on_bad: Bad
) -> InvalidFile | None:
    """Tell of the interventions and blocked calls among lines; at their end, of all that waits.

    Lines carry no time: each counts from when it is read. Lines of other types are passed over.

    Parameters
    ----------
    on_bad
        Called with each line that cannot be read.

    Returns
    -------
    InvalidFile or None
        The file that could not be read and ended the reading; what stood before it is told.
    """
    amiss: InvalidFile | None = None
    lines: asyncio.Queue[Record | InvalidFile | None] = asyncio.Queue(_AHEAD_MAX)
    _start_reader(_records(sources), lines)
    while not stop.is_set():
        try:
            async with asyncio.timeout(_TICK_S):
                found = await lines.get()
        except TimeoutError:
            await teller.tick()
            continue
        if found is None:
            break
        if isinstance(found, InvalidFile):
            amiss = found
            break
        try:
            await teller.take(codecs.decode_output(found.value), found)
        except UnknownEventType:  # events, summaries, figures: what else commands print
            await teller.pass_over(found)
        except InvalidEvent as error:
            on_bad(found, error)
            await teller.pass_over(found)
    await teller.finish()
    return amiss


def _start_reader(
    records: Iterator[Record], lines: asyncio.Queue[Record | InvalidFile | None]
) -> None:
    """Read in a thread of its own: a pipe that says nothing must not stop the clock."""
    loop = asyncio.get_running_loop()

    def put(item: Record | InvalidFile | None) -> bool:
        try:
            asyncio.run_coroutine_threadsafe(lines.put(item), loop).result()
        except (CancelledError, RuntimeError):  # the loop has ended
            return False
        return True

    def read() -> None:
        try:
            for record in records:
                if not put(record):
                    return
        except InvalidFile as error:
            put(error)
            return
        put(None)

    threading.Thread(target=read, name="alerts-lines", daemon=True).start()


def _records(sources: Iterable[Source]) -> Iterator[Record]:
    for source in sources:
        for number, line in source.lines():
            if line.strip():
                yield Record(value=line, topic=source.path, offset=number)
