"""What a worker does with the partitions it is assigned, whatever delivers the messages.

One lane a topic partition: a bounded queue and one task that takes what is there as one batch and
never waits for more. Lanes are independent of the coroutines that deliver, so a rebalance cannot
cut a batch in half.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from ontrack.pipeline.embedded import make_fold
from ontrack.pipeline.kafka.audit import Audit
from ontrack.pipeline.kafka.clock import BrokerClock
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.emitter import Emitter
from ontrack.pipeline.kafka.fleet import Fleet
from ontrack.pipeline.kafka.follower import KnowledgeFollower
from ontrack.pipeline.kafka.gateway import Gateway
from ontrack.pipeline.kafka.log import LogReader
from ontrack.pipeline.kafka.otlp_source import OtlpSource
from ontrack.pipeline.kafka.owner import PartitionOwner
from ontrack.pipeline.kafka.owners import OwnerDirectory
from ontrack.pipeline.kafka.peers import Peers
from ontrack.pipeline.kafka.turns import Turns
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.record import Record
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.telemetry import Telemetry

_log = structlog.get_logger(__name__)

QUEUE_RECORDS_MAX = 4096
DRAIN_S_MAX = 10.0
CLOSE_S_MAX = 2.0  # for each connection, where the broker is away
CHECKPOINT_S_MAX = 4.0  # below the session time-out, with room for the rest of a rebalance


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivered record, and what to call once its outputs are acknowledged."""

    record: Record
    done: Callable[[], object]


class Lane:
    """A bounded queue of one topic partition and the task that empties it."""

    def __init__(
        self,
        begin: Callable[[], Awaitable[None]],
        handle: Callable[[list[Record]], Awaitable[None]],
        failed: Callable[[BaseException], Awaitable[object]],
        batch_max: int,
        after: Lane | None,
    ) -> None:
        self._queue: asyncio.Queue[Delivery | None] = asyncio.Queue(QUEUE_RECORDS_MAX)
        self._open = True
        self._batch_max = batch_max
        self._task = asyncio.create_task(self._run(begin, handle, failed, after))

    async def put(self, delivery: Delivery) -> None:
        """Queue a delivery; waits while the lane is full (back-pressure)."""
        if self._open:
            await self._queue.put(delivery)

    def close(self) -> None:
        """Let the batch in hand finish and drop what is queued: it is delivered again."""
        self._open = False
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(None)

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
                        delivery.done()
        except Exception as error:  # noqa: BLE001
            # A lane that died silently would be a partition nobody folds: stop the worker.
            _log.exception("lane_failed")
            await failed(error)

    async def _next_batch(self) -> list[Delivery]:
        first = await self._queue.get()
        batch = [] if first is None else [first]
        while len(batch) < self._batch_max and not self._queue.empty():
            item = self._queue.get_nowait()
            if item is not None:
                batch.append(item)
        return batch


