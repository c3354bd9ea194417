"""Policies that stop runs early: each looks at many runs and names the step that ends each.

Policies that need a threshold learn it from successful runs of other tasks (five folds, split by
task), so no run is judged by a threshold that has seen it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np

from ontrack.pipeline.evaluation.corpus import Recording

FOLDS: Final = 5
WINDOW: Final = 6
DENSITIES: Final = (0.2, 0.4, 0.6, 0.7)
STEP_QUANTILES: Final = (0.8, 0.9, 0.95)
COSINE_QUANTILES: Final = (0.05, 0.2)
BUDGET_SHARES: Final = (1.5, 2.0, 3.0)
OWN_TASK_MIN: Final = 5  # successes of the same task from which on these set its step limit


@dataclass(frozen=True, slots=True)
class Course:
    """What policies see of a run.

    Parameters
    ----------
    severe
        Whether each step's verdict was severe.
    halt
        Step at which the monitor itself would have halted the run.
    cosine
        Cosine of the steps so far with the nearest reference, after each step; empty without.
    spent
        Spent so far after each step: dollars where steps have costs, else characters.
    """

    severe: tuple[bool, ...]
    halt: int | None
    cosine: tuple[float, ...]
    spent: tuple[float, ...]

    @property
    def length(self) -> int:
        """Number of steps."""
        return len(self.severe)


Stops = list[int | None]
Policy = Callable[[Sequence[Recording], Sequence[Course]], Stops]


def flag_density(threshold: float) -> Policy:
    """Stop where the share of severe verdicts in the last six steps reaches a threshold."""

    def policy(_runs: Sequence[Recording], courses: Sequence[Course]) -> Stops:
        return [_dense(course.severe, threshold) for course in courses]

    return policy


def halt(_runs: Sequence[Recording], courses: Sequence[Course]) -> Stops:
    """Stop where the monitor halts the run."""
    return [course.halt for course in courses]


def step_limit(quantile: float) -> Policy:
    """Stop a run longer than this quantile of successful runs, cross-fitted.

    Of the same task where that has at least five other successes, else of tasks in other folds.
    """

    def policy(runs: Sequence[Recording], courses: Sequence[Course]) -> Stops:
        lengths = [float(course.length) for course in courses]
        limits = _cross_fitted(runs, lengths, quantile, own_task=True)
        return [
            int(limit) if length > limit else None
            for length, limit in zip(lengths, limits, strict=True)
        ]

    return policy


def cosine_limit(quantile: float) -> Policy:
    """Stop where the running cosine falls below this quantile of successes' lowest, cross-fitted.

    The first two steps are not looked at.
    """

    def policy(runs: Sequence[Recording], courses: Sequence[Course]) -> Stops:
        lowest = [min(course.cosine[2:], default=math.inf) for course in courses]
        limits = _cross_fitted(runs, lowest, quantile, own_task=False)
        return [
            next(
                (
                    place
                    for place, value in enumerate(course.cosine)
                    if place >= 2 and value < limit
                ),
                None,
            )
            for course, limit in zip(courses, limits, strict=True)
        ]

    return policy


def budget_limit(share: float) -> Policy:
    """Stop where a run has spent this multiple of the median success, cross-fitted."""

    def policy(runs: Sequence[Recording], courses: Sequence[Course]) -> Stops:
        totals = [course.spent[-1] for course in courses]
        medians = _cross_fitted(runs, totals, 0.5, own_task=True)
        return [
            next((at for at, spent in enumerate(course.spent) if spent > share * middle), None)
            for course, middle in zip(courses, medians, strict=True)
        ]

    return policy


def either(*policies: Policy) -> Policy:
    """Stop where the first of several policies does."""

    def policy(runs: Sequence[Recording], courses: Sequence[Course]) -> Stops:
        stops = zip(*(each(runs, courses) for each in policies), strict=True)
        return [min((at for at in row if at is not None), default=None) for row in stops]

    return policy


POLICIES: Final[dict[str, Policy]] = {
    "halt": halt,
    **{f"flag_density_{at:g}": flag_density(at) for at in DENSITIES},
    **{f"step_p{round(100 * at)}": step_limit(at) for at in STEP_QUANTILES},
    **{f"cosine_p{round(100 * at)}": cosine_limit(at) for at in COSINE_QUANTILES},
    **{f"budget_{at:g}x": budget_limit(at) for at in BUDGET_SHARES},
    "halt_or_step_p95": either(halt, step_limit(0.95)),
    "hybrid": either(flag_density(0.6), step_limit(0.95)),
}


def _dense(severe: Sequence[bool], threshold: float) -> int | None:
    for place in range(len(severe)):
        recent = severe[max(0, place - WINDOW + 1) : place + 1]
        if sum(recent) >= threshold * WINDOW - 1e-9 and severe[place]:
            return place
    return None


def _fold(key: str) -> int:
    return blake2b(key.encode(), digest_size=4).digest()[0] % FOLDS


def _cross_fitted(
    runs: Sequence[Recording], values: Sequence[float], quantile: float, own_task: bool
) -> list[float]:
    """Return a quantile of the values of successes for each run, never of the run itself.

    Infinite where no success is left to learn from: such a run is never stopped by a maximum, and
    by a minimum (minus infinity) neither.
    """
    nothing = math.inf if own_task else -math.inf
    by_fold: dict[int, list[float]] = {fold: [] for fold in range(FOLDS)}
    by_task: dict[str, list[tuple[str, float]]] = {}
    for run, value in zip(runs, values, strict=True):
        if run.succeeded and math.isfinite(value):
            for fold in by_fold:
                if fold != _fold(run.key):
                    by_fold[fold].append(value)
            by_task.setdefault(run.key, []).append((run.run_id, value))
    general = {
        fold: float(np.quantile(found, quantile)) if found else nothing
        for fold, found in by_fold.items()
    }
    limits = []
    for run in runs:
        own = [value for run_id, value in by_task.get(run.key, ()) if run_id != run.run_id]
        if own_task and len(own) >= OWN_TASK_MIN:
            limits.append(float(np.quantile(own, quantile)))
        else:
            limits.append(general[_fold(run.key)])
    return limits
