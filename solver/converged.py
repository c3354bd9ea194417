"""The converged solve: cold start, many iterations; confirms verdicts and ends runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ontrack.solver import kernels
from ontrack.solver.arrays import TINY, Bools, Floats, check_shape
from ontrack.solver.objective import diagnostic_loss, linear_cost, linearise
from ontrack.solver.problem import Coupling, ReferenceArrays, SolverParams
from ontrack.solver.scaling import assemble, gibbs_kernel, scale


@dataclass(frozen=True, slots=True, eq=False)
class ConvergedSolve:
    """Result of a converged solve.

    Parameters
    ----------
    coupling
        Plan and scalings, K references.
    losses : (K,)
        Diagnostic loss of each reference.
    linear_cost : (K, t, M)
        Total cost M, linearised at the plan that is returned.
    outer_iterations : int
        Linearisations until the last reference stopped.
    inner_iterations : int
        Scaling iterations, summed over the outer ones.
    converged : bool
        Whether every reference met both tolerances. If not, the plan is the last iterate, still
        finite and non-negative.
    residual : float
        Largest change of a plan's entry at its reference's last outer iteration.
    """

    coupling: Coupling
    losses: Floats
    linear_cost: Floats
    outer_iterations: int
    inner_iterations: int
    converged: bool
    residual: float


def solve(
    params: SolverParams,
    references: ReferenceArrays,
    cost: Floats,
    distance: Floats,
    age: Floats,
    mu: Floats,
    marginal: Floats,
) -> ConvergedSolve:
    """Solve one prefix from a cold start (section 4.3, step 5).

    Starts at the product of the marginals. Scalings carry over from one outer iteration to the
    next. A reference that has stopped is left as it is and has no effect on the others.

    Parameters
    ----------
    cost : (K, t, M)
        Node costs, t >= 1; finite on padding too.
    distance : (t, t)
    age, mu : (t,)
    marginal : (K, M)

    Raises
    ------
    ValueError
        If there is no step, shapes do not fit together, or a cost, distance or age is not finite.
    """
    count, steps, width = _check(references, cost, distance, age, mu, marginal)
    plan = mu[None, :, None] * (marginal / max(float(mu.sum()), TINY))[:, None, :]
    coupling = Coupling(plan, np.ones((count, steps)), references.valid.astype(np.float64))
    closed, settled = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    residual = np.zeros(count)
    outer = inner = 0
    compiled = kernels.compiled()
    while outer < params.converged_outer_max and not closed.all():
        outer += 1
        problem = params, references, coupling, cost, distance, age, mu, marginal
        limits = params.converged_inner_max, params.converged_inner_tolerance
        if compiled is None:
            made = _iterate(*problem, *limits, closed)
        else:
            made = kernels.iterate(compiled, *problem, *limits, closed)
        coupling = made.coupling
        inner += made.iterations
        residual = np.where(closed, residual, made.moved)
        settled = np.where(closed, settled, made.residual < params.converged_inner_tolerance)
        closed = closed | (made.moved < params.converged_outer_tolerance)
    plan = coupling.plan
    return ConvergedSolve(
        coupling=coupling,
        losses=diagnostic_loss(cost, distance, plan, mu, marginal, references, params),
        linear_cost=linear_cost(cost, linearise(distance, plan, references), age, params),
        outer_iterations=outer,
        inner_iterations=inner,
        converged=bool((closed & settled).all()),
        residual=float(residual.max()),
    )


def finalise(
    params: SolverParams, references: ReferenceArrays, cost: Floats, distance: Floats
) -> ConvergedSolve:
    """Solve a finished run: mask off, masses 1/n and 1/m_k, age weights off (Proposition 1).

    Depends on nothing that happened on the way, so it equals, bit for bit, what a batch evaluator
    gets from the finished run. Shapes and errors as for :func:`solve`.
    """
    steps = cost.shape[1]
    if steps == 0:
        raise ValueError("a run without steps cannot be aligned")
    mu = np.full(steps, 1.0 / steps)
    return solve(params, references, cost, distance, np.ones(steps), mu, references.nu)


def _iterate(
    params: SolverParams,
    references: ReferenceArrays,
    coupling: Coupling,
    cost: Floats,
    distance: Floats,
    age: Floats,
    mu: Floats,
    marginal: Floats,
    iterations_max: int,
    tolerance: float,
    closed: Bools,
) -> kernels.Iteration:
    """Linearise, scale, move the share gamma; references that are closed stay as they are."""
    plan, u, v = coupling.plan, coupling.u, coupling.v
    total_cost = linear_cost(cost, linearise(distance, plan, references), age, params)
    kernel = gibbs_kernel(total_cost, params.epsilon)
    scalings = scale(
        kernel,
        mu,
        marginal,
        u,
        v,
        params.exponent,
        iterations_max,
        tolerance,
        frozen=closed,
    )
    moved = assemble(kernel, scalings)
    moved -= plan
    moved *= params.gamma
    moved[closed] = 0.0
    plan = plan + moved
    u = np.where(closed[:, None], u, scalings.u)
    v = np.where(closed[:, None], v, scalings.v)
    change = np.abs(moved).max(axis=(1, 2))
    return kernels.Iteration(
        Coupling(plan, u, v), total_cost, scalings.iterations, scalings.residual, change
    )


def _check(
    references: ReferenceArrays,
    cost: Floats,
    distance: Floats,
    age: Floats,
    mu: Floats,
    marginal: Floats,
) -> tuple[int, int, int]:
    count, width = references.nu.shape
    steps = len(mu)
    if steps == 0:
        raise ValueError("a run without steps cannot be aligned")
    check_shape("cost", cost, (count, steps, width))
    check_shape("distance", distance, (steps, steps))
    check_shape("age", age, (steps,))
    check_shape("mu", mu, (steps,))
    check_shape("marginal", marginal, (count, width))
    return count, steps, width
