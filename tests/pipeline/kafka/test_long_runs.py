"""Open runs for benches, and what is measured on them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from ontrack.pipeline.bench import memory, recovery
from ontrack.pipeline.cli import cli
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, task_ids
from ontrack.pipeline.workplace.long_runs import long_references, long_run, open_runs
from tests.pipeline.fleet import point_cli_at


def test_a_long_run_counts_its_steps_and_names_only_steps_before() -> None:
    run = long_run(3, 40)
    assert [step.seq for step in run] == list(range(40))
    assert {step.run_id for step in run} == {"open-3"}
    assert all(parent < (step.seq or 0) for step in run for parent in step.parents or ())
    assert any(step.parents for step in run[20:])
    assert len({step.call_id for step in run}) == 40


def test_runs_stay_open_and_each_comes_back_at_the_end() -> None:
    events = list(open_runs(12, 5, wave=4))
    assert Counter(event.run_id for event in events) == {f"open-{n}": 5 for n in range(12)}
    assert [event.run_id for event in events[:8]] == [f"open-{n}" for n in (0, 1, 2, 3)] * 2
    assert [event.seq for event in events[-12:]] == [4] * 12


def test_references_are_as_long_as_the_runs_and_runs_find_theirs() -> None:
    found = long_references(20)
    assert {len(reference.steps) for reference in found} == {20}
    assert Counter(reference.task_id for reference in found) == dict.fromkeys(task_ids(), 3)
    monitor = EmbeddedMonitor(Settings(encoder="hashing"), found, contracts())
    said = [output for step in long_run(1, 3) for output in monitor.feed(step)]
    assert all(output.best_reference is not None for output in said if output.type == "verdict")


def test_memory_is_told_with_runs_that_are_really_open() -> None:
    settings = Settings(encoder="hashing", warm_runs_max=5)
    figures = memory.measure(settings, 12, 4, lambda _: None)
    assert (figures["events"], figures["open_runs"], figures["kept_as_bytes"]) == (48, 12, 7)
    assert figures["peak_rss_mib"] >= figures["start_rss_mib"] > 10


def test_the_command_prints_one_figure_as_json() -> None:
    arguments = ["bench", "memory", "--runs", "3", "--steps", "2", "--json"]
    done = CliRunner().invoke(cli, arguments, env={"ONTRACK_ENCODER": "hashing"})
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["open_runs"] == 3


@pytest.mark.kafka
async def test_a_killed_worker_is_ready_again_with_and_without_checkpoints(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    point_cli_at(settings, monkeypatch, tmp_path)
    monkeypatch.setenv("ONTRACK_CHECKPOINT_EVENTS", "20")
    found = await recovery.measure(settings, 20, 8, lambda _: None)
    first, with_checkpoints, without = found
    assert first.folded == without.folded == 160
    assert with_checkpoints.folded < 160
    assert {one.open_runs for one in found} == {20}
    assert {one.refused for one in found} == {0}
    assert all(one.told >= 2 * settings.partitions for one in found)
