from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from ontrack.solver.converged import ConvergedSolve, finalise, solve
from ontrack.solver.objective import objective, row_leakage
from ontrack.solver.problem import SolverParams, empty_coupling
from tests import reference as twin
from tests.solver.one_step import step
from tests.solver.problems import Problem, alone, pack, problems, sealed, solver_params

# Tolerances are spelt out: these tests are about fixed points, whatever the defaults are.
PATIENT = {
    "converged_outer_max": 200,
    "converged_inner_max": 2000,
    "converged_outer_tolerance": 1e-8,
    "converged_inner_tolerance": 1e-9,
}


def solve_problem(
    problem: Problem, params: SolverParams, mu: np.ndarray | None = None
) -> ConvergedSolve:
    mass = problem.mu if mu is None else mu
    return solve(
        params,
        problem.arrays,
        problem.padded_cost,
        problem.distance,
        problem.ages[-1],
        mass,
        problem.arrays.nu * 0.7,
    )


def test_a_run_equal_to_its_reference_is_matched_step_by_step() -> None:
    chain = twin.Reference(4, [(0, 1), (1, 2), (2, 3)])
    arrays = pack((chain,))
    result = finalise(SolverParams(), arrays, 1.0 - np.eye(4)[None], arrays.structure[0])
    np.testing.assert_array_equal(result.coupling.plan[0].argmax(axis=1), [0, 1, 2, 3])
    assert row_leakage(result.coupling.plan, np.full(4, 0.25)).max() < 0.1


