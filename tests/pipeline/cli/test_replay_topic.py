"""`ontrack replay --from-topic`: the log folded again says what the worker said."""

from __future__ import annotations

import asyncio
import heapq
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.partitioner import DefaultPartitioner
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.cli import cli
from ontrack.pipeline.embedded import EmbeddedMonitor, proposal_of
from ontrack.pipeline.kafka import history as history_module
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.history import History, Span
from ontrack.pipeline.kafka.partitions import partition_of
from ontrack.pipeline.kafka.sender import send_events, send_knowledge
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, references, simulate_run, task_ids
from ontrack.topics import codecs
from ontrack.topics.errors import BrokerUnavailable
from ontrack.topics.events import Event, Step
from ontrack.topics.knowledge import ToolContract
from tests.pipeline.fleet import (
    WorkerProcess,
    by_id,
    output_topics,
    point_cli_at,
    produce,
    read_all,
    wait_for,
)

Ontrack = Callable[..., Result]


@pytest.fixture
def replay(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ontrack:
    """`ontrack replay --from-topic --json`, with the test's topics."""
    point_cli_at(settings, monkeypatch, tmp_path)

    def run(*arguments: str) -> Result:
        given = ["replay", "--from-topic", "--json", f"--broker={settings.broker}", *arguments]
        result = CliRunner().invoke(cli, given)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


def by_name(result: Result) -> dict[str, bytes]:
    """Lines by id, each id once."""
    lines = result.stdout_bytes.splitlines()
    found = {json.loads(line)["id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


def run_of(run_id: str, fault: str | None = None, task: int = 0) -> list[Event]:
    return list(simulate_run(task_ids()[task], 1, fault, run_id=run_id).events)


def embedded(settings: Settings, *runs: list[Event]) -> dict[str, bytes]:
    """What the embedded driver says of runs, with the workplace's knowledge."""
    monitor = EmbeddedMonitor(settings, references(), contracts())
    outputs = [output for events in runs for event in events for output in monitor.feed(event)]
    return {output.id: codecs.encode(output) for output in outputs}


def publish(settings: Settings, *runs: list[Event]) -> None:
    """Send the workplace's knowledge, then the runs one after another."""
    asyncio.run(send_knowledge(settings, references(), contracts()))
    asyncio.run(send_events(settings, [event for events in runs for event in events], None))


async def group_offsets(settings: Settings) -> dict[TopicPartition, int]:
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.broker)
    await admin.start()
    try:
        found = await admin.list_consumer_group_offsets(settings.group)
    finally:
        await admin.close()
    return {tp: place.offset for tp, place in found.items()}


def test_it_says_the_bytes_that_the_worker_published_and_leaves_its_offsets_alone(
    settings: Settings, replay: Ontrack, tmp_path: Path
) -> None:
    worker = WorkerProcess(settings, tmp_path)
    early, late = run_of("early", "loop"), run_of("late", "hallucination", task=1)
    topics = topics_of(settings)
    try:
        worker.start()
        worker.wait_ready()
        asyncio.run(send_events(settings, early[:3], None))
        time.sleep(0.05)  # the broker's clock counts milliseconds
        asyncio.run(send_knowledge(settings, references(), contracts()))
        time.sleep(0.05)
        # One run stays open; bad messages stand between.
        asyncio.run(send_events(settings, [*early[3:], *late, *run_of("open")[:4]], None))
        bad = [
            (b"early", b"{"),
            (b"other", codecs.encode(late[1])),
            (b"late", codecs.encode(late[2])),
        ]
        asyncio.run(produce(settings, topics.events.name, bad))
        asyncio.run(wait_for(settings, topics.dead_letters.name, 3))
        asyncio.run(wait_for(settings, topics.scorecards.name, 2))
        worker.stop()
        offsets = asyncio.run(group_offsets(settings))
        published: dict[str, bytes] = {}
        for topic in output_topics(settings):
            published |= by_id(asyncio.run(read_all(settings, topic)))
        again = replay()
    finally:
        worker.stop()
    assert by_name(again) == published
    assert again.exit_code == 0
    assert "1 runs are still open" in again.stderr
    assert "judged from the middle" not in again.stderr
    assert offsets
    assert asyncio.run(group_offsets(settings)) == offsets
    judged = [json.loads(line) for line in published.values()]
    unaligned = {v["run_id"] for v in judged if v["type"] == "verdict" and v["coverage"] is None}
    assert unaligned == {"early"}  # its references came after its first event


def test_one_run_is_read_from_its_own_partition_only(settings: Settings, replay: Ontrack) -> None:
    runs = [run_of(f"run-{n}") for n in range(5)]
    publish(settings, *runs)
    found = replay("--run-id", "run-1", "--run-id", "run-1")
    assert by_name(found) == embedded(settings, runs[1])
    assert f"{len(runs[1])} events folded from 1 of 3 partitions" in found.stderr
    assert by_name(replay("--run-id", "run-1", "--run-id", "run-3")) == embedded(
        settings, runs[1], runs[3]
    )


def test_a_run_that_somebody_keyed_otherwise_is_found_in_another_partition(
    settings: Settings, replay: Ontrack
) -> None:
    run = run_of("astray")
    publish(settings)

    async def send_astray() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=settings.broker)
        await producer.start()
        topic = topics_of(settings).events.name
        partition = (partition_of(b"astray", 3) + 1) % 3
        for event in run:
            await producer.send_and_wait(
                topic, codecs.encode(event), key=b"astray", partition=partition
            )
        await producer.stop()

    asyncio.run(send_astray())
    assert by_name(replay("--run-id", "astray")) == embedded(settings, run)


def test_a_run_that_is_not_there_exits_1_and_is_named(settings: Settings, replay: Ontrack) -> None:
    publish(settings, run_of("here"))
    found = replay("--run-id", "gone", "--run-id", "here")
    assert found.exit_code == 1
    assert "not found there: gone\n" in found.stderr
    assert by_name(found)


def test_from_an_offset_a_run_begins_in_the_middle_and_that_is_said(
    settings: Settings, replay: Ontrack
) -> None:
    run = run_of("cut")
    publish(settings, run, run_of("whole"))
    place = partition_of(b"cut", 3)
    found = replay("--from-offset", f"{place}:4", "--run-id", "cut")
    assert "1 runs had begun before the first event read (cut)" in found.stderr
    verdicts = [json.loads(line) for line in by_name(found).values()]
    steps = [event.seq for event in run[4:] if isinstance(event, Step)]
    assert [verdict["seq"] for verdict in verdicts if verdict["type"] == "verdict"] == steps
    only = replay("--from-offset", f"{place}:0")
    assert "from 1 of 3 partitions" in only.stderr
    assert "judged from the middle" not in only.stderr
    beyond = replay("--from-offset", "100000")
    assert (beyond.stdout, beyond.exit_code) == ("", 0)


def test_steps_without_numbers_that_begin_in_the_middle_are_noticed_too(
    settings: Settings, replay: Ontrack
) -> None:
    steps = [Step(run_id="r", tool="look", args={"page": page}) for page in range(4)]
    publish(settings, list(steps))
    found = replay("--from-offset", "2")
    assert "1 runs had begun before the first event read (r)" in found.stderr


def test_between_two_times(settings: Settings, replay: Ontrack) -> None:
    runs = [run_of(name) for name in ("first", "second", "third")]
    publish(settings)
    cuts = []
    for run in runs:
        asyncio.run(send_events(settings, run, None))
        time.sleep(0.05)
        cuts.append(datetime.now(UTC).isoformat())
        time.sleep(0.05)
    assert by_name(replay("--from-time", cuts[0], "--until-time", cuts[1])) == embedded(
        settings, runs[1]
    )
    assert by_name(replay("--from-time", cuts[1])) == embedded(settings, runs[2])
    assert replay("--from-time", cuts[2]).stdout == ""


def test_an_open_run_is_not_ended_and_no_later_knowledge_counts(
    settings: Settings, replay: Ontrack
) -> None:
    run = run_of("open")
    asyncio.run(send_events(settings, run[:-1], None))
    time.sleep(0.05)
    asyncio.run(send_knowledge(settings, references(), contracts()))
    said = [json.loads(line) for line in by_name(replay()).values()]
    assert {line["type"] for line in said} == {"verdict"}
    assert {line["best_reference"] for line in said} == {None}


def test_what_if_other_settings_and_contracts_had_been_there(
    settings: Settings, replay: Ontrack, tmp_path: Path
) -> None:
    run = run_of("r", "loop")
    publish(settings, run)
    as_it_was = by_name(replay())
    assert b'"intervention"' in b"".join(as_it_was.values())
    shadow = by_name(replay("--no-intervene"))
    assert _without_flags(shadow).items() < _without_flags(as_it_was).items()
    assert {json.loads(line)["type"] for line in shadow.values()} == {"verdict", "scorecard"}
    # A loop of calls to a tool that may be polled is none; the given contract wins.
    looped = _tools_that_loop(as_it_was)
    polls = [
        {"name": tool.name, "effect": "read", "poll": True}
        for tool in contracts()
        if tool.name in looped
    ]
    (tmp_path / "tools.json").write_text(json.dumps(polls))
    patient = by_name(replay("--tools", "tools.json"))
    assert looped
    assert not _tools_that_loop(patient)
    monitor = EmbeddedMonitor(settings, references(), _with_polls(looped))
    expected = {o.id: codecs.encode(o) for event in run for o in monitor.feed(event)}
    assert patient == expected


def _without_flags(said: dict[str, bytes]) -> dict[str, str]:
    """Return what was said but for the flags: those say that it was not handed on."""
    return {name: repr(json.loads(line) | {"flags": None}) for name, line in said.items()}


def _tools_that_loop(said: dict[str, bytes]) -> set[str]:
    verdicts = [json.loads(line) for line in said.values() if b'"type":"verdict"' in line]
    return {verdict["tool"] for verdict in verdicts if verdict["verdict"] == "LOOP"}


def _with_polls(names: set[str]) -> list[ToolContract]:
    return [
        ToolContract.model_validate({"name": tool.name, "effect": "read", "poll": True})
        if tool.name in names
        else tool
        for tool in contracts()
    ]


def test_the_gate_is_asked_before_each_step(settings: Settings, replay: Ontrack) -> None:
    run = run_of("r", "irreversible", task=1)
    publish(settings, run)
    monitor = EmbeddedMonitor(settings, references(), contracts())
    expected = []
    for event in run:
        if isinstance(event, Step):
            expected.append(codecs.encode(monitor.propose(proposal_of(event))))
        expected += [codecs.encode(output) for output in monitor.feed(event)]
    # What cannot be used, and steps after the end, are not asked about.
    late = [(b"r", codecs.encode(run[1])), (b"r", b"{"), (b"other", codecs.encode(run[1]))]
    asyncio.run(produce(settings, topics_of(settings).events.name, late))
    lines = replay("--gate").stdout_bytes.splitlines()
    assert [line for line in lines if b'"type":"dead_letter"' not in line] == expected
    assert len(lines) == len(expected) + len(late)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "give either PATH… or --from-topic"),
        (["runs.jsonl", "--from-topic"], "give either PATH… or --from-topic"),
        (["runs.jsonl", "--run-id", "r"], "--run-id is for --from-topic"),
        (["--from-topic", "--from-offset", "1", "--from-time", "2026-11-30T08:00:00Z"], "either"),
        (["--from-topic", "--from-offset", "one"], "expected one offset"),
        (["--from-topic", "--from-offset", "0:1,0:2"], "expected one offset"),
        (["--from-topic", "--from-offset", "1,2"], "expected one offset"),
        (["--from-topic", "--from-offset", "-1"], "expected one offset"),
        (["--from-topic", "--until-time", "noon"], "expected RFC 3339"),
        (["--from-topic", "--references-from-successes"], "--references"),
        (["--from-topic", "--format", "chat"], "--format is for PATH"),
    ],
)
def test_bad_usage_exits_2_and_says_why(arguments: list[str], problem: str) -> None:
    result = CliRunner().invoke(cli, ["replay", *arguments])
    assert result.exit_code == 2
    assert problem in result.stderr


