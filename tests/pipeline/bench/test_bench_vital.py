"""``ontrack bench vital``: the command, the events that are timed, who takes part."""

import json
import os
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from ontrack.operators.repeats import RepeatLevel, RepeatParams
from ontrack.pipeline.bench.online import SUCCESSES_MAX, OnlineAlignments
from ontrack.pipeline.bench.vitals import Stream, VitalSigns, contestants, with_successes
from ontrack.pipeline.blas import THREAD_VARIABLES
from ontrack.pipeline.cli.bench import command
from ontrack.pipeline.evaluation.corpus import Recording, read_corpora
from ontrack.pipeline.settings import load_settings
from ontrack.topics.errors import InvalidInput, InvalidSettings
from ontrack.topics.events import Step
from tests.pipeline.evaluation.runs import recording, write_workplace


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_workplace(tmp_path_factory.mktemp("corpus"), good=3, bad=2)


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    monkeypatch.setenv("COLUMNS", "120")


def without_pm4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pm4py", None)


def figures_of(*arguments: str) -> tuple[list[dict], str]:
    result = CliRunner().invoke(command, ["vital", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()], result.stderr


# ------------------------------------------------------------------ the command


def test_without_pm4py_the_vital_signs_are_timed_alone(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pm4py(monkeypatch)
    (machine, figure), told = figures_of("--corpus", str(corpus), "--json", "--seconds", "0.05")
    assert machine["type"] == "machine"
    assert machine["profile"] == "default"
    assert (figure["type"], figure["bench"]) == ("figure", "vital")
    assert (figure["name"], figure["size"]) == ("vital", "workplace")
    assert 0 < figure["p50_us"] <= figure["p95_us"] <= figure["p99_us"]
    assert figure["samples"] > 1
    assert figure["ratio"] is None
    assert "pip install pm4py" in told


def test_with_pm4py_both_are_timed_in_turns_and_compared(corpus: Path) -> None:
    pytest.importorskip("pm4py")
    (_, vital, aligned), _ = figures_of("--corpus", str(corpus), "--json", "--seconds", "0.5")
    assert (vital["name"], aligned["name"]) == ("vital", "pm4py")
    assert vital["samples"] == aligned["samples"]
    assert vital["ratio_to"] == "pm4py"
    # Figures are rounded to a tenth of a microsecond, the ratio to a thousandth.
    assert vital["ratio"] == pytest.approx(vital["p50_us"] / aligned["p50_us"], abs=0.02)


def test_people_get_a_table_with_a_row_a_corpus(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pm4py(monkeypatch)
    other = tmp_path / "other.jsonl"
    other.write_bytes(corpus.read_bytes().replace(b'"run_id":"', b'"run_id":"other-'))
    arguments = ["vital", "--corpus", str(corpus), "--corpus", str(other), "--seconds", "0.05"]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    rows = [line.split()[:2] for line in result.stdout.splitlines() if line.startswith(" vital ")]
    assert rows == [["vital", "other"], ["vital", "workplace"]]


# ------------------------------------------------------------------ who takes part


def test_a_profile_without_vital_signs_is_refused(corpus: Path) -> None:
    with pytest.raises(InvalidSettings, match="ONTRACK_PROFILE=default"):
        contestants(load_settings(profile="paper"), read_corpora([str(corpus)]))


def test_runs_whose_task_nobody_did_are_left_out() -> None:
    runs = [
        recording("a", "xyz", task="done"),
        recording("b", "xyy", task="done", success=False),
        recording("c", "xyy", task="never", success=False),
    ]
    assert [run.run_id for run in with_successes(runs)] == ["a", "b"]
    with pytest.raises(InvalidInput, match="successful run"):
        contestants(load_settings(profile="default"), runs[2:])


# ------------------------------------------------------------------ what is timed


def test_every_run_comes_round_whole_and_is_begun_each_time() -> None:
    runs = [recording("a", "xyz"), recording("b", "xy"), recording("c", "x")]
    begun: list[str] = []
    stream = Stream(runs, lambda run: begun.append(run.run_id))
    seen = [stream.step() for _ in range(12)]
    assert begun[:3] == begun[3:]
    assert sorted(begun[:3]) == ["a", "b", "c"]
    whole = {run.run_id: list(run.steps) for run in runs}
    assert seen == [step for run_id in begun for step in whole[run_id]]


def test_the_vital_signs_find_what_goes_round_and_begin_anew_with_each_run() -> None:
    same = Step(run_id="r", seq=0, tool="search", args={"city": "Bern"}, result="no results")
    run = recording("r", "xxxxxxxx")
    stuck = tuple(same.model_copy(update={"seq": seq}) for seq in range(8))
    vital = VitalSigns(RepeatParams(), [Recording("c", "r", "t", True, None, "success", stuck)])
    first = [vital.apply(vital.stream.step()) for _ in range(8)]
    again = [vital.apply(vital.stream.step()) for _ in range(8)]
    assert first == again
    assert first[0].level is RepeatLevel.NONE
    assert first[-1].level is RepeatLevel.LOOP
    # Results that differ are progress: nothing is found in a run that gets on.
    honest = VitalSigns(RepeatParams(), [run])
    levels = {honest.apply(honest.stream.step()).level for _ in range(16)}
    assert levels == {RepeatLevel.NONE}


class Model:
    """In PM4Py's place: keeps what each case received."""

    def __init__(self) -> None:
        self._cases: dict[str, list[str]] = {}

    def receive(self, event: dict[str, str]) -> None:
        received = self._cases.setdefault(event["case:concept:name"], [])
        received.append(event["concept:name"])


def test_a_run_is_a_case_of_the_model_of_its_tasks_successes() -> None:
    runs = [
        *(recording(f"good-{n}", "xyz", task="one") for n in range(SUCCESSES_MAX + 2)),
        recording("bad", "xyy", task="one", success=False),
        recording("other", "pq", task="two"),
    ]
    made: list[tuple[Model, list[str]]] = []

    def make(successes: Sequence[Recording]) -> Model:
        made.append((Model(), [run.run_id for run in successes]))
        return made[-1][0]

    aligned = OnlineAlignments(make, runs)
    (one, of_one), (two, of_two) = made
    assert of_one == [f"good-{n}" for n in range(SUCCESSES_MAX)]
    assert of_two == ["other"]
    stream = Stream(runs, aligned.begin)
    lengths = sum(len(run.steps) for run in runs)
    left: dict[str, list[str]] = {}
    for step in islice(iter(stream.step, None), 2 * lengths):
        aligned.apply(aligned.event(step))
        # No case outlives its run, so the second round finds none of the first.
        assert len(one._cases) + len(two._cases) == 1
        left |= one._cases | two._cases
    assert left == {run.run_id: [step.tool for step in run.steps] for run in runs}


def test_pm4py_aligns_what_a_model_says_and_tells_what_it_does_not() -> None:
    pytest.importorskip("pm4py")
    from ontrack.pipeline.bench.online import streaming_alignments

    make = streaming_alignments()
    assert make is not None
    runs = [recording("good", "xyz"), recording("bad", "xyq", success=False)]
    aligned = OnlineAlignments(make, runs)
    costs = {}
    for run in runs:
        aligned.begin(run)
        for step in run.steps:
            aligned.apply(aligned.event(step))
        costs[run.run_id] = aligned._model.get()[run.run_id]["standard_cost"]
    assert costs["good"] == 0
    assert costs["bad"] > 0