@settings(max_examples=30, deadline=None)
@given(problem=problems(steps_max=6, size_max=5), params=solver_params)
def test_the_converged_solve_agrees_with_the_slow_twin(
    problem: Problem, params: SolverParams
) -> None:
    result = solve_problem(problem, params)
    for k, reference in enumerate(problem.references):
        m = reference.size
        state, loss = twin.converged_solve(
            params,
            reference,
            problem.costs[k].tolist(),
            problem.distance.tolist(),
            problem.ages[-1].tolist(),
            problem.mu.tolist(),
            [0.7 / m] * m,
        )
        np.testing.assert_allclose(result.coupling.plan[k, :, :m], state.plan, atol=1e-9)
        np.testing.assert_allclose(result.coupling.u[k], state.u, rtol=1e-8)
        np.testing.assert_allclose(result.coupling.v[k, :m], state.v, rtol=1e-8)
        assert result.losses[k] == pytest.approx(loss, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(problem=problems(), params=solver_params)
def test_a_reference_that_has_stopped_changes_no_other_result(
    problem: Problem, params: SolverParams
) -> None:
    # A loose tolerance, so that references stop at different iterations.
    loose = dataclasses.replace(
        params, converged_outer_tolerance=1e-3, converged_inner_tolerance=1e-4
    )
    batched = solve_problem(problem, loose)
    for k, reference in enumerate(problem.references):
        single = solve_problem(alone(problem, k), loose, problem.mu)
        m = reference.size
        np.testing.assert_allclose(
            batched.coupling.plan[k, :, :m], single.coupling.plan[0], atol=1e-12
        )
        np.testing.assert_allclose(batched.coupling.u[k], single.coupling.u[0], rtol=1e-12)
        np.testing.assert_allclose(batched.coupling.v[k, :m], single.coupling.v[0], rtol=1e-12)
        assert batched.losses[k] == pytest.approx(single.losses[0], abs=1e-12)


@settings(max_examples=15, deadline=None)
@given(problem=problems(steps_max=4, size_max=4, count_max=1), lam=st.sampled_from([0.1, 1.0]))
def test_without_structure_it_finds_the_minimum_that_a_general_optimiser_finds(
    problem: Problem, lam: float
) -> None:
    params = SolverParams(theta=0.0, lam=lam, epsilon=0.1, **PATIENT)
    arrays = problem.arrays
    shape = (1, problem.steps, arrays.width)

    def value(plan: np.ndarray) -> float:
        terms = (problem.padded_cost, problem.distance, plan, problem.mu, arrays.nu * 0.7)
        return float(objective(*terms, arrays, params)[0])

    result = solve_problem(problem, params)
    best = minimize(
        lambda logs: value(np.exp(logs).reshape(shape)),
        np.full(np.prod(shape), -3.0),
        method="L-BFGS-B",
        options={"maxiter": 500, "maxfun": 50_000},
    )
    assert result.converged
    assert value(result.coupling.plan) <= best.fun + 1e-6
    assert value(result.coupling.plan) >= best.fun - 1e-4


@settings(max_examples=30, deadline=None)
@given(problem=problems())
def test_one_patient_streaming_step_reaches_the_converged_solution_without_structure(
    problem: Problem,
) -> None:
    params = SolverParams(
        theta=0.0, gamma=1.0, inner_iterations=2000, inner_tolerance=1e-12, **PATIENT
    )
    first = Problem(
        problem.references,
        tuple(cost[:1] for cost in problem.costs),
        [],
        1,
        problem.ages[:1, :1],
    )
    arrays = first.arrays
    coupling, info = step(
        params,
        arrays,
        empty_coupling(arrays),
        first.padded_cost,
        first.distance,
        np.ones(1),
        first.mu,
        arrays.nu * 0.7,
    )
    assert info.converged
    np.testing.assert_allclose(coupling.plan, solve_problem(first, params).coupling.plan, atol=1e-8)


@settings(max_examples=40, deadline=None)
@given(problem=problems(), leaf_cost=st.floats(0, 1), lam=st.sampled_from([0.1, 0.3]))
def test_a_redundant_leaf_raises_the_optimum_by_at_most_lambda_over_mean_size(
    problem: Problem, leaf_cost: float, lam: float
) -> None:
    """Proposition 3, on the convex problem, where the converged solve is the optimum."""
    params = SolverParams(theta=0.0, lam=lam, **PATIENT)
    longer = Problem(
        problem.references,
        tuple(np.vstack([c, np.full((1, c.shape[1]), leaf_cost)]) for c in problem.costs),
        problem.edges,
        problem.steps + 1,
        np.ones((problem.steps + 1, problem.steps + 1)),
    )
    optima = []
    for each in (problem, longer):
        result = solve_problem(each, params)
        assert result.converged
        terms = (each.padded_cost, each.distance, result.coupling.plan, each.mu)
        optima.append(objective(*terms, each.arrays.nu * 0.7, each.arrays, params))
    assert (optima[1] - optima[0] <= lam / problem.arrays.mean_size + 1e-7).all()


@settings(max_examples=40, deadline=None)
@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
def test_relabelling_the_steps_permutes_the_plan_and_keeps_the_losses(
    problem: Problem, seed: int
) -> None:
    """Proposition 2, and the last part of Proposition 1: order of arrival leaves no trace."""
    order = np.random.default_rng(seed).permutation(problem.steps)
    arrays, cost, distance = problem.arrays, problem.padded_cost, problem.distance
    straight = finalise(SolverParams(), arrays, cost, distance)
    moved = finalise(SolverParams(), arrays, cost[:, order], distance[np.ix_(order, order)])
    np.testing.assert_allclose(moved.coupling.plan, straight.coupling.plan[:, order], atol=1e-12)
    np.testing.assert_allclose(moved.losses, straight.losses, atol=1e-12)


def test_two_branches_run_in_either_order_finalise_to_the_same_losses() -> None:
    diamond = twin.Reference(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    arrays = pack((diamond,))
    cost = np.random.default_rng(1).uniform(0, 1, (1, 4, 4))
    swapped = [0, 2, 1, 3]
    # The swap is an automorphism of the diamond: the structure matrix stays as it is.
    one = finalise(SolverParams(), arrays, cost, arrays.structure[0])
    two = finalise(SolverParams(), arrays, cost[:, swapped], arrays.structure[0])
    np.testing.assert_allclose(one.losses, two.losses, atol=1e-14)
    np.testing.assert_allclose(one.coupling.plan[:, swapped], two.coupling.plan, atol=1e-14)


@settings(max_examples=25, deadline=None)
@given(problem=problems(), params=solver_params)
def test_finalising_is_deterministic_bit_for_bit(problem: Problem, params: SolverParams) -> None:
    """Proposition 1: a function of the finished run only."""

    def once() -> list[bytes]:
        result = finalise(
            params, problem.arrays, problem.padded_cost.copy(), problem.distance.copy()
        )
        coupling = result.coupling
        arrays = (coupling.plan, coupling.u, coupling.v, result.losses, result.linear_cost)
        return [array.tobytes() for array in arrays]

    assert once() == once()


def test_finalising_is_the_converged_solve_without_mask_and_ages() -> None:
    arrays = pack((twin.Reference(2, [(0, 1)]), twin.Reference(3, [(0, 2)])))
    cost = np.random.default_rng(2).uniform(0, 1, (2, 5, 3))
    distance = 1.0 - np.eye(5)
    params = SolverParams()
    final = finalise(params, arrays, cost, distance)
    same = solve(params, arrays, cost, distance, np.ones(5), np.full(5, 0.2), arrays.nu)
    assert final.coupling.plan.tobytes() == same.coupling.plan.tobytes()
    assert final.losses.tobytes() == same.losses.tobytes()


@settings(max_examples=30, deadline=None)
@given(
    problem=problems(),
    level=st.sampled_from([0.0, 1.0]),
    lam=st.sampled_from([1e-3, 10.0]),
    epsilon=st.sampled_from([0.005, 0.05]),
)
def test_extreme_inputs_give_finite_results(
    problem: Problem, level: float, lam: float, epsilon: float
) -> None:
    params = SolverParams(lam=lam, epsilon=epsilon)
    cost = np.full_like(problem.padded_cost, level)
    with np.errstate(all="raise", under="ignore"):
        result = finalise(params, problem.arrays, cost, problem.distance)
    coupling = result.coupling
    for array in (coupling.plan, coupling.u, coupling.v, result.losses, result.linear_cost):
        assert np.isfinite(array).all()
    assert (coupling.plan >= 0).all()


def test_not_converging_is_a_field_of_the_result() -> None:
    arrays = pack((twin.Reference(3, [(0, 1), (1, 2)]),))
    cost = np.random.default_rng(3).uniform(0, 1, (1, 4, 3))
    distance = 1.0 - np.eye(4)
    hurried = finalise(SolverParams(converged_outer_max=1), arrays, cost, distance)
    assert not hurried.converged
    assert hurried.outer_iterations == 1
    assert hurried.residual > 1e-8
    patient = finalise(SolverParams(**PATIENT), arrays, cost, distance)
    assert patient.converged
    assert patient.residual < 1e-8
    assert patient.inner_iterations >= patient.outer_iterations > 1


def test_a_run_without_steps_is_refused() -> None:
    arrays = pack((twin.Reference(1, []),))
    with pytest.raises(ValueError, match="without steps"):
        finalise(SolverParams(), arrays, np.zeros((1, 0, 1)), np.zeros((0, 0)))
    with pytest.raises(ValueError, match="cost has shape"):
        finalise(SolverParams(), arrays, np.zeros((1, 1, 2)), np.zeros((1, 1)))


def test_a_solve_writes_to_none_of_its_inputs() -> None:
    arrays = pack((twin.Reference(2, [(0, 1)]),))
    result = solve(
        SolverParams(),
        arrays,
        sealed(np.ones((1, 2, 2))),
        sealed(arrays.structure[0]),
        sealed(np.ones(2)),
        sealed(np.full(2, 0.5)),
        sealed(arrays.nu),
    )
    assert result.coupling.plan.shape == (1, 2, 2)
