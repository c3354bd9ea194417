"""The record of answers over HTTP: nobody waits for it, and it does not hide what was answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ontrack.pipeline.gate import GatePolicy
from ontrack.pipeline.kafka import owner as owner_module
from ontrack.pipeline.kafka.audit import Audit, audit_message
from ontrack.pipeline.kafka.emitter import Message
from ontrack.pipeline.kafka.log import record_of, told_offset
from ontrack.pipeline.metrics import Metrics
from ontrack.topics import codecs
from ontrack.topics.errors import BrokerUnavailable
from tests.pipeline.test_owner import ASKED, FOLD, PROPOSALS, TOPICS, FakeKafka, new_owner

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
    return audit_message(TOPICS, 0, DECISION, answered)


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


async def test_a_record_that_can_never_be_written_stops_the_worker() -> None:
    emitter: Any = SlowEmitter()
    emitter.problem = BrokerUnavailable("no rights")
    emitter.goes_on.set()
    failures: list[BaseException] = []

    async def failed(error: BaseException) -> None:
        failures.append(error)

    audit = Audit(emitter, Metrics(), failed)
    audit.put(record())
    await audit.stop()
    assert failures == [emitter.problem]


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
    monkeypatch.setattr(owner_module, "TAIL_MESSAGES", 4)
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
    sources = [told_offset(message, PROPOSALS) for message in kafka.topics[TOPICS.decisions.name]]
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

    def told(*headers: tuple[str, bytes | None]) -> int | None:
        message: Any = Stored(*headers)
        return told_offset(message, "p")

    assert told() is None
    assert told(("ontrack_source", b"other:0:7")) is None
    assert told(("ontrack_source", b"p:0:7")) == 7
    assert told(("ontrack_answered", b"p:0:-1")) == -1
    assert told(("ontrack_answered", None)) is None
