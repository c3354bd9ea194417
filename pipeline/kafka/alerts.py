"""Alerts from Kafka: reads interventions and blocked calls, and commits what people were told.

An offset is committed once everything below it was delivered or became a dead letter. What waits
(for the end of a window or of the quiet) is read again after a restart, and the state is rebuilt
from the message that opened the oldest window: its offset is the commit's metadata.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Iterable, Mapping

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from ontrack.pipeline.alerting.alert import expected
from ontrack.pipeline.alerting.teller import Teller
from ontrack.pipeline.kafka.alert_letters import DeadLetters
from ontrack.pipeline.kafka.connection import (
    client_arguments,
    problem_of,
    start_admin,
    start_consumer,
    topics_of,
    unreachable,
)
from ontrack.pipeline.kafka.letters import REPLAYED_HEADER
from ontrack.pipeline.kafka.log import patiently, record_of
from ontrack.pipeline.kafka.provision import counts_of
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidEvent

_log = structlog.get_logger(__name__)

_POLL_MS = 500
_BATCH_MAX = 500
_COMMIT_S = 1.0
# A slow sink may hold up reading for long; the group's session ends only with the process.
_POLL_INTERVAL_MS_MAX = 86_400_000


class AlertReader:
    """Reads the topics, as a member of the group ``{group}-alerts`` or, for a trial, of none.

    Parameters
    ----------
    teller
        Where messages go.
    letters
        Takes what cannot be read; None: it is only logged, and no offset is committed (a trial).
    from_beginning
        Where to begin without committed offsets: with all that is kept, or with what comes.
    """

    def __init__(
        self,
        settings: Settings,
        teller: Teller,
        letters: DeadLetters | None,
        from_beginning: bool = False,
    ) -> None:
        self._settings = settings
        self._teller = teller
        self._letters = letters
        self._from_beginning = from_beginning
        topics = topics_of(settings)
        self._topics = (topics.interventions.name, topics.decisions.name)
        self._group = f"{settings.group}-alerts"
        self._changed = True
        self._consumer: AIOKafkaConsumer | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._floors: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}

    async def start(self) -> None:
        """Check the topics and join the group.

        Raises
        ------
        BrokerUnavailable
            Kafka does not answer, or lacks a topic.
        """
        letters = topics_of(self._settings).dead_letters.name
        counts = await counts_of(self._settings, *self._topics, letters)
        if self._letters is None:
            self._consumer = await start_consumer(self._settings)
            self._consumer.assign(
                [TopicPartition(t, number) for t in self._topics for number in range(counts[t])]
            )
            return
        self._consumer = await self._joined()

    async def read(self, stop: asyncio.Event) -> None:
        """Read until told to stop. A broker that is away is waited for."""
        assert self._consumer is not None, "start() comes first"
        last_commit_s = time.monotonic()
        while not stop.is_set():
            if self._changed:
                await self._start_over()
            batches = await self._fetched()
            for message in _by_time(batches):
                if self._changed or stop.is_set():
                    break
                await self._take(message)
            if not self._changed and (not batches or self._has_read_all()):
                # From here on the clock counts, and not the times of messages.
                await self._teller.tick()
            if time.monotonic() - last_commit_s >= _COMMIT_S:
                await self.commit()
                last_commit_s = time.monotonic()

    async def stop(self) -> None:
        """Commit what was told, and leave the group."""
        if self._consumer is not None:
            await self.commit()
            try:
                await self._consumer.stop()
            except KafkaError as error:
                _log.info("consumer_closed_badly", error=type(error).__name__)

    async def commit(self) -> None:
        """Commit up to the first message that is not told; where that fails, later."""
        if self._consumer is None or self._letters is None or self._changed:
            return
        offsets = {}
        for tp, position in self._positions.items():
            place = (tp.topic, tp.partition)
            untold = self._teller.untold_from(place, position)
            rebuilt = self._teller.rebuilt_from(place, untold, position)
            offsets[tp] = OffsetAndMetadata(untold, str(rebuilt))
        fresh = {tp: found for tp, found in offsets.items() if self._committed.get(tp) != found}
        if not fresh:
            return
        try:
            await self._consumer.commit(fresh)
        except (KafkaError, ValueError) as error:  # ValueError: no partition of ours any more
            _log.warning("offsets_not_committed", error=type(error).__name__)
        else:
            self._committed |= fresh

    async def _joined(self) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            **client_arguments(self._settings),
            group_id=self._group,
            group_instance_id=self._settings.instance,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=10_000,
            heartbeat_interval_ms=3_000,
            max_poll_interval_ms=_POLL_INTERVAL_MS_MAX,
            fetch_max_wait_ms=_POLL_MS,
        )
        try:
            await consumer.start()
        except (KafkaError, OSError) as error:
            await consumer.stop()
            raise unreachable(self._settings, error, await problem_of(self._settings)) from error
        consumer.subscribe(self._topics, listener=_Listener(self))
        return consumer

    async def _fetched(self) -> Mapping[TopicPartition, list[ConsumerRecord]]:
        assert self._consumer is not None
        try:
            found: Mapping[TopicPartition, list[ConsumerRecord]] = await self._consumer.getmany(
                timeout_ms=_POLL_MS, max_records=_BATCH_MAX
            )
        except KafkaError as error:
            if not error.retriable:  # such as no right to read
                raise unreachable(self._settings, error) from error
            _log.warning("broker_does_not_answer", error=type(error).__name__)
            await asyncio.sleep(_POLL_MS / 1000)
            return {}
        # Taken before the partitions were given out anew: they are read again from their places.
        return {} if self._changed else found

    def _has_read_all(self) -> bool:
        """Tell whether nothing more stands in our partitions, as of their last answers."""
        assert self._consumer is not None
        ends = {tp: self._consumer.highwater(tp) for tp in self._positions}
        return all(end is not None and self._positions[tp] >= end for tp, end in ends.items())

    async def _take(self, message: ConsumerRecord) -> None:
        """Hand over one message. If that is cut short, the message is read again."""
        tp = TopicPartition(message.topic, message.partition)
        await self._handed_over(message, tp)
        self._positions[tp] = message.offset + 1

    async def _handed_over(self, message: ConsumerRecord, tp: TopicPartition) -> None:
        record = record_of(message)
        try:
            output = codecs.decode_output(record.value)
            expected(output, record.topic)
            again = any(name == REPLAYED_HEADER for name, _ in record.headers)
            await self._teller.take(output, record, again)
        except InvalidEvent as error:
            await self._teller.pass_over(record)
            if message.offset < self._floors.get(tp, 0):
                return  # quarantined before
            where = f"{record.topic}:{record.partition}:{record.offset}"
            _log.warning("alert_unreadable", place=where, error=type(error).__name__)
            if self._letters is not None:
                await self._letters.quarantine(record, error)

    async def _start_over(self) -> None:
        """Find the places to read from, for the partitions that are ours now."""
        assert self._consumer is not None
        self._changed = False
        ours = sorted(self._consumer.assignment())
        stored = {} if self._letters is None else await patiently(self._stored)
        first = await patiently(lambda: self._offsets(ours, end=False))
        last = await patiently(lambda: self._offsets(ours, end=True))
        known = {tp.topic for tp in stored}
        positions = {}
        for tp in ours:
            found = stored.get(tp)
            if found is not None and found.offset > last[tp]:
                _log.warning("topic_made_anew", topic=tp.topic, partition=tp.partition)
                found = OffsetAndMetadata(first[tp], "")
            begins = first[tp] if self._from_beginning or tp.topic in known else last[tp]
            self._floors[tp] = begins if found is None else found.offset
            positions[tp] = begins if found is None else max(first[tp], _rebuilt_from(found))
        if self._changed or self._consumer.assignment() != set(ours):
            self._changed = True  # given out anew meanwhile
            return
        self._positions = positions
        self._committed = {}
        self._teller.start_over({(tp.topic, tp.partition): self._floors[tp] for tp in ours})
        for tp, position in positions.items():
            self._consumer.seek(tp, position)
        # A first start that ends before its first commit must not skip what came meanwhile.
        await self.commit()

    async def _stored(self) -> dict[TopicPartition, OffsetAndMetadata]:
        admin = await start_admin(self._settings)
        try:
            found = await admin.list_consumer_group_offsets(self._group)
        finally:
            await admin.close()
        return {tp: stored for tp, stored in found.items() if stored.offset >= 0}

    async def _offsets(
        self, partitions: list[TopicPartition], end: bool
    ) -> dict[TopicPartition, int]:
        assert self._consumer is not None
        if not partitions:
            return {}
        ask = self._consumer.end_offsets if end else self._consumer.beginning_offsets
        found: dict[TopicPartition, int] = await ask(partitions)
        return found

    def reassigned(self) -> None:
        """Note that partitions were given out anew."""
        self._changed = True


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, reader: AlertReader) -> None:
        self._reader = reader

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._reader.reassigned()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._reader.reassigned()


def _rebuilt_from(stored: OffsetAndMetadata) -> int:
    """Return where to read from for the state as it was; metadata of others says nothing."""
    text, offset = str(stored.metadata or ""), int(stored.offset)
    return min(int(text[:18]), offset) if text.isascii() and text.isdigit() else offset


def _by_time(batches: Mapping[TopicPartition, list[ConsumerRecord]]) -> Iterable[ConsumerRecord]:
    """Merge partitions by time; inside of each, order stays."""
    return heapq.merge(*batches.values(), key=lambda message: message.timestamp)
