"""Tracking: the gap between one iteration and the solve, and what is made of many of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.operators import transport
from ontrack.operators.references import ReferenceSet
from ontrack.operators.transport import TransportParams
from ontrack.pipeline.evaluation import tracking, tracking_runs, tracking_summary
from ontrack.pipeline.evaluation.corpus import ReferencePlan, read_corpora
from ontrack.pipeline.evaluation.measures import Measure
from ontrack.pipeline.evaluation.tracking import LeakThresholds, Solution, StepGap, Taken
from ontrack.pipeline.evaluation.tracking_runs import CONTROLLED, FAST, VARIANTS, TrackingJob
from ontrack.pipeline.evaluation.watching import Setup, Watcher
from ontrack.pipeline.settings import load_settings
from ontrack.pipeline.workplace import contracts
from ontrack.solver.problem import SolverParams
from tests.pipeline.evaluation.runs import write_workplace

LIMITS = LeakThresholds(0.6, 0.43)


@pytest.fixture(scope="module")
def watcher(tmp_path_factory: pytest.TempPathFactory) -> Watcher:
    path = write_workplace(tmp_path_factory.mktemp("corpus"), good=3, bad=2)
    made = load_settings(profile="paper", encoder="hashing", kernel="numpy")
    return Watcher(Setup(made, contracts(), tuple(read_corpora([str(path)]))))


@pytest.fixture(scope="module")
def jobs(watcher: Watcher) -> list[TrackingJob]:
    recordings = tuple(watcher.recordings.values())
    chosen = ReferencePlan(count=3, equal=False).choose(recordings)
    return tracking_runs.recorded_jobs(recordings, chosen, None, sample=5)


@pytest.fixture(scope="module")
def run(watcher: Watcher, jobs: list[TrackingJob]) -> tuple[TransportParams, ReferenceSet, list]:
    monitor = watcher.monitor(
        watcher.recordings[jobs[0].run_id].task, watcher.named(jobs[0].references)
    )
    events = watcher.recordings[jobs[0].run_id].events
    references, taken = tracking_runs.gather(monitor, events)
    assert references is not None
    return monitor.fold.profile.transport, references, taken


# ------------------------------------------------------------------ one run


def test_a_run_is_compared_with_the_solve_at_each_of_its_steps(
    watcher: Watcher, jobs: list[TrackingJob]
) -> None:
    found = tracking_runs.follow(watcher, jobs[0])
    steps = len(watcher.recordings[jobs[0].run_id].steps)
    assert found.keys() == {FAST, tracking_runs.CONVERGED, *VARIANTS}
    assert found["inner_iterations=5"] == found[FAST]  # what the profile has
    for gaps in found.values():
        assert [each.step for each in gaps] == list(range(1, steps + 1))
    assert 0 < max(abs(each.loss) for each in found[FAST]) < 0.1
    assert max(each.plan for each in found[FAST]) < 1
    # A run of its own task: both know who it is like, and neither finds it off track.
    assert not any(each.leaks or each.other_leaks for each in found[FAST])


def test_the_fast_path_that_is_compared_is_the_monitors(watcher: Watcher, run: tuple) -> None:
    params, references, taken = run
    monitor = watcher.monitor("bugfix/add-column", ())
    assert monitor.fold.profile.transport == params
    said = tracking._stream(params, references, taken)
    job = next(iter(watcher.recordings))
    by_monitor = transport_states(watcher, job)
    for (_, _, after, _), state in zip(said, by_monitor, strict=True):
        np.testing.assert_array_equal(after.plan, state.plan)


def transport_states(watcher: Watcher, run_id: str) -> list[transport.TransportState]:
    recording = watcher.recordings[run_id]
    recordings = tuple(watcher.recordings.values())
    chosen = ReferencePlan(count=3, equal=False).choose(recordings)[run_id]
    monitor = watcher.monitor(recording.task, chosen)
    found = []
    for event in recording.events:
        monitor.feed(event)
        state = monitor.state.runs[run_id].transport
        if state is not None and state.plan.shape[1]:
            found.append(state)
    return found


def test_the_solve_says_what_an_escalation_would_say(run: tuple) -> None:
    params, references, taken = run
    for _, before, after, each in tracking._stream(params, references, taken):
        solved = tracking.solve(params.solver, params, references, before, after, each)
        told = transport.converge(params, references, before, after, each.hops, each.age)
        assert solved.best == told.best
        assert solved.loss == told.losses[told.best]
        assert solved.score == told.score
        assert solved.leakage == pytest.approx(told.leakage, abs=1e-12)
        assert (solved.coverage, solved.converged) == (told.coverage, told.converged)


def test_more_iterations_and_whole_steps_come_nearer_to_the_solve(run: tuple) -> None:
    params, references, taken = run

    def apart(**changes: float) -> float:
        solver = replace(params.solver, **changes)
        changed = replace(params, solver=solver)
        gaps = tracking.track(changed, references, taken, LIMITS, params.solver)
        return float(np.mean([each.plan for each in gaps]))

    assert apart(inner_iterations=20, gamma=1.0) < apart(gamma=1.0) < apart() < apart(gamma=0.3)
    assert apart() < apart(inner_iterations=1)


def test_a_solve_that_goes_on_to_the_end_is_where_the_solve_was_going(run: tuple) -> None:
    params, references, taken = run
    gaps = tracking.track_solve(params, references, taken, LIMITS)
    assert max(each.plan for each in gaps) < 0.02
    assert all(each.converged for each in gaps)


def test_a_run_without_references_has_nothing_to_track(watcher: Watcher) -> None:
    (name, *_) = watcher.recordings
    assert tracking_runs.follow(watcher, TrackingJob("c", "t", name)) == {}


@pytest.mark.parametrize("condition", ["clean", "loop", "hallucination", "inversion"])
def test_the_controlled_campaign_is_tracked_too(watcher: Watcher, condition: str) -> None:
    job = TrackingJob(CONTROLLED, "task1", seed=1, condition=condition)
    gaps = tracking_runs.follow(watcher, job)[FAST]
    assert gaps
    if condition == "hallucination":  # the stray steps are off track for both
        assert all(each.leaks and each.other_leaks for each in gaps[-4:])


# ------------------------------------------------------------------ the gap


@st.composite
def solutions(draw: st.DrawFn, shape: tuple[int, int, int] = (3, 4, 5)) -> Solution:
    """A plan with mass everywhere, and signals as they may be."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    score, matched, coverage = rng.uniform(0, 1.2, 3).tolist()
    plan, losses = rng.uniform(0.01, 1, shape), rng.uniform(0, 2, shape[0])
    best, leakage = int(losses.argmin()), max(0.0, 1.0 - matched)
    return Solution(plan, losses, best, score, leakage, coverage, matched, draw(st.booleans()))


