"""``ontrack simulate`` and ``ontrack score --recovery``: faults that agents meet, and what came."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators.recovery import Fault
from ontrack.pipeline.cli import cli, main
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.reading.event_reader import SourceEvent
from ontrack.pipeline.scoring.marks import fault_of, marked
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import (
    FAULT_KINDS,
    FaultPlan,
    contracts,
    references,
    simulate_faulty,
    simulate_run,
    task_ids,
)
from ontrack.pipeline.workplace.injection import inject_recorded, wrong_result
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidFile, InvalidSettings, UnknownName
from ontrack.topics.events import RunEnded, Step
from tests.pipeline.fleet import point_cli_at, read_all
from tests.strategies import json_values

KINDS = pytest.mark.parametrize("kind", FAULT_KINDS)
TASKS = task_ids()


@pytest.fixture(autouse=True)
def in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("ONTRACK_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    result = CliRunner().invoke(cli, arguments, input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def lines(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in raw.splitlines()]


def marks(raw: bytes) -> dict[tuple[str, int], dict[str, Any]]:
    return {
        (line["run_id"], line["seq"]): line["injected_fault"]
        for line in lines(raw)
        if "injected_fault" in line
    }


def as_steps(events: list[Any]) -> list[Step]:
    return [event for event in events if isinstance(event, Step)]


# ------------------------------------------------------------------ what a user tries first


def test_faults_go_in_and_the_score_tells_by_kind_what_became_of_them() -> None:
    made = run("simulate", "--runs", "60", "--fault", "timeout", "--fault", "tool_error",
               "--out", "runs.jsonl", "--references-out", "refs.jsonl")  # fmt: skip
    assert (made.exit_code, made.stdout) == (0, "")
    assert "60 runs, 60 faults injected, 0 runs without one" in made.stderr
    shown = run("score", "runs.jsonl", "--references", "refs.jsonl", "--recovery")
    assert shown.exit_code == 0
    table = shown.stdout.split("Back on course after injected faults\n")[1].splitlines()
    assert table[0].split()[:3] == ["fault", "injected", "recovered"]
    assert [row.split()[:2] for row in table[1:4]] == [
        ["timeout", "30"],
        ["tool_error", "30"],
        ["all", "60"],
    ]


def test_json_has_a_line_for_each_fault_and_a_summary_that_adds_them_up() -> None:
    raw = run("simulate", "--runs", "30", "--fault", "missing_artifact").stdout_bytes
    Path("runs.jsonl").write_bytes(raw)
    told = lines(run("score", "runs.jsonl", "--recovery", "--json").stdout_bytes)
    found = [line for line in told if line["type"] == "recovery"]
    assert {(line["run_id"], line["seq"]) for line in found} == set(marks(raw))
    summary = told[-1]["recovery"]
    assert set(summary) == {"missing_artifact", "all"}
    assert summary["all"]["injected"] == summary["all"]["measured"] == len(found) == 30
    recovered = [line for line in found if line["recovered"]]
    assert 0 < summary["all"]["recovered"] == len(recovered) < 30
    rate = summary["all"]["rate"]
    assert rate["low"] < rate["value"] == round(len(recovered) / 30, 6) < rate["high"]
    for line in recovered:
        assert line["outcome"] == "success"
        # Fetching again what was gone takes one call at least, and asking again another.
        assert line["calls"] >= 2
        assert line["cost_usd"] > 0
        assert line["seconds"] > 0


def test_without_faults_there_are_no_recovery_lines() -> None:
    raw = run("simulate", "--runs", "12").stdout_bytes
    Path("runs.jsonl").write_bytes(raw)
    told = lines(run("score", "runs.jsonl", "--recovery", "--json").stdout_bytes)
    assert Counter(line["type"] for line in told) == {"scorecard": 12, "summary": 1}
    assert told[-1]["recovery"]["all"]["injected"] == 0
    assert "no injected faults in these runs" in run("score", "runs.jsonl", "--recovery").stdout
    assert marks(raw) == {}


def test_only_when_asked_is_recovery_told() -> None:
    raw = run("simulate", "--runs", "6", "--fault", "timeout").stdout_bytes
    told = run("score", "-", "--json", stdin=raw)
    assert {line["type"] for line in lines(told.stdout_bytes)} == {"scorecard", "summary"}
    assert "recovery" not in lines(told.stdout_bytes)[-1]


@KINDS
def test_the_same_seed_gives_the_same_bytes_and_another_one_others(kind: str) -> None:
    once = run("simulate", "--runs", "12", "--fault", kind, "--seed", "3").stdout_bytes
    code = f"from ontrack.pipeline.cli import main; main(['simulate', '--runs', '12', \
'--fault', {kind!r}, '--seed', '3'])"
    again = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert again.stdout == once
    assert run("simulate", "--runs", "12", "--fault", kind, "--seed", "4").stdout_bytes != once


# ------------------------------------------------------------------ recorded runs


def test_in_recorded_runs_one_answer_changes_and_nothing_is_said_of_recovery() -> None:
    before = run("simulate", "--runs", "8").stdout_bytes
    Path("recorded.jsonl").write_bytes(before)
    made = run("simulate", "recorded.jsonl", "--fault", "timeout", "--at", "4")
    assert "recovery cannot" in made.stderr
    ours, theirs = before.splitlines(), made.stdout_bytes.splitlines()
    changed = [at for at, pair in enumerate(zip(ours, theirs, strict=True)) if len(set(pair)) == 2]
    assert len(changed) == 8
    for at in changed:
        old, new = json.loads(ours[at]), json.loads(theirs[at])
        assert new.pop("injected_fault") == {"kind": "timeout", "seen_by_agent": False}
        assert new["seq"] == 4
        assert (new["result"], new["error"]["type"], new["produced"]) == (None, "timeout", [])
        same = set(old) - {"result", "error", "produced"}
        assert {name: old[name] for name in same} == {name: new[name] for name in same}
    told = run("score", "-", "--recovery", "--json", stdin=made.stdout_bytes)
    found = [line for line in lines(told.stdout_bytes) if line["type"] == "recovery"]
    assert [line["unmeasured"] for line in found] == ["not_seen"] * 8
    assert {line["recovered"] for line in found} == {None}
    assert lines(told.stdout_bytes)[-1]["recovery"]["all"]["rate"]["value"] is None
    shown = run("score", "-", "--recovery", stdin=made.stdout_bytes).stdout
    assert "8 faults were put into recorded runs" in shown
    assert "not measured" in shown


def test_foreign_formats_become_events_and_a_file_may_be_changed_in_place() -> None:
    calls = [{"id": str(at), "name": "look", "args": {}, "result": "42 found"} for at in range(3)]
    record = {"run_id": "r", "task_id": "t", "success": True, "calls": calls}
    Path("runs.jsonl").write_text(json.dumps(record))
    made = run("simulate", "runs.jsonl", "--fault", "wrong_result", "--out", "runs.jsonl")
    assert made.exit_code == 0, made.stderr
    found = lines(Path("runs.jsonl").read_bytes())
    hit = [line for line in found if "injected_fault" in line]
    assert len(hit) == 1
    assert hit[0]["result"] != "42 found"
    assert hit[0]["result"].endswith(" found")
    assert [path.name for path in Path().iterdir()] == ["runs.jsonl"]


def test_a_flaky_tool_is_one_tool_whose_calls_fail_at_the_rate() -> None:
    steps = [Step(run_id="r", seq=at, tool="abc"[at % 3], result="1") for at in range(900)]
    hit = inject_recorded(FaultPlan("flaky", rate=0.4), steps, Random(1))
    assert len({step.tool for step in hit.values()}) == 1
    assert 90 <= len(hit) <= 150
    assert {step.error is not None for step in hit.values()} == {True}


@given(
    st.lists(st.tuples(json_values(), st.booleans()), max_size=6),
    st.sampled_from(FAULT_KINDS),
    st.integers(0, 99),
    st.sampled_from([None, 0.0, 0.5, 1.0]),
)
def test_injection_touches_sound_calls_only_and_never_leaves_the_right_result(
    rows: list[tuple[Any, bool]], kind: Any, seed: int, rate: float | None
) -> None:
    steps = [
        Step(run_id="r", seq=at, tool="t", result=result, error=failed)  # type: ignore[arg-type]
        for at, (result, failed) in enumerate(rows)
    ]
    hit = inject_recorded(FaultPlan(kind, rate=rate), steps, Random(seed))
    assert hit == inject_recorded(FaultPlan(kind, rate=rate), steps, Random(seed))
    for place, step in hit.items():
        assert steps[place].error is None
        assert codecs.decode_event(codecs.encode(step)).event.run_id == "r"
        if kind == "wrong_result":
            assert json.dumps(step.result) != json.dumps(steps[place].result)
        else:
            assert (step.result, step.error is None) == (None, False)
    fits = [not failed for _, failed in rows]
    if kind != "wrong_result" and (rate == 1.0 or (rate is None and kind != "flaky")):
        assert len(hit) == (sum(fits) if rate == 1.0 else min(1, sum(fits)))


def test_a_wrong_result_looks_like_the_right_one() -> None:
    wrong = wrong_result({"order": "ord-77120"}, Random(1))
    assert wrong is not None
    assert wrong.before == "ord-77120"
    assert wrong.after.startswith("ord-7712")
    assert wrong.result == {"order": wrong.after} != {"order": wrong.before}
    assert wrong_result({"items": [], "more": None}, Random(1)) is None


# ------------------------------------------------------------------ the agent and its world


@given(
    st.sampled_from(TASKS),
    st.integers(0, 9999),
    st.sampled_from(FAULT_KINDS),
    st.sampled_from([None, 0.3]),
)
def test_up_to_the_first_fault_the_run_is_the_one_without_it(
    task_id: str, seed: int, kind: Any, rate: float | None
) -> None:
    faulty = simulate_faulty(task_id, seed, FaultPlan(kind, rate=rate), run_id="r")
    clean = simulate_run(task_id, seed, run_id="r").events
    assert faulty == simulate_faulty(task_id, seed, FaultPlan(kind, rate=rate), run_id="r")
    ours, theirs = as_steps(faulty.events), as_steps(clean)
    first = min(faulty.faults, default=len(theirs))
    assert ours[:first] == theirs[:first]
    if faulty.faults:
        assert (ours[first].tool, ours[first].args) == (theirs[first].tool, theirs[first].args)
        assert (ours[first].result, ours[first].error) != (theirs[first].result, None)
    else:
        assert faulty.events == clean


@given(st.sampled_from(TASKS), st.integers(0, 9999), st.sampled_from(FAULT_KINDS))
def test_a_run_that_succeeds_has_done_all_that_its_task_takes(
    task_id: str, seed: int, kind: Any
) -> None:
    faulty = simulate_faulty(task_id, seed, FaultPlan(kind, rate=0.2), run_id="r")
    end = faulty.events[-1]
    assert isinstance(end, RunEnded)
    assert (end.outcome == "success") == (end.reason is None)
    if end.outcome == "success":
        needed = {
            (step.tool, json.dumps(step.args, sort_keys=True))
            for step in as_steps(simulate_run(task_id, seed).events)
        }
        brought = {
            (step.tool, json.dumps(step.args, sort_keys=True))
            for step in as_steps(faulty.events)
            if step.error is None
        }
        assert needed <= brought


@KINDS
def test_recovery_is_not_scripted_some_runs_fail_and_some_succeed(kind: Any) -> None:
    ended = [
        simulate_faulty(TASKS[seed % len(TASKS)], seed, FaultPlan(kind)) for seed in range(120)
    ]
    outcomes = Counter(made.events[-1].outcome for made in ended if made.faults)  # type: ignore[union-attr]
    assert outcomes["success"] >= 5
    assert outcomes["failure"] >= 5


def test_agents_retry_look_elsewhere_and_give_up() -> None:
    seen: Counter[str] = Counter()
    for seed in range(200):
        made = simulate_faulty(TASKS[seed % len(TASKS)], seed, FaultPlan("tool_error"))
        steps = as_steps(made.events)
        (at,) = made.faults
        if at + 1 == len(steps):
            seen["gave up"] += 1
        elif (steps[at + 1].tool, steps[at + 1].args) == (steps[at].tool, steps[at].args):
            seen["retried" if steps[at + 1].error is None else "retried in vain"] += 1
        else:
            seen["looked elsewhere"] += 1
    assert set(seen) == {"gave up", "retried", "retried in vain", "looked elsewhere"}


def test_a_lost_artifact_comes_back_only_from_its_producer() -> None:
    for seed in range(60):
        made = simulate_faulty(TASKS[seed % len(TASKS)], seed, FaultPlan("missing_artifact"))
        steps = as_steps(made.events)
        (at,) = made.faults
        lost = set(steps[at].consumed or ())
        for place, step in enumerate(steps[at + 1 :], at + 1):
            if (step.tool, step.args) == (steps[at].tool, steps[at].args) and step.error is None:
                again = [set(each.produced or ()) for each in steps[at + 1 : place]]
                assert lost & set().union(*again)


def test_a_wrong_id_that_was_believed_is_not_found_by_who_is_handed_it() -> None:
    handed_on = 0
    for seed in range(200):
        made = simulate_faulty(TASKS[seed % len(TASKS)], seed, FaultPlan("wrong_result"))
        right = {
            (step.tool, json.dumps(step.args, sort_keys=True))
            for step in as_steps(simulate_run(TASKS[seed % len(TASKS)], seed).events)
        }
        for step in as_steps(made.events):
            asked = (step.tool, json.dumps(step.args, sort_keys=True))
            if step.error is not None:
                assert step.error.type == "not_found"
                assert asked not in right
                handed_on += 1
    assert handed_on > 10


def test_a_time_out_takes_its_time() -> None:
    made = simulate_faulty(TASKS[0], 1, FaultPlan("timeout", at=2))
    step = as_steps(made.events)[2]
    assert step.started_at is not None
    assert step.ended_at is not None
    assert (step.ended_at - step.started_at).total_seconds() >= 30


# ------------------------------------------------------------------ the mark


def test_the_monitor_says_the_same_with_the_marks_and_without() -> None:
    raw = run("simulate", "--runs", "12", "--fault", "tool_error", "--fault", "wrong_result")
    given_lines = raw.stdout_bytes.splitlines()
    settings = Settings(encoder="hashing")
    said = []
    for strip in (False, True):
        monitor = EmbeddedMonitor(settings, references(), contracts())
        outputs = []
        for line in given_lines:
            record = json.loads(line)
            if strip:
                record.pop("injected_fault", None)
            event, flags = codecs.decode_event(json.dumps(record).encode())
            assert flags == ()
            outputs += [codecs.encode(output) for output in monitor.feed(event)]
        said.append(outputs)
    assert said[0] == said[1] != []


def test_a_mark_is_read_back_and_words_in_results_are_none() -> None:
    step = Step(run_id="r", seq=0, tool="t", result={"injected_fault": {"kind": "no"}})
    assert fault_of(SourceEvent(step, codecs.encode(step), (), "f", 1)) is None
    raw = marked(step, Fault("timeout", True))
    assert codecs.decode_event(raw).event == step
    assert fault_of(SourceEvent(step, raw, (), "f", 1)) == Fault("timeout", True)


def test_users_own_agents_are_scored_by_the_mark_alone() -> None:
    mark = {"kind": "our own outage", "seen_by_agent": True}
    record = {"type": "step", "run_id": "r", "tool": "t", "args": {"path": "x"}}
    written = [
        {**record, "error": "down", "injected_fault": mark},
        {**record, "result": 1},
        {"type": "run_ended", "run_id": "r", "outcome": "success"},
    ]
    raw = "\n".join(map(json.dumps, written)).encode()
    told = lines(run("score", "-", "--recovery", "--json", stdin=raw).stdout_bytes)
    assert (told[1]["kind"], told[1]["recovered"], told[1]["calls"]) == ("our own outage", True, 1)


@pytest.mark.parametrize("mark", ['"x"', "{}", '{"kind": "a"}', '{"kind": "", "seen_by_agent": 1}'])
def test_a_mark_of_another_form_is_an_error_that_names_the_line(
    mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = f'{{"type": "step", "run_id": "r", "tool": "t", "injected_fault": {mark}}}'
    Path("runs.jsonl").write_text(raw)
    assert run("score", "runs.jsonl").exit_code == 0
    with pytest.raises(SystemExit) as left:
        main(["score", "runs.jsonl", "--recovery"])
    assert left.value.code == 2
    assert "runs.jsonl:1: injected_fault has another form" in capsys.readouterr().err
    step = Step(run_id="r", tool="t")
    with pytest.raises(InvalidFile, match="seen_by_agent"):
        fault_of(SourceEvent(step, raw.encode(), (), "f", 1))


# ------------------------------------------------------------------ usage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs.jsonl"], "needs a --fault"),
        (["runs.jsonl", "--runs", "3", "--fault", "flaky"], "either PATH"),
        (["runs.jsonl", "--fault", "flaky", "--references-out", "r"], "generated runs"),
        (["--at", "3"], "need a --fault"),
        (["--fault", "timeout", "--at", "3", "--rate", "0.1"], "either --at or --rate"),
        (["--fault", "flaky", "--at", "3"], "fail at a --rate"),
        (["--out", "x", "--broker", "127.0.0.1:1"], "either --out or --broker"),
        (["--rate-per-s", "5"], "is for --broker"),
        (["--fault", "earthquake"], "earthquake"),
        (["--runs", "0"], "--runs"),
        (["--fault", "timeout", "--rate", "2"], "--rate"),
    ],
)
def test_bad_usage_exits_2_and_says_why(arguments: list[str], message: str) -> None:
    result = run("simulate", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_fault_that_has_no_place_anywhere_exits_1() -> None:
    result = run("simulate", "--runs", "4", "--fault", "timeout", "--at", "500")
    assert result.exit_code == 1
    assert "0 faults injected, 4 runs without one" in result.stderr
    assert run("simulate", "--runs", "4", "--fault", "timeout", "--rate", "0").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone.jsonl", "--fault", "timeout"], "gone.jsonl"),
        (["--out", "gone/runs.jsonl"], "gone/runs.jsonl: cannot be written"),
        (["--runs", "1", "--broker", "127.0.0.1:1"], "does not answer"),
    ],
)
def test_what_cannot_be_read_written_or_reached_exits_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["simulate", *arguments])
    assert left.value.code == 2
    assert message in capsys.readouterr().err


def test_plans_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(UnknownName, match="earthquake"):
        FaultPlan("earthquake")  # type: ignore[arg-type]
    for wrong in ({"at": 1, "rate": 0.5}, {"at": -1}, {"rate": 1.5}):
        with pytest.raises(InvalidSettings):
            FaultPlan("timeout", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidSettings, match="flaky"):
        FaultPlan("flaky", at=2)


# ------------------------------------------------------------------ Kafka


def test_on_kafka_stand_the_very_lines_with_their_marks(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = run("simulate", "--runs", "6", "--fault", "tool_error").stdout_bytes
    point_cli_at(settings, monkeypatch, tmp_path)
    sent = run("simulate", "--runs", "6", "--fault", "tool_error", "--broker", settings.broker,
               "--rate-per-s", "500")  # fmt: skip
    assert (sent.exit_code, sent.stdout) == (0, "")
    assert f"{len(expected.splitlines())} events sent" in sent.stderr
    found = asyncio.run(read_all(settings, topics_of(settings).events.name))
    assert sorted(message.value for message in found) == sorted(expected.splitlines())
    assert {message.key.decode() for message in found} == {
        line["run_id"] for line in lines(expected)
    }
