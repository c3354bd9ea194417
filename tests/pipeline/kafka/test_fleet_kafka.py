"""The fleet's minutes by real workers that are killed: what plain Python counts on the topics."""

from __future__ import annotations

import asyncio
import json
import re
import time
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from aiokafka import AIOKafkaProducer, ConsumerRecord
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from click.testing import CliRunner

from ontrack.pipeline.cli import cli
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.kafka.connection import client_arguments, start_admin, topics_of
from ontrack.pipeline.kafka.fleet import params_of
from ontrack.pipeline.kafka.messages import topic_of
from ontrack.pipeline.kafka.sender import send_events, send_knowledge
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, references
from ontrack.topics import codecs
from ontrack.topics.fleet import FleetAggregate, merge
from ontrack.topics.schemas.records import record_schema
from ontrack.topics.verdicts import Output
from tests.fleet_oracle import as_counted, by_plain_python
from tests.pipeline.fleet import WAIT_S, WorkerProcess, point_cli_at, read_all, wait_for
from tests.pipeline.kafka.test_cloudevents_kafka import read_by_the_public_library
from tests.pipeline.kafka.test_kafka import fleet_events

MINUTE = 60_000


async def by_the_producers_clock(settings: Settings) -> None:
    """Let the outputs carry the time that their producer gives: a test cannot wait for minutes."""
    admin = await start_admin(settings)
    topics = topics_of(settings)
    try:
        for spec in (topics.verdicts, topics.interventions, topics.decisions, topics.scorecards):
            changed = spec.settings | {"message.timestamp.type": "CreateTime"}
            resource = ConfigResource(ConfigResourceType.TOPIC, spec.name, changed)
            await admin.alter_configs([resource])
    finally:
        await admin.close()


async def publish(settings: Settings, timed: list[tuple[Output, int]]) -> None:
    """Put outputs on their topics, each run on a partition of its own choice, at given times."""
    topics = topics_of(settings)
    producer = AIOKafkaProducer(**client_arguments(settings), acks="all")
    await producer.start()
    try:
        for output, at_ms in timed:
            assert output.type != "dead_letter"
            run = output.run_id.encode()
            await producer.send(
                topic_of(topics, output),
                codecs.encode(output),
                key=run,
                partition=zlib.crc32(run) % settings.partitions,
                timestamp_ms=at_ms,
            )
        await producer.flush()
    finally:
        await producer.stop()


