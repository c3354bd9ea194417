from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.solver.prefix_alignment import GapCosts, alignment_cost, first_row, next_row

ALL = np.ones((1, 3), dtype=bool)


def read(cost: np.ndarray, valid: np.ndarray, gaps: GapCosts) -> np.ndarray:
    """Costs of the best reading after each step, (t + 1, K)."""
    row = first_row(valid, gaps)
    found = [alignment_cost(row, valid)]
    for step in range(cost.shape[1]):
        row = next_row(row, cost[:, step], gaps)
        found.append(alignment_cost(row, valid))
    return np.array(found)


def slow(cost: list[list[float]], gaps: GapCosts) -> float:
    """One reference, by the textbook's recursion."""
    steps, nodes = len(cost), len(cost[0])
    table = [[j * gaps.reference for j in range(nodes + 1)]]
    for i in range(1, steps + 1):
        row = [table[i - 1][0] + gaps.agent]
        for j in range(1, nodes + 1):
            row.append(
                min(
                    table[i - 1][j - 1] + cost[i - 1][j - 1],
                    table[i - 1][j] + gaps.agent,
                    row[j - 1] + gaps.reference,
                )
            )
        table.append(row)
    return min(table[-1])


def test_the_beginning_of_a_reference_costs_nothing() -> None:
    cost = 1.0 - np.eye(3)[None]
    np.testing.assert_allclose(read(cost, ALL, GapCosts()), np.zeros((4, 1)), atol=1e-12)


def test_a_node_passed_over_and_a_step_too_many_have_their_price() -> None:
    gaps = GapCosts(agent=0.7, reference=0.2)
    passed = 1.0 - np.eye(3)[None, [0, 2]]
    assert read(passed, ALL, gaps)[-1] == pytest.approx(0.2)
    extra = np.array([[[0.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 0.0, 1.0]]])
    assert read(extra, ALL, gaps)[-1] == pytest.approx(0.7)


def test_the_wrong_order_costs_what_the_right_one_does_not() -> None:
    swapped = 1.0 - np.eye(3)[None, [1, 0, 2]]
    assert read(swapped, ALL, GapCosts(1.0, 0.0))[-1] == pytest.approx(1.0)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, GapCosts]:
    count, steps, width = draw(st.tuples(st.integers(1, 3), st.integers(0, 6), st.integers(1, 6)))
    sizes = draw(st.lists(st.integers(1, width), min_size=count, max_size=count))
    price = st.sampled_from((0.0, 0.05, 0.2, 0.5, 1.0, 2.0))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cost = rng.choice([0.0, 0.1, 0.4, 1.0], (count, steps, width))
    valid = np.arange(width)[None, :] < np.array(sizes)[:, None]
    return cost, valid, GapCosts(draw(price), draw(price))


@given(problems())
def test_every_prefix_costs_what_the_slow_recursion_says(
    problem: tuple[np.ndarray, np.ndarray, GapCosts],
) -> None:
    cost, valid, gaps = problem
    found = read(cost, valid, gaps)
    for k, size in enumerate(valid.sum(axis=1)):
        for steps in range(1, cost.shape[1] + 1):
            expected = slow(cost[k, :steps, :size].tolist(), gaps)
            assert found[steps, k] == pytest.approx(expected, abs=1e-9)


@given(problems())
def test_a_longer_run_never_costs_less_and_no_step_more_than_a_gap(
    problem: tuple[np.ndarray, np.ndarray, GapCosts],
) -> None:
    cost, valid, gaps = problem
    growth = np.diff(read(cost, valid, gaps), axis=0)
    assert (growth >= -1e-9).all()
    assert (growth <= gaps.agent + 1e-9).all()


@given(problems(), st.integers(0, 2**32 - 1))
def test_padding_has_no_say_and_nothing_given_is_changed(
    problem: tuple[np.ndarray, np.ndarray, GapCosts], seed: int
) -> None:
    cost, valid, gaps = problem
    other = np.where(valid[:, None, :], cost, np.random.default_rng(seed).uniform(0, 1, cost.shape))
    np.testing.assert_array_equal(read(cost, valid, gaps), read(other, valid, gaps))
    row = first_row(valid, gaps)
    before = row.copy()
    next_row(row, np.zeros(valid.shape), gaps)
    np.testing.assert_array_equal(row, before)


@pytest.mark.parametrize("price", [-0.1, float("nan"), float("inf")])
def test_a_price_that_is_none_is_refused(price: float) -> None:
    with pytest.raises(ValueError, match="gap cost agent"):
        GapCosts(agent=price)
    with pytest.raises(ValueError, match="gap cost reference"):
        GapCosts(reference=price)


def test_a_row_of_other_references_is_refused() -> None:
    with pytest.raises(ValueError, match="row has shape"):
        next_row(np.zeros((1, 3)), np.zeros((1, 3)), GapCosts())
