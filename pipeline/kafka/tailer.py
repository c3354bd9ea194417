"""Tail: follow the output topics without a consumer group."""

from __future__ import annotations

import heapq
import time
from collections.abc import AsyncIterator

from aiokafka import AIOKafkaConsumer, TopicPartition

from ontrack.pipeline.kafka.connection import start_consumer, topics_of
from ontrack.pipeline.kafka.log import LogReader
from ontrack.pipeline.kafka.merged import merged
from ontrack.pipeline.kafka.provision import counts_of
from ontrack.pipeline.settings import Settings


async def tail(
    settings: Settings, from_beginning: bool, until_idle_s: float | None, *, fleet: bool = False
) -> AsyncIterator[bytes | None]:
    """Yield the values of all output topics; None when it begins, and after each batch.

    With ``fleet`` those of the fleet's minutes, and of no other topic.

    Order holds inside one topic partition, so for the verdicts of one run. Between them it is the
    order of time in what stood there at the beginning, and that of arrival after that.
    """
    topics = topics_of(settings)
    said = (topics.verdicts, topics.interventions, topics.decisions, topics.scorecards)
    outputs = (topics.fleet,) if fleet else (*said, topics.dead_letters)
    counts = await counts_of(settings, *(spec.name for spec in outputs))
    partitions = [
        TopicPartition(spec.name, number) for spec in outputs for number in range(counts[spec.name])
    ]
    consumer = await start_consumer(settings)
    try:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        for tp, end in ends.items():
            consumer.seek(tp, end)
        yield None  # from here on nothing is missed
        if from_beginning:
            async for values in _history(settings, consumer, ends):
                for value in values:
                    yield value
                yield None
        last_news = time.monotonic()
        while until_idle_s is None or time.monotonic() - last_news < until_idle_s:
            batches = await consumer.getmany(timeout_ms=200)
            for message in heapq.merge(*batches.values(), key=lambda one: one.timestamp):
                if message.value is not None:
                    yield message.value
            if batches:
                last_news = time.monotonic()
                yield None
    finally:
        await consumer.stop()


async def _history(
    settings: Settings, consumer: AIOKafkaConsumer, ends: dict[TopicPartition, int]
) -> AsyncIterator[list[bytes]]:
    """Yield the values of all that is kept below these ends, in batches, by time."""
    begins = await consumer.beginning_offsets(list(ends))
    reader = LogReader(settings)
    try:
        async for messages in merged(reader, {tp: (begins[tp], end) for tp, end in ends.items()}):
            yield [message.value for message in messages if message.value is not None]
    finally:
        await reader.stop()
