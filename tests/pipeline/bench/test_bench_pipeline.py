"""``ontrack bench pipeline``: the command on a real broker, and what its figures are made of."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ontrack.pipeline.bench import throughput
from ontrack.pipeline.bench.workload import asked_runs, fleet
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.kafka.connection import start_admin
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, references
from ontrack.topics import codecs
from ontrack.topics.verdicts import Verdict
from tests.pipeline.fleet import free_port

NAMES = ["embedded", "worker", "bare", "end_to_end", "end_to_end_half", "gate_http", "gate_topics"]
EVENTS = 400


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ONTRACK_")}
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from ontrack.pipeline.cli import main; main()",
            "bench",
            "pipeline",
            *arguments,
        ],
        env=environment | {"ONTRACK_ENCODER": "hashing", "ONTRACK_PARTITIONS": "2"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def topics_on(broker: str) -> set[str]:
    async def ask() -> set[str]:
        admin = await start_admin(Settings(broker=broker))
        try:
            return {name for name in await admin.list_topics() if not name.startswith("__")}
        finally:
            await admin.close()

    return asyncio.run(ask())


def test_the_command_measures_everything_and_leaves_nothing_behind(
    broker: str, tmp_path: Path
) -> None:
    before = topics_on(broker)
    done = run(
        tmp_path,
        *("--json", f"--broker={broker}", f"--events={EVENTS}"),
        *("--seconds=1", "--gate-rate=20", "--questions=20"),
    )
    assert done.returncode == 0, done.stderr
    machine, *figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert machine["type"] == "machine"
    assert machine["encoder"] == "hashing"
    assert [figure["name"] for figure in figures] == NAMES
    by_name = {figure["name"]: figure for figure in figures}
    for figure in figures:
        assert (figure["type"], figure["bench"]) == ("figure", "pipeline")
        assert figure["events_per_s"] > 0
        assert figure["samples"] > 0
        if figure["name"] not in ("worker", "bare"):
            assert 0 < figure["p50_us"] <= figure["p95_us"] <= figure["p99_us"]
    for name, other in (("worker", "embedded"), ("bare", "worker")):
        figure, named = by_name[name], by_name[other]
        assert figure["ratio_to"] == other
        assert figure["ratio"] * named["events_per_s"] == pytest.approx(
            figure["events_per_s"], rel=0.02, abs=0.2
        )
    assert by_name["end_to_end_half"]["events_per_s"] == pytest.approx(
        by_name["worker"]["events_per_s"] / 2, abs=1
    )
    assert {name for name in topics_on(broker) - before if name.startswith("bench")} == set()
    assert list(tmp_path.iterdir()) == []


def test_without_a_broker_the_command_says_how_to_get_one(tmp_path: Path) -> None:
    done = run(tmp_path, f"--broker=127.0.0.1:{free_port()}")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "make kafka" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_same_seed_gives_the_same_events_and_another_seed_other_runs() -> None:
    first, again, other = fleet(200, 1), fleet(200, 1), fleet(200, 2)
    assert first == again
    assert len(first) == len(other) == 200
    assert not {message.key for message in first} & {message.key for message in other}


def test_each_named_verdict_is_given_and_no_other() -> None:
    load = fleet(150, 1)
    monitor = EmbeddedMonitor(Settings(encoder="hashing"), references(), contracts())
    given = [
        output.id
        for message in load
        for output in monitor.feed_bytes(message.value)
        if isinstance(output, Verdict)
    ]
    assert given == [message.verdict_id for message in load if message.verdict_id is not None]
    counted = throughput.embedded(Settings(encoder="hashing"), load)
    assert counted.verdicts == len(given)
    assert len(counted.times_ns) == 135
    assert 200 < counted.verdict_bytes < 5000


def test_the_gate_is_asked_about_the_next_call_of_a_run_that_is_open() -> None:
    monitor = EmbeddedMonitor(Settings(encoder="hashing"), references(), contracts())
    for run_ in asked_runs(6, seed=3):
        for message in run_.events:
            monitor.feed_bytes(message.value)
        steps = sum(message.verdict_id is not None for message in run_.events)
        assert steps > 0
        decision = monitor.propose(run_.proposal)
        assert decision.seq == steps
        assert codecs.decode_proposal(codecs.encode(run_.proposal)).event.seq is None
