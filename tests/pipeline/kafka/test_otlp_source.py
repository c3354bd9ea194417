"""A collector's topic as a source of the worker: read once, judged once, whatever is killed."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from pathlib import Path

import pytest

from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.kafka import otlp_source
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.emitter import Emitter
from ontrack.pipeline.kafka.otlp_intake import Intake
from ontrack.pipeline.kafka.otlp_source import OtlpSource
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.topics.codecs import decode_event
from ontrack.topics.verdicts import Output
from tests.broker import LocalBroker, create_topic
from tests.pipeline.fleet import (
    WorkerProcess,
    produce,
    provision,
    read_all,
    settings_for,
    wait_for,
)
from tests.pipeline.otlp_messages import as_protobuf
from tests.topics.test_otlp import TRACE, agent_span, document, span_id, tool_span


def as_json(whole: object) -> bytes:
    return json.dumps(whole).encode()


class TestIntake:
    def made(self, **changes: object) -> tuple[Intake, list[Output]]:
        told: list[Output] = []
        settings = Settings(otlp_topic="otlp_spans", **changes)
        return Intake(settings, topics_of(settings), told.append), told

    def record(self, value: bytes, offset: int, partition: int = 0) -> Record:
        return Record(value, b"key", "otlp_spans", partition, offset)

    def test_spans_become_events_keyed_by_their_run(self) -> None:
        intake, _ = self.made()
        spans = document(agent_span(1, conversation="c1"), tool_span(2, "get", parent=1))
        (message,) = intake.take(self.record(as_protobuf(spans), 0), 0.0)
        assert (message.topic, message.key, message.partition) == ("ontrack.events", b"c1", None)
        event = decode_event(message.value or b"").event
        assert (event.type, event.run_id, event.seq) == ("step", "c1", None)
        headers = dict(message.headers)
        assert headers["ce_id"] == f"{TRACE}:{span_id(2)}:step".encode()
        assert headers["ce_source"] == b"ontrack/otlp/otlp_spans"
        assert headers["ce_type"] == b"ontrack.event.step"
        assert headers["ce_subject"] == b"c1"

    def test_a_message_is_not_done_while_a_span_of_it_waits(self) -> None:
        intake, _ = self.made()
        waits = [document(tool_span(n, "get", parent=1)) for n in (2, 3)]
        assert intake.take(self.record(as_json(waits[0]), 5), 0.0) == []
        assert intake.take(self.record(as_json(waits[1]), 9, partition=1), 1.0) == []
        assert intake.take(self.record(as_json({}), 6), 1.0) == []
        assert intake.done() == {0: 5, 1: 9}
        assert len(intake.due(2.0)) == 2
        assert intake.done() == {0: 7, 1: 10}

    def test_what_stands_on_the_topic_is_not_made_again(self) -> None:
        whole = document(agent_span(1), *(tool_span(n, "get", parent=1) for n in (2, 3)))
        first, _ = self.made()
        first.take(self.record(as_json(whole), 0), 0.0)
        told = first.rest()
        assert len(told) == 3
        for known in range(4):
            intake, _ = self.made()
            assert [intake.recall(m.key, m.headers) for m in told[:known]] == [True] * known
            intake.take(self.record(as_json(whole), 0), 0.0)
            assert [m.headers[0:2] for m in intake.rest()] == [m.headers[0:2] for m in told[known:]]

    def test_other_peoples_events_are_not_taken_for_ours(self) -> None:
        intake, _ = self.made()
        headers = [("ce_source", b"ontrack/otlp/otlp_spans"), ("ce_id", b"a:b")]
        assert not intake.recall(b"run", headers)
        assert not intake.recall(b"run", [("ce_source", b"ontrack/send")])
        assert not intake.recall(None, [])

    @pytest.mark.parametrize("bad", [b"\xff\xfe", b"{", b'{"resourceMetrics": []}', b"[1]"])
    def test_what_cannot_be_read_becomes_a_dead_letter(self, bad: bytes) -> None:
        intake, told = self.made()
        (message,) = intake.take(self.record(bad, 7), 0.0)
        letter = json.loads(message.value or b"")
        assert message.topic == "ontrack.dead-letters"
        assert letter["id"] == "otlp_spans:0:7"
        assert base64.b64decode(letter["value_base64"]) == bad
        assert letter["error"]["name"] in ("WrongShape", "MalformedMessage")
        assert len(told) == 1
        assert intake.done() == {0: 8}

    def test_the_good_spans_of_a_message_are_taken(self) -> None:
        intake, _ = self.made()
        bad = [tool_span(3, "x" * 300), tool_span(4, "get", spanId="")]
        spans = [*bad, agent_span(1, conversation="c"), tool_span(2, "get", parent=1)]
        step, letter = intake.take(self.record(as_json(document(*spans)), 0), 0.0)
        assert step.key == b"c"
        text = json.loads(letter.value or b"")["error"]["text"]
        assert text.startswith('2 of its spans cannot be used (the others were): span "00')

    def test_an_encoding_that_is_named_is_insisted_on(self) -> None:
        whole = document(agent_span(1, conversation="c"), tool_span(2, "get", parent=1))
        for encoding, fine in (("json", as_json(whole)), ("proto", as_protobuf(whole))):
            for value in (as_json(whole), as_protobuf(whole)):
                intake, told = self.made(otlp_encoding=encoding)
                intake.take(self.record(value, 0), 0.0)
                assert (told == []) == (value == fine)

    def test_rules_of_redaction_hold(self) -> None:
        intake, _ = self.made(redact=("args.password",))
        spans = document(
            agent_span(1, conversation="c"), tool_span(2, "login", '{"password": "hush"}', parent=1)
        )
        (message,) = intake.take(self.record(as_json(spans), 0), 0.0)
        assert b"hush" not in (message.value or b"")


@pytest.fixture
def spans_topic(broker: str, fresh_prefix: str) -> str:
    """A collector's topic, in two partitions."""
    name = f"{fresh_prefix}otlp_spans"
    asyncio.run(create_topic(broker, name, partitions=2))
    return name