class Worker:
    """Owners and lanes of the assigned partitions of one process."""

    def __init__(
        self, settings: Settings, failed: Callable[[BaseException], Awaitable[object]]
    ) -> None:
        self.settings = settings
        self.topics = topics_of(settings)
        self.metrics = Metrics()
        self.fold = make_fold(settings)
        self.metrics.watch(self.fold)
        self.telemetry = Telemetry.of(settings, self.metrics, "worker")
        self.owners: dict[int, PartitionOwner] = {}
        self._failed = failed
        self._reader = LogReader(settings)
        self._emitter = Emitter(settings)
        self._follower = KnowledgeFollower(settings, self.fold.library, self.metrics)
        self._events: dict[int, Lane] = {}
        self._proposals: dict[int, Lane] = {}
        self._clocks: dict[int, BrokerClock] = {}
        self._directory = OwnerDirectory(settings, self._emitter, failed)
        self._audit = Audit(self._emitter, self.metrics, failed)
        self._peers = Peers(settings)
        self._spans: OtlpSource | None = None
        if settings.otlp_topic is not None:
            self._spans = OtlpSource(settings, self.topics, self._emitter, self.metrics, failed)
        self._turns = Turns()
        self._fleet = Fleet(settings, self.topics, self._emitter, self.metrics, self._turns)
        self.gateway = Gateway(
            settings,
            self.topics,
            self.fold,
            self.owners,
            self._directory,
            self._follower.refresh,
            self._audit.put,
            self._peers.post,
            self.metrics,
            telemetry=self.telemetry,
        )
        gc.collect()  # what is left of loading all that

    @property
    def ready(self) -> bool:
        """Whether every assigned partition has been recovered."""
        return bool(self.owners) and all(owner.ready for owner in self.owners.values())

    def assign(self, partitions: Iterable[int]) -> None:
        """Own these partitions of the events topic, and no others."""
        wanted = set(partitions)
        for partition in [number for number in self.owners if number not in wanted]:
            self._close_lanes(partition)
            owner = self.owners.pop(partition)
            owner.revoke()
            self.metrics.forget(partition)
        for partition in sorted(wanted):
            owner = self.owners.get(partition) or self._new_owner(partition)
            self.owners[partition] = owner
            self._open_lanes(partition, owner)
        self._directory.start()
        self._directory.claim(wanted)
        self._fleet.assign(wanted)
        if self._spans is not None:
            self._spans.start()

    async def suspend(self) -> None:
        """Write checkpoints, then publish nothing until the next assignment.

        States stay in memory in case the partitions return. Bounded in time: a rebalance waits for
        this, and a checkpoint is only an accelerator.
        """
        self._fleet.suspend()
        try:
            async with asyncio.timeout(CHECKPOINT_S_MAX):
                await asyncio.gather(*(owner.save() for owner in self.owners.values()))
        except TimeoutError:
            _log.warning("checkpoint_too_slow", seconds=CHECKPOINT_S_MAX)
        except Exception:  # noqa: BLE001
            # Only an accelerator: without it a successor folds more of the log.
            _log.exception("checkpoint_failed")
        for partition, owner in self.owners.items():
            owner.revoke()
            self._close_lanes(partition)

    async def deliver_event(self, partition: int, delivery: Delivery) -> None:
        """Hand over an event; one of a partition that is not ours is dropped, the log has it."""
        lane = self._events.get(partition)
        if lane is not None:
            await lane.put(delivery)
            if delivery.record.timestamp_ms is not None:
                self._clocks.setdefault(partition, BrokerClock()).heard(
                    delivery.record.timestamp_ms
                )

    async def deliver_proposal(self, partition: int, delivery: Delivery) -> None:
        """Hand over a proposal."""
        lane = self._proposals.get(partition)
        if lane is not None:
            await lane.put(delivery)

    def note_ends(self, ends: Mapping[int, int]) -> None:
        """Bring the lag up to date, from the log's ends by partition."""
        for partition, end in ends.items():
            owner = self.owners.get(partition)
            if owner is not None:
                self.metrics.lag(partition, end - owner.watermark.next_offset)

    async def check_watermarks(self) -> None:
        """Compare every watermark with the log's end; close what has been silent for too long."""
        for owner in list(self.owners.values()):
            await owner.catch_up()
            now_ms = self._broker_now_ms(owner)
            if now_ms is not None:
                await owner.close_idle(now_ms)
        # The gate's policy looks into the library without asking for what is new.
        await self.gateway.refresher.refreshed()

    async def keep_modes(self) -> None:
        """Read the switches, and bring open runs under them."""
        await self.gateway.refresher.refreshed()
        for owner in list(self.owners.values()):
            await owner.keep_modes()

    async def close_gaps(self) -> None:
        """Give up steps that have been waited for long enough."""
        for owner in list(self.owners.values()):
            now_ms = self._broker_now_ms(owner)
            if now_ms is not None:
                await owner.close_gaps(now_ms)

    async def stop(self) -> None:
        """Finish the batches in hand and close all connections."""
        if self._spans is not None:
            await self._spans.stop()
        await self.suspend()
        lanes = [*self._events.values(), *self._proposals.values()]
        if lanes:
            waiting = [asyncio.ensure_future(lane.finished()) for lane in lanes]
            _, late = await asyncio.wait(waiting, timeout=DRAIN_S_MAX)
            if late:
                _log.warning("stopped_with_unfinished_batches", lanes=len(late))
        for part in (
            self._fleet,
            self._directory,
            self._peers,
            self._audit,
            self._follower,
            self._reader,
            self._emitter,
        ):
            try:
                async with asyncio.timeout(CLOSE_S_MAX):
                    await part.stop()
            except TimeoutError:
                _log.warning("closed_by_force", part=type(part).__name__, seconds=CLOSE_S_MAX)
        await self.telemetry.stop()

    def _broker_now_ms(self, owner: PartitionOwner) -> int | None:
        """Return the broker's time; where nothing was delivered yet, it begins at the log's end."""
        clock = self._clocks.setdefault(owner.partition, BrokerClock())
        if clock.now_ms() is None and owner.ready and owner.state.heard_ms:
            clock.heard(max(owner.state.heard_ms.values()))
        return clock.now_ms()

    def _new_owner(self, partition: int) -> PartitionOwner:
        return PartitionOwner(
            partition,
            self.settings,
            self.topics,
            self.fold,
            self._reader,
            self._emitter,
            self._follower,
            self.metrics,
            self._turns,
            self.telemetry,
        )

    async def _resume(self, owner: PartitionOwner) -> None:
        """Fold a partition to its end, and leave what stays out of collections from then on.

        That is nearly all: models, compiled classes, references, runs (which hold no cycles). A
        full collection that looks at it holds up the gate (measured: 90 to 120 ms).
        """
        await owner.resume()
        if self.ready:
            gc.freeze()

    def _open_lanes(self, partition: int, owner: PartitionOwner) -> None:
        self._close_lanes(partition)
        batch_max = self.settings.batch_events_max
        self._events[partition] = Lane(
            lambda: self._resume(owner),
            owner.take,
            self._failed,
            batch_max,
            self._events.get(partition),
        )
        self._proposals[partition] = Lane(
            owner.until_ready, owner.decide, self._failed, batch_max, self._proposals.get(partition)
        )

    def _close_lanes(self, partition: int) -> None:
        for lanes in (self._events, self._proposals):
            if partition in lanes:
                lanes[partition].close()
