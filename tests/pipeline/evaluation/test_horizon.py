"""The horizon experiment: one monitor against itself without collapse."""

import pytest

from ontrack.pipeline.evaluation import horizon
from ontrack.pipeline.evaluation.corpus import ReferencePlan, read_corpora
from ontrack.pipeline.evaluation.horizon import REPEATING, SMALL, WANDERING, HorizonJob
from ontrack.pipeline.evaluation.watching import Setup, Watcher
from ontrack.pipeline.settings import load_settings
from ontrack.pipeline.workplace import contracts
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


def test_recorded_runs_are_the_longest_that_have_references(watcher: Watcher) -> None:
    recordings = tuple(watcher.recordings.values())
    chosen = ReferencePlan(count=3, equal=False).choose(recordings)
    jobs = horizon.recorded_jobs(recordings, chosen, shortest=5, most=2)
    lengths = [len(watcher.recordings[job.run_id].steps) for job in jobs]
    assert len(jobs) == 2
    assert min(lengths) >= 5
    assert lengths == sorted(lengths, reverse=True)
    assert all(job.references for job in jobs)
