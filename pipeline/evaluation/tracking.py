"""How far is one warm-started iteration from the solve that it stands for, step by step?

The fast path takes one iteration an event and never looks back. Here its plan is compared with the
converged cold solve of the very same prefix: same costs, same mask, same marginals, same
references. The paper leaves this experiment open (section 4.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ontrack.operators import transport
from ontrack.operators.prefix import Hops
from ontrack.operators.profiles import Profile
from ontrack.operators.references import ReferenceSet
from ontrack.operators.transport import TransportParams, TransportState
from ontrack.solver import converged, frontier, objective, structure
from ontrack.solver.problem import ReferenceArrays, SolverParams

Floats = npt.NDArray[np.float64]

OUTER_MAX: Final = 300
INNER_MAX: Final = 500
TOLERANCE: Final = 1e-9
TIE: Final = 1e-6
"""References whose losses are this near are equally good: recorded twice, more often than not."""


class Taken(NamedTuple):
    """What one step gives the transport.

    Parameters
    ----------
    row : (K, M)
        Costs of the step.
    hops : (t, t)
        Between all nodes, the step's own last.
    age : (t,)
        Age weights.
    """

    row: npt.NDArray[np.float32]
    hops: Hops
    age: Floats


class Solution(NamedTuple):
    """One answer to a prefix: the plan, and what verdicts and scores read off it.

    Parameters
    ----------
    plan : (K, t, M)
    losses : (K,)
    best
        Index of the reference with the lowest loss.
    score
        Of the paper, over all references.
    leakage, coverage
        Of the newest step, and of the run, on the best reference.
    matched
        Mass of the newest step's row there, in units of the step's; may be above 1, where leakage
        is 0.
    converged
        Whether the solve met its tolerances; of one iteration nobody asks.
    """

    plan: Floats
    losses: Floats
    best: int
    score: float
    leakage: float
    coverage: float
    matched: float
    converged: bool

    @property
    def loss(self) -> float:
        """Loss of the best reference."""
        return float(self.losses[self.best])


class StepGap(NamedTuple):
    """How a solution differs from another of the same prefix; all differences first minus second.

    Parameters
    ----------
    step
        Steps so far, from 1.
    loss, score, leakage, coverage
        Differences of the two solutions' figures, each on its own best reference.
    leakage_rest
        What is left of the difference in leakage once it is known that the first has moved only a
        share gamma of the way: a new row is empty, so one iteration matches ``gamma`` of what it
        would match in the end.
    plan
        L1 distance of both plans on the second one's best reference, divided by the second's mass
        there; 2 where they have nothing in common and equal mass.
    regret
        How much higher the loss of the first's best reference is than that of the second's, both by
        the second; 0 where they name the same, or two that are equally good.
    same_best
        Whether both name the same best reference, or the regret is no more than :data:`TIE`.
    leaks, other_leaks, other_leaks_alike
        Whether the first leaks beyond its threshold, the second beyond its own, and the second
        beyond the first's.
    converged
        Whether the second met its tolerances.
    """

    step: int
    loss: float
    score: float
    leakage: float
    leakage_rest: float
    coverage: float
    plan: float
    regret: float
    same_best: bool
    leaks: bool
    other_leaks: bool
    other_leaks_alike: bool
    converged: bool


@dataclass(frozen=True, slots=True)
class LeakThresholds:
    """Leakage from which a step counts as off track, on the fast path and when confirmed.

    Where a profile does not judge by leakage, the second one is what the first becomes at the end:
    one iteration has matched a share gamma of it.
    """

    fast: float
    solved: float

    @classmethod
    def of(cls, profile: Profile) -> LeakThresholds:
        """Return what a profile judges by, or would."""
        exploration, params = profile.exploration, profile.transport
        if exploration is None:
            fast = params.leak_threshold
            return cls(fast, max(0.0, 1.0 - (1.0 - fast) / params.solver.gamma))
        return cls(exploration.leak_threshold, exploration.converged_leak_threshold)

    def at(self, gamma: float) -> LeakThresholds:
        """Return them for a fast path that moves another share of the way."""
        return LeakThresholds(1.0 - gamma * (1.0 - self.solved), self.solved)


def gap(
    step: int, first: Solution, second: Solution, limits: LeakThresholds, gamma: float = 1.0
) -> StepGap:
    """Compare two solutions of one prefix.

    Parameters
    ----------
    gamma
        Share of the way that the first has moved; 1 for a solve.
    """
    plan = second.plan[second.best]
    regret = float(second.losses[first.best]) - second.loss
    apart = np.abs(first.plan[second.best] - plan).sum()
    return StepGap(
        step=step,
        loss=first.loss - second.loss,
        score=first.score - second.score,
        leakage=first.leakage - second.leakage,
        leakage_rest=first.leakage - min(1.0, max(0.0, 1.0 - gamma * second.matched)),
        coverage=first.coverage - second.coverage,
        plan=float(apart / max(float(plan.sum()), np.finfo(np.float64).tiny)),
        regret=regret,
        same_best=regret <= TIE,
        leaks=first.leakage > limits.fast,
        other_leaks=second.leakage > limits.solved,
        other_leaks_alike=second.leakage > limits.fast,
        converged=second.converged,
    )


def track(
    params: TransportParams,
    references: ReferenceSet,
    taken: Sequence[Taken],
    limits: LeakThresholds,
    yardstick: SolverParams | None = None,
) -> list[StepGap]:
    """Let the fast path take all steps, and compare it with the converged solve after each.

    Parameters
    ----------
    yardstick
        Settings of the converged solve, where they are not those of the fast path.
    """
    solver = yardstick or params.solver
    return [
        gap(
            step,
            fast,
            solve(solver, params, references, before, after, each),
            limits,
            params.solver.gamma,
        )
        for step, (fast, before, after, each) in enumerate(_stream(params, references, taken), 1)
    ]


def track_solve(
    params: TransportParams,
    references: ReferenceSet,
    taken: Sequence[Taken],
    limits: LeakThresholds,
) -> list[StepGap]:
    """Compare the converged solve, within its limits, with one that goes on to the end."""
    return [
        gap(
            step,
            solve(params.solver, params, references, before, after, each),
            solve(to_the_end(params.solver), params, references, before, after, each),
            LeakThresholds(limits.solved, limits.solved),
        )
        for step, (_, before, after, each) in enumerate(_stream(params, references, taken), 1)
    ]


def to_the_end(solver: SolverParams) -> SolverParams:
    """Return settings under which the converged solve stops at a fixed point, or hardly ever."""
    return replace(
        solver,
        converged_outer_max=OUTER_MAX,
        converged_inner_max=INNER_MAX,
        converged_outer_tolerance=TOLERANCE,
        converged_inner_tolerance=TOLERANCE,
    )


def solve(
    solver: SolverParams,
    params: TransportParams,
    references: ReferenceSet,
    before: TransportState,
    after: TransportState,
    taken: Taken,
) -> Solution:
    """Solve the prefix of a step as an escalation would, and keep the plan.

    :func:`ontrack.operators.transport.converge` does the same and keeps signals only.

    Parameters
    ----------
    solver
        Settings of the solve; the mask is that of ``params``.
    before, after
        The fast path's state without the step, which gives the mask, and with it.
    """
    arrays = references.arrays
    ahead = transport.widened(params, before)
    columns = objective.column_mass(before.coupling.plan)
    mask = frontier.frontier(columns, arrays, params.solver, ahead)
    mass = after.masses(after.cost.shape[1], arrays.mean_size)
    solved = converged.solve(
        solver,
        arrays,
        after.cost.astype(np.float64),
        structure.distances(taken.hops),
        taken.age,
        mass,
        mask.marginal,
    )
    return solution(
        arrays,
        np.asarray(solved.coupling.plan, np.float64),
        solved.losses,
        solved.converged,
        solver.soft_min_temperature,
    )


def solution(
    arrays: ReferenceArrays, plan: Floats, losses: Floats, is_converged: bool, temperature: float
) -> Solution:
    """Read a plan as verdicts and scores do."""
    best = int(losses.argmin())
    rows = objective.row_mass(plan)
    matched = float(rows[best, -1]) * float(arrays.mean_size)
    return Solution(
        plan=plan,
        losses=losses,
        best=best,
        score=objective.score(losses, temperature),
        leakage=min(1.0, max(0.0, 1.0 - matched)),
        coverage=float(frontier.coverage(objective.column_mass(plan), arrays)[best]),
        matched=matched,
        converged=bool(is_converged),
    )


def _stream(
    params: TransportParams, references: ReferenceSet, taken: Sequence[Taken]
) -> Iterator[tuple[Solution, TransportState, TransportState, Taken]]:
    """Yield the fast path's solution at each step, and its states before and after."""
    state = transport.start(references)
    for each in taken:
        before = state
        state, aligned = transport.step(params, references, before, each.hops, each.age, each.row)
        fast = solution(
            references.arrays,
            np.asarray(state.coupling.plan, np.float64),
            aligned.losses,
            True,
            params.solver.soft_min_temperature,
        )
        yield fast, before, state, each
