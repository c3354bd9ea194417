from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.solver.frontier import frontier
from ontrack.solver.objective import row_leakage
from ontrack.solver.problem import Coupling, SolverParams, empty_coupling
from ontrack.solver.streaming import advance
from tests import reference as twin
from tests.solver.one_step import step
from tests.solver.problems import (
    Problem,
    alone,
    pack,
    problems,
    sealed,
    solver_params,
    stream,
)


def test_a_first_step_that_fits_the_first_node_leaks_nothing_and_a_foreign_one_leaks() -> None:
    arrays = pack((twin.Reference(3, [(0, 1), (1, 2)]),))
    marginal = frontier(np.zeros((1, 3)), arrays, SolverParams()).marginal
    mu = np.full(1, 1 / 3)
    leaks = []
    for first_cost in (0.0, 1.0):
        cost = np.array([[[first_cost, 1.0, 1.0]]])
        coupling, info = step(
            SolverParams(gamma=1.0),
            arrays,
            empty_coupling(arrays),
            cost,
            np.zeros((1, 1)),
            np.zeros(1),
            mu,
            marginal,
        )
        leaks.append(row_leakage(coupling.plan, mu)[0, 0])
        np.testing.assert_allclose(info.linear_cost, 0.65 * cost)
    assert leaks[0] < 0.05
    assert leaks[1] > 0.8


@settings(max_examples=30, deadline=None)
@given(problem=problems(), params=solver_params)
def test_a_stream_agrees_with_the_slow_twin_at_every_event(
    problem: Problem, params: SolverParams
) -> None:
    arrays, cost, mu = problem.arrays, problem.padded_cost, problem.mu
    coupling = empty_coupling(arrays)
    states = [twin.State([], [], [1.0] * each.size) for each in problem.references]
    for size in range(1, problem.steps + 1):
        distance, age = problem.distance_at(size), problem.ages[size - 1, :size]
        marginal = frontier(coupling.plan.sum(axis=1), arrays, params).marginal
        coupling, info = step(
            params, arrays, coupling, cost[:, :size], distance, age, mu[:size], marginal
        )
        known = [edge for edge in problem.edges if max(edge) < size]
        for k, reference in enumerate(problem.references):
            m = reference.size
            mask = twin.frontier(
                twin.column_sums(states[k].plan, m),
                reference,
                params.kappa,
                params.lookahead_weight,
                params.dormant_weight,
            )
            states[k], total = twin.streaming_step(
                params,
                reference,
                states[k],
                cost[k, :size, :m].tolist(),
                twin.distance_matrix(size, known),
                age.tolist(),
                mu[:size].tolist(),
                mask.marginal,
            )
            np.testing.assert_allclose(coupling.plan[k, :, :m], states[k].plan, atol=1e-9)
            np.testing.assert_allclose(coupling.u[k], states[k].u, rtol=1e-9)
            np.testing.assert_allclose(coupling.v[k, :m], states[k].v, rtol=1e-9)
            np.testing.assert_allclose(info.linear_cost[k, :, :m], total, atol=1e-9)
            assert not coupling.plan[k, :, m:].any()
            assert not coupling.v[k, m:].any()


@settings(max_examples=30, deadline=None)
@given(
    problem=problems(steps_max=6, size_max=5),
    theta=st.sampled_from([0.0, 0.35, 0.8]),
    dormant=st.sampled_from([0.0, 0.01]),
)
def test_whole_events_agree_with_the_slow_twin(
    problem: Problem, theta: float, dormant: float
) -> None:
    """Frontier, step and loss in one call; its inputs may be read-only."""
    # No tolerance: all iterations are taken, here and there.
    params = SolverParams(inner_tolerance=0.0, theta=theta, dormant_weight=dormant)
    arrays, cost, mu = problem.arrays, problem.padded_cost, problem.mu
    coupling = empty_coupling(arrays)
    states = [twin.State([], [], [1.0] * each.size) for each in problem.references]
    for size in range(1, problem.steps + 1):
        now = cost[:, :size], problem.distance_at(size), problem.ages[size - 1, :size], mu[:size]
        done = advance(params, arrays, coupling, *map(sealed, now))
        coupling = done.coupling
        assert done.newest_cost.shape == arrays.nu.shape
        known = [edge for edge in problem.edges if max(edge) < size]
        for k, reference in enumerate(problem.references):
            m = reference.size
            mask = twin.frontier(
                twin.column_sums(states[k].plan, m),
                reference,
                params.kappa,
                params.lookahead_weight,
                params.dormant_weight,
            )
            given_ = cost[k, :size, :m].tolist(), twin.distance_matrix(size, known)
            age, masses = now[2].tolist(), now[3].tolist()
            rest = age, masses, mask.marginal
            states[k], _ = twin.streaming_step(params, reference, states[k], *given_, *rest)
            plan = states[k].plan
            # The plan is stored in float32, and the compiled kernel works in it.
            np.testing.assert_allclose(coupling.plan[k, :, :m], plan, atol=1e-6)
            np.testing.assert_allclose(coupling.u[k], states[k].u, rtol=1e-4)
            np.testing.assert_allclose(coupling.v[k, :m], states[k].v, rtol=1e-4)
            loss = twin.diagnostic_loss(*given_, plan, masses, mask.marginal, reference, params)
            assert done.losses[k] == pytest.approx(loss, abs=1e-6)
            assert not coupling.plan[k, :, m:].any()


