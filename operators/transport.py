"""Transport (L2): aligns the prefix graph with every reference, one iteration an event.

The only operator in which events become arrays. Everything numeric is done by the solver.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from ontrack.operators import prefix
from ontrack.operators.limits import require
from ontrack.operators.references import ReferenceSet
from ontrack.operators.vectors import StepVectors
from ontrack.solver import converged, cost, frontier, objective, streaming, structure
from ontrack.solver.cost import CostWeights
from ontrack.solver.problem import Coupling, SolverParams, empty_coupling
from ontrack.topics.events import Call

Float = npt.NDArray[np.float64]


ROLE_WEIGHTS = CostWeights(alpha=0.25, beta=0.40, delta=0.35)
"""Weights of action, arguments and tool where arguments are compared by role."""


@dataclass(frozen=True, slots=True)
class TransportParams:
    """Settings of the alignment.

    Parameters
    ----------
    solver, weights
        Settings of the numerics and of the cost; :data:`ROLE_WEIGHTS` belong to the cost ``role``.
    cost
        How arguments are compared: ``text`` by the cosine of all of them written down (the paper's
        equation 1), ``role`` argument by argument (:mod:`ontrack.operators.leaves`).
    near_cost
        Attribute cost below which a reference node counts as the step's counterpart.
    stall_steps
        Consecutive steps that leak under the mask although a node is near without it, after which
        FRONTIER_STALL is raised.
    leak_threshold
        theta_leak: a step that leaks more has no place in the active part of a reference.
    """

    solver: SolverParams = SolverParams()
    weights: CostWeights = CostWeights()
    near_cost: float = 0.45
    stall_steps: int = 2
    leak_threshold: float = 0.6
    match_floor: float = 1e-3
    cost: Literal["text", "role"] = "text"

    def __post_init__(self) -> None:
        require(self, 0.0, 1.0, "near_cost", "leak_threshold", "match_floor")
        require(self, 1, 1000, "stall_steps")
        if self.cost not in ("text", "role"):
            raise ValueError(f"cost must be text or role, got {self.cost!r}")


@dataclass(frozen=True, slots=True)
class TransportState:
    """Coupling and cost rows of a run.

    Plan and costs are kept in float32, half the memory of an open run; the solver works in
    float64. Rounding a warm start by 1e-7 is far below what one iteration moves.

    Parameters
    ----------
    plan
        Shape (K, t, M).
    u, v
        Duals, warm for the next event, shapes (K, t) and (K, M).
    cost
        Attribute costs C, shape (K, t, M); as exact as the encoder's vectors.
    gap_streak
        Consecutive steps with a gap between masked and unmasked match.
    """

    plan: npt.NDArray[np.float32]
    u: Float
    v: Float
    cost: npt.NDArray[np.float32]
    gap_streak: int = 0

    @property
    def coupling(self) -> Coupling:
        """The coupling in the solver's precision."""
        return Coupling(self.plan.astype(np.float64), self.u, self.v)

    @classmethod
    def of(
        cls, coupling: Coupling, cost: npt.NDArray[np.float32], gap_streak: int
    ) -> TransportState:
        """Keep a coupling and the costs it belongs to."""
        return cls(coupling.plan.astype(np.float32), coupling.u, coupling.v, cost, gap_streak)


@dataclass(frozen=True, slots=True)
class Alignment:
    """Signals of one event, read off the coupling.

    Parameters
    ----------
    best
        Index of the reference with the lowest loss.
    losses
        Diagnostic loss per reference, shape (K,).
    leakages
        Row leakage of every node on the best reference, shape (t,).
    coverage, match_cost
        rho and match cost of the newest node, on the best reference.
    attribute_cost
        Mean attribute cost of the newest node's matched mass, on the best reference.
    cost
        Attribute costs on the best reference, shape (t, m).
    reachable
        Reference nodes that were active or satisfied when the event came (m,).
    reachable_now, satisfied_now
        The same, recomputed from this event's coupling (m,).
    parents
        Parent matrix of the best reference (m, m).
    mean_size
        m-bar: the mean number of reference steps.
    frontier_stalled
        FRONTIER_STALL: the lookahead was widened for this event.
    converged
        False where an escalated solve missed its tolerance. One fast iteration is not meant to
        converge.
    """

    best: int
    losses: Float
    leakages: Float
    coverage: float
    match_cost: float
    attribute_cost: float
    score: float
    rank_score: float
    cost: npt.NDArray[np.float32]
    reachable: npt.NDArray[np.bool_]
    reachable_now: npt.NDArray[np.bool_]
    satisfied_now: npt.NDArray[np.bool_]
    parents: npt.NDArray[np.bool_]
    mean_size: float
    frontier_stalled: bool
    converged: bool

    @property
    def leakage(self) -> float:
        """Leakage of the newest node."""
        return float(self.leakages[-1])


def start(references: ReferenceSet) -> TransportState:
    """Return the state before the first event."""
    shape = (references.count, 0, references.width)
    return TransportState.of(empty_coupling(references.arrays), np.zeros(shape, np.float32), 0)


