"""Thresholds in settings: used by every driver, part of the digest, held against their encoder."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from ontrack.pipeline import calibrated
from ontrack.pipeline.calibrated import Calibration, mismatches, warn_of_mismatch
from ontrack.pipeline.cli import cli
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.settings import load_settings
from ontrack.topics.errors import InvalidSettings
from ontrack.topics.events import Step
from ontrack.topics.verdicts import Verdict

MADE = Calibration(
    encoder="wordllama-256",
    profile="default",
    runs=9,
    successes=5,
    failures=4,
    tasks=3,
    seed=0,
    folds=2,
)
FILE = """
profile = "default"
encoder = "hashing"

[operators.repeats]
repeats_max = 5

[calibration]
encoder = "hashing-256"
profile = "default"
runs = 9
successes = 5
failures = 4
tasks = 3
seed = 0
folds = 2
"""


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "calibrated.toml"
    path.write_text(FILE)
    monkeypatch.setenv("ONTRACK_CONFIG", str(path))
    return path


@pytest.mark.usefixtures("named")
def test_a_file_changes_the_thresholds_of_the_profile_it_names() -> None:
    repeats = make_fold(load_settings()).profile.repeats
    assert repeats is not None
    assert (repeats.repeats_max, repeats.grace) == (5, 3)


def warned_at(settings_file_is_used: bool) -> tuple[int, str]:
    """Which repeat of a call is warned about, and under which digest."""
    settings = load_settings(profile="default", encoder="hashing")
    if not settings_file_is_used:
        settings = settings.model_copy(update={"operators": {}, "calibration": None})
    monitor = EmbeddedMonitor(settings)
    for seq in range(9):
        step = Step(run_id="r", seq=seq, tool="look", args={"q": "x"}, result="none")
        (verdict,) = (each for each in monitor.feed(step) if isinstance(each, Verdict))
        if verdict.severity:
            return seq, verdict.settings
    raise AssertionError("never warned")


@pytest.mark.usefixtures("named")
def test_verdicts_follow_the_thresholds_and_carry_another_digest() -> None:
    own, shipped = warned_at(True), warned_at(False)
    assert own[0] == shipped[0] + 2
    assert own[1] != shipped[1]


def test_a_variable_holds_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONTRACK_OPERATORS", json.dumps({"stall": {"window": 7}}))
    stall = make_fold(load_settings(encoder="hashing", profile="paper")).profile.stall
    assert stall is not None
    assert stall.window == 7
    monkeypatch.setenv("ONTRACK_OPERATORS", "{stall")
    with pytest.raises(InvalidSettings, match="ONTRACK_OPERATORS.*expected a JSON object"):
        load_settings()


def test_a_threshold_that_does_not_exist_is_named() -> None:
    settings = load_settings(encoder="hashing", operators={"stall": {"windows": 7}})
    with pytest.raises(InvalidSettings, match="operators.stall.windows: no such setting"):
        make_fold(settings)


def test_a_calibration_that_is_incomplete_is_an_error_that_names_the_field() -> None:
    with pytest.raises(InvalidSettings, match="calibration.encoder"):
        load_settings(calibration={"profile": "default"})


def test_another_encoder_or_profile_is_a_mismatch() -> None:
    assert mismatches(MADE, "wordllama-256", "default") == []
    assert mismatches(MADE, "hashing-256", "default") == [
        "thresholds were calibrated with encoder wordllama-256, not hashing-256"
    ]
    assert mismatches(MADE, "wordllama-256", "paper") == [
        "thresholds were calibrated for profile default, not paper"
    ]


def test_a_mismatch_is_logged_once_a_process() -> None:
    calibrated._warn.cache_clear()
    with capture_logs() as logs:
        for _ in range(3):
            warn_of_mismatch(MADE, "hashing-256", "default")
        warn_of_mismatch(None, "hashing-256", "default")
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert "wordllama-256" in logs[0]["event"]


@pytest.mark.usefixtures("named")
def test_doctor_fails_where_the_encoder_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["doctor", "--no-broker", "--json"]

    def check() -> tuple[bool, str]:
        result = CliRunner().invoke(cli, arguments)
        checks = [json.loads(line) for line in result.stdout.splitlines()]
        (found,) = (each for each in checks if each["name"] == "calibration")
        assert result.exit_code == (0 if found["ok"] else 1)
        return found["ok"], found["detail"]

    assert check()[0]
    monkeypatch.setenv("ONTRACK_ENCODER", "wordllama")
    ok, detail = check()
    assert not ok
    assert detail == "thresholds were calibrated with encoder hashing-256, not wordllama-256"
