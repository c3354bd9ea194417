"""The horizon experiment: one monitor against itself without collapse."""

import pytest

from ontrack.pipeline.evaluation import horizon
from ontrack.pipeline.evaluation.corpus import ReferencePlan, read_corpora
from ontrack.pipeline.evaluation.horizon import (
    REPEATING,
    SMALL,
    WANDERING,
    Course,
    Gaps,
    HorizonJob,
    gaps_between,
)
from ontrack.pipeline.evaluation.watching import Setup, Watcher
from ontrack.pipeline.settings import load_settings
from ontrack.pipeline.workplace import contracts
from ontrack.pipeline.workplace.long_runs import long_run
from ontrack.topics.events import RunEnded
from ontrack.topics.verdicts import Scorecard, Verdict
from tests.pipeline.evaluation.runs import write_workplace


@pytest.fixture(scope="module")
def watcher(tmp_path_factory: pytest.TempPathFactory) -> Watcher:
    path = write_workplace(tmp_path_factory.mktemp("corpus"))
    settings = load_settings(profile="default", encoder="hashing", kernel="numpy")
    return Watcher(Setup(settings, contracts(), tuple(read_corpora([str(path)]))))


def test_a_run_that_is_not_collapsed_is_the_same_in_both_monitors(watcher: Watcher) -> None:
    job = HorizonJob(REPEATING, number=0, steps=30, graphs={"product": {}})
    gaps = horizon.compare(watcher, job)["product"]
    assert gaps.steps == 0, "only steps that can differ are compared"
    assert (gaps.final_score, gaps.final_loss, gaps.final_coverage) == (0.0, 0.0, 0.0)
    assert gaps.final_best


@pytest.mark.parametrize("kind", [REPEATING, WANDERING])
def test_what_a_collapsed_run_publishes_stays_near(watcher: Watcher, kind: str) -> None:
    job = HorizonJob(kind, number=1, steps=60, graphs={"small": SMALL})
    gaps = horizon.compare(watcher, job)["small"]
    assert gaps.steps == 60 - SMALL["active_max"] - SMALL["chunk"]
    assert len(gaps.leakage) == gaps.same_best
    assert max(gaps.leakage) <= 0.2
    assert max(gaps.coverage) <= 0.1
    assert gaps.same_verdict == gaps.steps
    measures = horizon.summarise([job], [{"small": gaps}], "default")
    by_name = {each.measure: each.estimate.value for each in measures}
    assert by_name["same_verdict"] == 1.0
    assert by_name["leakage_gap_max"] == max(gaps.leakage)


@pytest.mark.parametrize(("limit", "same"), [(0.2, 1), (0.4, 0), (0.6, 1)])
def test_a_place_is_judged_by_the_limit_that_the_profile_has(
    watcher: Watcher, limit: float, same: int
) -> None:
    monitor = watcher.monitor("any", [])
    said = [each for step in long_run(0, 2) for each in monitor.feed(step)]
    said += monitor.feed(RunEnded(run_id=long_run(0, 2)[0].run_id))
    card = next(each for each in said if isinstance(each, Scorecard))
    verdict = next(each for each in said if isinstance(each, Verdict))
    one, two = (
        Course((verdict.model_copy(update={"leakage": leakage}),), card) for leakage in (0.3, 0.5)
    )
    assert gaps_between(one, two, 0, limit).same_place == same


def test_another_limit_in_the_settings_reaches_the_figures(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def heard(whole: Course, other: Course, first: int, theta_leak: float) -> Gaps:
        limits.append(theta_leak)
        return gaps_between(whole, other, first, theta_leak)

    monkeypatch.setattr(horizon, "gaps_between", heard)
    operators = {"transport": {"leak_threshold": 0.3}}
    settings = watcher.settings.model_copy(update={"operators": operators})
    other = Watcher(Setup(settings, contracts(), ()))
    horizon.compare(other, HorizonJob(REPEATING, number=0, steps=5))
    assert limits == [0.3]


def test_recorded_runs_are_the_longest_that_have_references(watcher: Watcher) -> None:
    recordings = tuple(watcher.recordings.values())
    chosen = ReferencePlan(count=3, equal=False).choose(recordings)
    jobs = horizon.recorded_jobs(recordings, chosen, shortest=5, most=2)
    lengths = [len(watcher.recordings[job.run_id].steps) for job in jobs]
    assert len(jobs) == 2
    assert min(lengths) >= 5
    assert lengths == sorted(lengths, reverse=True)
    assert all(job.references for job in jobs)
