"""The end of a run: one cold solve, without mask and age weights (Proposition 1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ontrack.operators import prefix, settled
from ontrack.operators.references import ReferenceSet
from ontrack.operators.transport import TransportParams, TransportState
from ontrack.solver import converged, frontier, objective, structure

Float = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Final:
    """The end of a run: what the batch evaluator returns on the finished run (Prop. 1)."""

    best: int
    loss: float
    score: float
    coverage: float
    converged: bool


def finish(
    params: TransportParams,
    limits: prefix.PrefixParams,
    references: ReferenceSet,
    state: TransportState,
    graph: prefix.PrefixState,
) -> Final:
    """Close a run that has at least one step.

    A run of up to ``limits.exact_max`` steps is solved whole, whatever was collapsed on its way. Of
    a longer one several steps in a row share a row (:mod:`ontrack.operators.settled`), which
    depends on the run alone: :func:`batch` gets the same.
    """
    shared = settled.resolution(graph.size, limits.exact_max)
    if state.settled is None and shared == 1:
        return finalise(params, references, state.cost, graph.hops, graph.seqs)
    solver, arrays = params.solver, references.arrays
    before = state.settled or settled.nothing(references.count, references.width)
    rows = settled.settle(solver, arrays, before, state.cost[:, state.merged :], shared)
    if shared == 1:
        seqs = (*graph.settled_seqs.tolist(), *graph.seqs)
        hops = structure.hops_from_edges(graph.size, prefix.all_edges(graph).tolist())
        return finalise(params, references, rows.cost, hops, seqs)
    return _coarse(params, references, rows, prefix.all_edges(graph), shared)


def batch(
    params: TransportParams,
    limits: prefix.PrefixParams,
    references: ReferenceSet,
    cost: npt.NDArray[np.float32],
    edges: npt.NDArray[np.int32],
    seqs: tuple[int, ...],
) -> Final:
    """Evaluate a finished run at once, of any length: the batch evaluator of :func:`finish`.

    Parameters
    ----------
    cost
        Attribute costs of all steps in order of arrival, shape (K, n, M).
    edges
        (producer, consumer) by place in that order, shape (E, 2).
    seqs
        Their sequence numbers.
    """
    steps = len(seqs)
    shared = settled.resolution(steps, limits.exact_max)
    if shared == 1:
        hops = structure.hops_from_edges(steps, edges.tolist())
        return finalise(params, references, cost, hops, seqs)
    nothing = settled.nothing(references.count, references.width)
    rows = settled.settle(params.solver, references.arrays, nothing, cost, shared)
    return _coarse(params, references, rows, edges, shared)


def finalise(
    params: TransportParams,
    references: ReferenceSet,
    cost_matrix: npt.NDArray[np.float32],
    hops: prefix.Hops,
    seqs: tuple[int, ...],
) -> Final:
    """Cold converged solve without mask and age weights, nodes in the order of the run."""
    order = np.argsort(np.array(seqs), kind="stable")
    ordered_cost = cost_matrix[:, order, :].astype(np.float64)
    distance = structure.distances(hops[np.ix_(order, order)])
    solved = converged.finalise(params.solver, references.arrays, ordered_cost, distance)
    return _read(params, references, solved, solved.losses)


def _coarse(
    params: TransportParams,
    references: ReferenceSet,
    rows: settled.Settled,
    edges: npt.NDArray[np.int32],
    shared: int,
) -> Final:
    """Solve a run of which ``shared`` steps share a row; a row has the mass of its steps."""
    count = len(rows.sizes)
    row_of = np.repeat(np.arange(count), rows.sizes)
    # The last steps may still have finer rows, but their edges may have been rounded on the way.
    between = np.unique(row_of[settled.coarser_edges(edges, shared)], axis=0)
    hops = structure.hops_from_edges(count, between.tolist())
    mass = rows.sizes / float(rows.sizes.sum())
    arrays, solver = references.arrays, params.solver
    solved = converged.solve(
        solver,
        arrays,
        rows.cost.astype(np.float64),
        structure.distances(hops),
        np.ones(count),
        mass,
        arrays.nu,
    )
    spread = (objective.row_mass(solved.coupling.plan) * rows.spread).sum(axis=1)
    return _read(params, references, solved, solved.losses + solver.epsilon * spread)


def _read(
    params: TransportParams,
    references: ReferenceSet,
    solved: converged.ConvergedSolve,
    losses: Float,
) -> Final:
    best = int(losses.argmin())
    coverage = frontier.coverage(objective.column_mass(solved.coupling.plan), references.arrays)
    loss = objective.soft_min(losses, params.solver.soft_min_temperature)
    return Final(
        best=best,
        loss=loss,
        score=objective.score_of(loss),
        coverage=float(coverage[best]),
        converged=bool(solved.converged),
    )