@given(key=st.binary(max_size=30), partitions=st.integers(1, 50))
def test_keys_go_to_the_partition_that_the_producer_gives_them(key: bytes, partitions: int) -> None:
    numbers = list(range(partitions))
    assert partition_of(key, partitions) == DefaultPartitioner()(key, numbers, numbers)


class FakeConsumer:
    """Partitions in memory, given out a few messages at a time."""

    def __init__(self, logs: dict[int, list[Any]], at_once: int) -> None:
        self._logs, self._at_once = logs, at_once
        self._positions: dict[TopicPartition, int] = {}

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._positions = dict.fromkeys(partitions, 0)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = offset

    async def position(self, partition: TopicPartition) -> int:
        return self._positions[partition]

    async def getmany(self, partition: TopicPartition, timeout_ms: int) -> dict[Any, list[Any]]:
        start = self._positions[partition]
        found = [m for m in self._logs[partition.partition] if m.offset >= start][: self._at_once]
        if found:
            self._positions[partition] = found[-1].offset + 1
        elif self._logs[partition.partition]:
            self._positions[partition] = max(start, 1000)  # markers at the end
        return {partition: found}


def message(partition: int, offset: int, timestamp: int) -> Any:
    return SimpleNamespace(partition=partition, offset=offset, timestamp=timestamp)


