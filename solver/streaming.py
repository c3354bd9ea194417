"""The streaming step: one warm-started conditional gradient iteration an event (section 4.3)."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import numpy as np

from ontrack.solver import kernels
from ontrack.solver.arrays import Floats, check_shape
from ontrack.solver.frontier import Frontier, frontier, lookahead_share
from ontrack.solver.objective import column_mass, diagnostic_loss, linear_cost, linearise
from ontrack.solver.problem import Coupling, ReferenceArrays, SolverParams
from ontrack.solver.scaling import NOT_FINITE, assemble, gibbs_kernel, scale


@dataclass(frozen=True, slots=True, eq=False)
class StreamingInfo:
    """What a streaming step tells beside the new coupling.

    Parameters
    ----------
    linear_cost : (K, t + 1, M)
        Total cost M of the linearised problem that was solved.
    inner_iterations : int
        Scaling iterations until the last reference stopped.
    inner_residual : float
        Largest change of log u, over all references, at their last iteration.
    converged : bool
        Whether every reference met the inner tolerance. Not converging is normal here: the next
        event goes on from where this one stopped.
    """

    linear_cost: Floats
    inner_iterations: int
    inner_residual: float
    converged: bool


class Advance(NamedTuple):
    """What one event comes to.

    Parameters
    ----------
    mask
        Frontier, from the coupling before the event.
    coupling
        State after it.
    newest_cost : (K, M)
        The new step's row of the total cost M that was solved.
    inner_iterations, inner_residual, converged
        As in :class:`StreamingInfo`.
    losses : (K,)
        Diagnostic loss of each reference.
    """

    mask: Frontier
    coupling: Coupling
    newest_cost: Floats
    losses: Floats
    inner_iterations: int
    inner_residual: float
    converged: bool


def advance(
    params: SolverParams,
    references: ReferenceArrays,
    coupling: Coupling,
    cost: Floats,
    distance: Floats,
    age: Floats,
    mu: Floats,
    lookahead_weight: float | None = None,
) -> Advance:
    """Take one event from beginning to end: frontier, :func:`step`, diagnostic loss.

    The same as calling the three, but one call where the kernel is compiled.

    Parameters
    ----------
    coupling, cost, distance, age, mu
        As for :func:`step`.
    lookahead_weight
        As for :func:`ontrack.solver.frontier.frontier`.

    Raises
    ------
    ValueError
        As :func:`step` does, or if ``lookahead_weight`` is outside [0, 1].
    """
    compiled = kernels.compiled()
    if compiled is not None:
        return _advance_compiled(
            compiled, params, references, coupling, cost, distance, age, mu, lookahead_weight
        )
    mask = frontier(column_mass(coupling.plan), references, params, lookahead_weight)
    new, info = step(params, references, coupling, cost, distance, age, mu, mask.marginal)
    losses = diagnostic_loss(cost, distance, new.plan, mu, mask.marginal, references, params)
    return Advance(
        mask,
        new,
        info.linear_cost[:, -1],
        losses,
        info.inner_iterations,
        info.inner_residual,
        info.converged,
    )


def step(
    params: SolverParams,
    references: ReferenceArrays,
    coupling: Coupling,
    cost: Floats,
    distance: Floats,
    age: Floats,
    mu: Floats,
    marginal: Floats,
) -> tuple[Coupling, StreamingInfo]:
    """Extend the coupling by one event.

    Pads the plan with an empty row, linearises the quadratic term there, runs a few scaling
    iterations from the previous scalings and moves the share gamma towards their plan.

    Parameters
    ----------
    coupling
        State after t steps; not changed.
    cost : (K, t + 1, M)
        Node costs, the new step's row last; finite on padding too.
    distance : (t + 1, t + 1)
        Structure matrix of the prefix, the new node last.
    age, mu : (t + 1,)
        Age weights in [0, 1] and masses >= 0 of all steps.
    marginal : (K, M)
        Frontier-masked reference masses, 0 on padding.

    Raises
    ------
    ValueError
        If shapes do not fit together or a cost, distance or age is not finite.
    """
    count, old, width = _check(references, coupling, cost, distance, age, mu)
    check_shape("marginal", marginal, (count, width))
    compiled = kernels.compiled()
    if compiled is not None:
        made = kernels.iterate(
            compiled,
            params,
            references,
            coupling,
            cost,
            distance,
            age,
            mu,
            marginal,
            params.inner_iterations,
            params.inner_tolerance,
            np.zeros(count, dtype=np.bool_),
        )
        return made.coupling, _info(made.total_cost, made.iterations, made.residual, params)
    # The plan's new row is empty: it adds nothing, so the matching column of D^P is left out.
    gradient = linearise(distance[:, :old], coupling.plan, references)
    total_cost = linear_cost(cost, gradient, age, params)
    kernel = gibbs_kernel(total_cost, params.epsilon)
    scalings = scale(
        kernel,
        mu,
        marginal,
        _extended(coupling.u),
        coupling.v,
        params.exponent,
        params.inner_iterations,
        params.inner_tolerance,
    )
    plan = assemble(kernel, scalings, params.gamma)
    kept = plan[:, :old]
    kept += (1.0 - params.gamma) * coupling.plan
    info = _info(total_cost, scalings.iterations, scalings.residual, params)
    return Coupling(plan, scalings.u, scalings.v), info


def _advance_compiled(
    compiled: ModuleType,
    params: SolverParams,
    references: ReferenceArrays,
    coupling: Coupling,
    cost: Floats,
    distance: Floats,
    age: Floats,
    mu: Floats,
    lookahead_weight: float | None,
) -> Advance:
    count, old, width = _check(references, coupling, cost, distance, age, mu)
    nodes = count, width
    plan, u, v = np.empty((count, old + 1, width)), np.empty((count, old + 1)), np.empty(nodes)
    marginal, newest_cost = np.empty(nodes), np.empty((count, 1, width))
    satisfied, active = np.empty(nodes, np.bool_), np.empty(nodes, np.bool_)
    lookahead, residual, losses = np.empty(nodes, np.bool_), np.empty(count), np.empty(count)
    iterations = compiled.advance(
        *kernels.plain(
            coupling.plan, coupling.u, coupling.v, cost, distance, age, mu, references.nu
        ),
        *kernels.plain_flags(references.valid, references.parents),
        *kernels.plain(references.structure),
        params.kappa,
        lookahead_share(params, lookahead_weight),
        params.dormant_weight,
        params.theta,
        params.epsilon,
        params.exponent,
        params.gamma,
        params.lam,
        params.inner_iterations,
        params.inner_tolerance,
        marginal,
        satisfied,
        active,
        lookahead,
        plan,
        u,
        v,
        newest_cost,
        residual,
        losses,
    )
    if iterations < 0:
        raise ValueError(NOT_FINITE)
    change = max(residual.tolist())
    return Advance(
        Frontier(marginal, satisfied, active, lookahead),
        Coupling(plan, u, v),
        newest_cost[:, 0],
        losses,
        iterations,
        change,
        change < params.inner_tolerance,
    )


def _check(
    references: ReferenceArrays,
    coupling: Coupling,
    cost: Floats,
    distance: Floats,
    age: Floats,
    mu: Floats,
) -> tuple[int, int, int]:
    """Return the shape of the plan before the step."""
    count, old, width = coupling.plan.shape
    steps = old + 1
    check_shape("cost", cost, (references.count, steps, references.width))
    check_shape("plan", coupling.plan, (references.count, old, references.width))
    check_shape("distance", distance, (steps, steps))
    check_shape("age", age, (steps,))
    check_shape("mu", mu, (steps,))
    return count, old, width


def _info(
    total_cost: Floats, iterations: int, residuals: Floats, params: SolverParams
) -> StreamingInfo:
    residual = max(residuals.tolist())
    return StreamingInfo(total_cost, iterations, residual, residual < params.inner_tolerance)


def _extended(u: Floats) -> Floats:
    """Append each reference's median to its row scalings, or 1 to none: (K, t) to (K, t + 1)."""
    count, old = u.shape
    extended = np.ones((count, old + 1))
    if old:
        extended[:, :old] = u
        ordered = np.sort(u, axis=1)
        # numpy.median costs more than the rest of this function together.
        extended[:, old] = 0.5 * (ordered[:, (old - 1) // 2] + ordered[:, old // 2])
    return extended