@pytest.fixture
def reading(broker: str, fresh_prefix: str, spans_topic: str) -> Settings:
    """Settings of a worker that reads it."""
    made = settings_for(broker, fresh_prefix).model_copy(update={"otlp_topic": spans_topic})
    asyncio.run(provision(made))
    return made


@pytest.fixture
def reader(reading: Settings, tmp_path: Path) -> WorkerProcess:
    """Its worker, not started."""
    more = {"ONTRACK_OTLP_TOPIC": str(reading.otlp_topic), "ONTRACK_SERVE_SPANS_S": "0.5"}
    return WorkerProcess(reading, tmp_path, more=more)


def conversation(number: int, steps: int) -> list[dict[str, object]]:
    """Spans of one agent's run, each in a document of its own; the agent's own comes last."""
    trace = f"{number:032x}"
    calls = [
        tool_span(n, "get", f'{{"id": {n}}}', f"r{number}-{n}", parent=1, trace=trace)
        for n in range(2, steps + 2)
    ]
    return [document(one) for one in [*calls, agent_span(1, trace=trace)]]


def judged(settings: Settings) -> Counter[tuple[str, int]]:
    """Messages of verdicts by run and number of step."""
    topic = topics_of(settings).verdicts.name
    told = [json.loads(message.value) for message in asyncio.run(read_all(settings, topic))]
    return Counter((one["run_id"], one["seq"]) for one in told)


class Reader:
    """The source alone, in this process, with a producer of its own."""

    def __init__(self, settings: Settings) -> None:
        self.emitter = Emitter(settings)
        topics = topics_of(settings)
        self.source = OtlpSource(settings, topics, self.emitter, Metrics(), self._failed)
        self.source.start()

    async def _failed(self, error: BaseException) -> None:
        raise AssertionError("the source has failed") from error

    async def stop(self) -> None:
        await self.source.stop()
        await self.emitter.stop()

    async def die(self) -> None:
        """End as a crash would: nothing is flushed, nothing is committed."""
        task, consumer = self.source._task, self.source._consumer
        assert task is not None
        assert consumer is not None
        task.cancel()
        await asyncio.wait([task])
        consumer.unsubscribe()
        await consumer.stop()
        await self.emitter.stop()


async def names_of_events(settings: Settings, count: int) -> list[bytes]:
    """Ids of the events on their topic, as soon as there are so many."""
    for _ in range(300):
        found = await read_all(settings, topics_of(settings).events.name)
        names = [dict(message.headers)["ce_id"] for message in found]
        if len(set(names)) >= count:
            break
        await asyncio.sleep(0.1)
    return names


def test_what_waits_is_told_before_the_partitions_go_to_another_reader(
    reading: Settings, spans_topic: str
) -> None:
    patient = reading.model_copy(update={"serve_spans_s": 600.0})
    documents = [document(tool_span(2, "t", parent=1, trace=f"{n:032x}")) for n in range(1, 9)]
    messages = [(b"%d" % n, as_json(one)) for n, one in enumerate(documents)]

    async def hand_over() -> list[bytes]:
        first = Reader(patient)
        await produce(reading, spans_topic, messages)
        while len(first.source._intake._places) < len(messages):
            await asyncio.sleep(0.1)
        assert await read_all(reading, topics_of(reading).events.name) == []
        second = Reader(patient)
        names = await names_of_events(reading, len(messages))
        await second.stop()
        await first.stop()
        return names

    names = asyncio.run(hand_over())
    assert sorted(names) == [f"{n:032x}:{span_id(2)}:step".encode() for n in range(1, 9)]


