"""Many references: which of the candidates a step is aligned with, and which only estimated.

A run may have more references than a step can be aligned with in time. Every step is then taken
with all of them as the relaxed problem (:mod:`ontrack.solver.relaxed`), which leaves structure out
and costs a small part of an alignment. From it each loss is estimated, and only the **members**,
those with the lowest ones, are aligned::

    relaxed losses ─ estimates ─┬─ entrants: not aligned so far, now among the best
                                └─ members: aligned from step to step
    losses of both ─ kept: the members of the next step

* How many are aligned depends on how long the run is: a budget of cells of the plan. Young runs,
  which resemble many references, are aligned with all of them, and it costs no more than a few
  would later on.
* The relaxed loss is too low or too high by what structure is worth. What it is for members is
  known; the others are taken for as it is with the members, and by what it was when they were
  members themselves.
* An entrant's coupling is made of the relaxed plan, and its last steps are taken again. From then
  on it is, but for what one iteration forgets, what it would have been had it always been aligned.

Nothing here knows a clock or another run: who is aligned depends on the run's events alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ontrack.operators.limits import require
from ontrack.solver.relaxed import Relaxed

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CandidateParams:
    """Settings of the choice.

    Parameters
    ----------
    all_max
        Up to so many references all are aligned at each step, and nothing is estimated.
    aligned_min
        References that are aligned however long the run.
    cells
        Cells of the plan, steps times nodes times references, up to which more are aligned.
    entrants_max
        References that come in at one step where there is no room left.
    keep
        Loss above the lowest one up to which a member stays one, where there is room.
    margin
        Estimated loss above the lowest known one up to which a reference comes in.
    retaken
        Steps before the present one that an entrant takes again.
    memory
        Share of what a reference's estimate was wrong by that is still counted on later.
    """

    all_max: int = 24
    aligned_min: int = 8
    cells: int = 8000
    entrants_max: int = 2
    keep: float = 0.05
    margin: float = 0.02
    retaken: int = 3
    memory: float = 0.7

    def __post_init__(self) -> None:
        require(self, 2, 1000, "all_max", "aligned_min")
        require(self, 0, 10_000_000, "cells")
        require(self, 1, 1000, "entrants_max")
        require(self, 0, 64, "retaken")
        require(self, 0.0, 100.0, "keep", "margin")
        require(self, 0.0, 1.0, "memory")


@dataclass(frozen=True, slots=True)
class Candidates:
    """What is kept of the candidates beside cost rows, and the members' plans.

    Parameters
    ----------
    members
        References that are aligned, in order.
    relaxed
        State of the relaxed problem, of all K.
    shift
        What a reference's loss was above its relaxed loss, less what it was for all members, when
        it was last aligned; 0 if it never was, shape (K,).
    losses
        After the last step: of those that were aligned their own, else estimated, shape (K,).
    """

    members: tuple[int, ...]
    relaxed: Relaxed
    shift: Floats
    losses: Floats


def room(params: CandidateParams, count: int, rows: int, width: int) -> int:
    """Return how many of ``count`` references a plan of ``rows`` by ``width`` is aligned with."""
    if count <= params.all_max:
        return count
    return min(count, max(params.aligned_min, params.cells // (rows * width)))


def estimates(
    params: CandidateParams, state: Candidates, relaxed: Floats, losses: Floats
) -> tuple[Floats, float]:
    """Estimate the losses of all references, (K,), and what they have in common beside them.

    Parameters
    ----------
    relaxed
        Relaxed losses after this step, shape (K,).
    losses
        Of the members, in their order, after this step, shape (P,).
    """
    common = float(np.min(losses - relaxed[list(state.members)]))
    return relaxed + common + params.memory * state.shift, common


def entrants(
    params: CandidateParams,
    members: tuple[int, ...],
    places: int,
    estimated: Floats,
    losses: Floats,
) -> list[int]:
    """Return the references that are to be aligned beside the members, in order.

    Parameters
    ----------
    places
        From :func:`room`.
    estimated, losses
        As in :func:`estimates`.
    """
    free = max(places - len(members), 0)
    is_other = np.ones(len(estimated), np.bool_)
    is_other[list(members)] = False
    others = np.argsort(estimated, kind="stable")
    others = others[is_other[others]]
    near = others[estimated[others] <= float(losses.min()) + params.margin]
    inside, outside = near[:free], near[free:]
    # Who finds no place must be better than the worst who would otherwise keep one.
    worst = float(np.sort(losses)[:places][-1])
    pushing = outside[estimated[outside] < worst][: params.entrants_max]
    return sorted([*inside.tolist(), *pushing.tolist()])


def kept(params: CandidateParams, places: int, losses: Floats) -> list[int]:
    """Return which of the aligned references go on as members, by their places, in order.

    The best always do, and the second best: who is alone has nobody to lose the lead to.

    Parameters
    ----------
    losses
        Of the aligned references, after this step.
    """
    order = np.argsort(losses, kind="stable")[:places]
    near = losses[order] <= float(losses[order[0]]) + params.keep
    near[:2] = True
    return sorted(order[near].tolist())
