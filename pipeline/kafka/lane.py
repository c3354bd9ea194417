"""A lane: what was delivered of one topic partition, taken in batches of what is there.

Lanes are independent of the coroutines that deliver, so a rebalance cannot cut a batch in half. A
batch is what waits when the one before is done; nobody waits for more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from ontrack.pipeline.folding.record import Record

_log = structlog.get_logger(__name__)

QUEUE_RECORDS_MAX = 4096
QUEUE_BYTES_MAX = 16 * 1_048_576
"""Of the queued records' values: 4096 events of the size that one may have would be 4 GiB."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivered record, and what to call once its outputs are acknowledged."""

    record: Record
    done: Callable[[], object] | None = None


class Lane:
    """A bounded queue of one topic partition and the task that empties it.

    Parameters
    ----------
    begin
        Awaited first; what is delivered meanwhile waits.
    handle
        Takes a batch; returns when its outputs are acknowledged.
    failed
        Told what ended the lane.
    batch_max
        Records of a batch.
    after
        A lane of the same partition that must have ended before this one begins.
    """

    def __init__(
        self,
        begin: Callable[[], Awaitable[None]],
        handle: Callable[[list[Record]], Awaitable[None]],
        failed: Callable[[BaseException], Awaitable[object]],
        batch_max: int,
        after: Lane | None,
    ) -> None:
        self._queue: deque[Delivery] = deque()
        self._bytes = 0  # of the values in the queue
        self._news = asyncio.Event()
        self._space = asyncio.Event()
        self._space.set()
        self._open = True
        self._batch_max = batch_max
        self._task = asyncio.create_task(self._run(begin, handle, failed, after))

    async def put(self, delivery: Delivery) -> None:
        """Queue a delivery; waits while the lane is full (back-pressure)."""
        await self.room()
        self.offer((delivery,))

    def offer(self, deliveries: Sequence[Delivery]) -> None:
        """Queue deliveries at once, however full it is; whoever delivers waits for room later."""
        if self._open and deliveries:
            self._queue.extend(deliveries)
            self._bytes += sum(len(delivery.record.value) for delivery in deliveries)
            self._news.set()
            if self._is_full:
                self._space.clear()

    async def room(self) -> None:
        """Wait while the lane is full; a closed one never is."""
        await self._space.wait()

    def close(self) -> None:
        """Let the batch in hand finish and drop what is queued: it is delivered again."""
        self._open = False
        self._queue.clear()
        self._bytes = 0
        self._news.set()
        self._space.set()

    async def finished(self) -> None:
        """Wait until the lane's task has ended."""
        await asyncio.wait([self._task])

    async def _run(
        self,
        begin: Callable[[], Awaitable[None]],
        handle: Callable[[list[Record]], Awaitable[None]],
        failed: Callable[[BaseException], Awaitable[object]],
        after: Lane | None,
    ) -> None:
        try:
            if after is not None:
                await after.finished()
            if self._open:
                await begin()
            while self._open:
                batch = await self._next_batch()
                if batch:
                    await handle([delivery.record for delivery in batch])
                    for delivery in batch:
                        if delivery.done is not None:
                            delivery.done()
        except Exception as error:  # noqa: BLE001
            # A lane that died silently would be a partition nobody folds: stop the worker.
            _log.exception("lane_failed")
            await failed(error)

    async def _next_batch(self) -> list[Delivery]:
        queue = self._queue
        if not queue:
            self._news.clear()
            if self._open:
                await self._news.wait()
        batch = [queue.popleft() for _ in range(min(len(queue), self._batch_max))]
        self._bytes -= sum(len(delivery.record.value) for delivery in batch)
        if not self._is_full:
            self._space.set()
        return batch

    @property
    def _is_full(self) -> bool:
        return len(self._queue) >= QUEUE_RECORDS_MAX or self._bytes >= QUEUE_BYTES_MAX
