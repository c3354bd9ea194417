from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.solver import objective
from ontrack.solver.problem import SolverParams
from tests import reference as twin
from tests.solver.problems import Problem, pack, problems, solver_params


def random_plan(problem: Problem, seed: int) -> np.ndarray:
    arrays = problem.arrays
    rng = np.random.default_rng(seed)
    shape = (arrays.count, problem.steps, arrays.width)
    plan = rng.uniform(0, 0.3, shape) * (rng.uniform(size=shape) < 0.7)
    return plan * arrays.valid[:, None, :]


def test_one_step_matched_to_one_node_by_hand() -> None:
    arrays = pack((twin.Reference(1, []),))
    params = SolverParams(theta=0.0, epsilon=0.5, lam=2.0)
    value = objective.objective(
        np.array([[[0.4]]]),
        np.zeros((1, 1)),
        np.array([[[0.5]]]),
        np.ones(1),
        np.ones((1, 1)),
        arrays,
        params,
    )
    kl = 0.5 * math.log(0.5) - 0.5 + 1.0
    by_hand = 0.4 * 0.5 + 2 * 2.0 * kl + 0.5 * 0.5 * (math.log(0.5) - 1)
    assert value[0] == pytest.approx(by_hand, abs=1e-14)


@settings(max_examples=30, deadline=None)
@given(problem=problems(), params=solver_params, seed=st.integers(0, 2**32 - 1))
def test_every_term_agrees_with_the_slow_twin(
    problem: Problem, params: SolverParams, seed: int
) -> None:
    arrays, cost, distance = problem.arrays, problem.padded_cost, problem.distance
    plan, mu, age = random_plan(problem, seed), problem.mu, problem.ages[-1]
    marginal = arrays.nu * 0.7
    gradient = objective.linearise(distance, plan, arrays)
    total = objective.linear_cost(cost, gradient, age, params)
    given_terms = (cost, distance, plan, mu, marginal, arrays, params)
    exact = objective.objective(*given_terms)
    loss = objective.diagnostic_loss(*given_terms)
    leakage = objective.row_leakage(plan, mu)
    for k, reference in enumerate(problem.references):
        size = reference.size
        own = plan[k, :, :size].tolist()
        plain_cost = cost[k, :, :size].tolist()
        raw = twin.gradient(distance.tolist(), own, reference)
        expected = twin.linear_cost(plain_cost, raw, age.tolist(), params.theta)
        np.testing.assert_allclose(gradient[k, :, :size], raw, atol=1e-12)
        np.testing.assert_allclose(total[k, :, :size], expected, atol=1e-12)
        terms = (
            plain_cost,
            distance.tolist(),
            own,
            mu.tolist(),
            marginal[k, :size].tolist(),
            reference,
            params,
        )
        assert exact[k] == pytest.approx(twin.objective(*terms), abs=1e-11)
        assert loss[k] == pytest.approx(twin.diagnostic_loss(*terms), abs=1e-11)
        np.testing.assert_allclose(leakage[k], twin.leakage(own, mu.tolist()), atol=1e-12)
    assert ((leakage >= 0) & (leakage <= 1)).all()


@settings(max_examples=30, deadline=None)
@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
def test_clipping_the_gradient_removes_rounding_only(problem: Problem, seed: int) -> None:
    plan = random_plan(problem, seed)
    assert objective.linearise(problem.distance, plan, problem.arrays).min() > -1e-12


@settings(max_examples=30, deadline=None)
@given(problem=problems(), params=solver_params, seed=st.integers(0, 2**32 - 1))
def test_theta_times_the_gradient_is_the_slope_of_the_quadratic_term(
    problem: Problem, params: SolverParams, seed: int
) -> None:
    arrays, distance = problem.arrays, problem.distance
    plan = random_plan(problem, seed)
    gradient = objective.linearise(distance, plan, arrays)

    def quadratic(at: np.ndarray) -> np.ndarray:
        return 0.5 * (objective.linearise(distance, at, arrays) * at).sum(axis=(1, 2))

    direction = np.random.default_rng(seed + 1).uniform(0, 1, plan.shape)
    direction *= arrays.valid[:, None, :]
    width = 1e-3
    slope = (quadratic(plan + width * direction) - quadratic(plan - width * direction)) / (
        2 * width
    )
    np.testing.assert_allclose(slope, (gradient * direction).sum(axis=(1, 2)), atol=1e-8)


