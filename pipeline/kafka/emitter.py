"""Emitter: puts outputs on their topics, in order, and waits until they are acknowledged."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
)

from ontrack.pipeline.folding.quarantine import KEY_BYTES_MAX
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.kafka.connection import start_producer
from ontrack.pipeline.kafka.log import MORE_HEADER, SOURCE_HEADER, Told
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.catalog import Catalogue
from ontrack.topics.errors import BrokerUnavailable
from ontrack.topics.events import Notice, RunEnded
from ontrack.topics.verdicts import (
    DeadLetter,
    Decision,
    Intervention,
    Output,
    Scorecard,
    Verdict,
)

_log = structlog.get_logger(__name__)


_HOPELESS = (
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
    ClusterAuthorizationFailedError,
)


@dataclass(frozen=True, slots=True)
class Message:
    """One message ready to send; without a partition the key decides, as for any producer."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


def topic_of(topics: Catalogue, output: Output) -> str:
    """Return the name of the topic that carries an output."""
    by_type = {
        Verdict: topics.verdicts,
        Intervention: topics.interventions,
        Decision: topics.decisions,
        Scorecard: topics.scorecards,
        DeadLetter: topics.dead_letters,
    }
    return by_type[type(output)].name


class Sent(NamedTuple):
    """An output as a message; ``told`` is what its topic has been told with it."""

    message: Message
    output: Output
    told: Told


def messages_of(topics: Catalogue, source: Record, outputs: Sequence[Output]) -> list[Sent]:
    """Address what one record gave: the partition of the record, headers that say where from.

    Times of processing travel here, never in the body. Of several messages to one topic all but
    the last are numbered: a successor that finds one of these says the rest.
    """
    names = [topic_of(topics, output) for output in outputs]
    sent = []
    for place, (output, name) in enumerate(zip(outputs, names, strict=True)):
        more = name in names[place + 1 :]
        number = names[:place].count(name) if more else sys.maxsize
        own = source.key if source.key is None else source.key[:KEY_BYTES_MAX]
        key = own if isinstance(output, DeadLetter) else output.run_id.encode()
        headers = codecs.event_headers(
            event_id=output.id,
            source="ontrack",
            event_type=codecs.event_type(output),
            time=datetime.now(UTC),
            subject=None if isinstance(output, DeadLetter) else output.run_id,
        )
        where = f"{source.topic}:{source.partition}:{source.offset}".encode()
        headers.append((SOURCE_HEADER, where))
        if more:
            headers.append((MORE_HEADER, str(number).encode()))
        message = Message(name, source.partition, key, codecs.encode(output), headers)
        sent.append(Sent(message, output, Told(source.offset, number)))
    return sent


def snapshot_message(
    topics: Catalogue, source: str, partition: int, key: bytes, value: bytes | None, offset: int
) -> Message:
    """Address an entry of a checkpoint; its header says up to which event it knows."""
    place = f"{source}:{partition}:{offset}".encode()
    return Message(topics.snapshots.name, partition, key, value, [(SOURCE_HEADER, place)])


def event_message(
    topics: Catalogue, event: RunEnded | Notice, event_id: str, partition: int | None = None
) -> Message:
    """Address an event of ours to the events topic, as the run's own producer would."""
    headers = codecs.event_headers(
        event_id=event_id,
        source="ontrack",
        event_type=codecs.event_type(event),
        time=datetime.now(UTC),
        subject=event.run_id,
    )
    return Message(
        topics.events.name, partition, event.run_id.encode(), codecs.encode(event), headers
    )


class Emitter:
    """An idempotent producer that is replaced when it fails.

    What was sent but not acknowledged is sent again, in order: consumers may see it twice, with
    the same id and bytes, and never miss it.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer: AIOKafkaProducer | None = None
        self._replacing = asyncio.Lock()
        self.retries = 0

    async def stop(self) -> None:
        """Flush and close."""
        async with self._replacing:
            if self._producer is not None:
                await self._producer.stop()
                self._producer = None

    async def emit(self, messages: Sequence[Message]) -> None:
        """Send messages and return when all are acknowledged by the broker.

        Messages of one topic partition keep their order. While the broker is away this waits and
        tries again; it ends only by success or cancellation.
        """
        left, pause_s = list(messages), 0.1
        while left:
            producer: AIOKafkaProducer | None = None
            try:
                producer = await self._started()
                futures = [
                    await producer.send(
                        message.topic,
                        message.value,
                        key=message.key,
                        partition=message.partition,
                        headers=message.headers,
                    )
                    for message in left
                ]
                await asyncio.gather(*futures)
                return
            except _HOPELESS as error:
                # Trying again cannot help: stop the worker, with the reason in its log.
                raise BrokerUnavailable(
                    f"Kafka refuses an output for good ({type(error).__name__}: {error}); check "
                    "max.message.bytes and the rights of this user on the output topics"
                ) from error
            except (KafkaError, BrokerUnavailable) as error:
                # Which of them arrived is not known for sure: all go again.
                self.retries += 1
                _log.warning("outputs_not_acknowledged", error=str(error), messages=len(left))
                if producer is not None:
                    await self._replace(producer)
                await asyncio.sleep(pause_s)
                pause_s = min(5.0, pause_s * 2)

    async def _started(self) -> AIOKafkaProducer:
        async with self._replacing:
            producer = self._producer or await start_producer(self._settings, linger_ms=0)
            self._producer = producer
            return producer

    async def _replace(self, failed: AIOKafkaProducer) -> None:
        async with self._replacing:
            is_current = self._producer is failed
            if is_current:
                self._producer = None
                try:
                    await failed.stop()
                except KafkaError as error:
                    _log.info("producer_closed_badly", error=str(error))
