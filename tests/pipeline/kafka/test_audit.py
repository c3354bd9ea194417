"""The record of answers over HTTP: nobody waits for it, and it does not hide what was answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ontrack.pipeline.gating.answers import GatePolicy
from ontrack.pipeline.kafka import audit as audit_module
from ontrack.pipeline.kafka import floors
from ontrack.pipeline.kafka.audit import Audit
from ontrack.pipeline.kafka.log import record_of
from ontrack.pipeline.kafka.messages import Message, Told, decision_message, told_by
from ontrack.pipeline.metrics import Metrics
from ontrack.topics import codecs
from ontrack.topics.errors import BrokerUnavailable
from tests.pipeline.kafka.test_owner import ASKED, FOLD, PROPOSALS, TOPICS, FakeKafka, new_owner

DECISION = GatePolicy.of(()).decide(FOLD.stamp, ASKED, "read", 0, "why")


class SlowEmitter:
    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.sent: list[Message] = []
        self.problem: Exception | None = None

    async def emit(self, messages: Sequence[Message]) -> None:
        await self.goes_on.wait()
        if self.problem is not None:
            raise self.problem
        self.sent += messages


async def no_failure(error: BaseException) -> None:
    raise AssertionError(error)


def record(answered: int | None = 3) -> Message:
    return decision_message(TOPICS, 0, DECISION, "policy", answered)


async def test_records_wait_for_the_broker_and_nobody_waits_for_them() -> None:
    emitter: Any = SlowEmitter()
    audit = Audit(emitter, Metrics(), no_failure)
    for _ in range(3):
        audit.put(record())
        await asyncio.sleep(0)
    assert emitter.sent == []
    emitter.goes_on.set()
    await audit.stop()
    assert len(emitter.sent) == 3
    assert {message.value for message in emitter.sent} == {codecs.encode(DECISION)}


async def test_what_finds_no_room_is_dropped_and_counted() -> None:
    emitter: Any = SlowEmitter()
    metrics = Metrics()
    audit = Audit(emitter, metrics, no_failure, waiting_max=2)
    for _ in range(5):
        audit.put(record())
    emitter.goes_on.set()
    await audit.stop()
    audit.put(record())  # too late
    assert len(emitter.sent) == 2
    assert "ontrack_gate_audit_dropped_total 4.0" in metrics.text().decode()


async def test_a_record_that_is_still_on_its_way_at_the_end_is_counted_as_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_module, "FLUSH_S_MAX", 0.01)
    emitter: Any = SlowEmitter()
    metrics = Metrics()
    audit = Audit(emitter, metrics, no_failure)
    audit.put(record())
    await asyncio.sleep(0)  # the first is handed to the emitter, which waits for the broker
    audit.put(record())
    await audit.stop()
    assert "ontrack_gate_audit_dropped_total 2.0" in metrics.text().decode()


def test_a_record_says_who_has_decided() -> None:
    assert ("ontrack_decided_by", b"policy") in record().headers


@pytest.mark.parametrize("problem", [BrokerUnavailable("no rights"), ValueError("partition 9")])
async def test_a_record_that_can_never_be_written_stops_the_worker(problem: Exception) -> None:
    emitter: Any = SlowEmitter()
    emitter.problem = problem
    emitter.goes_on.set()
    failures: list[BaseException] = []

    async def failed(error: BaseException) -> None:
        failures.append(error)

    metrics = Metrics()
    audit = Audit(emitter, metrics, failed)
    audit.put(record())
    audit.put(record())
    await asyncio.sleep(0.01)
    audit.put(record())  # nobody would send it
    await audit.stop()
    assert failures == [problem]
    assert "ontrack_gate_audit_dropped_total 3.0" in metrics.text().decode()


# ------------------------------------------------------------------ the floors


def put(kafka: FakeKafka, message: Message) -> None:
    kafka.append(message.topic, message.key, message.value, message.headers)


def propose(kafka: FakeKafka, count: int) -> list[Any]:
    return [
        record_of(kafka.append(PROPOSALS, b"a", codecs.encode(ASKED)))  # type: ignore[arg-type]
        for _ in range(count)
    ]


@pytest.mark.parametrize("knows", [True, False])
async def test_many_answers_over_http_do_not_make_a_new_owner_answer_twice(
    knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floors, "TAIL_MESSAGES", 4)
    kafka = FakeKafka()
    first = new_owner(kafka)
    await first.resume()
    await first.decide(propose(kafka, 5))
    assert first.answered == 4
    for _ in range(100):
        put(kafka, record(first.answered if knows else None))
    second = new_owner(kafka)
    await second.resume()
    assert (second.asked.next_offset, second.answered) == (5, 4)
    await second.decide(propose(kafka, 1))
    found = [told_by(message, PROPOSALS) for message in kafka.topics[TOPICS.decisions.name]]
    sources = [None if place is None else place.offset for place in found]
    assert sources[:5] == [0, 1, 2, 3, 4]
    assert sources[-1] == 5
    assert len(sources) == 106


async def test_an_answer_over_http_answers_no_proposal_on_the_topic() -> None:
    kafka = FakeKafka()
    first = new_owner(kafka)
    await first.resume()
    put(kafka, record(first.answered))
    propose(kafka, 2)
    second = new_owner(kafka)
    await second.resume()  # nobody owned the partition when they came
    assert second.answered == 1
    assert len(kafka.topics[TOPICS.decisions.name]) == 3


def test_an_offset_is_told_by_source_or_by_what_was_answered() -> None:
    class Stored:
        def __init__(self, *headers: tuple[str, bytes | None]) -> None:
            self.headers = headers

    def told(*headers: tuple[str, bytes | None]) -> Told | None:
        message: Any = Stored(*headers)
        return told_by(message, "p")

    assert told() is None
    assert told(("ontrack_source", b"other:0:7")) is None
    assert told(("ontrack_source", b"p:0:7")) == Told(7)
    assert told(("ontrack_answered", b"p:0:-1")) == Told(-1)
    assert told(("ontrack_answered", None)) is None
    assert told(("ontrack_source", b"p:0:7"), ("ontrack_more", b"1")) == Told(7, 1) < Told(7)
