from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import settled
from ontrack.operators.settled import Settled
from ontrack.solver import converged
from ontrack.solver.problem import ReferenceArrays, SolverParams, pack_references
from ontrack.solver.structure import hops_from_edges

PARAMS = SolverParams()


def chains(*sizes: int) -> ReferenceArrays:
    hops, parents = [], []
    for size in sizes:
        hops.append(hops_from_edges(size, [(n - 1, n) for n in range(1, size)]))
        parents.append(np.eye(size, k=-1, dtype=bool))
    return pack_references(hops, parents)


def settled_at_once(arrays: ReferenceArrays, cost: np.ndarray, shared: int) -> Settled:
    nothing = settled.nothing(*arrays.nu.shape)
    return settled.settle(PARAMS, arrays, nothing, cost, shared)


def costs_of(arrays: ReferenceArrays, steps: int, seed: int) -> np.ndarray:
    count, width = arrays.nu.shape
    return np.random.default_rng(seed).random((count, steps, width)).astype(np.float32)


def test_as_many_steps_share_a_row_as_must() -> None:
    assert [settled.resolution(steps, 8) for steps in (0, 1, 8, 9, 16, 17, 32, 33)] == [
        1, 1, 1, 4, 4, 8, 8, 16,
    ]  # fmt: skip


def test_steps_that_need_not_share_a_row_are_kept_to_the_bit() -> None:
    arrays = chains(3, 2)
    cost = costs_of(arrays, 7, 0)
    rows = settled_at_once(arrays, cost, 1)
    assert np.array_equal(rows.cost, cost)
    assert not rows.spread.any()
    assert rows.sizes.tolist() == [1] * 7


def test_equal_steps_share_a_row_that_is_cheaper_by_the_logarithm_of_their_number() -> None:
    arrays = chains(3)
    one = costs_of(arrays, 1, 1)
    rows = settled_at_once(arrays, np.repeat(one, 4, axis=1), 4)
    cheaper = PARAMS.epsilon / (1 - PARAMS.theta) * math.log(4)
    assert rows.cost[0, 0] == pytest.approx(one[0, 0] - cheaper, abs=1e-6)
    assert rows.spread[0, 0] == pytest.approx(0.0, abs=1e-6)
    assert rows.sizes.tolist() == [4]


def test_a_run_of_equal_steps_is_solved_exactly_whether_or_not_they_share_a_row() -> None:
    arrays = chains(3)
    flat = SolverParams(theta=0.0, converged_outer_max=200, converged_outer_tolerance=1e-12)
    cost = np.repeat(costs_of(arrays, 1, 2), 8, axis=1)
    whole = converged.finalise(flat, arrays, cost.astype(np.float64), np.zeros((8, 8)))
    rows = settled.settle(flat, arrays, settled.nothing(1, 3), cost, 8)
    shared = converged.solve(
        flat,
        arrays,
        rows.cost.astype(np.float64),
        np.zeros((1, 1)),
        np.ones(1),
        np.ones(1),
        arrays.nu,
    )
    assert shared.coupling.plan.sum(1) == pytest.approx(whole.coupling.plan.sum(1), abs=1e-6)
    assert shared.losses == pytest.approx(whole.losses, abs=1e-6)


def by_the_book(cost: np.ndarray, nodes: int) -> tuple[list[float], float]:
    """One reference's costs and spread of steps that share a row, as the module's text has it."""
    epsilon, theta, lam, eta = PARAMS.epsilon, PARAMS.theta, PARAMS.lam, PARAMS.exponent
    alone, scalings = [], []
    for row in cost:
        kernel = [math.exp(-(1 - theta) * float(row[j]) / epsilon) for j in range(nodes)]
        scaling = sum(kernel) ** -eta
        alone.append([scaling * value for value in kernel])
        scalings.append(scaling)
    together = [sum(row[j] for row in alone) for j in range(nodes)]
    scaling = (len(cost) / sum(together)) ** (lam / epsilon)
    prices = [-epsilon / (1 - theta) * math.log(value / scaling) for value in together]
    shares = [sum(row) / sum(together) for row in alone]
    own = sum(share * math.log(each) for share, each in zip(shares, scalings, strict=True))
    return prices, own - math.log(scaling)


@given(st.integers(0, 99), st.sampled_from([2, 4, 8]))
def test_what_a_shared_row_costs_is_what_the_text_says(seed: int, shared: int) -> None:
    arrays = chains(4, 2)
    cost = costs_of(arrays, shared, seed)
    rows = settled_at_once(arrays, cost, shared)
    for k, nodes in enumerate((4, 2)):
        prices, spread = by_the_book(cost[k], nodes)
        assert rows.cost[k, 0, :nodes] == pytest.approx(prices, abs=1e-5)
        assert rows.spread[k, 0] == pytest.approx(spread, abs=1e-5)
    assert np.isfinite(rows.cost).all(), "padding too"


@given(st.integers(0, 99), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_in_how_many_pieces_steps_settle_makes_no_difference(
    seed: int, pieces: list[int], data: st.DataObject
) -> None:
    arrays = chains(3, 5)
    steps = sum(pieces)
    cost = costs_of(arrays, steps, seed)
    shared, state, done = 1, settled.nothing(2, 5), 0
    for piece in pieces:
        shared *= data.draw(st.sampled_from([1, 2]))
        part = cost[:, done : done + piece]
        state, done = settled.settle(PARAMS, arrays, state, part, shared), done + piece
    at_once = settled_at_once(arrays, cost, shared)
    assert np.array_equal(state.sizes, at_once.sizes)
    assert state.sizes.sum() == steps
    assert np.array_equal(state.cost, at_once.cost)
    assert np.array_equal(state.spread, at_once.spread)


@given(st.floats(1e-4, 1.0), st.floats(0.0, 1.0), st.floats(0.01, 1.0))
def test_no_calibration_makes_a_price_that_is_no_number(
    epsilon: float, theta: float, lam: float
) -> None:
    params = SolverParams(epsilon=epsilon, theta=theta, lam=lam)
    arrays = chains(3)
    cost = np.array([[[0, 1, 1], [1, 1, 1], [1, 0, 0.5], [0, 0, 0]]], np.float32)
    rows = settled.settle(params, arrays, settled.nothing(1, 3), cost, 4)
    assert np.isfinite(rows.cost).all()
    assert np.isfinite(rows.spread).all()


def test_edges_inside_of_a_row_vanish_and_others_join_rows() -> None:
    edges = np.array([(0, 1), (1, 2), (1, 5), (0, 4), (6, 3)], np.int32)
    assert settled.coarser_edges(edges, 1) is edges
    coarse = settled.coarser_edges(edges, 4)
    assert {tuple(edge) for edge in coarse.tolist()} == {(0, 4), (4, 0)}
    each_once = settled.coarser_edges(edges, 4, most=1)
    assert sorted(map(tuple, each_once.tolist())) == [(0, 4), (4, 0)]