@given(solutions(), st.integers(1, 99), st.floats(0, 1))
def test_a_solution_has_no_gap_to_itself(one: Solution, step: int, limit: float) -> None:
    found = tracking.gap(step, one, one, LeakThresholds(limit, limit))
    assert (found.loss, found.score, found.leakage, found.coverage, found.plan) == (0,) * 5
    assert found.leakage_rest == pytest.approx(0, abs=1e-12)
    assert found.same_best
    assert found.leaks == found.other_leaks == found.other_leaks_alike


@given(solutions(), solutions())
def test_the_gap_is_what_loops_over_the_plans_find(one: Solution, other: Solution) -> None:
    found = tracking.gap(1, one, other, LIMITS)
    apart = mass = 0.0
    for mine, theirs in zip(
        one.plan[other.best].tolist(), other.plan[other.best].tolist(), strict=True
    ):
        for a, b in zip(mine, theirs, strict=True):
            apart += abs(a - b)
            mass += b
    assert found.plan == pytest.approx(apart / mass)
    assert found.regret == other.losses[one.best] - min(other.losses)
    assert found.same_best == (one.best == other.best)
    back = tracking.gap(1, other, one, LIMITS)
    assert (back.loss, back.leakage) == (-found.loss, -found.leakage)
    assert found.leaks == (one.leakage > 0.6)
    assert found.other_leaks == (other.leakage > 0.43)


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 6), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_what_is_read_off_a_plan_is_what_loops_find(
    steps: int, count: int, width: int, seed: int
) -> None:
    from tests.pipeline.evaluation.tracked import arrays_of, slow_signals

    rng = np.random.default_rng(seed)
    arrays = arrays_of([width] * count)
    plan = rng.uniform(0, 1.5 / (steps * width), (count, steps, width))
    losses = rng.uniform(0, 2, count)
    found = tracking.solution(arrays, plan, losses, True, SolverParams().soft_min_temperature)
    leakage, coverage = slow_signals(plan[found.best], width)
    assert found.loss == min(losses)
    assert found.leakage == pytest.approx(leakage)
    assert found.coverage == pytest.approx(coverage)


# ------------------------------------------------------------------ many runs


def steps_of(*gaps: float, **fields: bool) -> list[StepGap]:
    plain = {"same_best": True, "leaks": False, "other_leaks": False, "other_leaks_alike": False}
    return [
        StepGap(place, *[size] * 7, converged=True, **(plain | fields))
        for place, size in enumerate(gaps, 1)
    ]


def value(measures: list[Measure], measure: str, corpus: str, k: int | None = None) -> float:
    (found,) = [
        each.estimate.value
        for each in measures
        if (each.measure, each.corpus, each.k, each.method) == (measure, corpus, k, FAST)
    ]
    assert found is not None
    return found