@settings(max_examples=30, deadline=None)
@given(problem=problems(), params=solver_params)
def test_a_reference_is_aligned_the_same_alone_and_in_a_batch(
    problem: Problem, params: SolverParams
) -> None:
    batched = stream(problem, params)
    for k, reference in enumerate(problem.references):
        single = stream(alone(problem, k), params, mu=problem.mu)
        m = reference.size
        np.testing.assert_allclose(batched.plan[k, :, :m], single.plan[0], atol=1e-12)
        np.testing.assert_allclose(batched.u[k], single.u[0], rtol=1e-12)
        np.testing.assert_allclose(batched.v[k, :m], single.v[0], rtol=1e-12)


def last_step(problem: Problem, before: Coupling, params: SolverParams) -> Coupling:
    marginal = frontier(before.plan.sum(axis=1), problem.arrays, params).marginal
    return step(
        params,
        problem.arrays,
        before,
        problem.padded_cost,
        problem.distance,
        problem.ages[-1],
        problem.mu,
        marginal,
    )[0]


@settings(max_examples=30, deadline=None)
@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
def test_relabelling_the_steps_permutes_the_rows_and_nothing_else(
    problem: Problem, seed: int
) -> None:
    """Proposition 2 for one event: ages and scalings carried along with their steps."""
    params, steps = SolverParams(), problem.steps
    rng = np.random.default_rng(seed)
    arrays = problem.arrays
    shape = (arrays.count, steps - 1, arrays.width)
    before = Coupling(
        rng.uniform(0, 0.1, shape) * arrays.valid[:, None, :],
        rng.uniform(0.5, 2, shape[:2]),
        arrays.valid.astype(float),
    )
    order = rng.permutation(steps - 1)
    place = np.argsort(order)
    ages = problem.ages.copy()
    ages[-1, :-1] = ages[-1, order]
    full = [*order.tolist(), steps - 1]
    moved = Problem(
        problem.references,
        tuple(cost[full] for cost in problem.costs),
        [
            tuple(int(place[n]) if n < steps - 1 else n for n in edge)  # type: ignore[misc]
            for edge in problem.edges
        ],
        steps,
        ages,
    )
    straight = last_step(problem, before, params)
    permuted = last_step(
        moved, Coupling(before.plan[:, order], before.u[:, order], before.v), params
    )
    np.testing.assert_allclose(permuted.plan, straight.plan[:, full], atol=1e-12)
    np.testing.assert_allclose(permuted.u, straight.u[:, full], rtol=1e-12)
    np.testing.assert_allclose(permuted.v, straight.v, rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    problem=problems(),
    level=st.sampled_from([0.0, 1.0, None]),
    lam=st.sampled_from([1e-3, 0.1, 10.0]),
    epsilon=st.sampled_from([0.005, 0.05]),
    dormant=st.sampled_from([0.0, 0.01]),
)
def test_extreme_inputs_give_finite_non_negative_plans(
    problem: Problem, level: float | None, lam: float, epsilon: float, dormant: float
) -> None:
    params = SolverParams(lam=lam, epsilon=epsilon, dormant_weight=dormant)
    if level is not None:
        costs = tuple(np.full_like(cost, level) for cost in problem.costs)
        problem = Problem(problem.references, costs, problem.edges, problem.steps, problem.ages)
    with np.errstate(all="raise", under="ignore"):
        coupling = stream(problem, params)
    for array in (coupling.plan, coupling.u, coupling.v):
        assert np.isfinite(array).all()
        assert (array >= 0).all()
    leakage = row_leakage(coupling.plan, problem.mu)
    assert ((leakage >= 0) & (leakage <= 1)).all()


