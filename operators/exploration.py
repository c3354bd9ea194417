"""Exploration lifecycle (section 7): a step without a place gets a grace, then a class.

::

    leaks ──► EXPLORING ──► consumed later, or absorbed by a node that became active: cleared
                       └──► grace over: branch left after one or two steps: ABANDONED
                                        future node, producers there: premature-valid, cleared
                                        future node, producers absent: causal inversion
                                        no node near: orphan; too much orphan mass: off track

The causal-inversion check also runs at emission, at latency 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ontrack.operators.limits import require
from ontrack.operators.transport import Alignment


@dataclass(frozen=True, slots=True)
class ExplorationParams:
    """Thresholds of the lifecycle.

    Parameters
    ----------
    leak_threshold
        theta_leak, on the fast path's coupling.
    converged_leak_threshold
        The same threshold on a converged coupling. At emission the fast path has moved gamma of
        the way from an empty row, so it shows 1 - gamma * x where the converged solve shows
        1 - x for a retained share x: 1 - (1 - 0.6) / 0.7.
    grace
        g: events, the emission included, before a step is classified.
    orphan_budget
        B: share of the mass that may stay unresolved.
    orphans_max
        Orphans remembered; more than any budget of a reference of 128 steps needs.
    branch_steps_max
        Steps that a branch may take and be left without alarm.
    near_cost
        Attribute cost below which a reference node counts as the step's counterpart.
    """

    leak_threshold: float = 0.6
    converged_leak_threshold: float = 0.43
    grace: int = 3
    orphan_budget: float = 0.25
    orphans_max: int = 64
    branch_steps_max: int = 2
    near_cost: float = 0.45

    def __post_init__(self) -> None:
        require(
            self,
            0.0,
            1.0,
            "leak_threshold",
            "converged_leak_threshold",
            "orphan_budget",
            "near_cost",
        )
        require(self, 1, 1000, "grace", "orphans_max", "branch_steps_max")


class Match(StrEnum):
    """The secondary check's answer, under the unmasked cost."""

    ORPHAN = "orphan"
    REACHABLE = "reachable"
    PREMATURE_VALID = "premature_valid"
    INVERSION = "inversion"


@dataclass(frozen=True, slots=True)
class Pending:
    """A step in its grace: node, place in the run, first node of its branch."""

    node: int
    seq: int
    branch: int


@dataclass(frozen=True, slots=True)
class ExplorationState:
    """Pending steps (at most ``grace``), recent orphans, the latest branches.

    ``branches`` are (first node, steps) of the latest streaks of leaking steps, at most
    ``grace + 1``; ``open`` says whether the last one still goes on. ``orphans`` are (node, sequence
    number), at most ``orphans_max``.
    """

    pending: tuple[Pending, ...] = ()
    orphans: tuple[tuple[int, int], ...] = ()
    branches: tuple[tuple[int, int], ...] = ()
    open: bool = False
    abandoned: int = 0


@dataclass(frozen=True, slots=True)
class ExplorationSignal:
    """What the lifecycle says at this event.

    Parameters
    ----------
    exploring
        The newest step leaks and is in its grace.
    inversion
        Sequence number of the step that came before its producers, if one was found.
    off_track
        This step has no place, and unresolved mass is over budget with at least one step past its
        grace.
    unresolved
        Mass of the steps among the last m-bar that are orphaned or still exploring, as a share of
        the prefix mass or of the mean reference mass, whichever is smaller.
    """

    exploring: bool
    inversion: int | None
    off_track: bool
    unresolved: float
    evidence: tuple[int, ...]


def classify(params: ExplorationParams, alignment: Alignment, node: int) -> Match:
    """Secondary check of one node on the best reference, under the unmasked cost."""
    costs = alignment.cost_of(node)
    near = costs < params.near_cost
    if not near.any():
        return Match.ORPHAN
    if (near & alignment.reachable).any():
        return Match.REACHABLE
    nearest = int(np.argmin(costs))
    producers = alignment.parents[nearest]
    if bool(alignment.satisfied_now[producers].all()):
        return Match.PREMATURE_VALID
    return Match.INVERSION


def step(
    params: ExplorationParams,
    state: ExplorationState,
    seq: int,
    alignment: Alignment,
    consumed: tuple[int, ...],
) -> tuple[ExplorationState, ExplorationSignal]:
    """Advance the lifecycle by one event.

    Parameters
    ----------
    consumed
        Nodes of which this event consumed an artifact. A branch is validated only by a step that
        has a place itself: an orphan that uses an orphan proves nothing.
    """
    node = alignment.node
    leaks = alignment.leakage > params.leak_threshold
    branches = _branches(params, state, node) if leaks else state.branches
    inversion: int | None = None
    validated = () if leaks else consumed
    pending = [
        waiting
        for waiting in state.pending
        if waiting.node not in validated and not _absorbed(params, alignment, waiting.node)
    ]
    # Only orphans of the last m-bar steps count: what was left behind long ago says nothing about
    # where the run is now, and a long prefix must not dilute what is wrong with it either.
    span = min(node + 1.0, alignment.mean_size)
    orphans = tuple(orphan for orphan in state.orphans if orphan[0] > node - span)
    abandoned = state.abandoned
    # Texts of one domain are never orthogonal: a step that comes too early may put its mass on open
    # nodes, dearly, instead of leaking it. Either way its own node is closed to it.
    misplaced = leaks or alignment.attribute_cost >= params.near_cost
    if misplaced and classify(params, alignment, node) is Match.INVERSION:
        inversion = seq
    elif leaks and node not in consumed:
        pending.append(Pending(node, seq, branches[-1][0]))
    still: list[Pending] = []
    for waiting in pending:
        if node - waiting.node < params.grace - 1:
            still.append(waiting)
            continue
        match = classify(params, alignment, waiting.node)
        if match is Match.INVERSION and inversion is None:
            inversion = waiting.seq
        elif match is Match.ORPHAN:
            if dict(branches).get(waiting.branch, 0) <= params.branch_steps_max:
                abandoned += 1
            else:
                orphans = (*orphans, (waiting.node, waiting.seq))[-params.orphans_max :]
    unresolved = min(1.0, (len(orphans) + len(still)) / span)
    # A step that has a place is not off track, whatever came before it.
    off_track = leaks and bool(orphans) and unresolved > params.orphan_budget
    new_state = ExplorationState(tuple(still), orphans, branches, leaks, abandoned)
    evidence = (*(orphan[1] for orphan in orphans), *(waiting.seq for waiting in still))
    signal = ExplorationSignal(
        leaks and inversion != seq, inversion, off_track, unresolved, evidence
    )
    return new_state, signal


def _absorbed(params: ExplorationParams, alignment: Alignment, node: int) -> bool:
    """Tell whether a node that became active with this event is the pending step's counterpart."""
    newly = alignment.reachable_now & ~alignment.reachable
    return bool((alignment.cost_of(node)[newly] < params.near_cost).any())


def _branches(
    params: ExplorationParams, state: ExplorationState, node: int
) -> tuple[tuple[int, int], ...]:
    """Return the latest branches with a leaking node added to the open one, or to a new one."""
    if state.open and state.branches:
        first, steps = state.branches[-1]
        return (*state.branches[:-1], (first, steps + 1))
    return (*state.branches, (node, 1))[-(params.grace + 1) :]
