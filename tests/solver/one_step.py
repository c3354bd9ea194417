"""One streaming step in float64 and by itself: what :func:`ontrack.solver.streaming.advance` does
between frontier and loss, put together from the solver's parts with nothing carried over.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ontrack.solver.arrays import Floats
from ontrack.solver.objective import linear_cost, linearise
from ontrack.solver.problem import Coupling, ReferenceArrays, SolverParams
from ontrack.solver.scaling import assemble, gibbs_kernel, scale


class Taken(NamedTuple):
    """What a step tells beside the new coupling.

    ``linear_cost`` (K, t + 1, M) is the total cost M of the linearised problem that was solved,
    ``inner_residual`` the largest change of log u, over all references, at the last iteration.
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
) -> tuple[Coupling, Taken]:
    """Extend a coupling of t steps by one event; shapes as for ``advance``, marginal (K, M)."""
    count, old, width = coupling.plan.shape
    padded = np.zeros((count, old + 1, width))
    padded[:, :old] = coupling.plan
    total = linear_cost(cost, linearise(distance, padded, references), age, params)
    kernel = gibbs_kernel(total, params.epsilon)
    u = np.ones((count, old + 1))
    if old:
        u[:, :old] = coupling.u
        u[:, old] = np.median(coupling.u, axis=1)
    scalings = scale(
        kernel,
        mu,
        marginal,
        u,
        coupling.v,
        params.exponent,
        params.inner_iterations,
        params.inner_tolerance,
    )
    plan = (1.0 - params.gamma) * padded + params.gamma * assemble(kernel, scalings)
    residual = float(np.max(scalings.residual))
    told = Taken(total, scalings.iterations, residual, residual < params.inner_tolerance)
    return Coupling(plan, scalings.u, scalings.v), told
