"""The bench of several workers."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from ontrack.pipeline.cli.scale import command


@pytest.mark.kafka
def test_the_command_measures_workers_and_waits_of_each_runtime(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONTRACK_ENCODER", "hashing")
    sizes = ["--events=600", "--workers=2", "--seconds=1"]
    done = CliRunner().invoke(command, [f"--broker={broker}", "--json", *sizes])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines[0]["type"] == "machine"
    for runtime in ("faust", "aiokafka"):
        ours = [line for line in lines if line.get("runtime") == runtime]
        backlogs = [line for line in ours if line["name"] == "backlog"]
        assert [line["workers"] for line in backlogs] == [1, 2]
        assert backlogs[0]["speedup"] == 1
        assert all(line["events_per_s"] > 0 for line in backlogs)
        waits = [line for line in ours if line["name"] == "wait"]
        assert len(waits) == 4
        assert all(0 < line["p50_ms"] <= line["p99_ms"] for line in waits)
        (service,) = [line for line in ours if line["name"] == "service"]
        assert service["mean_s"] == pytest.approx(1 / backlogs[0]["events_per_s"])
