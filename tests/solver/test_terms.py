"""Structure terms: carried from event to event or computed anew, the same bits come out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.solver import kernels
from ontrack.solver.frontier import coverage, frontier
from ontrack.solver.objective import column_mass, diagnostic_loss, row_leakage
from ontrack.solver.problem import Coupling, SolverParams, empty_coupling
from ontrack.solver.reading import Advance
from ontrack.solver.streaming import advance
from tests import reference as twin
from tests.solver.problems import Problem, problems, solver_params

SINGLE = 1e-5


def event(problem: Problem, params: SolverParams, before: Coupling, size: int) -> Advance:
    return advance(
        params,
        problem.arrays,
        before,
        problem.padded_cost[:, :size].astype(np.float32),
        problem.distance_at(size).astype(np.float32),
        problem.ages[size - 1, :size],
        problem.mu[:size],
    )


def restored(coupling: Coupling) -> Coupling:
    """As a snapshot gives it back: plan and scalings alone, read-only."""
    return Coupling(
        *(
            np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)
            for array in (coupling.plan, coupling.u, coupling.v)
        )
    )


@settings(max_examples=40, deadline=None)
@given(problem=problems(steps_max=9), params=solver_params, old_age=st.booleans())
def test_a_restored_run_goes_on_with_the_very_same_bits(
    problem: Problem, params: SolverParams, old_age: bool
) -> None:
    """Edges arrive with their younger step, so old distances change at some events."""
    if not old_age:  # as in a run: a step has no age at its own event
        np.fill_diagonal(problem.ages, 0.0)
    through = again = empty_coupling(problem.arrays)
    for size in range(1, problem.steps + 1):
        one = event(problem, params, through, size)
        other = event(problem, params, restored(again), size)
        for left, right in (
            (one.coupling.plan, other.coupling.plan),
            (one.coupling.u, other.coupling.u),
            (one.coupling.v, other.coupling.v),
            (one.reading.numbers, other.reading.numbers),
            (one.reading.flags, other.reading.flags),
        ):
            assert left.tobytes() == right.tobytes()
        assert one.inner_iterations == other.inner_iterations
        through, again = one.coupling, other.coupling
        if one.coupling.terms is None:  # where float32 did not hold the numbers
            assert other.coupling.terms is None
            continue
        assert other.coupling.terms is not None
        assert one.coupling.terms.cross.tobytes() == other.coupling.terms.cross.tobytes()


@settings(max_examples=20, deadline=None)
@given(problem=problems(steps_max=5), seed=st.integers(0, 2**32 - 1))
def test_terms_of_another_plan_are_not_used(problem: Problem, seed: int) -> None:
    params, before = SolverParams(), empty_coupling(problem.arrays)
    for size in range(1, problem.steps):
        before = event(problem, params, before, size).coupling
    other = before.plan * np.random.default_rng(seed).uniform(0, 1, before.plan.shape)
    wrong = Coupling(other.astype(np.float32), before.u, before.v, before.terms)
    right = Coupling(other.astype(np.float32), before.u, before.v)
    one, two = (event(problem, params, each, problem.steps) for each in (wrong, right))
    assert one.reading.numbers.tobytes() == two.reading.numbers.tobytes()


@settings(max_examples=20, deadline=None)
@given(problem=problems(steps_max=6), params=solver_params)
def test_what_is_read_off_belongs_to_the_plan_that_is_stored(
    problem: Problem, params: SolverParams
) -> None:
    arrays, before = problem.arrays, empty_coupling(problem.arrays)
    for size in range(1, problem.steps + 1):
        done = event(problem, params, before, size)
        before = done.coupling
    assert before.plan.dtype == np.float32
    plan, told, mu = before.plan.astype(np.float64), done.reading, problem.mu
    columns = column_mass(plan)
    now = frontier(columns, arrays, params)
    np.testing.assert_array_equal(told.satisfied, now.satisfied)
    np.testing.assert_array_equal(told.active, now.active)
    np.testing.assert_allclose(told.coverage, coverage(columns, arrays), atol=SINGLE)
    np.testing.assert_allclose(told.leakages, row_leakage(plan, mu), atol=SINGLE)
    assert told.leakages.shape == plan.shape[:2]
    cost, distance = problem.padded_cost, problem.distance
    losses = diagnostic_loss(cost, distance, plan, mu, done.mask.marginal, arrays, params)
    np.testing.assert_allclose(done.losses, losses, atol=SINGLE)
    for k in range(arrays.count):
        found = told.match_cost(k, 1e-3)
        wanted = [
            twin.match_cost(plan[k, -1].tolist(), row[k].tolist(), 1e-3)
            for row in (done.newest_cost, cost[:, -1])
        ]
        np.testing.assert_allclose(found, wanted, atol=1e-3)


@settings(max_examples=20, deadline=None)
@given(problem=problems(steps_max=5), epsilon=st.sampled_from([1e-4, 1e-3, 5e-3]))
def test_what_float32_does_not_hold_is_left_to_numpy(problem: Problem, epsilon: float) -> None:
    """A Gibbs kernel below e^-80: the same bits on both kernels, and nothing becomes infinite."""
    params, found = SolverParams(epsilon=epsilon, lam=1.0), []
    chosen = "numpy" if kernels.compiled() is None else "numba"
    costs = tuple(np.ones_like(cost) for cost in problem.costs)
    dear = Problem(problem.references, costs, problem.edges, problem.steps, problem.ages)
    for name in (chosen, "numpy"):
        kernels.use(name)  # type: ignore[arg-type]
        before = empty_coupling(dear.arrays)
        with np.errstate(all="raise", under="ignore"):
            for size in range(1, dear.steps + 1):
                before = event(dear, params, before, size).coupling
        assert np.isfinite(before.u).all()
        found.append(before)
    kernels.use(chosen)  # type: ignore[arg-type]
    assert found[0].plan.tobytes() == found[1].plan.tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_new_steps_distances_have_to_be_finite_although_it_has_no_age_yet(
    value: float,
) -> None:
    arrays = empty_problem().arrays
    distance = np.array([[0.0, value], [value, 0.0]])
    before = Coupling(np.full((1, 1, 1), 0.5), np.ones((1, 1)), np.ones((1, 1)))
    with pytest.raises(ValueError, match="must be finite"):
        advance(
            SolverParams(),
            arrays,
            before,
            np.zeros((1, 2, 1)),
            distance,
            np.array([1.0, 0.0]),
            np.full(2, 0.5),
        )


def empty_problem() -> Problem:
    return Problem((twin.Reference(1, []),), (np.zeros((2, 1)),), [], 2, np.ones((2, 2)))
