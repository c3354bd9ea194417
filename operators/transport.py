"""Transport (L2): aligns the prefix graph with every reference, one iteration an event.

The only operator in which events become arrays. Everything numeric is done by the solver.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from ontrack.operators import prefix
from ontrack.operators.candidates import CandidateParams, Candidates
from ontrack.operators.limits import require
from ontrack.operators.references import ReferenceSet
from ontrack.operators.settled import Settled
from ontrack.operators.vectors import StepVectors
from ontrack.solver import converged, cost, frontier, objective, streaming, structure
from ontrack.solver.cost import CostWeights
from ontrack.solver.problem import (
    Coupling,
    ReferenceArrays,
    SolverParams,
    StructureTerms,
    empty_coupling,
)
from ontrack.solver.reading import Reading, read
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
    candidates
        Which of many references a step is aligned with (:mod:`ontrack.operators.pooling`).
    """

    solver: SolverParams = SolverParams()
    weights: CostWeights = CostWeights()
    near_cost: float = 0.45
    stall_steps: int = 2
    leak_threshold: float = 0.6
    match_floor: float = 1e-3
    cost: Literal["text", "role"] = "text"
    candidates: CandidateParams = CandidateParams()

    def __post_init__(self) -> None:
        require(self, 0.0, 1.0, "near_cost", "leak_threshold", "match_floor")
        require(self, 1, 1000, "stall_steps")
        if self.cost not in ("text", "role"):
            raise ValueError(f"cost must be text or role, got {self.cost!r}")


@dataclass(frozen=True, slots=True)
class Shared:
    """What super-nodes have beside a row of plan and costs (:mod:`ontrack.operators.collapse`).

    Parameters
    ----------
    members
        Steps in each, length h.
    shift
        What the solver is told on top of their costs, so that one row answers as its steps did,
        shape (K, h, M).
    leaked
        Sum of the steps' leakages when they were collapsed, shape (K, h).
    offset
        What the diagnostic losses lost by it, shape (K,).
    """

    members: tuple[int, ...]
    shift: npt.NDArray[np.float32]
    leaked: npt.NDArray[np.float32]
    offset: Float


