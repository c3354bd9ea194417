"""Rows that are held: constants of the problem, into which finished steps were collapsed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.solver.converged import solve
from ontrack.solver.frontier import frontier
from ontrack.solver.objective import column_mass, diagnostic_loss, row_leakage
from ontrack.solver.problem import Coupling, SolverParams, empty_coupling
from ontrack.solver.scaling import scale
from ontrack.solver.streaming import advance, step
from tests import reference as twin
from tests.solver.problems import Problem, pack, problems, sealed, solver_params, stream


def coupling_before(problem: Problem, params: SolverParams) -> Coupling:
    """Stream all steps but the last."""
    if problem.steps == 1:
        return empty_coupling(problem.arrays)
    steps = problem.steps - 1
    earlier = Problem(
        problem.references,
        tuple(cost[:steps] for cost in problem.costs),
        [edge for edge in problem.edges if max(edge) < steps],
        steps,
        problem.ages,
    )
    return stream(earlier, params)


def inputs(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return problem.padded_cost, problem.distance, problem.ages[-1], problem.mu


# ------------------------------------------------------------------ examples


def test_a_step_finds_no_room_where_a_held_row_has_taken_the_mass() -> None:
    arrays, params, mu = pack((twin.Reference(2, [(0, 1)]),)), SolverParams(), np.full(2, 0.5)
    cost = np.array([[[0.0, 1.0], [0.0, 1.0]]])
    distance = np.array([[0.0, 0.5], [0.5, 0.0]])
    leaks = []
    for taken in (0.0, 0.25, 0.5):
        before = Coupling(np.array([[[taken, 0.0]]]), np.ones((1, 1)), np.ones((1, 2)))
        done = advance(params, arrays, before, cost, distance, np.zeros(2), mu, held=1)
        leaks.append(row_leakage(done.coupling.plan, mu)[0, 1])
        assert done.coupling.plan[0, 0, 0] == taken
        assert done.coupling.u[0, 0] == 1.0
    assert leaks[0] < leaks[1] < leaks[2]


def test_without_held_rows_nothing_changes() -> None:
    arrays = pack((twin.Reference(2, [(0, 1)]),))
    before = Coupling(np.full((1, 1, 2), 0.1), np.ones((1, 1)), np.ones((1, 2)))
    rest = np.full((1, 2, 2), 0.3), 1.0 - np.eye(2), np.zeros(2), np.full(2, 0.5)
    plain, named = (
        advance(SolverParams(), arrays, before, *rest),
        advance(SolverParams(), arrays, before, *rest, held=0),
    )
    np.testing.assert_array_equal(plain.coupling.plan, named.coupling.plan)
    np.testing.assert_array_equal(plain.losses, named.losses)


# ------------------------------------------------------------------ against slow twins


def slow_step(
    problem: Problem, k: int, before: Coupling, params: SolverParams, held: int
) -> tuple[list[list[float]], list[float], float]:
    """One event of one reference by loops; return plan, v and the diagnostic loss."""
    size, steps = problem.references[k].size, problem.steps
    cost, distance, age, mu = problem.costs[k], problem.distance, problem.ages[-1], problem.mu
    structure = problem.arrays.structure[k]
    old = [[*map(float, row[:size])] for row in before.plan[k]] + [[0.0] * size]
    columns = [sum(row[j] for row in old) for j in range(size)]
    mask = twin.frontier(
        columns,
        problem.references[k],
        params.kappa,
        params.lookahead_weight,
        params.dormant_weight,
    )
    kernel = [[0.0] * size for _ in range(steps)]
    for i in range(held, steps):
        for j in range(size):
            gradient = sum(
                (distance[i, a] - structure[j, b]) ** 2 * old[a][b]
                for a in range(steps)
                for b in range(size)
            )
            total = (1 - params.theta) * cost[i, j] + params.theta * age[i] * gradient
            kernel[i][j] = math.exp(-total / params.epsilon)
    active, eta = range(held, steps), params.exponent
    q = [sum(old[i][j] for i in range(held)) for j in range(size)]
    v = [float(x) for x in before.v[k, :size]]
    u: list[float] = []
    for _ in range(params.inner_iterations):
        u = [
            (mu[i] / max(sum(kernel[i][j] * v[j] for j in range(size)), 1e-300)) ** eta
            for i in active
        ]
        for j in range(size):
            fitted = sum(kernel[i][j] * u[i - held] for i in active)
            wanted = mask.marginal[j]
            share = q[j] / (v[j] if v[j] > 0.0 else 1.0)
            v[j] = (wanted / max(fitted + share, 1e-300)) ** eta if wanted > 0.0 else 0.0
    plan = [row[:] for row in old]
    for i in active:
        for j in range(size):
            new = u[i - held] * kernel[i][j] * v[j]
            plan[i][j] = (1 - params.gamma) * old[i][j] + params.gamma * new
    return plan, v, twin_loss(problem, k, plan, mask.marginal, params)


def twin_loss(
    problem: Problem, k: int, plan: list[list[float]], marginal: list[float], params: SolverParams
) -> float:
    flat = [mass for row in plan for mass in row]
    linear = float(np.sum(np.asarray(plan) * problem.costs[k]))
    structure, steps, size = problem.arrays.structure[k], len(plan), len(plan[0])
    quadratic = sum(
        (problem.distance[i, a] - structure[j, b]) ** 2 * plan[i][j] * plan[a][b]
        for i in range(steps)
        for a in range(steps)
        for j in range(size)
        for b in range(size)
    )
    entropy = sum(mass * (math.log(mass) - 1.0) for mass in flat if mass > 0.0)
    gap = abs(sum(flat) - float(problem.mu.sum())) + abs(sum(flat) - sum(marginal))
    return (
        (1 - params.theta) * linear
        + params.theta / 2 * max(quadratic, 0.0)
        + params.epsilon * entropy
        + params.lam * gap
    )


@settings(max_examples=30, deadline=None)
@given(
    problem=problems(steps_max=6, size_max=5),
    share=st.floats(0, 1),
    theta=st.sampled_from([0.0, 0.35, 0.8]),
    dormant=st.sampled_from([0.0, 0.01]),
)
def test_an_event_with_held_rows_is_that_of_the_slow_twin(
    problem: Problem, share: float, theta: float, dormant: float
) -> None:
    # No tolerance: all iterations are taken, here and there.
    params = SolverParams(inner_tolerance=0.0, theta=theta, dormant_weight=dormant)
    held = round(share * (problem.steps - 1))
    before = coupling_before(problem, params)
    done = advance(params, problem.arrays, before, *inputs(problem), held=held)
    assert done.newest_cost.shape == problem.arrays.nu.shape
    for k, reference in enumerate(problem.references):
        plan, v, loss = slow_step(problem, k, before, params, held)
        size = reference.size
        # The plan is stored in float32, and the compiled kernel works in it.
        np.testing.assert_allclose(done.coupling.plan[k, :, :size], plan, atol=1e-6)
        np.testing.assert_allclose(done.coupling.v[k, :size], v, rtol=1e-4)
        assert done.losses[k] == pytest.approx(loss, abs=1e-6)
        assert not done.coupling.plan[k, :, size:].any()


@settings(max_examples=30, deadline=None)
@given(problem=problems(steps_max=7), params=solver_params, share=st.floats(0, 1))
def test_held_rows_keep_plan_and_scalings_and_nothing_is_written_to(
    problem: Problem, params: SolverParams, share: float
) -> None:
    held = round(share * (problem.steps - 1))
    before = coupling_before(problem, params)
    guarded = Coupling(*(sealed(part) for part in (before.plan, before.u, before.v)))
    done = advance(params, problem.arrays, guarded, *map(sealed, inputs(problem)), held=held)
    stored = before.plan[:, :held].astype(np.float32)
    np.testing.assert_array_equal(done.coupling.plan[:, :held], stored)
    np.testing.assert_array_equal(done.coupling.u[:, :held], before.u[:, :held])
    assert np.isfinite(done.coupling.plan).all()
    assert (done.coupling.plan >= 0).all()


@settings(max_examples=30, deadline=None)
@given(problem=problems(steps_max=7), seed=st.integers(0, 2**32 - 1))
def test_two_held_rows_at_the_same_place_are_as_good_as_one(problem: Problem, seed: int) -> None:
    """That is what collapsing rests on: equal distances, so only the sum of both counts."""
    params, arrays, rng = SolverParams(), problem.arrays, np.random.default_rng(seed)
    cost, distance, age, mu = inputs(problem)
    before = coupling_before(problem, params)
    before = Coupling(
        np.concatenate([rng.uniform(0, 0.1, arrays.nu.shape)[:, None], before.plan], axis=1)
        * arrays.valid[:, None],
        np.concatenate([np.ones((arrays.count, 1)), before.u], axis=1),
        before.v,
    )
    row = rng.uniform(0.3, 1.0, problem.steps)
    distance = np.block([[np.zeros((1, 1)), row[None]], [row[:, None], distance]])
    cost = np.concatenate([cost[:, :1], cost], axis=1)
    age, mu = np.append(1.0, age), np.append(mu[0], mu)
    one = advance(params, arrays, before, cost, distance, age, mu, held=1)
    twice = [0, *range(problem.steps + 1)]
    halves = before.plan[:, twice[:-1]]
    halves[:, :2] *= 0.5
    both = advance(
        params,
        arrays,
        Coupling(halves, before.u[:, twice[:-1]], before.v),
        cost[:, twice],
        distance[np.ix_(twice, twice)],
        age[twice],
        np.r_[mu[0] / 2, mu[0] / 2, mu[1:]],
        held=2,
        held_entropy=entropy(before.plan[:, :1]),
    )
    np.testing.assert_allclose(both.coupling.plan[:, 2:], one.coupling.plan[:, 1:], atol=1e-6)
    np.testing.assert_allclose(both.losses, one.losses, atol=1e-6)


def entropy(plan: np.ndarray) -> np.ndarray:
    return np.array([sum(x * math.log(x) for x in one.ravel() if x > 0.0) for one in plan])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), lam=st.sampled_from([0.05, 0.1, 1.0]))
def test_columns_are_scaled_to_the_optimum_of_what_is_held_and_what_is_not(
    seed: int, lam: float
) -> None:
    """At the optimum, ``eps log(T / K) + lam (log(row / mu) + log((column + q) / nu)) = 0``."""
    rng, params = np.random.default_rng(seed), SolverParams(lam=lam)
    kernel = rng.uniform(0.1, 1.0, (1, 4, 3))
    mu, nu, q = rng.uniform(0.1, 1, 4), rng.uniform(0.1, 1, (1, 3)), rng.uniform(0, 1, (1, 3))
    start = np.ones((1, 4)), np.ones((1, 3))
    made = scale(kernel, mu, nu, *start, params.exponent, 2000, 0.0, held_mass=q)
    plan = made.u[0][:, None] * kernel[0] * made.v[0][None, :]
    rows = np.log(plan.sum(axis=1) / mu)[:, None]
    columns = np.log((plan.sum(axis=0) + q[0]) / nu[0])[None, :]
    gradient = params.epsilon * np.log(plan / kernel[0]) + lam * (rows + columns)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-8)


@settings(max_examples=20, deadline=None)
@given(problem=problems(steps_max=6), params=solver_params, share=st.floats(0, 1))
def test_a_converged_solve_leaves_held_rows_and_tells_the_loss_of_the_whole_plan(
    problem: Problem, params: SolverParams, share: float
) -> None:
    held = round(share * (problem.steps - 1))
    arrays, before = problem.arrays, coupling_before(problem, params)
    held_plan = before.plan[:, :held]
    marginal = frontier(column_mass(before.plan), arrays, params).marginal
    cost, distance, age, mu = inputs(problem)
    solved = solve(
        params, arrays, cost, distance, age, mu, marginal, held=held, held_plan=held_plan
    )
    plan = solved.coupling.plan
    np.testing.assert_array_equal(plan[:, :held], held_plan)
    assert solved.linear_cost.shape[1] == problem.steps - held
    losses = diagnostic_loss(cost, distance, plan, mu, marginal, arrays, params)
    np.testing.assert_allclose(solved.losses, losses, atol=1e-12)
    if held == 0:
        plain = solve(params, arrays, cost, distance, age, mu, marginal)
        np.testing.assert_array_equal(plan, plain.coupling.plan)


@settings(max_examples=20, deadline=None)
@given(problem=problems(steps_max=6), seed=st.integers(0, 2**32 - 1), share=st.floats(0, 1))
def test_the_entropy_of_what_was_collapsed_takes_the_place_of_that_of_its_rows(
    problem: Problem, seed: int, share: float
) -> None:
    held, params = round(share * (problem.steps - 1)), SolverParams()
    arrays, rng = problem.arrays, np.random.default_rng(seed)
    cost, distance, _, mu = inputs(problem)
    plan = rng.uniform(0, 0.1, cost.shape) * arrays.valid[:, None]
    rest = cost, distance, plan, mu, arrays.nu, arrays, params
    own = diagnostic_loss(*rest)
    given_ = entropy(plan[:, :held])
    np.testing.assert_allclose(
        diagnostic_loss(*rest, held=held, held_entropy=given_), own, atol=1e-12
    )
    np.testing.assert_allclose(
        diagnostic_loss(*rest, held=held, held_entropy=given_ + 1.0),
        own + params.epsilon,
        atol=1e-12,
    )


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("held", [-1, 2])
def test_no_more_than_the_old_rows_can_be_held(held: int) -> None:
    arrays = pack((twin.Reference(2, []),))
    before = Coupling(np.zeros((1, 1, 2)), np.ones((1, 1)), np.ones((1, 2)))
    rest = np.zeros((1, 2, 2)), 1.0 - np.eye(2), np.ones(2), np.ones(2)
    with pytest.raises(ValueError, match=r"held must lie in 0\.\.1"):
        step(SolverParams(), arrays, before, *rest, arrays.nu, held=held)
    with pytest.raises(ValueError, match=r"held must lie in 0\.\.1"):
        advance(SolverParams(), arrays, before, *rest, held=held)
    with pytest.raises(ValueError, match=r"held must lie in 0\.\.1"):
        solve(SolverParams(), arrays, *rest, arrays.nu, held=held)


def test_held_rows_without_their_plan_are_refused() -> None:
    arrays = pack((twin.Reference(2, []),))
    rest = np.zeros((1, 2, 2)), 1.0 - np.eye(2), np.ones(2), np.ones(2), arrays.nu
    with pytest.raises(ValueError, match="held_plan is missing"):
        solve(SolverParams(), arrays, *rest, held=1)
    with pytest.raises(ValueError, match="held_plan has shape"):
        solve(SolverParams(), arrays, *rest, held=1, held_plan=np.zeros((1, 2, 2)))
