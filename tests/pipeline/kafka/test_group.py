"""The worker's membership in its group: where it reads from, what it commits, how it hands over."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    UnknownError,
)

from ontrack.pipeline.kafka import closing
from ontrack.pipeline.kafka import group as module
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.group import Group, _Listener
from ontrack.pipeline.kafka.owner import Watermark
from ontrack.pipeline.settings import Settings

SETTINGS = Settings(encoder="hashing")
TOPICS = topics_of(SETTINGS)
EVENTS, ASKED = TOPICS.events.name, TOPICS.proposals.name


@dataclass
class FakeConsumer:
    assigned: set[TopicPartition] = field(default_factory=set)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    commit_fails: BaseException | None = None
    done: list[Any] = field(default_factory=list)

    def assignment(self) -> set[TopicPartition]:
        return self.assigned

    def highwater(self, place: TopicPartition) -> int | None:
        return self.ends.get(place)

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.done.append(("seek", place, offset))

    def resume(self, *places: TopicPartition) -> None:
        self.done.append(("resume", *places))

    def pause(self, *places: TopicPartition) -> None:
        self.done.append(("pause", *sorted(places)))

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        if self.commit_fails is not None:
            raise self.commit_fails
        self.done.append(("commit", dict(offsets)))

    async def stop(self) -> None:
        self.done.append("stopped")


@dataclass
class FakeOwner:
    partition: int
    watermark: Watermark
    asked: Watermark


@dataclass
class FakeWorker:
    places: dict[tuple[str, int], int] = field(default_factory=dict)
    done: list[Any] = field(default_factory=list)
    topics: Any = TOPICS
    breaks: bool = False

    def settled(self) -> dict[tuple[str, int], int]:
        return dict(self.places)

    def assign(self, numbers: list[int]) -> None:
        if self.breaks:
            raise RuntimeError("assign")
        self.done.append(("assign", numbers))

    async def suspend(self) -> None:
        if self.breaks:
            raise RuntimeError("suspend")
        self.done.append("suspend")

    async def failed(self, error: BaseException) -> None:
        self.done.append(("failed", str(error)))


def with_consumer(consumer: FakeConsumer) -> Group:
    group = Group(SETTINGS)
    group._consumer = consumer  # type: ignore[assignment]
    return group


def test_an_owner_that_has_recovered_is_read_from_its_watermarks_on() -> None:
    consumer = FakeConsumer({TopicPartition(EVENTS, 1), TopicPartition(ASKED, 1)})
    owner: Any = FakeOwner(1, Watermark(EVENTS, 70), Watermark(ASKED, 3))
    with_consumer(consumer).recovered(owner)
    assert consumer.done == [
        ("seek", TopicPartition(EVENTS, 1), 70),
        ("resume", TopicPartition(EVENTS, 1)),
        ("seek", TopicPartition(ASKED, 1), 3),
        ("resume", TopicPartition(ASKED, 1)),
    ]


def test_one_that_has_recovered_a_partition_that_is_gone_is_passed_over() -> None:
    consumer = FakeConsumer({TopicPartition(EVENTS, 0)})
    owner: Any = FakeOwner(1, Watermark(EVENTS, 70), Watermark(ASKED, 3))
    with_consumer(consumer).recovered(owner)
    Group(SETTINGS).recovered(owner)  # before there is a consumer
    assert consumer.done == []


def test_ends_are_those_of_the_events_that_a_fetch_has_told() -> None:
    places = [TopicPartition(EVENTS, 0), TopicPartition(EVENTS, 1), TopicPartition(ASKED, 0)]
    consumer = FakeConsumer(set(places), {places[0]: 7, places[2]: 9})
    assert with_consumer(consumer).ends() == {0: 7}
    assert Group(SETTINGS).ends() == {}


async def test_what_is_done_with_is_committed_once_and_only_where_it_is_ours() -> None:
    consumer = FakeConsumer({TopicPartition(EVENTS, 0), TopicPartition(ASKED, 0)})
    worker: Any = FakeWorker({(EVENTS, 0): 5, (ASKED, 0): 2, (EVENTS, 1): 8})
    group = with_consumer(consumer)
    await group.commit(worker)
    await group.commit(worker)
    worker.places[EVENTS, 0] = 6
    await group.commit(worker)
    assert consumer.done == [
        ("commit", {TopicPartition(EVENTS, 0): 5, TopicPartition(ASKED, 0): 2}),
        ("commit", {TopicPartition(EVENTS, 0): 6}),
    ]


@pytest.mark.parametrize("error", [CommitFailedError("gone"), UnknownError("odd")])
async def test_a_commit_that_fails_is_tried_again_with_the_next(error: BaseException) -> None:
    consumer = FakeConsumer({TopicPartition(EVENTS, 0)}, commit_fails=error)
    worker: Any = FakeWorker({(EVENTS, 0): 5})
    group = with_consumer(consumer)
    await group.commit(worker)
    consumer.commit_fails = None
    await group.commit(worker)
    assert consumer.done == [("commit", {TopicPartition(EVENTS, 0): 5})]


async def test_partitions_are_handed_over_and_not_read_before_they_have_recovered() -> None:
    consumer: Any = FakeConsumer()
    worker: Any = FakeWorker()
    listener = _Listener(consumer, worker)
    places = [TopicPartition(EVENTS, 1), TopicPartition(EVENTS, 0), TopicPartition(ASKED, 0)]
    await listener.on_partitions_assigned(places)
    await listener.on_partitions_revoked(places)
    assert consumer.done == [("pause", *sorted(places))]
    assert worker.done == [("assign", [0, 1]), "suspend"]


async def test_a_hand_over_that_fails_ends_the_worker() -> None:
    worker: Any = FakeWorker(breaks=True)
    listener = _Listener(FakeConsumer(), worker)  # type: ignore[arg-type]
    await listener.on_partitions_assigned([])
    await listener.on_partitions_revoked([])
    assert worker.done == [("failed", "assign"), ("failed", "suspend")]


async def run_with(errors: list[BaseException], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Run a group whose consumers fail one after the other; return what became of them."""
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    worker: Any = FakeWorker()
    group = Group(SETTINGS)
    left = iter(errors)
    happened: list[Any] = worker.done

    async def started(_worker: Any) -> Any:
        group._consumer = FakeConsumer(done=happened)  # type: ignore[assignment]
        happened.append("started")
        return group._consumer

    async def deliver(_consumer: Any, _worker: Any) -> None:
        raise next(left)

    monkeypatch.setattr(group, "_started", started)
    monkeypatch.setattr(group, "_deliver", deliver)
    with pytest.raises(type(errors[-1])):
        await group.run(worker)
    return happened


async def test_a_consumer_that_fails_is_made_anew_and_meanwhile_nothing_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened = await run_with([KafkaConnectionError("away"), asyncio.CancelledError()], monkeypatch)
    assert happened == ["started", "suspend", "stopped", "started"]


async def test_a_member_that_is_refused_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    happened = await run_with([GroupAuthorizationFailedError("group")], monkeypatch)
    assert happened == ["started"]


async def test_a_broker_that_does_not_answer_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stuck(FakeConsumer):
        async def stop(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(closing, "CLOSE_S_MAX", 0.01)
    group = with_consumer(Stuck())
    group._committing = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]
    await asyncio.wait_for(group.leave(), 5)
    assert group._consumer is None
