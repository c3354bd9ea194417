"""The worker's membership in its consumer group, on bare aiokafka.

One consumer reads events and proposals of the assigned partitions. Where it begins is said by the
owners' watermarks, never by a commit: a partition is not read before its owner has folded the log
to its end, and then from there. Commits only show others how far the group has come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import (
    CommitFailedError,
    GroupAuthorizationFailedError,
    IllegalStateError,
    InconsistentGroupProtocolError,
    KafkaError,
    TopicAuthorizationFailedError,
)

from ontrack.pipeline.kafka.assignor import assignor
from ontrack.pipeline.kafka.closing import closed
from ontrack.pipeline.kafka.connection import client_arguments, start, topics_of
from ontrack.pipeline.kafka.lane import Delivery
from ontrack.pipeline.kafka.log import ends_seen, patiently, record_of
from ontrack.pipeline.kafka.membership import tell_not_joined
from ontrack.pipeline.kafka.owner import PartitionOwner
from ontrack.pipeline.kafka.worker import Worker
from ontrack.pipeline.settings import Settings

_log = structlog.get_logger(__name__)

SESSION_MS = 10_000
HEARTBEAT_MS = 1_000
REBALANCE_MS = 30_000  # how long the others are waited for; they write checkpoints meanwhile
FETCH_WAIT_MS = 50
"""How long the broker may hold a fetch where there is nothing. All partitions are asked for in one,
so none waits for the end of another's; twenty small requests a second when idle."""
FETCH_BYTES_MAX = 1_048_576
POLL_MS = 200
POLLED_RECORDS_MAX = 500  # decoded without a turn for the rest of the loop
COMMIT_S = 0.5
PAUSE_S = 1.0

_REFUSED = (GroupAuthorizationFailedError, TopicAuthorizationFailedError)


class Group:
    """A member of the group; made before its worker, which it is then run with."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topics = topics_of(settings)
        self._assignor = assignor()  # remembers what we had, also when a consumer is made anew
        self._consumer: AIOKafkaConsumer | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._committing: asyncio.Task[None] | None = None

    async def run(self, worker: Worker) -> None:
        """Hand over what comes, until cancelled; a consumer that fails is made anew.

        Raises
        ------
        KafkaError
            The broker refuses this member.
        """
        while True:
            consumer = await patiently(lambda: self._started(worker))
            try:
                await self._deliver(consumer, worker)
            except _REFUSED:
                raise
            except InconsistentGroupProtocolError:
                tell_not_joined(self._settings)
            except KafkaError as error:
                _log.warning("consumer_failed", error=f"{type(error).__name__}: {error}")
            await worker.suspend()
            await self.leave()
            await asyncio.sleep(PAUSE_S)

    async def leave(self) -> None:
        """Leave the group; bounded in time, also where the broker is away."""
        consumer, self._consumer = self._consumer, None
        if self._committing is not None:
            self._committing.cancel()
            await asyncio.wait([self._committing])
        if consumer is not None:
            await closed("Group", consumer.stop())

    def recovered(self, owner: PartitionOwner) -> None:
        """Deliver to an owner from its watermarks on."""
        consumer = self._consumer
        if consumer is None:
            return
        for watermark in (owner.watermark, owner.asked):
            place = TopicPartition(watermark.topic, owner.partition)
            if place in consumer.assignment():
                consumer.seek(place, watermark.next_offset)
                consumer.resume(place)

    def ends(self) -> dict[int, int]:
        """Return the log's end of each partition of the events, as the last fetch told it."""
        if self._consumer is None:
            return {}
        return ends_seen(self._consumer, self._topics.events.name)

    async def commit(self, worker: Worker) -> None:
        """Tell the broker what is done with; where that fails, nothing is lost."""
        consumer = self._consumer
        if consumer is None:
            return
        settled = {
            place: offset
            for (topic, number), offset in worker.settled().items()
            if (place := TopicPartition(topic, number)) in consumer.assignment()
            and self._committed.get(place) != offset
        }
        if settled:
            try:
                await consumer.commit(settled)
            except (CommitFailedError, IllegalStateError) as error:
                _log.debug("not_committed", error=str(error))  # a rebalance has come in between
            except KafkaError as error:
                _log.warning("not_committed", error=str(error))
            else:
                self._committed |= settled

    async def _started(self, worker: Worker) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            **client_arguments(self._settings),
            group_id=self._settings.group,
            group_instance_id=self._settings.instance,
            partition_assignment_strategy=(self._assignor,),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            max_partition_fetch_bytes=FETCH_BYTES_MAX,
        )
        await start(self._settings, consumer)
        self._consumer = consumer
        self._committed.clear()
        names = [self._topics.events.name, self._topics.proposals.name]
        consumer.subscribe(names, listener=_Listener(consumer, worker))
        return consumer

    async def _deliver(self, consumer: AIOKafkaConsumer, worker: Worker) -> None:
        commit_at_s = time.monotonic() + COMMIT_S
        while True:
            fetched = await consumer.getmany(timeout_ms=POLL_MS, max_records=POLLED_RECORDS_MAX)
            for place, messages in fetched.items():
                deliveries = [Delivery(record_of(message)) for message in messages]
                worker.offer(place.topic, place.partition, deliveries)
            await worker.room()
            if time.monotonic() >= commit_at_s:
                commit_at_s = time.monotonic() + COMMIT_S
                if self._committing is None or self._committing.done():
                    self._committing = asyncio.create_task(self.commit(worker))


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Hands partitions over; aiokafka would only log what fails here."""

    def __init__(self, consumer: AIOKafkaConsumer, worker: Worker) -> None:
        self._consumer = consumer
        self._worker = worker

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Stop publishing before anybody else may have these."""
        try:
            await self._worker.suspend()
        except Exception as error:  # noqa: BLE001
            _log.exception("partitions_not_given_up")
            await self._worker.failed(error)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Take the partitions; none is read before its owner has come to its log's end."""
        events = self._worker.topics.events.name
        numbers = sorted(place.partition for place in assigned if place.topic == events)
        _log.info("partitions_assigned", partitions=numbers)
        try:
            self._consumer.pause(*assigned)
            self._worker.assign(numbers)
        except Exception as error:  # noqa: BLE001
            _log.exception("partitions_not_taken")
            await self._worker.failed(error)