@settings(max_examples=30, deadline=None)
@given(problem=problems(), params=solver_params, seed=st.integers(0, 2**32 - 1))
def test_a_redundant_leaf_without_mass_raises_the_objective_by_exactly_lambda_mu(
    problem: Problem, params: SolverParams, seed: int
) -> None:
    """Proposition 3, the feasible point of its proof."""
    arrays, steps = problem.arrays, problem.steps
    plan, mass = random_plan(problem, seed), 1.0 / arrays.mean_size
    leaf_distance = np.ones((steps + 1, steps + 1))
    leaf_distance[:steps, :steps] = problem.distance
    leaf_distance[steps, steps] = 0.0
    leaf = ((0, 0), (0, 1), (0, 0))
    before = objective.objective(
        problem.padded_cost, problem.distance, plan, problem.mu, arrays.nu, arrays, params
    )
    after = objective.objective(
        np.pad(problem.padded_cost, leaf, constant_values=0.9),
        leaf_distance,
        np.pad(plan, leaf),
        np.full(steps + 1, mass),
        arrays.nu,
        arrays,
        params,
    )
    np.testing.assert_allclose(after - before, params.lam * mass, atol=1e-12)


def test_a_step_without_age_has_no_structural_cost_and_later_a_share_of_it() -> None:
    """Proposition 4: omega scales the rows of the structural cost and nothing else."""
    rng = np.random.default_rng(0)
    cost, gradient = rng.uniform(0, 1, (2, 4, 3)), rng.uniform(0, 2, (2, 4, 3))
    params = SolverParams()
    age = np.array([1.0, 2 / 3, 1 / 3, 0.0])
    structural = objective.linear_cost(cost, gradient, age, params) - 0.65 * cost
    np.testing.assert_allclose(structural[:, 3], 0.0, atol=1e-15)
    np.testing.assert_allclose(structural, 0.35 * gradient * age[:, None], atol=1e-15)


def test_mass_where_none_is_allowed_costs_infinitely_much() -> None:
    arrays = pack((twin.Reference(1, []),))
    one = np.ones((1, 1, 1))
    value = objective.objective(
        one, np.zeros((1, 1)), one, np.ones(1), np.zeros((1, 1)), arrays, SolverParams()
    )
    assert value[0] == math.inf


@settings(deadline=None)
@given(st.lists(st.floats(-2, 2), min_size=1, max_size=5))
def test_the_soft_minimum_agrees_with_the_slow_twin(losses: list[float]) -> None:
    array = np.array(losses)
    assert objective.soft_min(array, 0.05) == pytest.approx(twin.soft_min(losses, 0.05), abs=1e-12)
    assert min(losses) - 1e-12 <= objective.soft_min(array, 0.05) <= max(losses) + 1e-12
    assert 0.0 < objective.score(array, 0.05) <= 1.0


def test_the_soft_minimum_of_huge_losses_is_finite() -> None:
    assert objective.soft_min(np.array([1e6, 1e6]), 0.05) == pytest.approx(1e6)
    assert objective.soft_min(np.array([-1e6, 1e6]), 0.05) == pytest.approx(
        -1e6 + 0.05 * math.log(2)
    )


def test_a_negative_soft_minimum_scores_one() -> None:
    assert objective.score(np.array([-0.3, -0.1]), 0.05) == 1.0
    assert objective.score(np.array([0.5]), 0.05) == pytest.approx(math.exp(-0.5))


def test_a_row_without_mass_leaks_nothing() -> None:
    np.testing.assert_array_equal(
        objective.row_leakage(np.zeros((1, 2, 1)), np.array([0.0, 0.5])), [[0.0, 1.0]]
    )
