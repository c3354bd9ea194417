"""Alignment in order, in any order and along a partial order, against slow twins."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.solver.alignment import NOBODY, Alignment, any_order, argument_costs, in_order
from ontrack.solver.alignment_dag import Bounded, partial_order

INF = np.inf


def rows(found: Alignment) -> list[tuple[int, int, float]]:
    return list(zip(found.left.tolist(), found.right.tolist(), found.cost.tolist(), strict=True))


# ------------------------------------------------------------------ examples


def test_a_repeated_step_is_left_over() -> None:
    cost = np.array([[0.0, INF], [0.0, INF], [INF, 0.0]])
    found = in_order(cost, np.ones(3), np.ones(2))
    assert found.distance == 1.0
    assert rows(found) == [(0, NOBODY, 1.0), (1, 0, 0.0), (2, 1, 0.0)]


def test_a_swap_costs_in_order_and_nothing_in_any_order() -> None:
    cost = np.array([[INF, 0.0], [0.0, INF]])
    assert in_order(cost, np.ones(2), np.ones(2)).distance == 2.0
    found = any_order(cost, np.ones(2), np.ones(2))
    assert found.distance == 0.0
    assert rows(found) == [(0, 1, 0.0), (1, 0, 0.0)]


def test_a_pair_as_dear_as_its_gaps_is_a_pair() -> None:
    cost = np.array([[2.0]])
    for align in (in_order, any_order):
        assert rows(align(cost, np.ones(1), np.ones(1))) == [(0, 0, 2.0)]


def test_of_equal_alignments_the_last_possible_pair_is_taken() -> None:
    cost = np.zeros((3, 1))
    assert rows(in_order(cost, np.ones(3), np.ones(1)))[-1] == (2, 0, 0.0)


def test_an_exact_assignment_beats_the_best_first() -> None:
    # Taking the free pair first leaves a pair of 9; the optimum is 1 + 1.
    cost = np.array([[0.0, 1.0], [1.0, 9.0]])
    found = any_order(cost, np.full(2, 10.0), np.full(2, 10.0))
    assert found.distance == 2.0


def test_nothing_against_something_is_all_gaps() -> None:
    found = in_order(np.zeros((0, 2)), np.zeros(0), np.array([1.0, 2.0]))
    assert rows(found) == [(NOBODY, 0, 1.0), (NOBODY, 1, 2.0)]
    assert in_order(np.zeros((0, 0)), np.zeros(0), np.zeros(0)).distance == 0.0
    assert any_order(np.zeros((2, 0)), np.ones(2), np.zeros(0)).distance == 2.0


def test_argument_costs_sum_the_weights_of_what_differs() -> None:
    left, right = np.array([[1, 2], [1, -1]]), np.array([[1, 2], [3, -1]])
    costs = argument_costs(left, right, np.array([2.0, 5.0]))
    assert costs.tolist() == [[0.0, 7.0], [5.0, 2.0]]


@pytest.mark.parametrize("align", [in_order, any_order])
@pytest.mark.parametrize(
    ("cost", "left_gap", "right_gap", "words"),
    [
        ([[0.0, 0.0]], [1.0], [1.0], "cost has shape"),
        ([[float("nan")]], [1.0], [1.0], "cost must not be negative or NaN"),
        ([[-1.0]], [1.0], [1.0], "cost must not be negative or NaN"),
        ([[1.0]], [INF], [1.0], "left_gap must be finite"),
    ],
)
def test_costs_out_of_range_are_refused(
    align: Any, cost: list[list[float]], left_gap: list[float], right_gap: list[float], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        align(np.array(cost), np.array(left_gap), np.array(right_gap))


# ------------------------------------------------------------------ twins


class Case(NamedTuple):
    cost: np.ndarray
    left_gap: np.ndarray
    right_gap: np.ndarray
    before: np.ndarray


@st.composite
def cases(draw: st.DrawFn, size_max: int = 5) -> Case:
    n, m = draw(st.integers(0, size_max)), draw(st.integers(0, size_max))
    price = st.sampled_from((0.0, 0.5, 1.0, 3.0, INF))
    gap = st.sampled_from((0.5, 1.0, 2.5))
    cells = draw(st.lists(price, min_size=n * m, max_size=n * m))
    bits = draw(st.lists(st.booleans(), min_size=m * m, max_size=m * m))
    return Case(
        np.array(cells, dtype=np.float64).reshape(n, m),
        np.array(draw(st.lists(gap, min_size=n, max_size=n)), dtype=np.float64),
        np.array(draw(st.lists(gap, min_size=m, max_size=m)), dtype=np.float64),
        np.triu(np.array(bits, dtype=bool).reshape(m, m), 1),
    )


def recursion(case: Case, i: int, j: int) -> float:
    """In-order distance of the first i and the first j, by the definition."""
    if i == 0 and j == 0:
        return 0.0
    options = []
    if i and j:
        options.append(recursion(case, i - 1, j - 1) + case.cost[i - 1, j - 1])
    if i:
        options.append(recursion(case, i - 1, j) + case.left_gap[i - 1])
    if j:
        options.append(recursion(case, i, j - 1) + case.right_gap[j - 1])
    return float(min(options))


def matchings(n: int, m: int) -> Iterator[tuple[int, ...]]:
    """Every assignment of the left to the right or to nobody."""
    for partner in itertools.product(range(-1, m), repeat=n):
        taken = [j for j in partner if j >= 0]
        if len(taken) == len(set(taken)):
            yield partner


def price(case: Case, partner: tuple[int, ...]) -> float:
    total = sum(case.right_gap[j] for j in range(len(case.right_gap)) if j not in partner)
    for i, j in enumerate(partner):
        total += case.left_gap[i] if j < 0 else case.cost[i, j]
    return float(total)


def extensions(before: np.ndarray) -> Iterator[list[int]]:
    size = len(before)
    for order in itertools.permutations(range(size)):
        place = {j: k for k, j in enumerate(order)}
        if all(place[j] < place[k] for j in range(size) for k in range(size) if before[j, k]):
            yield list(order)


def covers_everybody(found: Alignment, n: int, m: int) -> None:
    assert sorted(found.left[found.left != NOBODY].tolist()) == list(range(n))
    assert sorted(found.right[found.right != NOBODY].tolist()) == list(range(m))
    assert sum(found.cost.tolist()) == pytest.approx(found.distance)


@given(cases())
def test_in_order_is_the_recursion(case: Case) -> None:
    n, m = case.cost.shape
    found = in_order(*case[:3])
    covers_everybody(found, n, m)
    assert found.distance == pytest.approx(recursion(case, n, m))
    pairs = [(i, j) for i, j, _ in rows(found) if i >= 0 and j >= 0]
    assert pairs == sorted(pairs, key=lambda pair: pair[1])


@given(cases(size_max=4))
def test_any_order_is_the_best_of_all_assignments(case: Case) -> None:
    n, m = case.cost.shape
    found = any_order(*case[:3])
    covers_everybody(found, n, m)
    assert found.distance == pytest.approx(min(price(case, each) for each in matchings(n, m)))


@settings(deadline=None)
@given(cases(size_max=4))
def test_a_partial_order_is_the_best_of_all_linear_extensions(case: Case) -> None:
    n, m = case.cost.shape
    found = partial_order(*case)
    covers_everybody(found.alignment, n, m)
    best = min(
        in_order(case.cost[:, order], case.left_gap, case.right_gap[order]).distance
        for order in extensions(case.before)
    )
    assert found.alignment.distance == pytest.approx(best)
    assert found.is_exact


@settings(deadline=None)
@given(cases(size_max=6), st.integers(0, 30))
def test_a_search_that_is_cut_short_still_bounds_the_distance(case: Case, moves: int) -> None:
    full, cut = partial_order(*case), partial_order(*case, moves_max=moves)
    covers_everybody(cut.alignment, *case.cost.shape)
    assert cut.lower_bound <= full.alignment.distance + 1e-9
    assert full.alignment.distance <= cut.alignment.distance + 1e-9
    respects(cut, case.before)


def respects(found: Bounded, before: np.ndarray) -> None:
    """Of two pairs whose right elements are ordered, the left ones are in that order."""
    reach = before.copy()
    for k in range(len(before)):
        reach |= reach[:, k, None] & reach[None, k]
    mate = {j: i for i, j, _ in rows(found.alignment) if i >= 0 and j >= 0}
    for j, k in itertools.permutations(mate, 2):
        assert not reach[j, k] or mate[j] < mate[k]


# ------------------------------------------------------------------ properties


@given(cases(size_max=7))
def test_a_chain_gives_the_alignment_in_order(case: Case) -> None:
    m = case.cost.shape[1]
    found = partial_order(*case[:3], np.eye(m, k=1, dtype=bool))
    assert rows(found.alignment) == rows(in_order(*case[:3]))
    assert found.is_exact


@given(cases(size_max=7))
def test_no_order_gives_the_distance_in_any_order(case: Case) -> None:
    m = case.cost.shape[1]
    found = partial_order(*case[:3], np.zeros((m, m), dtype=bool))
    assert found.alignment.distance == pytest.approx(any_order(*case[:3]).distance)


@settings(deadline=None)
@given(cases(size_max=7))
def test_a_partial_order_lies_between_any_order_and_in_order(case: Case) -> None:
    distance = partial_order(*case).alignment.distance
    assert any_order(*case[:3]).distance <= distance + 1e-9
    assert distance <= in_order(*case[:3]).distance + 1e-9


@given(cases(size_max=7))
def test_sides_may_be_exchanged(case: Case) -> None:
    turned = np.ascontiguousarray(case.cost.T), case.right_gap, case.left_gap
    for align in (in_order, any_order):
        assert align(*turned).distance == align(*case[:3]).distance


@given(cases(size_max=7))
def test_the_same_input_gives_the_same_rows(case: Case) -> None:
    for align in (in_order, any_order):
        assert rows(align(*case[:3])) == rows(align(*case[:3]))


def test_an_order_that_runs_backwards_is_refused() -> None:
    with pytest.raises(ValueError, match="j < k"):
        partial_order(np.zeros((1, 2)), np.ones(1), np.ones(2), np.eye(2, k=-1, dtype=bool))
    with pytest.raises(ValueError, match="before has shape"):
        partial_order(np.zeros((1, 2)), np.ones(1), np.ones(2), np.zeros((1, 1), dtype=bool))


def test_independent_steps_may_come_in_any_order_and_dependent_ones_not() -> None:
    # Two looks at 0 and 1, then a write at 2 that depends on both.
    before = np.zeros((3, 3), dtype=bool)
    before[0, 2] = before[1, 2] = True
    same = np.where(np.eye(3, dtype=bool), 0.0, INF)
    looks_swapped, write_first = same[[1, 0, 2]], same[[2, 0, 1]]
    ones = np.ones(3)
    assert partial_order(looks_swapped, ones, ones, before).alignment.distance == 0.0
    assert in_order(looks_swapped, ones, ones).distance == 2.0
    assert partial_order(write_first, ones, ones, before).alignment.distance == 2.0
    assert any_order(write_first, ones, ones).distance == 0.0
