"""Calibration: what is chosen within a budget, what it is worth held out, and the file of it."""

import hashlib
import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.blas import THREAD_VARIABLES
from ontrack.pipeline.calibrated import Budget, Calibration, CalibrationFile, Choice
from ontrack.pipeline.cli import cli
from ontrack.pipeline.evaluation.calibration import assign_folds, select
from ontrack.pipeline.evaluation.calibration_file import settings_file
from ontrack.pipeline.evaluation.calibration_knobs import KNOBS, Knob, current, with_value
from ontrack.pipeline.evaluation.calibration_readings import Reading, Unit
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.settings import load_settings
from tests.pipeline.evaluation.runs import write_tools, write_workplace

KNOB = Knob("orphans.orphan_cost", (0.3, 0.4, 0.5), "alarms", "injected streaks found")
CLEAN, FAULTY = 50, 20


def units() -> list[Unit]:
    clean = [Unit(f"c{n}", f"t{n}", True, ()) for n in range(CLEAN)]
    return clean + [Unit(f"f{n}", f"t{n}", True, (), "splice") for n in range(FAULTY)]


def reading(disturbed: int, found: int) -> list[Reading]:
    """So many of the clean runs disturbed, so many faults found."""
    clean = [Reading(n < disturbed, None) for n in range(CLEAN)]
    return clean + [Reading(None, float(n < found)) for n in range(FAULTY)]


def chosen(readings: dict[float, list[Reading]], budget: float = 0.1) -> Choice:
    fold_of = assign_folds([f"t{n}" for n in range(CLEAN)], 5, 0)
    return select(KNOB, units(), readings, budget, fold_of, 0)


def test_the_value_that_finds_most_within_the_budget_is_chosen() -> None:
    choice = chosen({0.5: reading(1, 5), 0.4: reading(4, 15), 0.3: reading(9, 20)})
    assert (choice.value, choice.disturbed, choice.found) == (0.4, 0.08, 0.75)
    assert choice.note == ""


def test_of_equally_good_values_the_profiles_own_stays() -> None:
    assert chosen({0.5: reading(2, 9), 0.4: reading(2, 9), 0.3: reading(2, 9)}).value == 0.5


def test_where_none_keeps_the_budget_the_least_disturbing_one_is_chosen_and_said() -> None:
    choice = chosen({0.5: reading(20, 5), 0.4: reading(12, 1), 0.3: reading(30, 20)})
    assert choice.value == 0.4
    assert choice.note.startswith("no value keeps the budget")


def test_too_few_clean_runs_move_no_value_that_keeps_the_budget() -> None:
    readings = {0.5: reading(0, 5), 0.3: reading(0, 20)}
    choice = chosen(readings, budget=0.015)
    assert choice.value == 0.5
    assert "200 clean runs" in choice.note
    # One that breaks the budget is moved, however few they are.
    assert chosen({0.5: reading(5, 5), 0.3: reading(0, 2)}, budget=0.015).value == 0.3


def test_a_fold_is_judged_by_what_the_other_folds_chose() -> None:
    """Each fold's own runs would be disturbed by the value that the others find best."""
    tasks = [f"t{n}" for n in range(CLEAN)]
    fold_of = assign_folds(tasks, 5, 0)
    own = [Unit(task, task, True, ()) for task in tasks]
    faults = [Unit(f"f{task}", task, True, (), "splice") for task in tasks]
    loud = [Reading(fold_of[task] == 3, None) for task in tasks]
    readings = {
        0.5: [Reading(False, None)] * CLEAN + [Reading(None, 0.0)] * CLEAN,
        0.3: loud + [Reading(None, 1.0)] * CLEAN,
    }
    choice = select(KNOB, own + faults, readings, 0.1, fold_of, 0)
    # All together 20 % are disturbed, so nothing is moved; without fold 3 nobody is.
    assert choice.value == 0.5
    assert choice.chosen_by_fold == (0.5, 0.5, 0.5, 0.3, 0.5)
    assert choice.held_out_disturbed == 0.2
    assert choice.held_out_found == 0.2


