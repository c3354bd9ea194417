"""The streaming step: one warm-started conditional gradient iteration an event (section 4.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ontrack.solver import fast_step, kernels
from ontrack.solver.arrays import Floats, Reals, check_shape
from ontrack.solver.frontier import frontier, lookahead_share
from ontrack.solver.objective import assembled_loss, column_mass, linear_cost, linearise
from ontrack.solver.problem import Coupling, ReferenceArrays, SolverParams, StructureTerms
from ontrack.solver.reading import Advance, read
from ontrack.solver.scaling import assemble, gibbs_kernel, scale
from ontrack.solver.terms import carried, gradient, quadratic, structure_terms


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


def advance(
    params: SolverParams,
    references: ReferenceArrays,
    coupling: Coupling,
    cost: Reals,
    distance: Reals,
    age: Floats,
    mu: Floats,
    lookahead_weight: float | None = None,
) -> Advance:
    """Take one event from beginning to end: frontier, :func:`step`, diagnostic loss, signals.

    The same as calling all of them, to the precision of float32: the plan is stored in it, what is
    told belongs to the plan as it is stored, and where the kernel is compiled, matrices are float32
    throughout (docs/decisions/0015-float32-step.md). Arrays of float32 are taken as they are.

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
    ahead = lookahead_share(params, lookahead_weight)
    compiled = kernels.compiled()
    if compiled is not None:
        done = fast_step.advance(
            compiled, params, references, coupling, cost, distance, age, mu, ahead
        )
        if done is not None:
            return done
    _check(references, coupling, cost, distance, age, mu)
    return _advance_by_numpy(params, references, coupling, cost, distance, age, mu, ahead)


def _advance_by_numpy(
    params: SolverParams,
    references: ReferenceArrays,
    coupling: Coupling,
    cost: Reals,
    distance: Reals,
    age: Floats,
    mu: Floats,
    ahead: float,
) -> Advance:
    """Do it by numpy in float64; only what an open run keeps is rounded to float32."""
    known = distance
    wide = [np.asarray(array, np.float64) for array in (coupling.plan, cost, distance)]
    plan, cost, distance = wide
    mask, old = frontier(column_mass(plan), references, params, ahead), plan.shape[1]
    left = carried(coupling, distance[:old, :old], references)
    slope = gradient(*left, distance[old, :old], plan, references)
    before = Coupling(plan, coupling.u, coupling.v)
    new, info, residual = _solve(params, before, slope, cost, age, mu, mask.marginal)
    stored = new.plan.astype(np.float32)
    plan = stored.astype(np.float64)
    cross, sides = structure_terms(distance, plan, references)
    product = quadratic(cross, sides, plan)
    losses = assembled_loss(cost, plan, mu, mask.marginal, product, params)
    rows = mask, info.linear_cost[:, -1], cost[:, -1], losses, residual
    reading = read(params, references, Coupling(plan, new.u, new.v), mu, *rows, sides)
    terms = None
    if kernels.compiled() is None:  # a compiled kernel has its own, in another rounding
        kept = np.stack([stored, cross.astype(np.float32)])
        stored = kept[0]
        terms = StructureTerms(stored, known, reading.numbers, kept)
    after = Coupling(stored, new.u, new.v, terms)
    return Advance(after, reading, info.inner_iterations, params.inner_tolerance)


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
        If shapes do not fit together, or a cost, distance or age is not finite.
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
    slope = linearise(distance[:, :old], coupling.plan, references)
    new, info, _ = _solve(params, coupling, slope, cost, age, mu, marginal)
    return new, info


def _solve(
    params: SolverParams,
    coupling: Coupling,
    slope: Floats,
    cost: Floats,
    age: Floats,
    mu: Floats,
    marginal: Floats,
) -> tuple[Coupling, StreamingInfo, Floats]:
    """Take :func:`step` by numpy, linearised already; each reference's residual beside."""
    old = coupling.plan.shape[1]
    total_cost = linear_cost(cost, slope, age, params)
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
    return Coupling(plan, scalings.u, scalings.v), info, scalings.residual


def _check(
    references: ReferenceArrays,
    coupling: Coupling,
    cost: Reals,
    distance: Reals,
    age: Floats,
    mu: Floats,
) -> tuple[int, int, int]:
    """Return the shape of the plan before the step."""
    old = coupling.plan.shape[1]
    steps = old + 1
    count, width = references.nu.shape
    if (
        cost.shape != (count, steps, width)
        or coupling.plan.shape != (count, old, width)
        or distance.shape != (steps, steps)
        or not age.shape == mu.shape == (steps,)
    ):  # one by one only to name the one that is wrong: this runs at every event
        check_shape("cost", cost, (count, steps, width))
        check_shape("plan", coupling.plan, (count, old, width))
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
