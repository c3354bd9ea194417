"""Stream: everything the monitor says, as it comes, to whoever reads it over HTTP.

NDJSON. A line is an output with the bytes that stand on its topic, or a heartbeat: what follows a
heartbeat was said at its time or less than a second later.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Final

from ontrack.topics import codecs
from ontrack.topics.verdicts import Output

READERS_MAX: Final = 32
RECENT_BYTES_MAX: Final = 4 * 1_048_576
READER_BYTES_MAX: Final = 2 * RECENT_BYTES_MAX  # waiting for one reader
RECENT_MAX: Final = 5000
HEARTBEAT_S: Final = 5.0


class TooManyReaders(Exception):
    """Nobody else can read the stream now."""


class Reader:
    """One who reads; see :meth:`Stream.reading`."""

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self.second = -1
        self.ended = False

    def put(self, line: bytes) -> bool:
        """Let a line wait; False: too much waits already."""
        if self._lines and self._bytes + len(line) > READER_BYTES_MAX:
            return False
        self._lines.append(line)
        self._bytes += len(line)
        self._news.set()
        return True

    def end(self, at_once: bool) -> None:
        """End the reading: at once, or after what waits."""
        self.ended = True
        self._news.set()
        if at_once:
            self._lines.clear()
            self._abort()

    async def chunks(self, heartbeat: Callable[[], bytes]) -> AsyncIterator[bytes]:
        """Yield lines, some at once; a heartbeat where nothing comes."""
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._news.wait()
            except TimeoutError:
                yield heartbeat()
                continue
            self._news.clear()
            chunk = b"".join(self._lines)
            self._lines.clear()
            self._bytes = 0
            if chunk:
                yield chunk
            if self.ended:
                return


class Stream:
    """Hands outputs to readers.

    Each reader has its own bounded line of waiting: one that reads too slowly is cut off and
    counted, and neither the monitor nor other readers wait for it. A bounded number of outputs is
    kept for those who come later.

    Parameters
    ----------
    now
        Time of an output.
    count
        Called for each reader that is cut off.

    Attributes
    ----------
    dropped
        Readers that were cut off because they read too slowly.
    """

    def __init__(
        self, now: Callable[[], datetime], count: Callable[[], None] = lambda: None
    ) -> None:
        self._now = now
        self._count = count
        self._readers: set[Reader] = set()
        self._recent: deque[tuple[datetime, bytes]] = deque(maxlen=RECENT_MAX)
        self._recent_bytes = 0
        self.dropped = 0

    @property
    def readers(self) -> int:
        """How many read."""
        return len(self._readers)

    def said(self, output: Output) -> None:
        """Hand an output to all readers; returns at once."""
        time, line = self._now(), codecs.encode(output) + b"\n"
        self._keep(time, line)
        for reader in list(self._readers):
            if not self._hand(reader, time, line):
                self.dropped += 1
                self._count()
                self._readers.discard(reader)
                reader.end(at_once=True)

    def join(self, recent: int, abort: Callable[[], None]) -> Reader:
        """Begin to read, with some of the outputs before.

        Parameters
        ----------
        recent
            How many of them, at most :data:`RECENT_MAX` and :data:`RECENT_BYTES_MAX`.
        abort
            Cuts the reader off, whatever it is being sent.

        Raises
        ------
        TooManyReaders
            :data:`READERS_MAX` are reading.
        """
        if len(self._readers) >= READERS_MAX:
            raise TooManyReaders(f"{READERS_MAX} read the stream already, the most there may be")
        reader = Reader(abort)
        reader.put(self.heartbeat())
        kept = list(self._recent)
        for time, line in kept[len(kept) - min(recent, len(kept)) :]:
            self._hand(reader, time, line)
        self._readers.add(reader)
        return reader

    def leave(self, reader: Reader) -> None:
        """Stop reading."""
        self._readers.discard(reader)

    def close(self) -> None:
        """End all readings after what waits."""
        for reader in self._readers:
            reader.end(at_once=False)
        self._readers.clear()

    def heartbeat(self) -> bytes:
        """Return a heartbeat of now."""
        return _heartbeat(self._now())

    def _hand(self, reader: Reader, time: datetime, line: bytes) -> bool:
        second = int(time.timestamp())
        if second != reader.second:
            reader.second = second
            line = _heartbeat(time) + line
        return reader.put(line)

    def _keep(self, time: datetime, line: bytes) -> None:
        if len(line) > RECENT_BYTES_MAX // 4:
            return
        if len(self._recent) == RECENT_MAX:
            self._recent_bytes -= len(self._recent[0][1])
        self._recent.append((time, line))
        self._recent_bytes += len(line)
        while self._recent_bytes > RECENT_BYTES_MAX:
            self._recent_bytes -= len(self._recent.popleft()[1])


def _heartbeat(time: datetime) -> bytes:
    text = time.astimezone(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"type": "heartbeat", "time": text}).encode() + b"\n"