@given(st.integers(2, 10), st.integers(10, 60), st.integers(0, 5))
def test_folds_are_of_equal_size(folds: int, tasks: int, seed: int) -> None:
    dealt = list(assign_folds([f"t{n}" for n in range(tasks)], folds, seed).values())
    sizes = [dealt.count(fold) for fold in range(folds)]
    assert max(sizes) - min(sizes) <= 1


def test_every_threshold_of_the_table_exists_in_its_profile_and_takes_every_value() -> None:
    for profile, knobs in KNOBS.items():
        for knob in knobs:
            for value in knob.values:
                operators = with_value({}, knob.key, value)
                settings = load_settings(encoder="hashing", profile=profile, operators=operators)
                assert current(make_fold(settings).profile, knob.key) == value


# ------------------------------------------------------------------ the file


def test_the_file_is_read_back_as_it_was_meant() -> None:
    name = 'odd "name"\n\x7f\\ Ü 🙂.jsonl'
    made = Calibration(
        encoder="hashing-256",
        profile="default",
        newest="2026-11-30T11:00:00+00:00",
        runs=3,
        successes=2,
        failures=1,
        tasks=2,
        seed=7,
        folds=2,
        budget=Budget(loops=0.5),
        files=(CalibrationFile(name=name, sha256="0" * 64, runs=3),),
        choices=(Choice(key="a.b", value="x", gain="g", n=3, chosen_by_fold=(1, 2.5, "y")),),
    )
    operators = {"stall": False, "transport": {"solver": {"lam": 0.2}, "near_cost": 0.4}}
    text = settings_file("hashing", operators, made, "now", "ontrack calibrate x\ny")
    read = tomllib.loads(text)
    assert read["operators"] == operators
    assert Calibration.model_validate(read["calibration"]) == made
    assert (read["profile"], read["encoder"]) == ("default", "hashing")
    assert text.startswith("# Written by `ontrack calibrate x y`\n# at now")


# ------------------------------------------------------------------ the command


def calibrate(folder: Path, *more: str) -> Result:
    path = write_workplace(folder)
    arguments = ["calibrate", str(path), "--tools", str(write_tools(folder)), "--processes", "1"]
    arguments += ["--folds", "3", "--runs", "6", "--out", str(folder / "made.toml"), *more]
    return CliRunner().invoke(cli, arguments)


@pytest.fixture(autouse=True)
def _plain_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("ONTRACK_ENCODER", "hashing")
    monkeypatch.setenv("ONTRACK_KERNEL", "numpy")


def test_the_command_writes_a_settings_file_that_says_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = calibrate(tmp_path, "--profile", "default")
    assert result.exit_code == 0, result.output
    monkeypatch.setenv("ONTRACK_CONFIG", str(tmp_path / "made.toml"))
    settings = load_settings()
    made = settings.calibration
    assert made is not None
    assert (made.encoder, made.profile, settings.profile) == ("hashing-256", "default", "default")
    (file,) = made.files
    content = (tmp_path / "workplace.jsonl").read_bytes()
    assert (file.name, file.runs) == ("workplace.jsonl", 18)
    assert file.sha256 == hashlib.sha256(content).hexdigest()
    times = [json.loads(line).get("time") for line in content.splitlines()]
    assert made.newest is not None
    assert made.newest.isoformat()[:16] <= max(time for time in times if time)[:16]
    assert [choice.key for choice in made.choices] == [knob.key for knob in KNOBS["default"]]
    profile = make_fold(settings).profile
    assert all(current(profile, choice.key) == choice.value for choice in made.choices)


def test_the_same_seed_gives_the_same_thresholds(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        assert calibrate(tmp_path / name, "--profile", "paper", "--runs", "3").exit_code == 0
        found.append(tomllib.loads((tmp_path / name / "made.toml").read_text()))
    assert found[0] == found[1]


def test_too_few_tasks_for_the_folds_is_an_error_that_says_so(tmp_path: Path) -> None:
    result = calibrate(tmp_path, "--folds", "9")
    assert "3 tasks; 9 folds that share no task need 9 or more" in str(result.exception)
