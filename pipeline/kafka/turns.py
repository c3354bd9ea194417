"""Turns: numeric work of all partitions, in short slices between which the event loop is free.

The gate, heartbeats and fetches run on the same loop. A question needs a few turns of it, so the
longest stretch of work between two turns, over all partitions, bounds the gate's answer under load.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

SLICE_S = 0.002  # about two events
BUSY_S = 0.05  # that long after a turn of those in front, more of them is expected
STAND_BACK_S = 4 * SLICE_S
"""How long work that nobody waits for stands back after a slice: a fifth of the time at most."""


class Turns:
    """Lets one partition work at a time, a slice and an event at most, then the next one.

    Parameters
    ----------
    clock
        Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._holder: asyncio.Task[object] | None = None
        self._behind = False  # whether the holder stands back
        self._in_front_s = -BUSY_S  # when somebody who does not had the turn
        self._began: float | None = None  # when work began since the event loop last came round

    @asynccontextmanager
    async def working(self, behind: bool = False) -> AsyncIterator[None]:
        """Hold the turn for a block; call :meth:`give_way` in it between two events.

        Parameters
        ----------
        behind
            Nobody waits for this work: while there is other, it takes a fifth of the time.
        """
        try:
            await self._take(behind)
            yield
        finally:
            # Where it was cancelled in giving way, somebody else may have the turn.
            if self._holder is asyncio.current_task():
                self._release()

    async def give_way(self) -> None:
        """Let the event loop and the other partitions go on, if the slice is over."""
        if self._is_over():
            behind = self._behind
            self._release()
            is_busy = self._clock() - self._in_front_s < BUSY_S
            await asyncio.sleep(STAND_BACK_S if behind and is_busy else 0)
            await self._take(behind)
        else:
            self._begin()  # where the block itself has waited for something in between

    @asynccontextmanager
    async def elsewhere(self) -> AsyncIterator[None]:
        """Leave the turn to the others while a block waits for a thread; then take it again."""
        behind = self._behind
        self._release()
        try:
            yield
        finally:
            await self._take(behind)

    async def _take(self, behind: bool) -> None:
        await self._lock.acquire()
        self._holder = asyncio.current_task()
        self._behind = behind
        if not behind:
            self._in_front_s = self._clock()
        while self._is_over():  # by the work of another partition
            await asyncio.sleep(0)
        self._begin()

    def _begin(self) -> None:
        if self._began is None:
            self._began = self._clock()
            asyncio.get_running_loop().call_soon(self._come_round)

    def _is_over(self) -> bool:
        return self._began is not None and self._clock() - self._began > SLICE_S

    def _come_round(self) -> None:
        self._began = None

    def _release(self) -> None:
        self._holder = None
        self._lock.release()