# Per partition: steps from one offset to the next (2 and more: something between is no message)
# and from one time to the next.
log = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=8)


@given(logs=st.lists(log, max_size=4), at_once=st.integers(1, 4), start=st.integers(0, 6))
def test_partitions_are_merged_by_time_and_nothing_is_left_out(
    logs: list[list[tuple[int, int]]], at_once: int, start: int
) -> None:
    messages: dict[int, list[Any]] = {}
    for number, steps in enumerate(logs):
        offset, moment, messages[number] = -1, 0, []
        for further, later in steps:
            offset, moment = offset + further, moment + later
            messages[number].append(message(number, offset, moment))
    stop = 12
    spans = [Span(number, 0, start, stop) for number in messages]
    history = History(FakeConsumer(messages, at_once), "t", len(logs))

    async def read() -> list[Any]:
        return [item async for batch in history.read(spans) for item in batch]

    wanted = [[m for m in items if start <= m.offset < stop] for items in messages.values()]
    expected = heapq.merge(*wanted, key=lambda m: (m.timestamp, m.partition, m.offset))
    assert asyncio.run(read()) == list(expected)


def test_a_broker_that_gives_nothing_although_there_is_more_ends_the_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history_module, "STALL_S_MAX", 0.0)
    history = History(FakeConsumer({0: []}, 1), "t", 1)

    async def read() -> None:
        async for _ in history.read([Span(0, 0, 0, 5)]):
            raise AssertionError("there is nothing")

    with pytest.raises(BrokerUnavailable, match="t partition 0: Kafka gave nothing"):
        asyncio.run(read())