@dataclass(frozen=True, slots=True)
class TransportState:
    """Coupling and cost rows of a run: rows of super-nodes, then one row a step.

    Plan and costs are kept in float32, half the memory of an open run. Rounding a warm start by
    1e-7 is far below what one iteration moves.

    Parameters
    ----------
    plan
        Shape (K, R, M).
    u, v
        Duals, warm for the next event, shapes (K, R) and (K, M).
    cost
        Attribute costs C, shape (K, R, M); as exact as the encoder's vectors. Of a super-node the
        mean over its steps, each with its share of the plan.
    gap_streak
        Consecutive steps with a gap between masked and unmasked match.
    shared
        Of the super-nodes; None while there are none.
    settled
        Their steps' costs for the final solve; None while there are none.
    candidates
        Of a run with many references; then plan, u and v are those of its members. None where all
        are aligned.
    terms
        What the next event takes over from the last one's loss. Derived: not stored, and not used
        with another plan or other distances.
    """

    plan: npt.NDArray[np.float32]
    u: Float
    v: Float
    cost: npt.NDArray[np.float32]
    gap_streak: int = 0
    shared: Shared | None = None
    settled: Settled | None = None
    candidates: Candidates | None = None
    terms: StructureTerms | None = field(default=None, repr=False, compare=False)

    @property
    def coupling(self) -> Coupling:
        """The coupling in the solver's precision."""
        return Coupling(self.plan.astype(np.float64), self.u, self.v)

    @property
    def merged(self) -> int:
        """Super-nodes h: the first rows."""
        return 0 if self.shared is None else len(self.shared.members)

    @property
    def steps(self) -> int:
        """Steps t that the rows stand for."""
        inside = 0 if self.shared is None else sum(self.shared.members)
        return int(self.cost.shape[1]) - self.merged + inside

    def solver_cost(self, costs: npt.NDArray[np.float32]) -> Float:
        """Return cost rows, the first ones of super-nodes, as the solver is told them."""
        exact = costs.astype(np.float64)
        if self.shared is not None:
            exact[:, : self.merged] += self.shared.shift
        return exact

    def single_cost(self, costs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the same in float32, as the streaming step takes it.

        Rounded once either way: a sum of two float32 is the same added up in float64 first.
        """
        if self.shared is None:
            return costs
        told = costs.copy()
        told[:, : self.merged] += self.shared.shift
        return told

    def masses(self, rows: int, mean_size: float) -> Float:
        """Return mu of the first ``rows`` rows: 1 / m-bar for each step."""
        mass = np.full(rows, 1.0 / mean_size)
        if self.shared is not None:
            mass[: self.merged] *= self.shared.members
        return mass

    def full_losses(self, losses: Float) -> Float:
        """Return the solver's losses, shape (K,), as they would be without super-nodes."""
        return losses if self.shared is None else losses + self.shared.offset

    def losses(
        self, solver: SolverParams, arrays: ReferenceArrays, distance: Float, marginal: Float
    ) -> Float:
        """Return the diagnostic losses of the plan as it is, (K,), as without super-nodes."""
        plan = self.plan.astype(np.float64)
        mass = self.masses(plan.shape[1], arrays.mean_size)
        costs = self.solver_cost(self.cost)
        return self.full_losses(
            objective.diagnostic_loss(costs, distance, plan, mass, marginal, arrays, solver)
        )


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
        Leakage of every row on the best reference, shape (R,).
    coverage, match_cost
        rho and match cost of the newest node, on the best reference.
    attribute_cost
        Mean attribute cost of the newest node's matched mass, on the best reference.
    all_leakages, all_coverage
        Leakages and rho on each reference that was aligned, shapes (K, R) and (K,); of a run with
        many references on those that are aligned from now on.
    cost
        Attribute costs on the best reference, shape (R, m); the newest nodes are the last rows.
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
    missing
        Nodes less rows, where nodes share rows.
    """

    best: int
    losses: Float
    leakages: Float
    coverage: float
    match_cost: float
    attribute_cost: float
    score: float
    rank_score: float
    all_leakages: Float
    all_coverage: Float
    cost: npt.NDArray[np.float32]
    reachable: npt.NDArray[np.bool_]
    reachable_now: npt.NDArray[np.bool_]
    satisfied_now: npt.NDArray[np.bool_]
    parents: npt.NDArray[np.bool_]
    mean_size: float
    frontier_stalled: bool
    converged: bool
    missing: int = 0

    @property
    def leakage(self) -> float:
        """Leakage of the newest node."""
        return float(self.leakages[-1])

    @property
    def node(self) -> int:
        """Number of the newest node."""
        return len(self.leakages) - 1 + self.missing

    def cost_of(self, node: int) -> npt.NDArray[np.float32]:
        """Return the attribute costs of a node that has a row of its own, shape (m,)."""
        row: npt.NDArray[np.float32] = self.cost[node - self.missing]
        return row


def start(references: ReferenceSet) -> TransportState:
    """Return the state before the first event."""
    shape = (references.count, 0, references.width)
    empty = empty_coupling(references.arrays)
    plan = empty.plan.astype(np.float32)
    return TransportState(plan, empty.u, empty.v, np.zeros(shape, np.float32))


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
    action = None
    if call.action:
        action = cost.cosine_distance(references.actions, vectors.action)
    row = cost.combine(action, arguments, tool, params.weights, references.has_action)
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
        Hops between all rows, the new one last, shape (R, R).
    age
        Age weights, shape (R,).
    row
        Cost row of the new node, shape (K, M).
    """
    return step_with(params, references.arrays, state, hops, age, row)


def step_with(
    params: TransportParams,
    arrays: ReferenceArrays,
    state: TransportState,
    hops: prefix.Hops,
    age: Float,
    row: npt.NDArray[np.float32],
) -> tuple[TransportState, Alignment]:
    """Do the same with the arrays of some references, whose state it is."""
    solver = params.solver
    ahead = widened(params, state)
    previous = Coupling(state.plan, state.u, state.v, state.terms)
    costs = np.concatenate([state.cost, row[:, None, :]], axis=1)
    told = state.single_cost(costs)
    distance = structure.single_distances(hops)
    mass = state.masses(costs.shape[1], arrays.mean_size)
    done = streaming.advance(solver, arrays, previous, told, distance, age, mass, ahead)
    losses, stalled = state.full_losses(done.losses), ahead is not None
    missing = state.steps + 1 - costs.shape[1]
    alignment = _read(params, arrays, done.reading, costs, losses, True, stalled, missing)
    gap = alignment.leakage > params.leak_threshold and bool(
        alignment.cost[-1].min() < params.near_cost
    )
    coupling = done.coupling
    new_state = TransportState(
        plan=coupling.plan,
        u=coupling.u,
        v=coupling.v,
        cost=costs,
        gap_streak=state.gap_streak + 1 if gap else 0,
        shared=state.shared,
        settled=state.settled,
        candidates=state.candidates,
        terms=coupling.terms,
    )
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
    columns = objective.column_mass(previous.coupling.plan)
    ahead = widened(params, previous)
    return converge_from(params, references.arrays, columns, ahead, current, hops, age)


def widened(params: TransportParams, state: TransportState) -> float | None:
    """Return the lookahead's weight at the next event where the frontier has stalled, else None."""
    return 1.0 if state.gap_streak >= params.stall_steps else None


def converge_from(
    params: TransportParams,
    arrays: ReferenceArrays,
    columns: Float,
    ahead: float | None,
    current: TransportState,
    hops: prefix.Hops,
    age: Float,
) -> Alignment:
    """Do the same with the column masses (K, M) before the event, and its lookahead's weight."""
    solver = params.solver
    before = frontier.frontier(columns, arrays, solver, ahead)
    distance = structure.distances(hops)
    rows = current.cost.shape[1]
    mass = current.masses(rows, arrays.mean_size)
    costs = current.solver_cost(current.cost)
    solved = converged.solve(solver, arrays, costs, distance, age, mass, before.marginal)
    newest = current.cost[:, -1].astype(np.float64)
    reading = read(
        solver,
        arrays,
        solved.coupling,
        mass,
        before,
        solved.linear_cost[:, -1],
        newest,
        solved.losses,
        np.zeros(arrays.count),
    )
    losses, missing = current.full_losses(solved.losses), current.steps - rows
    stalled, converged_ = ahead is not None, solved.converged
    return _read(params, arrays, reading, current.cost, losses, converged_, stalled, missing)


def _read(
    params: TransportParams,
    arrays: ReferenceArrays,
    reading: Reading,
    costs: npt.NDArray[np.float32],
    losses: Float,
    is_converged: bool,
    stalled: bool,
    missing: int,
) -> Alignment:
    best = int(losses.argmin())
    size = int(arrays.sizes[best])
    match, attribute = reading.match_cost(best, params.match_floor)
    satisfied, active, _, satisfied_now, active_now = reading.flags[:, best, :size]
    leakages, coverage = reading.leakages, reading.coverage
    rank = objective.soft_min(losses, params.solver.soft_min_temperature)
    return Alignment(
        best=best,
        losses=losses,
        leakages=leakages[best],
        coverage=float(coverage[best]),
        match_cost=match,
        attribute_cost=attribute,
        score=objective.score_of(rank),
        rank_score=-rank,
        all_leakages=leakages,
        all_coverage=coverage,
        cost=costs[best, :, :size],
        reachable=active | satisfied,
        reachable_now=active_now | satisfied_now,
        satisfied_now=satisfied_now,
        parents=arrays.parents[best, :size, :size],
        mean_size=float(arrays.mean_size),
        frontier_stalled=stalled,
        converged=is_converged,
        missing=missing,
    )
