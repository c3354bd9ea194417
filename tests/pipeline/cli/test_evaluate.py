"""``ontrack evaluate``: lines for programs, a table for people, the same figures every time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ontrack.pipeline.blas import THREAD_VARIABLES
from ontrack.pipeline.cli.evaluate import command
from tests.pipeline.evaluation.runs import write_tools, write_workplace

FIELDS = {
    "type",
    "experiment",
    "corpus",
    "profile",
    "method",
    "measure",
    "k",
    "value",
    "low",
    "high",
    "n",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("evaluate")
    return str(write_workplace(folder, good=3, bad=2)), str(write_tools(folder))


@pytest.fixture(autouse=True)
def _plain_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("ONTRACK_PROFILE", "paper")
    monkeypatch.setenv("ONTRACK_ENCODER", "hashing")
    monkeypatch.setenv("ONTRACK_KERNEL", "numpy")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


def lines(result: Result) -> list[dict]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("experiment", "options", "expected"),
    [
        ("ranking", ["--k", "3,whole"], {"auroc_within_task", "auroc_pooled"}),
        ("gate", ["--runs", "2"], {"blocked_injected", "blocked_clean"}),
        ("loops", [], {"warned_success", "halted_success"}),
        ("faults", ["--runs", "2"], {"found", "false_positive_runs"}),
        (
            "tracking",
            ["--runs", "1", "--campaign-tasks", "0", "--profile", "paper"],
            {"loss_gap_p50", "leakage_gap_p95", "same_best", "leak_differs"},
        ),
        ("abort", [], {"precision", "precision_balanced", "false_stops", "steps_saved"}),
    ],
)
def test_every_experiment_prints_the_measures_that_are_promised(
    files: tuple[str, str], experiment: str, options: list[str], expected: set[str]
) -> None:
    runs, tools = files
    arguments = (experiment, runs, "--tools", tools, "--processes", "1", "--json", *options)
    measures = lines(invoke(*arguments))
    assert expected <= {each["measure"] for each in measures}
    for each in measures:
        assert each.keys() >= FIELDS
        assert (each["type"], each["experiment"]) == ("measure", experiment)
        assert (each["corpus"], each["profile"]) == ("workplace", "paper")
        if each["low"] is not None:
            assert each["low"] <= each["value"] <= each["high"]
    assert lines(invoke(*arguments)) == measures


def test_people_get_a_table(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    result = invoke("loops", files[0], "--processes", "1")
    assert result.exit_code == 0
    (row,) = [line for line in result.stdout.splitlines() if "warned_success" in line]
    assert "workplace" in row
    assert "runs" in result.stderr


def test_tracking_is_shown_for_both_profiles_and_by_the_place_in_the_run(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    options = ("--runs", "1", "--campaign-tasks", "0", "--processes", "1")
    result = invoke("tracking", files[0], *options)
    assert result.exit_code == 0
    for profile in ("paper", "default"):
        assert f"converged solve, {profile}" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines() if "same_best" in line]
    assert {row[0] for row in rows} == {"workplace"}
    assert any("1–5" in row for row in rows)
    assert any("gamma=1.0" in row for row in rows)


def test_the_references_can_be_limited_to_other_models_and_other_tasks(
    files: tuple[str, str],
) -> None:
    here = ("ranking", files[0], "--k", "3", "--json", "--processes", "1")
    plain = invoke(*here)
    assert "15 runs, 15 of them with references" in plain.stderr
    assert "workplace: 3 tasks compared within; 0 left out" in plain.stderr
    # All runs of a desk have the same agent, so nothing is left.
    assert "0 of them with references" in invoke(*here, "--exclude-own-model").stderr
    other = invoke(*here, "--other-tasks", "--references", "1")
    assert "10 of them with references" in other.stderr
    assert {each["measure"] for each in lines(other)} >= {"auroc_pooled"}


@pytest.mark.parametrize("experiment", ["ranking", "abort"])
def test_figures_are_written(files: tuple[str, str], tmp_path: Path, experiment: str) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "figure.png"
    options = ["--k", "3"] if experiment == "ranking" else []
    result = invoke(experiment, files[0], "--processes", "1", "--plot", str(plot), *options)
    assert result.exit_code == 0
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_nothing_is_measured_for_nothing(
    files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    plot = str(tmp_path / "figure.png")
    result = CliRunner().invoke(command, ["abort", files[0], "--plot", plot])
    assert 'pip install "ontrack[plots]"' in str(result.exception)


def test_a_matrix_is_judged_beside_the_runs(files: tuple[str, str], tmp_path: Path) -> None:
    matrix = tmp_path / "matrix.json"
    same = {"tool": "read", "args": {"path": "a"}, "result": "X"}
    matrix.write_text(json.dumps({"L1": {"loop_by_step": 4, "steps": [same] * 8}}))
    result = invoke("loops", files[0], "--matrix", str(matrix), "--processes", "1", "--json")
    first = lines(result)[0]
    assert (first["corpus"], first["method"], first["measure"]) == ("matrix", "L1", "found")
    assert (first["value"], first["by_step"]) == (1.0, 4)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["ranking", "--k", "3,x"], "expected numbers of steps"),
        (["ranking", "--k", "0"], "expected numbers of steps"),
        (["faults", "--runs", "0"], "--runs"),
        (["gate", "--references", "-1"], "--references"),
    ],
)
def test_bad_usage_is_told(files: tuple[str, str], arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(command, [*arguments, files[0]])
    assert result.exit_code == 2
    assert complaint in result.output


def test_faults_without_any_reference_say_what_to_do(files: tuple[str, str]) -> None:
    for experiment in ("faults", "gate"):
        result = CliRunner().invoke(command, [experiment, files[0], "--references", "0"])
        assert "--other-tasks" in str(result.exception)


def test_the_help_imports_no_numerics() -> None:
    program = (
        "import sys\n"
        "from ontrack.pipeline.cli import main\n"
        "try:\n"
        "    main(['evaluate', 'ranking', '--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'numpy', 'scipy', 'matplotlib', 'rich', 'ontrack.pipeline.evaluation'}\n"
        "sys.exit(sorted(heavy & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