def test_a_kernel_that_underflows_everywhere_gives_an_empty_row_and_the_run_goes_on() -> None:
    arrays = pack((twin.Reference(2, [(0, 1)]),))
    params, mu = SolverParams(epsilon=1e-4), np.full(3, 0.5)
    coupling = empty_coupling(arrays)
    costs = np.array([[[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]])
    distance = 1.0 - np.eye(3)
    with np.errstate(all="raise", under="ignore"):
        for size in (1, 2, 3):
            marginal = frontier(coupling.plan.sum(axis=1), arrays, params).marginal
            coupling, _ = step(
                params,
                arrays,
                coupling,
                costs[:, :size],
                distance[:size, :size],
                np.zeros(size),
                mu[:size],
                marginal,
            )
    assert coupling.plan[0, 1].sum() == 0.0
    assert coupling.plan[0, 2, 1] > 0.1


def test_a_single_step_against_a_single_node_converges_and_says_so() -> None:
    arrays = pack((twin.Reference(1, []),))
    inputs = (np.zeros((1, 1, 1)), np.zeros((1, 1)), np.zeros(1), np.ones(1), arrays.nu)
    _, quick = step(SolverParams(), arrays, empty_coupling(arrays), *inputs)
    assert (quick.inner_iterations, quick.converged) == (1, True)
    hurried = SolverParams(inner_iterations=1)
    dear = (np.full((1, 1, 1), 0.4), *inputs[1:])
    _, info = step(hurried, arrays, empty_coupling(arrays), *dear)
    assert not info.converged
    assert info.inner_residual > hurried.inner_tolerance


@pytest.mark.parametrize("scalings", [[1.0, 8.0], [8.0, 1.0, 2.0], [1.0, 16.0, 2.0, 4.0]])
def test_a_new_step_starts_from_the_median_of_the_old_scalings(scalings: list[float]) -> None:
    # The start shows in one place: the change of log u that the first iteration reports.
    arrays, old = pack((twin.Reference(1, []),)), len(scalings)
    rows = np.array(scalings)[None, :]
    start = twin.median(scalings)
    before = Coupling(np.zeros((1, old, 1)), rows, np.ones((1, 1)))
    mass = np.r_[np.zeros(old), 0.5]  # only the new row counts: rows without mass do not change
    _, info = step(
        SolverParams(inner_iterations=1),
        arrays,
        before,
        np.zeros((1, old + 1, 1)),
        1.0 - np.eye(old + 1),
        np.zeros(old + 1),
        mass,
        arrays.nu,
    )
    fitted = 0.5 ** SolverParams().exponent
    assert info.inner_residual == pytest.approx(abs(np.log(fitted / start)), abs=1e-12)


def test_steps_and_nodes_without_mass_stay_empty() -> None:
    arrays = pack((twin.Reference(2, []),))
    with np.errstate(all="raise", under="ignore"):
        coupling, info = step(
            SolverParams(),
            arrays,
            Coupling(np.zeros((1, 1, 2)), np.zeros((1, 1)), np.ones((1, 2))),
            np.zeros((1, 2, 2)),
            1.0 - np.eye(2),
            np.ones(2),
            np.array([0.0, 0.5]),
            np.array([[0.5, 0.0]]),
        )
    assert coupling.plan[0, 0].sum() == coupling.plan[0, :, 1].sum() == 0.0
    assert coupling.u[0, 0] == coupling.v[0, 1] == 0.0
    assert np.isfinite(info.inner_residual)


@settings(max_examples=20, deadline=None)
@given(problem=problems(steps_max=4))
def test_an_event_writes_to_none_of_its_inputs(problem: Problem) -> None:
    arrays, params = problem.arrays, SolverParams()
    shape = (arrays.count, problem.steps - 1, arrays.width)
    before = Coupling(
        sealed(np.zeros(shape)), sealed(np.ones(shape[:2])), sealed(arrays.valid.astype(float))
    )
    now = problem.padded_cost, problem.distance, problem.ages[-1], problem.mu
    after = advance(params, arrays, before, *map(sealed, now)).coupling
    assert not np.shares_memory(after.plan, before.plan)
    assert not np.shares_memory(after.v, before.v)


@pytest.mark.parametrize(
    ("position", "shape", "name"),
    [
        (0, (1, 2, 3), "cost"),
        (1, (2, 2), "distance"),
        (2, (3,), "age"),
        (3, (3,), "mu"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(
    position: int, shape: tuple[int, ...], name: str
) -> None:
    arrays = pack((twin.Reference(2, []),))
    inputs = [np.zeros((1, 1, 2)), np.zeros((1, 1)), np.zeros(1), np.ones(1)]
    inputs[position] = np.zeros(shape)
    with pytest.raises(ValueError, match=f"{name} has shape"):
        advance(SolverParams(), arrays, empty_coupling(arrays), *inputs)


def test_a_cost_that_is_not_a_number_is_refused() -> None:
    arrays = pack((twin.Reference(1, []),))
    inputs = np.full((1, 1, 1), np.nan), np.zeros((1, 1)), np.zeros(1), np.ones(1)
    with pytest.raises(ValueError, match="must be finite"):
        advance(SolverParams(), arrays, empty_coupling(arrays), *inputs)
