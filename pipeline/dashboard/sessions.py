"""Sessions: who has logged in at the dashboard."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

SESSION_S: Final = 12 * 3600.0
SESSIONS_MAX: Final = 1_000


class Sessions:
    """Who has logged in: random names, kept as digests, each for :data:`SESSION_S` seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: OrderedDict[bytes, float] = OrderedDict()
        self._ends: dict[bytes, set[asyncio.Event]] = {}

    def open(self) -> str:
        """Start a session; return what its cookie says."""
        name = secrets.token_urlsafe(32)
        self._until[self._digest(name)] = self._clock() + SESSION_S
        while len(self._until) > SESSIONS_MAX:
            self._end(next(iter(self._until)))
        return name

    def holds(self, name: str) -> bool:
        """Tell whether a cookie is one of ours that has not run out."""
        until = self._until.get(self._digest(name))
        return until is not None and self._clock() < until

    def close(self, name: str) -> None:
        """End a session."""
        self._end(self._digest(name))

    def left_s(self, name: str) -> float:
        """Return for how many seconds a session still holds."""
        return max(0.0, self._until.get(self._digest(name), 0.0) - self._clock())

    @contextmanager
    def end_of(self, name: str) -> Iterator[asyncio.Event]:
        """Give what is set once a session is closed, for as long as somebody waits for that."""
        digest, end = self._digest(name), asyncio.Event()
        self._ends.setdefault(digest, set()).add(end)
        try:
            yield end
        finally:
            waiting = self._ends[digest]
            waiting.discard(end)
            if not waiting:
                del self._ends[digest]

    def _end(self, digest: bytes) -> None:
        self._until.pop(digest, None)
        for end in self._ends.get(digest, ()):
            end.set()

    @staticmethod
    def _digest(name: str) -> bytes:
        # Looked up by digest: how long a look-up takes then tells nothing about the name.
        return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