def cost_row(
    params: TransportParams, references: ReferenceSet, call: Call, vectors: StepVectors
) -> npt.NDArray[np.float32]:
    """Attribute cost of one step against every reference node, in [0, 1], shape (K, M).

    Equation (1), with arguments compared as ``params.cost`` says. Where either side has no stated
    intent, its weight goes to arguments and tool.
    """
    index = references.roles
    if params.cost == "role":
        arguments = index.role_row(call.tool, call.args, references.arguments, vectors.args)
    else:
        arguments = cost.cosine_distance(references.arguments, vectors.args)
    tool = index.tool_row(call.tool)
    row = cost.combine(None, arguments, tool, params.weights)
    if call.action:
        action = cost.cosine_distance(references.actions, vectors.action)
        full = cost.combine(action, arguments, tool, params.weights)
        row = np.where(references.has_action, full, row)
    return row.astype(np.float32).reshape(references.count, references.width)


def step(
    params: TransportParams,
    references: ReferenceSet,
    state: TransportState,
    hops: prefix.Hops,
    age: Float,
    row: npt.NDArray[np.float32],
) -> tuple[TransportState, Alignment]:
    """One warm-started conditional-gradient iteration (section 4.3) and its signals.

    Parameters
    ----------
    hops
        Hops between all nodes, the new one last, shape (t, t).
    age
        Age weights, shape (t,).
    row
        Cost row of the new node, shape (K, M).
    """
    arrays, solver = references.arrays, params.solver
    stalled = state.gap_streak >= params.stall_steps
    previous = state.coupling
    costs = np.concatenate([state.cost, row[:, None, :]], axis=1)
    exact = costs.astype(np.float64)
    distance = structure.distances(hops)
    mass = np.full(costs.shape[1], 1.0 / arrays.mean_size)
    done = streaming.advance(
        solver, arrays, previous, exact, distance, age, mass, 1.0 if stalled else None
    )
    alignment = _read(
        params,
        references,
        done.coupling,
        costs,
        done.newest_cost,
        done.losses,
        done.mask,
        mass,
        True,
    )
    alignment = replace(alignment, frontier_stalled=stalled)
    gap = alignment.leakage > params.leak_threshold and bool(
        alignment.cost[-1].min() < params.near_cost
    )
    new_state = TransportState.of(done.coupling, costs, state.gap_streak + 1 if gap else 0)
    return new_state, alignment


def converge(
    params: TransportParams,
    references: ReferenceSet,
    previous: TransportState,
    current: TransportState,
    hops: prefix.Hops,
    age: Float,
) -> Alignment:
    """Solve the same prefix from cold to convergence (section 4.3 step 5).

    Same mask, marginals and references as the event's fast path: the mask comes from the coupling
    before the event, which is why ``previous`` is needed.
    """
    arrays, solver = references.arrays, params.solver
    stalled = previous.gap_streak >= params.stall_steps
    before = frontier.frontier(
        objective.column_mass(previous.coupling.plan), arrays, solver, 1.0 if stalled else None
    )
    distance = structure.distances(hops)
    mass = np.full(current.cost.shape[1], 1.0 / arrays.mean_size)
    solved = converged.solve(
        solver, arrays, current.cost.astype(np.float64), distance, age, mass, before.marginal
    )
    alignment = _read(
        params,
        references,
        solved.coupling,
        current.cost,
        solved.linear_cost[:, -1],
        solved.losses,
        before,
        mass,
        solved.converged,
    )
    return replace(alignment, frontier_stalled=stalled)


@dataclass(frozen=True, slots=True)
class Final:
    """The end of a run: what the batch evaluator returns on the finished run (Prop. 1)."""

    best: int
    loss: float
    score: float
    coverage: float
    converged: bool


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
    best = int(solved.losses.argmin())
    coverage = frontier.coverage(objective.column_mass(solved.coupling.plan), references.arrays)
    temperature = params.solver.soft_min_temperature
    return Final(
        best=best,
        loss=objective.soft_min(solved.losses, temperature),
        score=objective.score(solved.losses, temperature),
        coverage=float(coverage[best]),
        converged=bool(solved.converged),
    )


def _read(
    params: TransportParams,
    references: ReferenceSet,
    coupling: Coupling,
    costs: npt.NDArray[np.float32],
    newest_cost: Float,
    losses: Float,
    before: frontier.Frontier,
    mass: Float,
    is_converged: bool,
) -> Alignment:
    arrays, solver = references.arrays, params.solver
    column_mass = objective.column_mass(coupling.plan)
    now = frontier.frontier(column_mass, arrays, solver)
    best = int(losses.argmin())
    size = int(arrays.sizes[best])
    newest = coupling.plan[:, -1, :]
    match = objective.match_cost(newest, newest_cost, params.match_floor)
    attribute = objective.match_cost(newest, costs[:, -1, :].astype(np.float64), params.match_floor)
    return Alignment(
        best=best,
        losses=losses,
        leakages=objective.row_leakage(coupling.plan, mass)[best],
        coverage=float(frontier.coverage(column_mass, arrays)[best]),
        match_cost=float(match[best]),
        attribute_cost=float(attribute[best]),
        score=objective.score(losses, solver.soft_min_temperature),
        rank_score=-objective.soft_min(losses, solver.soft_min_temperature),
        cost=costs[best, :, :size],
        reachable=(before.active | before.satisfied)[best, :size],
        reachable_now=(now.active | now.satisfied)[best, :size],
        satisfied_now=now.satisfied[best, :size],
        parents=arrays.parents[best, :size, :size],
        mean_size=float(arrays.mean_size),
        frontier_stalled=False,
        converged=is_converged,
    )
