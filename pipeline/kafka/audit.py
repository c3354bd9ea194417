"""Audit: decisions given over HTTP, put on their topic without keeping anybody waiting."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import structlog

from ontrack.pipeline.kafka.emitter import Emitter
from ontrack.pipeline.kafka.messages import Message
from ontrack.pipeline.metrics import Metrics

_log = structlog.get_logger(__name__)

WAITING_MAX = 10_000
BATCH_MAX = 500
FLUSH_S_MAX = 3.0


class Audit:
    """A bounded queue before the emitter.

    While the broker is away it fills; then further records are dropped and counted: an answer
    that waits for its record would come too late.
    """

    def __init__(
        self,
        emitter: Emitter,
        metrics: Metrics,
        failed: Callable[[BaseException], Awaitable[object]],
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._emitter = emitter
        self._metrics = metrics
        self._failed = failed
        self._waiting_max = waiting_max
        self._waiting: deque[Message] = deque()
        self._sending = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def put(self, message: Message) -> None:
        """Queue a record; returns at once."""
        if self._closed or len(self._waiting) >= self._waiting_max:
            self._metrics.audit_dropped.inc()
            return
        self._waiting.append(message)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send())

    async def stop(self) -> None:
        """Send what waits, for a few seconds at most; take nothing more."""
        self._closed = True
        if self._task is None:
            return
        _, late = await asyncio.wait([self._task], timeout=FLUSH_S_MAX)
        if late:
            self._task.cancel()
            await asyncio.wait([self._task])
            _log.warning("audit_records_dropped", records=self._drop_all())

    async def _send(self) -> None:
        try:
            while self._waiting:
                self._sending = min(BATCH_MAX, len(self._waiting))
                await self._emitter.emit([self._waiting.popleft() for _ in range(self._sending)])
                self._sending = 0
        except Exception as error:  # noqa: BLE001
            # Decisions that nobody can trace are not given for long: this stops the worker.
            self._closed = True
            _log.error("audit_failed", error=type(error).__name__, records=self._drop_all())
            await self._failed(error)

    def _drop_all(self) -> int:
        """Give up what waits and what was being sent; count and return it."""
        dropped = len(self._waiting) + self._sending
        self._waiting.clear()
        self._sending = 0
        self._metrics.audit_dropped.inc(dropped)
        return dropped
