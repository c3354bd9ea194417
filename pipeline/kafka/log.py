"""The log: read ranges of a topic without a consumer group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, KafkaTimeoutError

from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.kafka.connection import start_consumer
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import BrokerUnavailable

_log = structlog.get_logger(__name__)
Answer = TypeVar("Answer")

READ_RECORDS_MAX = 8000
READ_BYTES_MAX = 16 * 1_048_576
"""Of the values of one batch: sixteen fetches could be 128 MiB, of each recovering partition."""


async def patiently(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Ask the broker until it answers: while it is away, a worker waits and does not end."""
    pause_s = 0.1
    while True:
        try:
            return await ask()
        except (KafkaError, BrokerUnavailable) as error:
            if not _may_come_back(error):
                raise
            _log.warning("broker_does_not_answer", error=type(error).__name__)
            await asyncio.sleep(pause_s)
            pause_s = min(5.0, pause_s * 2)


def _may_come_back(error: Exception) -> bool:
    """Tell whether the broker is away, not one that refuses; also where a connection begins."""
    cause = error.__cause__ if isinstance(error, BrokerUnavailable) else error
    if isinstance(cause, KafkaError):
        return bool(cause.retriable) or isinstance(cause, KafkaTimeoutError)
    return isinstance(cause, ConnectionError)


class LogReader:
    """Reads any range of any partition; one range at a time, by turns.

    Faust is never trusted to have delivered everything: what it skipped is read from here.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._consumer: AIOKafkaConsumer | None = None
        self._turn = asyncio.Lock()

    async def stop(self) -> None:
        """Close the connection."""
        async with self._turn:
            if self._consumer is not None:
                await self._consumer.stop()
                self._consumer = None

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset kept and the offset after the last one."""
        tp = TopicPartition(topic, partition)
        async with self._turn:
            consumer = await patiently(self._started)
            first = await patiently(lambda: consumer.beginning_offsets([tp]))
            last = await patiently(lambda: consumer.end_offsets([tp]))
        return int(first[tp]), int(last[tp])

    async def read(
        self, topic: str, partition: int, start: int, stop: int
    ) -> AsyncGenerator[list[ConsumerRecord], None]:
        """Yield what stands in [start, stop), in batches, in order.

        Offsets without a message (transaction markers, expired segments) are passed over. A log
        that ends below ``stop`` by now (cut, or made anew) is read to its end.
        """
        tp = TopicPartition(topic, partition)
        position = start
        while position < stop:
            async with self._turn:
                consumer = await patiently(self._started)
                consumer.assign([tp])
                first = (await patiently(partial(consumer.beginning_offsets, [tp])))[tp]
                consumer.seek(tp, max(position, first))
                batch: list[ConsumerRecord] = []
                size = 0
                # A few batches before somebody else's turn: re-assigning throws the prefetch away.
                for _ in range(16):
                    fetched = await consumer.getmany(tp, timeout_ms=1000, max_records=2000)
                    messages = fetched.get(tp, ())
                    batch.extend(messages)
                    size += sum(len(message.value or b"") for message in messages)
                    position = await consumer.position(tp)
                    if position >= stop or len(batch) >= READ_RECORDS_MAX or size >= READ_BYTES_MAX:
                        break
                if not batch and position < stop:
                    last = (await patiently(partial(consumer.end_offsets, [tp])))[tp]
                    if last <= position:
                        _log.warning(
                            "log_shorter_than_before",
                            topic=topic,
                            partition=partition,
                            log_end=last,
                            expected=stop,
                        )
                        return
            # A log that was made anew is read from its beginning, whatever was asked for.
            kept = [message for message in batch if start <= message.offset < stop]
            if kept:
                yield kept

    async def tail(self, topic: str, partition: int, count: int) -> list[ConsumerRecord]:
        """Return about the last ``count`` messages of a partition."""
        first, last = await self.bounds(topic, partition)
        found: list[ConsumerRecord] = []
        async for batch in self.read(topic, partition, max(first, last - count), last):
            found.extend(batch)
        return found

    async def _started(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            self._consumer = await start_consumer(self._settings)
        return self._consumer


def ends_seen(consumer: Any, topic: str) -> dict[int, int]:
    """Return the log's end of each assigned partition of a topic, as the last fetch told it."""
    places = [place for place in consumer.assignment() if place.topic == topic]
    ends = {place.partition: consumer.highwater(place) for place in places}
    return {number: end for number, end in ends.items() if end is not None}


def record_of(message: ConsumerRecord) -> Record:
    """Return a consumed message as a record of the fold."""
    return Record(
        value=message.value or b"",
        key=message.key,
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        timestamp_ms=message.timestamp,
        headers=tuple(message.headers or ()),
    )
