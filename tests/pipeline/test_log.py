"""The log reader: a broker that is away is waited for, one that refuses is not."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaTimeoutError,
    NodeNotReadyError,
    TopicAuthorizationFailedError,
)

from ontrack.pipeline.kafka import log
from ontrack.pipeline.kafka.log import LogReader
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import BrokerUnavailable


class FakeConsumer:
    """Says where a log ends, after it has failed a few times."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    async def beginning_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        if self.failures:
            raise self.failures.pop(0)
        return dict.fromkeys(partitions, 3)

    async def end_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        if self.failures:
            raise self.failures.pop(0)
        return dict.fromkeys(partitions, 7)


def reader_of(consumer: FakeConsumer) -> LogReader:
    reader: Any = LogReader(Settings(encoder="hashing"))
    reader._consumer = consumer
    return reader  # type: ignore[no-any-return]


@pytest.mark.parametrize("error", [KafkaTimeoutError, KafkaConnectionError, NodeNotReadyError])
async def test_a_broker_that_does_not_answer_is_asked_again(error: type[Exception]) -> None:
    reader = reader_of(FakeConsumer(error(), error()))
    assert await reader.bounds("events", 0) == (3, 7)


async def test_what_the_broker_refuses_for_good_is_said_at_once() -> None:
    reader = reader_of(FakeConsumer(TopicAuthorizationFailedError()))
    with pytest.raises(TopicAuthorizationFailedError):
        await reader.bounds("events", 0)


def failing(cause: Exception) -> BrokerUnavailable:
    error = BrokerUnavailable("away")
    error.__cause__ = cause
    return error


async def test_a_connection_that_cannot_be_made_while_the_broker_is_away_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = [failing(KafkaConnectionError()), failing(ConnectionRefusedError())]

    async def start(_settings: Settings) -> Any:
        if left:
            raise left.pop(0)
        return FakeConsumer()

    monkeypatch.setattr(log, "start_consumer", start)
    assert await LogReader(Settings(encoder="hashing")).bounds("e", 0) == (3, 7)


async def test_a_connection_that_is_refused_for_good_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def start(_settings: Settings) -> Any:
        raise failing(TopicAuthorizationFailedError())

    monkeypatch.setattr(log, "start_consumer", start)
    with pytest.raises(BrokerUnavailable):
        await LogReader(Settings(encoder="hashing")).bounds("e", 0)
