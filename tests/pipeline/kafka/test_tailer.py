"""The tail: what is kept comes by its time, and nothing is missed or said twice on the way."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import TopicPartition

from ontrack.pipeline.kafka import tailer
from ontrack.pipeline.settings import Settings
from tests.pipeline.kafka.test_owner import FakeKafka, Stored


class Consumer:
    """Knows the log's ends, and gives what is appended after them."""

    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka = kafka
        self.places: dict[TopicPartition, int] = {}

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.places = dict.fromkeys(partitions, 0)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.places[tp] = offset

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.kafka.ends.get(tp.topic, 0) for tp in partitions}

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    async def getmany(self, **_: Any) -> dict[TopicPartition, list[Stored]]:
        found = {
            tp: [m for m in self.kafka.topics.get(tp.topic, []) if m.offset >= place]
            for tp, place in self.places.items()
        }
        self.places |= {tp: new[-1].offset + 1 for tp, new in found.items() if new}
        return {tp: new for tp, new in found.items() if new}

    async def stop(self) -> None:
        """Nothing to close."""


class Log(FakeKafka):
    async def stop(self) -> None:
        """Nothing to close."""


def say(kafka: FakeKafka, topic: str, at_ms: int, text: str) -> None:
    kafka.now_ms = at_ms
    kafka.append(f"ontrack.{topic}", None, text.encode())


@pytest.mark.parametrize("from_beginning", [True, False])
async def test_what_is_kept_comes_by_its_time_and_then_what_is_new(
    monkeypatch: pytest.MonkeyPatch, from_beginning: bool
) -> None:
    kafka = Log()
    for at_ms in range(0, 12, 2):
        say(kafka, "verdicts", at_ms, f"v{at_ms}")
        say(kafka, "interventions", at_ms + 1, f"i{at_ms + 1}")

    async def counts(_settings: Settings, *names: str) -> dict[str, int]:
        return dict.fromkeys(names, 1)

    async def started(_settings: Settings) -> Consumer:
        return Consumer(kafka)

    monkeypatch.setattr(tailer, "counts_of", counts)
    monkeypatch.setattr(tailer, "start_consumer", started)
    monkeypatch.setattr(tailer, "LogReader", lambda _settings: kafka)
    told: list[bytes | None] = []
    async for value in tailer.tail(Settings(), from_beginning, 0.02):
        if not told:  # it has begun: what comes from here on is new
            say(kafka, "verdicts", 21, "v21")
            say(kafka, "interventions", 20, "i20")
        told.append(value)
    kept = [f"{'vi'[number % 2]}{number}" for number in range(12)] * from_beginning
    assert [value.decode() for value in told if value is not None] == [*kept, "i20", "v21"]
