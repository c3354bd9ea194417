"""Tail: follow the output topics without a consumer group."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from aiokafka import TopicPartition

from ontrack.pipeline.kafka.connection import start_consumer, topics_of
from ontrack.pipeline.kafka.provision import counts_of
from ontrack.pipeline.settings import Settings


async def tail(
    settings: Settings, from_beginning: bool, until_idle_s: float | None, *, fleet: bool = False
) -> AsyncIterator[bytes | None]:
    """Yield the values of all output topics; None when it begins, and after each batch.

    With ``fleet`` those of the fleet's minutes, and of no other topic.

    Order holds inside one topic partition, so for the verdicts of one run; between topics it is
    the order of arrival.
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
        if from_beginning:
            await consumer.seek_to_beginning(*partitions)
        else:
            await consumer.seek_to_end(*partitions)
        yield None  # from here on nothing is missed
        last_news = time.monotonic()
        while until_idle_s is None or time.monotonic() - last_news < until_idle_s:
            batches = await consumer.getmany(timeout_ms=200)
            for messages in batches.values():
                for message in messages:
                    if message.value is not None:
                        yield message.value
            if batches:
                last_news = time.monotonic()
                yield None
    finally:
        await consumer.stop()
