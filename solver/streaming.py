"""The streaming step: one warm-started conditional gradient iteration an event (section 4.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ontrack.solver.arrays import Floats, check_shape
from ontrack.solver.objective import linear_cost, linearise
from ontrack.solver.problem import Coupling, ReferenceArrays, SolverParams
from ontrack.solver.scaling import assemble, gibbs_kernel, scale


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
    count, old, width = coupling.plan.shape
    steps = old + 1
    check_shape("cost", cost, (references.count, steps, references.width))
    check_shape("plan", coupling.plan, (references.count, old, references.width))
    check_shape("distance", distance, (steps, steps))
    check_shape("age", age, (steps,))
    check_shape("mu", mu, (steps,))
    check_shape("marginal", marginal, (count, width))
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
    residual = float(scalings.residual.max())
    info = StreamingInfo(
        total_cost, scalings.iterations, residual, residual < params.inner_tolerance
    )
    return Coupling(plan, scalings.u, scalings.v), info


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