def history(now_ms: int) -> list[tuple[Output, int]]:
    """Outputs of the last three hours, by runs that a former worker judged; some stand twice."""
    monitor = EmbeddedMonitor(Settings(encoder="hashing"), references(), contracts())
    said = [output for event in fleet_events(120, seed=5000) for output in monitor.feed(event)]
    span_ms, begin_ms = 160 * MINUTE, now_ms - 180 * MINUTE
    timed = [
        (output, begin_ms + number * span_ms // len(said)) for number, output in enumerate(said)
    ]
    return [twice for n, item in enumerate(timed) for twice in [item] * (2 if n % 7 == 0 else 1)]


def latest(messages: list[ConsumerRecord]) -> dict[str, FleetAggregate]:
    """The last line of each id: what a consumer goes by."""
    return {line.id: line for line in (codecs.decode_fleet(m.value) for m in messages)}


def expected(settings: Settings) -> dict[int, dict[tuple[int, str], Any]]:
    """What plain Python counts on the topics, by partition."""
    topics = topics_of(settings)
    timed: dict[int, dict[str, tuple[Output, int]]] = defaultdict(dict)
    for spec in (topics.verdicts, topics.interventions, topics.decisions, topics.scorecards):
        for message in asyncio.run(read_all(settings, spec.name)):
            output = codecs.decode_output(message.value)
            timed[message.partition].setdefault(output.id, (output, message.timestamp))
    return {
        partition: by_plain_python([*found.values()], params_of(settings))
        for partition, found in timed.items()
    }


def final_lines(settings: Settings) -> dict[int, list[FleetAggregate]]:
    """Final lines by partition, as they stand."""
    told = latest(asyncio.run(read_all(settings, topics_of(settings).fleet.name)))
    found: dict[int, list[FleetAggregate]] = defaultdict(list)
    for line in told.values():
        if line.final and line.partition is not None:
            found[line.partition].append(line)
    return found


def until_over(settings: Settings, worker: WorkerProcess) -> dict[int, list[FleetAggregate]]:
    """Let a quarter of an hour go by for the outputs; return the lines that are final then."""
    end = EmbeddedMonitor(settings).feed(fleet_events(1)[1])[0]
    now_ms = round(time.time() * 1000)
    names = {}
    for number in range(1000):
        names.setdefault(zlib.crc32(f"end-{number}".encode()) % settings.partitions, number)
    ends = [
        end.model_copy(update={"run_id": f"end-{n}", "id": f"end-{n}:0"}) for n in names.values()
    ]
    asyncio.run(publish(settings, [(each, now_ms + 15 * MINUTE) for each in ends]))
    last = (now_ms - MINUTE) // MINUTE
    deadline = time.monotonic() + WAIT_S
    while True:
        found = final_lines(settings)
        reached = [
            max(round(x.minute.timestamp()) // 60 for x in lines) for lines in found.values()
        ]
        if len(reached) == settings.partitions and min(reached) >= last:
            return found
        assert time.monotonic() < deadline, f"no final lines up to {last}:\n{worker.tail()}"
        time.sleep(0.5)


def test_killed_again_and_again_it_comes_to_what_plain_python_counts_on_the_topics(
    settings: Settings, worker: WorkerProcess
) -> None:
    topics = topics_of(settings)
    asyncio.run(by_the_producers_clock(settings))
    asyncio.run(publish(settings, history(round(time.time() * 1000))))
    asyncio.run(send_knowledge(settings, references(), contracts()))
    events = fleet_events(28)
    worker.start()
    asyncio.run(wait_for(settings, topics.fleet.name, 50))
    worker.kill()  # while it reads what others said
    first = len(asyncio.run(read_all(settings, topics.fleet.name)))
    worker.start()
    worker.wait_ready()

    async def stream_while_killed() -> None:
        sending = asyncio.create_task(send_events(settings, events, 60))
        for _ in range(2):
            await asyncio.sleep(2.5)
            await asyncio.to_thread(worker.kill)
            await asyncio.to_thread(worker.start)
        await sending

    asyncio.run(stream_while_killed())
    worker.wait_ready()
    asyncio.run(wait_for(settings, topics.scorecards.name, 28 + 120))
    found = until_over(settings, worker)
    wanted = expected(settings)
    assert len(asyncio.run(read_all(settings, topics.fleet.name))) > first
    assert asyncio.run(read_all(settings, topics.fleet_states.name))
    for partition, lines in found.items():
        counted = as_counted(lines)
        horizon = max(minute for minute, _ in counted)
        assert counted == {
            key: count for key, count in wanted[partition].items() if key[0] <= horizon
        }
    both = merge(line for lines in found.values() for line in lines)
    assert sum(sum(line.finished.values()) for line in both) == 148
    assert worker.metric("ontrack_fleet_failures_total") == 0
    # Some began at what their predecessor had written, and not at the topics' beginning.
    restored = [line for line in worker.log.read_text().splitlines() if "fleet_restored" in line]
    assert any(re.search(r"runs.{0,8}=.{0,8}[1-9]", line) for line in restored), restored


def test_what_stands_on_the_topic_fits_its_schema_and_tail_prints_it(
    settings: Settings,
    worker: WorkerProcess,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    topics = topics_of(settings)
    asyncio.run(by_the_producers_clock(settings))
    asyncio.run(publish(settings, history(round(time.time() * 1000))[:400]))
    worker.start()
    messages = asyncio.run(wait_for(settings, topics.fleet.name, 20))
    schema = jsonschema.Draft202012Validator(record_schema("fleet"))
    for message in messages:
        value = json.loads(message.value)
        schema.validate(value)
        group = value["group"]
        named = [group["agent"], group["task_id"], group["tenant"]]
        assert json.loads(message.key) == named
        event = read_by_the_public_library(message)
        assert (event.get_type(), event.get_subject()) == ("ontrack.fleet", message.key.decode())
        assert event.get_id() == f"{value['id']}|{value['revision']}"
        assert value["partition"] == message.partition
    point_cli_at(settings, monkeypatch, tmp_path)
    arguments = ["tail", "--fleet", "--from-beginning", "--until-idle", "2"]
    shown = CliRunner().invoke(cli, arguments)
    assert "open" in shown.output
    assert "final" in shown.output
    assert "unreadable" not in shown.output
    printed = CliRunner().invoke(cli, [*arguments, "--json"]).stdout.splitlines()
    assert {json.loads(line)["type"] for line in printed} == {"fleet"}
    assert {m.value.decode() for m in messages} <= set(printed)
