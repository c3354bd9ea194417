"""What a worker does with the partitions it is assigned, whatever delivers the messages.

The shells (:mod:`ontrack.pipeline.kafka.app` on Faust, :mod:`ontrack.pipeline.kafka.loop` on bare
aiokafka) tell it which partitions are here and hand records over; all else happens here.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import structlog

from ontrack.pipeline.kafka.audit import Audit
from ontrack.pipeline.kafka.clock import BrokerClock
from ontrack.pipeline.kafka.closing import closed
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.emitter import Emitter
from ontrack.pipeline.kafka.fleet import Fleet
from ontrack.pipeline.kafka.follower import KnowledgeFollower
from ontrack.pipeline.kafka.gateway import Gateway
from ontrack.pipeline.kafka.lane import Delivery, Lane
from ontrack.pipeline.kafka.log import LogReader
from ontrack.pipeline.kafka.otlp_source import OtlpSource
from ontrack.pipeline.kafka.owner import PartitionOwner
from ontrack.pipeline.kafka.owners import OwnerDirectory
from ontrack.pipeline.kafka.peers import Peers
from ontrack.pipeline.kafka.turns import Turns
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.telemetry import Telemetry

_log = structlog.get_logger(__name__)

DRAIN_S_MAX = 10.0
CHECKPOINT_S_MAX = 4.0  # below the session time-out, with room for the rest of a rebalance


class Worker:
    """Owners and lanes of the assigned partitions of one process.

    Parameters
    ----------
    failed
        What to do when the worker cannot go on.
    recovered
        Told of an owner that has come to its log's end: from its watermarks on it wants to be
        delivered to.
    """

    def __init__(
        self,
        settings: Settings,
        failed: Callable[[BaseException], Awaitable[object]],
        recovered: Callable[[PartitionOwner], object] = lambda _owner: None,
    ) -> None:
        self.settings = settings
        self.topics = topics_of(settings)
        self.metrics = Metrics()
        self.fold = make_fold(settings)
        self.metrics.watch(self.fold)
        self.telemetry = Telemetry.of(settings, self.metrics, "worker")
        self.owners: dict[int, PartitionOwner] = {}
        self.failed = failed
        self._recovered = recovered
        self._stopping = False
        self._reader = LogReader(settings)
        self._emitter = Emitter(settings)
        self._follower = KnowledgeFollower(
            settings, self.fold.library, self.metrics.knowledge_rejected.inc
        )
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
        if self._stopping:
            return  # the group has not heard of it yet
        wanted = set(partitions)
        for partition in [number for number in self.owners if number not in wanted]:
            self._close_lanes(partition)
            owner = self.owners.pop(partition)
            owner.revoke()
            self.metrics.forget(partition)
        for partition in sorted(wanted):
            self.metrics.hold(partition)
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
            self._heard(partition, delivery)

    async def deliver_proposal(self, partition: int, delivery: Delivery) -> None:
        """Hand over a proposal."""
        lane = self._proposals.get(partition)
        if lane is not None:
            await lane.put(delivery)

    def offer(self, topic: str, partition: int, deliveries: Sequence[Delivery]) -> None:
        """Hand over what was fetched of a partition at once; wait for :meth:`room` afterwards."""
        is_event = topic == self.topics.events.name
        lane = (self._events if is_event else self._proposals).get(partition)
        if lane is not None and deliveries:
            lane.offer(deliveries)
            if is_event:
                self._heard(partition, deliveries[-1])

    async def room(self) -> None:
        """Wait until every lane has room (back-pressure)."""
        for lane in [*self._events.values(), *self._proposals.values()]:
            await lane.room()

    def settled(self) -> dict[tuple[str, int], int]:
        """Return up to where each topic partition is done with: outputs acknowledged."""
        return {
            (watermark.topic, owner.partition): watermark.settled
            for owner in self.owners.values()
            for watermark in (owner.watermark, owner.asked)
            if watermark.settled
        }

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
        """Finish the batches in hand and close all connections; nothing is assigned any more."""
        self._stopping = True
        if self._spans is not None:
            await self._spans.stop()
        await self.suspend()
        lanes = [*self._events.values(), *self._proposals.values()]
        if lanes:
            waiting = [asyncio.ensure_future(lane.finished()) for lane in lanes]
            _, late = await asyncio.wait(waiting, timeout=DRAIN_S_MAX)
            if late:
                _log.warning("stopped_with_unfinished_batches", lanes=len(late))
        answering = (self._fleet, self._directory, self._peers, self._audit)
        parts = (*answering, self._follower, self._reader)
        await asyncio.gather(*(closed(type(part).__name__, part.stop()) for part in parts))
        await closed("Emitter", self._emitter.stop())  # last, as others may still be sending
        await self.telemetry.stop()

    def _heard(self, partition: int, delivery: Delivery) -> None:
        if delivery.record.timestamp_ms is not None:
            self._clocks.setdefault(partition, BrokerClock()).heard(delivery.record.timestamp_ms)
            self._follower.heard(delivery.record.timestamp_ms)

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
        if owner.ready:
            self._recovered(owner)
        if self.ready:
            gc.freeze()

    def _open_lanes(self, partition: int, owner: PartitionOwner) -> None:
        self._close_lanes(partition)
        batch_max = self.settings.batch_events_max
        self._events[partition] = Lane(
            lambda: self._resume(owner),
            owner.take,
            self.failed,
            batch_max,
            self._events.get(partition),
        )
        self._proposals[partition] = Lane(
            owner.until_ready, owner.decide, self.failed, batch_max, self._proposals.get(partition)
        )

    def _close_lanes(self, partition: int) -> None:
        for lanes in (self._events, self._proposals):
            if partition in lanes:
                lanes[partition].close()
