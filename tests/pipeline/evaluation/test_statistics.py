"""Statistics of experiments against slow twins and against arithmetic by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.evaluation.statistics import (
    Grouped,
    Resampled,
    auroc,
    balanced_precision,
    percentile_interval,
    ratio_of_sums,
    task_weights,
    weighted_auroc,
    wilson,
)


def pairwise_auroc(scores: list[float], positive: list[bool]) -> float | None:
    """The definition: every pair, one after the other."""
    wins = [
        1.0 if up > down else 0.5 if up == down else 0.0
        for up, good in zip(scores, positive, strict=True)
        if good
        for down, other in zip(scores, positive, strict=True)
        if not other
    ]
    return sum(wins) / len(wins) if wins else None


# Few distinct values, so that ties are common.
rated = st.lists(st.tuples(st.integers(0, 4).map(float), st.booleans()), min_size=1, max_size=30)
in_tasks = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 3).map(float), st.booleans()),
    min_size=1,
    max_size=30,
)


def test_auroc_is_the_share_of_pairs_in_the_right_order_with_ties_half() -> None:
    assert auroc([3.0, 2.0, 1.0], [True, False, False]) == 1.0
    assert auroc([1.0, 2.0, 3.0], [True, False, False]) == 0.0
    assert auroc([2.0, 2.0, 1.0], [True, False, False]) == 0.75
    assert auroc([1.0, 2.0], [True, True]) is None


@given(rated)
def test_auroc_equals_counting_all_pairs(runs: list[tuple[float, bool]]) -> None:
    scores, positive = [each[0] for each in runs], [each[1] for each in runs]
    expected = pairwise_auroc(scores, positive)
    assert auroc(scores, positive) == (None if expected is None else pytest.approx(expected))


@given(rated, st.integers(0, 1000))
def test_weighted_auroc_equals_repeating_the_runs(
    runs: list[tuple[float, bool]], seed: int
) -> None:
    scores, positive = np.array([r[0] for r in runs]), np.array([r[1] for r in runs])
    weights = np.random.default_rng(seed).integers(0, 4, size=(3, len(runs)))
    found = weighted_auroc(scores, positive, weights.astype(float))
    for row, value in zip(weights, found, strict=True):
        expected = pairwise_auroc(
            np.repeat(scores, row).tolist(), np.repeat(positive, row).tolist()
        )
        assert math.isnan(value) if expected is None else value == pytest.approx(expected)


@given(in_tasks)
def test_within_task_only_pairs_of_one_task_count(runs: list[tuple[str, float, bool]]) -> None:
    wins: list[float] = []
    for task, up, good in runs:
        for other_task, down, other in runs:
            if good and not other and task == other_task:
                wins.append(1.0 if up > down else 0.5 if up == down else 0.0)
    grouped = Grouped([r[0] for r in runs], [r[2] for r in runs], seed=1, resamples=10)
    found = grouped.within_task([r[1] for r in runs])
    assert found.value == (pytest.approx(sum(wins) / len(wins)) if wins else None)


def test_tasks_of_one_class_are_left_out_and_counted() -> None:
    grouped = Grouped(list("aabbc"), [True, False, True, True, False], seed=0, resamples=10)
    assert (grouped.tasks, grouped.mixed_tasks, grouped.runs_in_mixed) == (3, 1, 2)
    found = grouped.within_task([2.0, 1.0, 0.0, 0.0, 9.0])
    assert (found.value, found.n) == (1.0, 2)
    assert grouped.pooled([2.0, 1.0, 0.0, 0.0, 9.0]).n == 5


def test_without_any_mixed_task_there_is_no_value() -> None:
    grouped = Grouped(["a", "b"], [True, False], seed=0, resamples=10)
    assert grouped.within_task([1.0, 0.0]).estimate == (None, None, None, 0)


def test_the_task_bootstrap_is_what_one_gets_by_drawing_tasks_by_hand() -> None:
    tasks = ["a", "a", "b", "b", "b"]
    positive = [True, False, True, True, False]
    scores = [1.0, 2.0, 3.0, 1.0, 1.0]
    grouped = Grouped(tasks, positive, seed=7, resamples=50)
    drawn = task_weights(2, seed=7, resamples=50)
    # Task a has one pair, in the wrong order; task b two, of which one is right and one a tie.
    by_hand = [(times_b * 1.5) / (times_a * 1 + times_b * 2) for times_a, times_b in drawn]
    found = grouped.within_task(scores)
    assert found.value == pytest.approx(1.5 / 3)
    np.testing.assert_allclose(found.draws, by_hand)
    low, high = np.quantile(by_hand, [0.025, 0.975])
    assert found.estimate[1:3] == (pytest.approx(low), pytest.approx(high))


@given(in_tasks, st.integers(0, 100))
def test_the_pooled_bootstrap_repeats_whole_tasks(
    runs: list[tuple[str, float, bool]], seed: int
) -> None:
    tasks = [r[0] for r in runs]
    names = sorted(set(tasks))
    grouped = Grouped(tasks, [r[2] for r in runs], seed, resamples=5)
    found = grouped.pooled([r[1] for r in runs])
    if found.value is None:
        return
    for weights, value in zip(task_weights(len(names), seed, 5), found.draws, strict=True):
        drawn = [
            r
            for name, times in zip(names, weights, strict=True)
            for r in [r for r in runs if r[0] == name] * times
        ]
        expected = pairwise_auroc([r[1] for r in drawn], [r[2] for r in drawn])
        assert math.isnan(value) if expected is None else value == pytest.approx(expected)


def test_each_resample_draws_as_many_tasks_as_there_are() -> None:
    weights = task_weights(7, seed=3, resamples=20)
    assert weights.sum(axis=1).tolist() == [7] * 20
    assert (task_weights(7, seed=3, resamples=20) == weights).all()
    assert task_weights(0, seed=3, resamples=4).shape == (4, 0)


def test_a_difference_is_taken_draw_by_draw() -> None:
    one = Resampled(0.7, np.array([0.6, 0.8]), 4)
    other = Resampled(0.6, np.array([0.5, 0.7]), 4)
    value, low, high, n = one.minus(other)
    assert (value, low, high) == (pytest.approx(0.1),) * 3
    assert n == 4


def test_wilsons_interval_is_the_published_one() -> None:
    # The paper (section 6.1) quotes 12/30 as [24.6 %, 57.7 %] and 13/40 as [20.1 %, 48.0 %].
    assert wilson(12, 30)[1:3] == (pytest.approx(0.246, abs=5e-4), pytest.approx(0.577, abs=5e-4))
    assert wilson(13, 40)[1:3] == (pytest.approx(0.201, abs=5e-4), pytest.approx(0.480, abs=5e-4))
    assert wilson(0, 0) == (None, None, None, 0)


@given(st.integers(1, 200), st.data())
def test_wilsons_bounds_solve_the_equation_they_come_from(n: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, n))
    share, low, high, _ = wilson(hits, n)
    assert share is not None
    assert low is not None
    assert high is not None
    assert 0 <= low <= share <= high <= 1
    for bound in (low, high):
        if 0 < bound < 1:  # (share - p)^2 = z^2 p (1 - p) / n
            spread = 1.959963984540054**2 * bound * (1 - bound) / n
            assert (share - bound) ** 2 == pytest.approx(spread, abs=1e-9)


def test_balanced_precision_does_not_depend_on_the_base_rate() -> None:
    # 1 of 2 failures and 1 of 4 successes are stopped: 0.5 / (0.5 + 0.25).
    failed = [True, True, False, False, False, False]
    stopped = [True, False, True, False, False, False]
    found = balanced_precision(list("abcdef"), failed, stopped, seed=0, resamples=20)
    assert found.value == pytest.approx(2 / 3)
    assert found.n == 2
    tripled = balanced_precision(
        list("abcdef") + ["g", "h"] * 2, failed + [True, True] * 2, stopped + [True, False] * 2, 0
    )
    assert tripled.value == pytest.approx(2 / 3)


def test_balanced_precision_of_nothing_stopped_is_no_value() -> None:
    assert balanced_precision(["a", "b"], [True, False], [False, False], 0).value is None


def test_a_ratio_of_sums_is_resampled_by_task() -> None:
    found = ratio_of_sums(["a", "a", "b"], [1, 2, 0], [4, 4, 4], seed=5, resamples=30)
    by_hand = [3 * a / (8 * a + 4 * b) for a, b in task_weights(2, seed=5, resamples=30)]
    assert found.value == pytest.approx(3 / 12)
    np.testing.assert_allclose(found.draws, by_hand)
    assert ratio_of_sums(["a"], [0.0], [0.0], seed=5).value is None


def test_an_interval_without_finite_draws_is_none() -> None:
    assert percentile_interval(np.array([math.nan])) == (None, None)
