"""Source: a collector's topic of spans, read in a consumer group of its own.

No Faust agent: its commits were measured to lose events (decision 0014), and unlike
our own topics this one is not read again. Here an offset is committed only when all that came from
before it is acknowledged on the topic of events. After a crash some messages are read again; what
was made of them stands on the topic of events and is found there, so it is not made twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from ontrack.pipeline.kafka.connection import client_arguments, problem_of, unreachable
from ontrack.pipeline.kafka.emitter import Emitter
from ontrack.pipeline.kafka.history import Where, opened
from ontrack.pipeline.kafka.log import record_of
from ontrack.pipeline.kafka.messages import Message
from ontrack.pipeline.kafka.otlp_intake import Intake
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.topics.catalog import Catalogue
from ontrack.topics.errors import BrokerUnavailable

_log = structlog.get_logger(__name__)

MESSAGES_MAX = 100  # taken before what came of them is sent
POLL_MS = 100  # also how late a span may be told whose waiting is over
COMMIT_S = 0.5
PAUSE_S = 0.5  # where the broker is away
FLUSH_S_MAX = 4.0  # of a rebalance, which waits for it; below the session time-out
MISSING_S = 2.0
OFFLOAD_BYTES = 65_536  # larger messages are read in a thread: the gate shares this loop
#: How far a collector's clock may be off the broker's before an event may be told twice.
SKEW_MS = 60_000


class OtlpSource:
    """Reads the collector's topic as long as it is started.

    Parameters
    ----------
    emitter
        Sends; stopped by whoever owns it, after this.
    failed
        Told of an error that ends the reading.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Catalogue,
        emitter: Emitter,
        metrics: Metrics,
        failed: Callable[[BaseException], Awaitable[object]],
    ) -> None:
        if settings.otlp_topic is None:
            raise ValueError("there is no topic of spans to read; set otlp_topic")
        self._settings, self._topics, self._emitter = settings, topics, emitter
        self._topic = settings.otlp_topic
        self._failed = failed
        self._count = metrics.count
        self._intake = Intake(settings, topics, self._count)
        self._consumer: AIOKafkaConsumer | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._turn = asyncio.Lock()
        self._outbox: list[Message] = []
        self._generation = self._known = 0
        self._recalled: set[int] = set()
        self._committed: dict[int, int] = {}
        self._commit_at_s = 0.0

    def start(self) -> None:
        """Begin to read; once is enough."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Send and commit what waits, as far as that takes no longer than a rebalance may."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=2 * FLUSH_S_MAX)
            self._task.cancel()
            await asyncio.wait([self._task])
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()

    async def revoked(self) -> None:
        """Tell all that waits before another reader may have the partitions."""
        self._generation += 1
        try:
            async with asyncio.timeout(FLUSH_S_MAX), self._turn:
                self._outbox += self._intake.rest()
                await self._send()
                await self._commit()
                self._intake.start_over()
                self._begin_anew()
        except TimeoutError:
            # Not committed: whoever reads next tells it.
            _log.warning("otlp_not_flushed", messages=len(self._outbox))

    def _begin_anew(self) -> None:
        self._recalled.clear()
        self._committed.clear()
        self._known = self._generation

    async def _run(self) -> None:
        try:
            consumer = self._consumer = await self._started()
            while not self._stopping.is_set():
                await self._round(consumer)
            await self.revoked()
        except Exception as error:  # noqa: BLE001
            # Spans that nobody reads would be runs that nobody watches: stop the worker.
            _log.exception("otlp_source_failed")
            await self._failed(error)

    async def _started(self) -> AIOKafkaConsumer:
        settings = self._settings
        consumer = AIOKafkaConsumer(
            **client_arguments(settings),
            group_id=f"{settings.group}-otlp",
            group_instance_id=settings.instance,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=10_000,
            heartbeat_interval_ms=1_000,
            fetch_max_wait_ms=50,
            max_partition_fetch_bytes=8 * 1_048_576,
        )
        try:
            await consumer.start()
        except (KafkaError, OSError) as error:
            await consumer.stop()
            raise unreachable(settings, error, await problem_of(settings)) from error
        # A collector may make its topic with its first spans; to ask for it would make it here.
        while self._topic not in await consumer.topics() and not self._stopping.is_set():
            _log.warning("otlp_topic_missing", topic=self._topic)
            await asyncio.sleep(MISSING_S)
        consumer.subscribe([self._topic], listener=_Listener(self))
        return consumer

    async def _round(self, consumer: AIOKafkaConsumer) -> None:
        found = await self._fetched(consumer)
        generation = self._generation
        async with self._turn:
            if self._known != self._generation:
                # The partitions were given out anew before all was told. What is held or was not
                # sent came from messages that were not committed: they are read again.
                self._intake = Intake(self._settings, self._topics, self._count)
                self._outbox.clear()
                self._begin_anew()
            # What was given out anew while we waited is fetched again, by whoever has it now.
            if generation == self._generation and await self._recalls(consumer, found):
                for messages in found.values():
                    for message in messages:
                        self._outbox += await self._taken(message)
            self._outbox += self._intake.due(time.monotonic())
            await self._send()
            if time.monotonic() >= self._commit_at_s:
                await self._commit()

    async def _fetched(
        self, consumer: AIOKafkaConsumer
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        try:
            found: dict[TopicPartition, list[ConsumerRecord]] = await consumer.getmany(
                timeout_ms=POLL_MS, max_records=MESSAGES_MAX
            )
        except KafkaError as error:
            _log.warning("otlp_not_fetched", error=str(error))
            await asyncio.sleep(PAUSE_S)
            return {}
        return found

    async def _taken(self, message: ConsumerRecord) -> list[Message]:
        record = record_of(message)
        if len(record.value) < OFFLOAD_BYTES:
            return self._intake.take(record, time.monotonic())
        return await asyncio.to_thread(self._intake.take, record, time.monotonic())

    async def _send(self) -> None:
        if self._outbox:
            await self._emitter.emit(self._outbox)
            self._outbox.clear()

    async def _commit(self) -> None:
        """Commit what is done; only ever called when nothing is left to be sent."""
        self._commit_at_s = time.monotonic() + COMMIT_S
        done = {
            partition: offset
            for partition, offset in self._intake.done().items()
            if offset > self._committed.get(partition, -1)
        }
        if not done or self._consumer is None:
            return
        try:
            await self._consumer.commit(
                {TopicPartition(self._topic, partition): done[partition] for partition in done}
            )
        except KafkaError as error:
            # Another reader has the partition, or the broker is away: it is read again.
            _log.warning("otlp_not_committed", error=str(error))
        else:
            self._committed.update(done)

    async def _recalls(
        self, consumer: AIOKafkaConsumer, found: dict[TopicPartition, list[ConsumerRecord]]
    ) -> bool:
        """Recall, or see to it that the messages are fetched again; tell whether it was done."""
        try:
            await self._recall(consumer, found)
        except (KafkaError, BrokerUnavailable) as error:
            _log.warning("otlp_not_recalled", error=str(error))
            for tp in consumer.assignment() & found.keys():
                consumer.seek(tp, found[tp][0].offset)
            await asyncio.sleep(PAUSE_S)
            return False
        return True

    async def _recall(
        self, consumer: AIOKafkaConsumer, found: dict[TopicPartition, list[ConsumerRecord]]
    ) -> None:
        """Find what an earlier process made of the messages that were not committed.

        That can only stand behind the time of the first of them. Every partition is looked at once,
        when its first message comes; where nothing was ever committed, nothing was ever told.
        """
        fresh = [tp for tp in found if tp.partition not in self._recalled]
        if not fresh:
            return
        first = {tp: found[tp][0] for tp in fresh}
        new = [tp for tp in fresh if await consumer.committed(tp) is None]
        if new:
            await consumer.commit({tp: first[tp].offset for tp in new})
        old = [first[tp].timestamp for tp in fresh if tp not in new]
        if old:
            await self._recall_from(min(old) - SKEW_MS)
        self._recalled.update(tp.partition for tp in fresh)

    async def _recall_from(self, from_ms: int) -> None:
        count = 0
        async with opened(self._settings, self._topics.events.name) as history:
            async for messages in history.read(await history.spans(Where(from_ms=from_ms))):
                for message in messages:
                    count += self._intake.recall(message.key, message.headers or ())
        _log.info("otlp_recalled", events=count)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Hands a rebalance on."""

    def __init__(self, source: OtlpSource) -> None:
        self._source = source

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Tell what waits."""
        await self._source.revoked()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Say so; reading goes on from what is committed."""
        _log.info("otlp_partitions_assigned", partitions=sorted(tp.partition for tp in assigned))
