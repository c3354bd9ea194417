"""Emitter: puts messages on their topics, in order, and waits until they are acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
)

from ontrack.pipeline.kafka.connection import start_producer
from ontrack.pipeline.kafka.messages import Message
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import BrokerUnavailable

_log = structlog.get_logger(__name__)

_HOPELESS = (
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
    ClusterAuthorizationFailedError,
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