def test_who_follows_a_reader_that_died_tells_nothing_twice(
    reading: Settings, spans_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_source, "COMMIT_S", 3600.0)  # it dies with all of it uncommitted
    quick = reading.model_copy(update={"serve_spans_s": 0.2})
    parts = [conversation(number, 5) for number in range(1, 5)]
    before = [(b"%d" % n, as_json(one)) for n, part in enumerate(parts) for one in part]
    after = [(b"x", as_json(one)) for one in conversation(9, 1)]

    async def die_and_follow() -> list[bytes]:
        first = Reader(quick)
        await produce(reading, spans_topic, before)
        await names_of_events(reading, len(before))
        await first.die()
        second = Reader(quick)
        await produce(reading, spans_topic, after)
        await names_of_events(reading, len(before) + len(after))
        await asyncio.sleep(1.0)
        await second.stop()
        return await names_of_events(reading, len(before) + len(after))

    names = asyncio.run(die_and_follow())
    assert len(names) == len(before) + len(after)  # a step for each call, an end for each agent
    assert len(set(names)) == len(names)


def test_a_broker_that_is_killed_loses_no_span(own_broker: LocalBroker, fresh_prefix: str) -> None:
    name = f"{fresh_prefix}otlp_spans"
    base = settings_for(own_broker.address, fresh_prefix)
    made = base.model_copy(update={"otlp_topic": name, "serve_spans_s": 0.2})
    parts = [conversation(number, 5) for number in range(1, 5)]
    messages = [(b"%d" % n, as_json(one)) for n, part in enumerate(parts) for one in part]
    half = len(messages) // 2

    async def read_through_it() -> list[bytes]:
        await create_topic(made.broker, name, partitions=2)
        await provision(made)
        reader = Reader(made)
        await produce(made, name, messages[:half])
        await asyncio.to_thread(own_broker.kill)
        await asyncio.to_thread(own_broker.start)
        await produce(made, name, messages[half:])
        names = await names_of_events(made, len(messages))
        await reader.stop()
        return names

    names = asyncio.run(read_through_it())
    # A send whose acknowledgement was lost is sent again; the monitor drops it.
    assert len(set(names)) == len(messages)


def test_spans_in_both_encodings_are_judged_and_damage_becomes_a_dead_letter(
    reading: Settings, reader: WorkerProcess, spans_topic: str
) -> None:
    damaged = as_protobuf(document(tool_span(2, "get")))[:-4]
    encoded = {1: as_json, 2: as_protobuf}
    messages = [
        (f"{number:032x}".encode(), encode(one))
        for number, encode in encoded.items()
        for one in conversation(number, 5)
    ]
    topics = topics_of(reading)
    reader.start()
    try:
        reader.wait_ready()
        asyncio.run(produce(reading, spans_topic, [*messages, (b"bad", damaged)]))
        asyncio.run(wait_for(reading, topics.scorecards.name, 2))
        (letter,) = asyncio.run(wait_for(reading, topics.dead_letters.name, 1))
        assert judged(reading) == {
            (f"{number:032x}", seq): 1 for number in encoded for seq in range(5)
        }
        told = json.loads(letter.value)
        assert told["topic"] == spans_topic
        assert base64.b64decode(told["value_base64"]) == damaged
        assert told["error"]["name"] == "WrongShape"
        verdicts = asyncio.run(read_all(reading, topics.verdicts.name))
        traces = {json.loads(message.value)["trace"]["trace_id"] for message in verdicts}
        assert traces == {f"{number:032x}" for number in encoded}
    finally:
        reader.stop()


def test_a_worker_that_is_killed_judges_every_step_once(
    reading: Settings, reader: WorkerProcess, spans_topic: str
) -> None:
    runs, steps = 12, 12
    parts = [conversation(number, steps) for number in range(1, runs + 1)]
    messages = [
        (f"{number + 1:032x}".encode(), as_protobuf(parts[number][step]))
        for step in range(steps + 1)
        for number in range(runs)
    ]

    async def stream_while_restarting() -> None:
        async def stream() -> None:
            for start in range(0, len(messages), 8):
                await produce(reading, spans_topic, messages[start : start + 8])
                await asyncio.sleep(0.6)

        sending = asyncio.create_task(stream())
        for end in (reader.kill, reader.stop, reader.kill):
            await asyncio.to_thread(reader.wait_ready)
            await asyncio.sleep(1.0)
            await asyncio.to_thread(end)
            await asyncio.to_thread(reader.start)
        await sending

    topics = topics_of(reading)
    reader.start()
    try:
        reader.wait_ready()
        asyncio.run(stream_while_restarting())
        reader.wait_ready()
        asyncio.run(wait_for(reading, topics.scorecards.name, runs))
        expected = {
            (f"{number:032x}", seq) for number in range(1, runs + 1) for seq in range(steps)
        }
        assert set(judged(reading)) == expected
        events = asyncio.run(read_all(reading, topics.events.name))
        results = Counter(
            step["result"]
            for step in (json.loads(message.value) for message in events)
            if step["type"] == "step"
        )
        assert set(results) == {
            f"r{number}-{n}" for number in range(1, runs + 1) for n in range(2, steps + 2)
        }
        time.sleep(1.0)
        assert asyncio.run(read_all(reading, topics.dead_letters.name)) == []
    finally:
        reader.stop()
