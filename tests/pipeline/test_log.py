"""The log reader: a broker that is away is waited for, one that refuses is not."""

from __future__ import annotations

from types import SimpleNamespace
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


class FakeLog(FakeConsumer):
    """A log of messages of so many bytes, of which a fetch brings two."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.count, self.size, self.at = count, size, 0

    def assign(self, _partitions: list[Any]) -> None: ...

    def seek(self, _place: Any, offset: int) -> None:
        self.at = offset

    async def beginning_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, self.count)

    async def getmany(self, place: Any, **_more: Any) -> dict[Any, list[Any]]:
        numbers = range(self.at, min(self.count, self.at + 2))
        self.at = numbers.stop
        return {place: [SimpleNamespace(offset=n, value=bytes(self.size)) for n in numbers]}

    async def position(self, _place: Any) -> int:
        return self.at


@pytest.mark.parametrize(("size", "batches"), [(10, [12]), (100, [4, 4, 4])])
async def test_a_batch_is_bounded_in_bytes(
    size: int, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "READ_BYTES_MAX", 400)
    reader = reader_of(FakeLog(12, size))
    found = [batch async for batch in reader.read("events", 0, 0, 12)]
    assert [len(batch) for batch in found] == batches
    assert [message.offset for batch in found for message in batch] == list(range(12))


async def test_a_log_that_is_cut_while_it_is_read_is_read_to_its_new_end() -> None:
    reader = reader_of(FakeLog(5, 10))
    found = [batch async for batch in reader.read("events", 0, 2, 12)]
    assert [message.offset for batch in found for message in batch] == [2, 3, 4]


class Renewed(FakeLog):
    """A log that was made anew: an offset beyond its end is set back to its beginning."""

    def seek(self, _place: Any, offset: int) -> None:
        self.at = offset if offset <= self.count else 0


async def test_a_log_that_was_made_anew_gives_nothing_from_below_the_start() -> None:
    reader = reader_of(Renewed(5, 10))
    assert [batch async for batch in reader.read("events", 0, 8, 12)] == []
