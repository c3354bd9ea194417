"""A bare aiokafka loop, as a process of its own: what Kafka costs without a monitor.

It consumes a topic, answers every message with as many bytes as it is told, waits until a batch is
acknowledged and commits. Where the topic is short it is read several times over.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from ontrack.pipeline.kafka.connection import client_arguments, start_producer
from ontrack.pipeline.settings import Settings, load_settings

WARM_UP_SHARE = 0.1
SECONDS_MIN = 3.0


async def run(settings: Settings, source: str, target: str, answer_bytes: int) -> float:
    """Return messages per second, after a tenth of the topic as warm-up."""
    consumer = AIOKafkaConsumer(
        **client_arguments(settings),
        group_id=f"{target}-group",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=8 * 1_048_576,
    )
    await consumer.start()
    producer = await start_producer(settings)
    try:
        parts = [TopicPartition(source, number) for number in range(settings.partitions)]
        consumer.assign(parts)
        total = sum((await consumer.end_offsets(parts)).values())
        answer, done, began, counted = b"v" * answer_bytes, 0, time.perf_counter(), 0
        while True:
            await consumer.seek_to_beginning(*parts)
            seen = 0
            while seen < total:
                count = await _turn(consumer, producer, target, answer)
                seen, done, counted = seen + count, done + count, counted + count
                if done - count < total * WARM_UP_SHARE <= done:
                    began, counted = time.perf_counter(), 0
            seconds = time.perf_counter() - began
            if seconds >= SECONDS_MIN:
                return counted / seconds
    finally:
        await producer.stop()
        await consumer.stop()


async def _turn(
    consumer: AIOKafkaConsumer, producer: AIOKafkaProducer, target: str, answer: bytes
) -> int:
    """Answer what is there; return how many messages that were."""
    acknowledged = []
    for messages in (await consumer.getmany(timeout_ms=500, max_records=500)).values():
        for message in messages:
            acknowledged.append(
                await producer.send(target, answer, key=message.key, partition=message.partition)
            )
    if acknowledged:
        await asyncio.gather(*acknowledged)
        await consumer.commit()
    return len(acknowledged)


def main() -> None:
    """Print one JSON line; arguments: broker, source topic, target topic, bytes of an answer."""
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    broker, source, target, answer_bytes = sys.argv[1:]
    rate = asyncio.run(run(load_settings(broker=broker), source, target, int(answer_bytes)))
    sys.stdout.write(json.dumps({"events_per_s": rate}) + "\n")


if __name__ == "__main__":
    main()
