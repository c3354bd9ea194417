"""Switches: parts of the fleet into shadow mode and back, on a compacted topic."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from ontrack.pipeline.kafka.connection import (
    start_consumer,
    start_producer,
    topics_of,
    unreachable,
)
from ontrack.pipeline.kafka.messages import switch_message
from ontrack.pipeline.kafka.provision import counts_of
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidInput
from ontrack.topics.knowledge import Switch


@dataclass(frozen=True, slots=True)
class Thrown:
    """A switch as it stands.

    Parameters
    ----------
    switch
        None: it stands there and cannot be read; workers pass over it.
    since
        When it was thrown, by the broker's clock.
    """

    key: str
    switch: Switch | None
    since: datetime


async def throw(settings: Settings, key: str, switch: Switch | None) -> None:
    """Put a part of the fleet into shadow mode, or take it back (None).

    Raises
    ------
    BrokerUnavailable
        Kafka does not answer, or lacks the topic.
    """
    topics = topics_of(settings)
    # A producer would ask for it again and again, or have the broker make it with other settings.
    await counts_of(settings, topics.switches.name)
    message = switch_message(topics, key, switch)
    producer = await start_producer(settings)
    try:
        await producer.send_and_wait(
            message.topic, message.value, key=message.key, headers=message.headers
        )
    except KafkaError as error:
        raise unreachable(settings, error) from error
    finally:
        await producer.stop()


async def thrown(settings: Settings) -> list[Thrown]:
    """Return the switches that are on, by key.

    Raises
    ------
    BrokerUnavailable
        Kafka does not answer, or lacks the topic.
    """
    topic = topics_of(settings).switches.name
    count = (await counts_of(settings, topic))[topic]
    partitions = [TopicPartition(topic, number) for number in range(count)]
    found: dict[str, Thrown] = {}
    consumer = await start_consumer(settings)
    try:
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
            for messages in (await consumer.getmany(timeout_ms=1000)).values():
                for message in messages:
                    key = (message.key or b"").decode("utf-8", "replace")
                    found.pop(key, None)
                    if message.value:
                        since = datetime.fromtimestamp(message.timestamp / 1000, UTC)
                        found[key] = Thrown(key, _read(message.value), since)
    finally:
        await consumer.stop()
    return [found[key] for key in sorted(found)]


def _read(value: bytes) -> Switch | None:
    try:
        return codecs.decode_switch(value)
    except InvalidInput:
        return None