def test_gaps_become_percentiles_and_shares_by_corpus_and_place() -> None:
    jobs = [TrackingJob("a", "t1"), TrackingJob("b", "t2"), TrackingJob(CONTROLLED, "t3")]
    found = [
        {FAST: steps_of(-0.1, 0.2, 0.3, 0.3, 0.3, 0.9)},
        {FAST: steps_of(0.5, leaks=True)},
        {FAST: steps_of(0.7)},
    ]
    measures = tracking_summary.summarise(jobs, found, "paper", seed=0)
    assert value(measures, "loss_gap_p50", "a") == 0.3
    assert value(measures, "loss_gap_p50", "a", k=5) == 0.3
    assert value(measures, "loss_gap_p50", "a", k=10) == 0.9
    assert value(measures, "loss_is_lower", "a") == pytest.approx(1 / 6)
    assert value(measures, "leak_differs", "b") == 1.0
    assert value(measures, "leak_differs", "(all)") == pytest.approx(1 / 7)
    assert value(measures, "loss_gap_p99", "(all)") == 0.9  # the controlled runs are no part
    assert value(measures, "loss_gap_p50", CONTROLLED) == 0.7
    for each in measures:
        low, high = each.estimate.low, each.estimate.high
        assert low is not None
        assert high is not None
        assert low <= high
    table = tracking_summary.shown(measures)
    assert {each.corpus for each in table if each.k is not None} == {"(all)"}


def test_one_corpus_is_not_told_of_twice() -> None:
    jobs, found = [TrackingJob("a", "t1")], [{FAST: steps_of(0.1)}]
    measures = tracking_summary.summarise(jobs, found, "paper", seed=0)
    assert {each.corpus for each in measures} == {"a"}


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 1)), min_size=1, max_size=30),
    st.integers(0, 5),
)
@settings(max_examples=30, deadline=None)
def test_quantiles_and_their_draws_are_those_of_the_steps_written_out(
    steps: list[tuple[str, float]], seed: int
) -> None:
    from ontrack.pipeline.evaluation.statistics import percentile_interval, task_weights

    tasks, values = [task for task, _ in steps], np.array([size for _, size in steps])
    names = sorted(set(tasks))
    weights = task_weights(len(names), seed, 20)
    found = tracking_summary.quantiles(tasks, values, seed, resamples=20)
    for share, estimate in zip(tracking_summary.QUANTILES, found, strict=True):
        assert estimate.value == quantile(list(values), share)
        draws = [
            quantile(
                [v for t, v in zip(tasks, values, strict=True) for _ in range(w[names.index(t)])],
                share,
            )
            for w in weights
        ]
        assert (estimate.low, estimate.high) == percentile_interval(np.array(draws))


def quantile(values: list[float], share: float) -> float:
    """Smallest value that at least this share does not exceed."""
    ordered = sorted(values)
    return next(v for place, v in enumerate(ordered, 1) if place >= share * len(ordered) - 1e-9)


def test_runs_are_spread_over_a_corpus_and_only_those_with_references_taken(
    watcher: Watcher,
) -> None:
    recordings = tuple(watcher.recordings.values())
    chosen = {run.run_id: recordings[:1] for run in recordings[2:]}
    some = tracking_runs.recorded_jobs(recordings, chosen, 4, sample=2)
    assert [job.variants for job in some] == [True, False, True, False]
    assert {job.run_id for job in some} <= chosen.keys()
    assert len(tracking_runs.recorded_jobs(recordings, chosen, None, 2)) == len(chosen)
    assert tracking_runs.recorded_jobs(recordings, {}, 4, 2) == []


def test_the_thresholds_are_those_of_the_profile(watcher: Watcher) -> None:
    assert LeakThresholds.of(watcher.profile) == LeakThresholds(0.6, 0.43)
    without = replace(watcher.profile, exploration=None)
    # As much as 0.6 becomes when the other three tenths of the way are gone as well.
    assert LeakThresholds.of(without).fast == 0.6
    assert LeakThresholds.of(without).solved == pytest.approx(1 - 0.4 / 0.7)


def test_two_references_that_are_equally_good_are_no_disagreement() -> None:
    plan = np.full((2, 1, 1), 0.5)
    first = Solution(plan, np.array([0.5, 0.6]), 0, 1.0, 0.0, 0.5, 1.0, True)
    second = Solution(plan, np.array([0.5 + 1e-8, 0.5]), 1, 1.0, 0.0, 0.5, 1.0, True)
    assert tracking.gap(1, first, second, LIMITS).same_best
    assert not tracking.gap(1, second, first, LIMITS).same_best  # by the first it is 0.1 worse


def test_thresholds_of_another_share_of_the_way_are_as_far_along_it() -> None:
    assert LIMITS.at(1.0) == LeakThresholds(pytest.approx(0.43), 0.43)
    assert LIMITS.at(0.7).fast == pytest.approx(0.6, abs=0.002)  # as the profile has it


def test_a_steps_inputs_grow_with_the_run(run: tuple) -> None:
    _, references, taken = run
    assert isinstance(taken[0], Taken)
    for place, each in enumerate(taken, 1):
        assert each.hops.shape == (place, place)
        assert each.age.shape == (place,)
        assert each.row.shape == (references.count, references.width)
