"""The streaming step: one warm-started conditional gradient iteration an event (section 4.3)."""

from __future__ import annotations

import numpy as np

from ontrack.solver import fast_step, kernels
from ontrack.solver.arrays import Floats, Reals, check_shape
from ontrack.solver.frontier import frontier, lookahead_share
from ontrack.solver.objective import assembled_loss, column_mass, linear_cost
from ontrack.solver.problem import Coupling, ReferenceArrays, SolverParams, StructureTerms
from ontrack.solver.reading import Advance, read
from ontrack.solver.scaling import Scalings, assemble, gibbs_kernel, scale
from ontrack.solver.terms import carried, gradient, quadratic, structure_terms


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
    """Take one event from beginning to end: frontier, the step, diagnostic loss, signals.

    The step pads the plan with an empty row, linearises the quadratic term there, runs a few
    scaling iterations from the previous scalings and moves the share gamma towards their plan.
    The plan is stored in float32, what is told belongs to the plan as it is stored, and where the
    kernel is compiled, matrices are float32 throughout (docs/decisions/0015-float32-step.md).
    Arrays of float32 are taken as they are.

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
    lookahead_weight
        As for :func:`ontrack.solver.frontier.frontier`.

    Raises
    ------
    ValueError
        If shapes do not fit together, a cost, distance or age is not finite, or
        ``lookahead_weight`` is outside [0, 1].
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
    total_cost = linear_cost(cost, slope, age, params)
    new, scalings = _moved(params, before, total_cost, mu, mask.marginal)
    stored = new.plan.astype(np.float32)
    plan = stored.astype(np.float64)
    cross, sides = structure_terms(distance, plan, references)
    product = quadratic(cross, sides, plan)
    losses = assembled_loss(cost, plan, mu, mask.marginal, product, params)
    rows = mask, total_cost[:, -1], cost[:, -1], losses, scalings.residual
    reading = read(params, references, Coupling(plan, new.u, new.v), mu, *rows, sides)
    terms = None
    if kernels.compiled() is None:  # a compiled kernel has its own, in another rounding
        kept = np.stack([stored, cross.astype(np.float32)])
        stored = kept[0]
        terms = StructureTerms(stored, known, reading.numbers, kept)
    after = Coupling(stored, new.u, new.v, terms)
    return Advance(after, reading, scalings.iterations, params.inner_tolerance)


def _moved(
    params: SolverParams, coupling: Coupling, total_cost: Floats, mu: Floats, marginal: Floats
) -> tuple[Coupling, Scalings]:
    """Return the coupling with one more row, moved towards the plan of the linearised problem."""
    old = coupling.plan.shape[1]
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
    return Coupling(plan, scalings.u, scalings.v), scalings


def _check(
    references: ReferenceArrays,
    coupling: Coupling,
    cost: Reals,
    distance: Reals,
    age: Floats,
    mu: Floats,
) -> None:
    """Raise where shapes do not fit together."""
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
