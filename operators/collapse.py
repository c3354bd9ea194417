"""Collapse: of a long run the oldest steps share rows, so that a step always costs the same.

::

    super-node 0 … super-node h-1 │ oldest active step … newest step      rows of all arrays
    few rows, many steps each     │ one step each

Which steps share a row is the prefix graph's business (:func:`ontrack.operators.prefix.collapse`).
Here their alignment becomes one row's:

* its plan is the sum of theirs, and its mass. Nothing is lost of what columns hold;
* it goes on being solved, as one row of so much mass. Its costs are those with which it keeps, at
  the present prices v of the columns, exactly the plan that its steps had together: it gives
  way to later steps as they would have done. With the plan kept fixed, columns would fill up
  with what nobody would put there any more, and newer steps leak more than they should;
* what the diagnostic losses lose by it is kept and added to them from then on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ontrack.operators import pooling, prefix, settled
from ontrack.operators.prefix import Collapse, PrefixParams, PrefixState
from ontrack.operators.references import ReferenceSet
from ontrack.operators.transport import Shared, TransportState
from ontrack.solver import objective, structure
from ontrack.solver.problem import SolverParams

Float = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]

_NO_MASS = 1e-30  # float32 has nothing much smaller
_SCALING_MAX = 300.0  # of log u: far from what double precision can hold
_CHEAPER_MAX = 1e3  # times the mass that all steps of a row have where each is cheapest


def step(
    params: PrefixParams,
    solver: SolverParams,
    references: ReferenceSet | None,
    graph: PrefixState,
    aligned: TransportState | None,
    active_max: int = 0,
) -> tuple[PrefixState, TransportState | None]:
    """Collapse the oldest steps of a run where it has become too long; else change nothing.

    Parameters
    ----------
    active_max
        Latest steps that must keep a row of their own.
    """
    after, change = prefix.collapse(params, graph, active_max)
    if change is None:
        return graph, aligned
    if references is None or aligned is None:
        return after, aligned
    return after, _transport(solver, references, aligned, graph.hops, after, change)


def _transport(
    solver: SolverParams,
    references: ReferenceSet,
    state: TransportState,
    hops: prefix.Hops,
    graph: PrefixState,
    change: Collapse,
) -> TransportState:
    arrays, pool = references.arrays, state.candidates
    state = pooling.whole(references, state)
    plan, told = state.plan.astype(np.float64), state.solver_cost(state.cost)
    begins, count = list(change.begins), change.shared
    before, after = structure.distances(hops), structure.distances(graph.hops)
    masses = state.masses(plan.shape[1], arrays.mean_size)
    new_plan = np.add.reduceat(plan, begins, axis=1)
    new_masses = np.add.reduceat(masses, begins)
    # Rows that stay alone keep what they have; the others are told new costs.
    new_told, u = told[:, begins], state.u[:, begins]
    new_cost = state.cost[:, begins]
    ends = [*begins[1:], len(masses)]
    for row in range(count):
        span = slice(begins[row], ends[row])
        if ends[row] - begins[row] > 1:
            new_told[:, row], u[:, row] = _price(
                solver,
                references,
                state.u[:, span],
                state.v,
                plan,
                told,
                before,
                after,
                new_plan,
                new_masses,
                row,
                span,
            )
            new_cost[:, row] = _mean_cost(state.cost[:, span], state.plan[:, span])
    new = replace(
        state,
        plan=new_plan.astype(np.float32),
        u=u,
        cost=new_cost,
        shared=Shared(
            graph.members,
            (new_told[:, :count] - new_cost[:, :count]).astype(np.float32),
            _leaked(state, masses, begins[: count + 1]),
            np.zeros(references.count),
        ),
        settled=settled.settle(
            solver,
            arrays,
            state.settled or settled.nothing(references.count, references.width),
            state.cost[:, state.merged : state.merged + change.chunk],
            change.resolution,
        ),
    )
    was = state.losses(solver, arrays, before, arrays.nu)
    now = new.losses(solver, arrays, after, arrays.nu)
    assert new.shared is not None
    done = replace(new, shared=replace(new.shared, offset=was - now))
    return pooling.parted(solver, references, pool, done, begins)


def _price(
    solver: SolverParams,
    references: ReferenceSet,
    scalings: Float,
    prices: Float,
    old_plan: Float,
    told: Float,
    before: Float,
    after: Float,
    plan: Float,
    masses: Float,
    row: int,
    span: slice,
) -> tuple[Float, Float]:
    """Return the costs, (K, M), at which one row keeps its plan, and its scaling u, (K,).

    A row ``u K v`` with ``u = (mu / K v)^eta`` and the mass R has ``u = (mu / R)^(lambda /
    epsilon)``; K, and so the total cost, follow from its plan. What the structure contributes is
    taken off it. No column is cheaper or dearer than the steps could make it. A column without a
    price is closed, and its empty plan tells nothing: there K follows from the kernels of the steps
    and their scalings, (K, r).
    """
    arrays, theta, epsilon = references.arrays, solver.theta, solver.epsilon
    own = told[:, span]
    if theta == 1.0:  # costs have no weight
        return own.mean(axis=1), np.ones(references.count)
    ages = np.ones(span.stop - span.start)
    old = objective.linearise(before[span], old_plan, arrays)
    dear = objective.linear_cost(own, old, ages, solver)
    structural = objective.linearise(after[row : row + 1], plan, arrays)[:, 0]
    mass = np.maximum(plan[:, row].sum(axis=1), _NO_MASS)
    scaling = solver.lam / epsilon * np.log(masses[row] / mass)
    scaling = np.clip(scaling, -_SCALING_MAX, _SCALING_MAX)
    kernel = np.log(np.maximum(plan[:, row], _NO_MASS)) - scaling[:, None]
    kernel -= np.log(np.maximum(prices, _NO_MASS))
    closed = prices <= 0.0
    if closed.any():
        each = np.log(np.maximum(scalings, _NO_MASS))[:, :, None] - dear / epsilon
        together = np.logaddexp.reduce(each, axis=1) - scaling[:, None]
        kernel[closed] = together[closed]
    steps = masses[row] * arrays.mean_size
    lowest = dear.min(axis=1) - epsilon * np.log(_CHEAPER_MAX * steps)
    total = np.clip(-epsilon * kernel, lowest, dear.max(axis=1))
    total = np.where(arrays.valid, total, dear.mean(axis=1))
    cost: Float = (total - theta * np.maximum(structural, 0.0)) / (1.0 - theta)
    # The structure may cost less later on, by a late edge or as mass moves: whatever it costs then,
    # the row must not be paid for taking ever more mass.
    floor = -epsilon * np.log(_CHEAPER_MAX * steps) / (1.0 - theta)
    return np.maximum(cost, floor), np.exp(scaling)


def _mean_cost(cost: Floats32, plan: Floats32) -> Floats32:
    """Mean cost of rows, each with its share of the plan: (K, r, M) to (K, M)."""
    mass = plan.sum(axis=1)
    weighted = (plan * cost).sum(axis=1) / np.maximum(mass, np.float32(_NO_MASS))
    mean: Floats32 = np.where(mass > _NO_MASS, weighted, cost.mean(axis=1))
    return mean


def _leaked(state: TransportState, masses: Float, begins: list[int]) -> Floats32:
    """Sum of leakages of each super-node, (K, h); ``begins`` has the end of the last one too."""
    end = begins[-1]
    leaked = objective.row_leakage(state.plan[:, :end].astype(np.float64), masses[:end])
    if state.shared is not None:
        leaked[:, : state.merged] = state.shared.leaked
    return np.add.reduceat(leaked, begins[:-1], axis=1).astype(np.float32)
