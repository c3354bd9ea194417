"""The relaxed problem: an alignment without structure, and what its loss is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.solver import relaxed
from ontrack.solver.frontier import frontier
from ontrack.solver.objective import diagnostic_loss, linearise
from ontrack.solver.problem import SolverParams, empty_coupling
from tests import reference as twin
from tests.solver.one_step import step
from tests.solver.problems import Problem, pack, problems, solver_params


def stream(
    problem: Problem, params: SolverParams
) -> tuple[relaxed.Relaxed, np.ndarray, np.ndarray]:
    """Take all steps; return state, losses and the marginal of the last one."""
    arrays, cost, mu = problem.arrays, problem.padded_cost, problem.mu
    state = relaxed.start(arrays)
    for size in range(1, problem.steps + 1):
        marginal = frontier(state.columns, arrays, params).marginal
        state, losses = relaxed.step(params, arrays, state, cost[:, size - 1], mu[:size])
    return state, losses, marginal


def test_the_reference_that_fits_has_the_lowest_loss() -> None:
    chain = twin.Reference(3, [(0, 1), (1, 2)])
    arrays, mu = pack((chain, chain)), np.full(3, 1 / 3)
    fitting = 1.0 - np.eye(3)
    state = relaxed.start(arrays)
    for at in range(3):
        cost = np.stack([np.ones(3), fitting[at]])
        state, losses = relaxed.step(SolverParams(), arrays, state, cost, mu[: at + 1])
    assert losses[1] < losses[0] - 0.1


@settings(max_examples=40, deadline=None)
@given(problem=problems(), params=solver_params)
def test_it_is_the_diagnostic_loss_of_its_plan_without_the_quadratic_term(
    problem: Problem, params: SolverParams
) -> None:
    params = replace(params, gamma=1.0, epsilon=max(params.epsilon, 0.05))
    state, losses, marginal = stream(problem, params)
    arrays, cost, distance = problem.arrays, problem.padded_cost, problem.distance
    plan = state.u[:, :, None] * state.kernel.astype(np.float64) * state.v[:, None, :]
    whole = diagnostic_loss(cost, distance, plan, problem.mu, marginal, arrays, params)
    gradient = linearise(distance, plan, arrays)
    quadratic = np.maximum((gradient * plan).sum(axis=(1, 2)), 0.0)
    np.testing.assert_allclose(losses, whole - params.theta / 2 * quadratic, atol=2e-4)
    assert (losses <= whole + 2e-4).all()


@settings(max_examples=40, deadline=None)
@given(problem=problems(), params=solver_params)
def test_without_weight_of_structure_it_takes_the_streaming_steps(
    problem: Problem, params: SolverParams
) -> None:
    params = replace(params, theta=0.0, inner_tolerance=0.0, epsilon=max(params.epsilon, 0.05))
    state, _, _ = stream(problem, params)
    arrays, cost, coupling = problem.arrays, problem.padded_cost, empty_coupling(problem.arrays)
    for size in range(1, problem.steps + 1):
        marginal = frontier(coupling.plan.sum(axis=1), arrays, params).marginal
        distance, age = problem.distance_at(size), problem.ages[size - 1, :size]
        coupling, _ = step(
            params, arrays, coupling, cost[:, :size], distance, age, problem.mu[:size], marginal
        )
    np.testing.assert_allclose(state.columns, coupling.plan.sum(axis=1), atol=1e-4)
    np.testing.assert_allclose(state.rows, coupling.plan.sum(axis=2), atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(problem=problems(), data=st.data())
def test_a_coupling_has_the_masses_of_the_plan_that_has_moved(
    problem: Problem, data: st.DataObject
) -> None:
    state, _, _ = stream(problem, SolverParams())
    rows = data.draw(st.integers(0, problem.steps))
    chosen = [problem.arrays.count - 1]
    made = relaxed.coupling(state, chosen, rows)
    assert made.plan.shape == (1, rows, problem.arrays.width)
    np.testing.assert_allclose(made.plan.sum(axis=2), state.rows[chosen, :rows], atol=1e-6)
    assert not made.plan[:, :, ~problem.arrays.valid[chosen[0]]].any()


@settings(max_examples=30, deadline=None)
@given(problem=problems())
def test_a_reference_does_not_depend_on_its_neighbours(problem: Problem) -> None:
    _, losses, _ = stream(problem, SolverParams())
    twice = Problem(
        problem.references * 2, problem.costs * 2, problem.edges, problem.steps, problem.ages
    )
    _, doubled, _ = stream(twice, SolverParams())
    np.testing.assert_array_equal(doubled[: len(losses)], losses)
    np.testing.assert_array_equal(doubled[len(losses) :], losses)


def test_what_is_not_finite_and_what_does_not_fit_is_refused() -> None:
    arrays = pack((twin.Reference(2, [(0, 1)]),))
    state, mu = relaxed.start(arrays), np.ones(1)
    with pytest.raises(ValueError, match="finite"):
        relaxed.step(SolverParams(), arrays, state, np.array([[0.0, np.nan]]), mu)
    with pytest.raises(ValueError, match="cost has shape"):
        relaxed.step(SolverParams(), arrays, state, np.zeros((1, 3)), mu)
    with pytest.raises(ValueError, match="mu has shape"):
        relaxed.step(SolverParams(), arrays, state, np.zeros((1, 2)), np.ones(2))


def test_rows_that_are_joined_keep_their_kernel_where_a_node_is_closed() -> None:
    arrays = pack((twin.Reference(3, [(0, 1), (1, 2)]), twin.Reference(1, [])))
    params, state = SolverParams(dormant_weight=0.0), relaxed.start(arrays)
    for size in (1, 2, 3):
        cost = np.full((2, 3), 0.8)  # node 2 stays closed: nothing covers its parent
        cost[1] = 0.1
        state, _ = relaxed.step(params, arrays, state, cost, np.full(size, 0.01))
    assert (state.v[0, 2], state.kernel[0, 0, 2] > 0.0) == (0.0, True)
    joined = relaxed.joined(params, state, [0, 2], 1, np.array([0.02, 0.01]))
    expected = (state.u[0, :2] * state.kernel[0, :2, 2]).sum() / joined.u[0, 0]
    assert joined.kernel[0, 0, 2] == pytest.approx(expected, rel=1e-5)
    assert not joined.kernel[1, :, 1:].any(), "padding stays empty"
