"""History: what stands on a topic now, from a point to its end.

No consumer group is joined and no offset committed: a live worker never notices.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from ontrack.pipeline.kafka.connection import start_consumer
from ontrack.pipeline.kafka.provision import counts_of
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import BrokerUnavailable, InvalidSettings

STALL_S_MAX = 60.0  # the broker gave nothing for so long although there is more


@dataclass(frozen=True, slots=True)
class Where:
    """From where to where to read; the default is everything that is kept.

    Parameters
    ----------
    offset
        First offset, in every partition.
    offsets
        First offset by partition; the others are not read.
    from_ms, until_ms
        What was appended from this time on and before that one, by the messages' own times, in
        milliseconds since 1970.
    """

    offset: int = 0
    offsets: Mapping[int, int] | None = None
    from_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets [start, stop) of one partition; ``kept`` is the first one the broker still has."""

    partition: int
    kept: int
    start: int
    stop: int


@dataclass(slots=True)
class _Cursor:
    tp: TopicPartition
    position: int
    stop: int
    ready: deque[ConsumerRecord] = field(default_factory=deque)


class History:
    """One topic as it stands now; see :func:`opened`.

    Attributes
    ----------
    partitions
        Their number.
    """

    def __init__(self, consumer: AIOKafkaConsumer, topic: str, partitions: int) -> None:
        self._consumer = consumer
        self.topic = topic
        self.partitions = partitions

    async def spans(self, where: Where) -> list[Span]:
        """Return what there is to read of each partition.

        Raises
        ------
        InvalidSettings
            ``where`` names a partition that the topic does not have.
        """
        unknown = [n for n in where.offsets or () if not 0 <= n < self.partitions]
        if unknown:
            raise InvalidSettings(
                f"{self.topic} has no partition {unknown[0]}; they are 0 to {self.partitions - 1}"
            )
        numbers = range(self.partitions) if where.offsets is None else sorted(where.offsets)
        tps = [TopicPartition(self.topic, number) for number in numbers]
        first = await self._consumer.beginning_offsets(tps)
        last = await self._consumer.end_offsets(tps)
        begin = await self._at(where.from_ms, tps, first, last)
        end = await self._at(where.until_ms, tps, last, last)
        spans = []
        for tp in tps:
            asked = where.offset if where.offsets is None else where.offsets[tp.partition]
            start = min(max(first[tp], begin[tp], asked), last[tp])
            spans.append(Span(tp.partition, first[tp], start, max(start, end[tp])))
        return spans

    async def _at(
        self,
        time_ms: int | None,
        tps: Sequence[TopicPartition],
        otherwise: Mapping[TopicPartition, int],
        last: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition whose message has that time or a later one."""
        if time_ms is None:
            return dict(otherwise)
        found = await self._consumer.offsets_for_times({tp: max(0, time_ms) for tp in tps})
        return {tp: last[tp] if found.get(tp) is None else found[tp].offset for tp in tps}

    async def read(self, spans: Iterable[Span]) -> AsyncIterator[list[ConsumerRecord]]:
        """Yield the messages of the spans, in batches; each partition's in its own order.

        Between partitions the times of the messages decide, so the same log always gives the same
        order.

        Raises
        ------
        BrokerUnavailable
            Nothing came for a minute although there is more.
        """
        cursors = {
            span.partition: _Cursor(
                TopicPartition(self.topic, span.partition), span.start, span.stop
            )
            for span in spans
            if span.start < span.stop
        }
        if not cursors:
            return
        self._consumer.assign([cursor.tp for cursor in cursors.values()])
        for cursor in cursors.values():
            self._consumer.seek(cursor.tp, cursor.position)
        heap: list[tuple[int, int]] = []
        empty: list[_Cursor] = list(cursors.values())
        while heap or empty:
            for cursor in empty:
                await self._fetch(cursor)
                if cursor.ready:
                    heapq.heappush(heap, (cursor.ready[0].timestamp, cursor.tp.partition))
            empty = []
            merged: list[ConsumerRecord] = []
            while heap and not empty:
                cursor = cursors[heap[0][1]]
                merged.append(cursor.ready.popleft())
                if cursor.ready:
                    heapq.heapreplace(heap, (cursor.ready[0].timestamp, cursor.tp.partition))
                else:
                    heapq.heappop(heap)
                    empty.append(cursor)
            if merged:
                yield merged

    async def _fetch(self, cursor: _Cursor) -> None:
        """Fill a cursor, unless its span has been read to its end."""
        last_news = time.monotonic()
        while not cursor.ready and cursor.position < cursor.stop:
            found = await self._consumer.getmany(cursor.tp, timeout_ms=1000)
            cursor.ready.extend(m for m in found.get(cursor.tp, ()) if m.offset < cursor.stop)
            position = await self._consumer.position(cursor.tp)
            if position > cursor.position:
                last_news = time.monotonic()
            elif time.monotonic() - last_news > STALL_S_MAX:
                raise BrokerUnavailable(
                    f"{self.topic} partition {cursor.tp.partition}: Kafka gave nothing for "
                    f"{STALL_S_MAX:.0f} s at offset {position}, although it ends at {cursor.stop}"
                )
            cursor.position = position


@asynccontextmanager
async def opened(settings: Settings, topic: str, *needed: str) -> AsyncIterator[History]:
    """Open a topic for reading.

    Parameters
    ----------
    needed
        Names of further topics that must exist.

    Raises
    ------
    BrokerUnavailable
        Kafka does not answer, or lacks a topic.
    """
    counts = await counts_of(settings, topic, *needed)
    consumer = await start_consumer(settings)
    try:
        yield History(consumer, topic, counts[topic])
    finally:
        await consumer.stop()
