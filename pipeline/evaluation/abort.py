"""Abort: stopping runs early; how many that would have failed, how many that would not?

A policy looks at a run step by step and names the step after which it stops it. Policies that need
a threshold learn it from successful runs of other tasks (five folds, split by task), so no run is
judged by a threshold that has seen its task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np

from ontrack.operators.canonical import arguments_text, value_text
from ontrack.pipeline.evaluation.baselines import Trace
from ontrack.pipeline.evaluation.corpus import Recording, by_corpus
from ontrack.pipeline.evaluation.measures import Measure
from ontrack.pipeline.evaluation.statistics import balanced_precision, ratio_of_sums, wilson
from ontrack.pipeline.evaluation.watching import Watcher

FOLDS: Final = 5
WINDOW: Final = 6
DENSITIES: Final = (0.2, 0.4, 0.6, 0.7)
STEP_QUANTILES: Final = (0.8, 0.9, 0.95)
COSINE_QUANTILES: Final = (0.05, 0.2)
BUDGET_SHARES: Final = (1.5, 2.0, 3.0)
OWN_TASK_MIN: Final = 5  # successes of the same task from which on these set its step limit
_RESULT_CHARACTERS_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class AbortJob:
    """One run and its references, by run id."""

    run_id: str
    references: tuple[str, ...]


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


def watch(watcher: Watcher, job: AbortJob) -> Course:
    """Monitor one run, and measure what the rivals look at."""
    run, references = watcher.recordings[job.run_id], watcher.named(job.references)
    watched = watcher.watch(run.events, run.task, references)
    flagged = {each.seq for each in watched.seen if each.is_severe}
    trace = Trace.of(run.steps, watcher.encoder)
    means = [Trace.of(other.steps, watcher.encoder).calls.mean(axis=0) for other in references]
    return Course(
        tuple(place in flagged for place in range(len(run.steps))),
        watched.first_halt(),
        _running_cosine(trace, means),
        _spent(run),
    )


def _running_cosine(trace: Trace, means: Sequence[np.ndarray]) -> tuple[float, ...]:
    if not means:
        return ()
    directions = np.array([mean / max(float(np.linalg.norm(mean)), 1e-12) for mean in means])
    sums = np.cumsum(trace.calls.astype(np.float64), axis=0)
    lengths = np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    return tuple(float(each) for each in ((sums / lengths) @ directions.T).max(axis=1))


def _spent(run: Recording) -> tuple[float, ...]:
    costs = [step.cost_usd for step in run.steps]
    if any(cost is not None for cost in costs):
        each = [cost or 0.0 for cost in costs]
    else:
        each = [
            float(
                len(step.action or "")
                + len(arguments_text(step.args))
                + len(value_text(step.result, _RESULT_CHARACTERS_MAX))
            )
            for step in run.steps
        ]
    return tuple(float(total) for total in np.cumsum(each))


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


def summarise(
    recordings: Sequence[Recording], courses: Mapping[str, Course], profile: str, seed: int
) -> list[Measure]:
    """Return precision (base rate, balanced), stops by outcome and steps saved, by policy."""
    measures: list[Measure] = []
    for corpus, runs in _rated(recordings).items():
        for name, policy in POLICIES.items():
            own = [courses[run.run_id] for run in runs]
            if name.startswith("cosine") and not any(course.cosine for course in own):
                continue
            stops = _by_corpus(policy, runs, courses)
            measures += _figures(corpus, profile, name, runs, own, stops, seed)
    return measures


def savings(
    recordings: Sequence[Recording], courses: Mapping[str, Course]
) -> dict[str, list[tuple[float, float]]]:
    """Return points of false stops against steps saved, by kind of policy, over its thresholds."""
    rated = [run for runs in _own(recordings).values() for run in runs]
    kinds: dict[str, list[Policy]] = {
        "flag density": [flag_density(at / WINDOW) for at in range(1, WINDOW + 1)],
        "step limit": [step_limit(at) for at in np.linspace(0.5, 0.99, 12)],
        "cosine limit": [cosine_limit(at) for at in np.linspace(0.01, 0.4, 12)],
        "budget limit": [budget_limit(at) for at in np.linspace(1.0, 4.0, 12)],
        "halt": [halt],
    }
    own = [courses[run.run_id] for run in rated]
    return {
        kind: sorted(_point(rated, own, _by_corpus(policy, rated, courses)) for policy in policies)
        for kind, policies in kinds.items()
        if kind != "cosine limit" or any(course.cosine for course in own)
    }


def _point(
    runs: Sequence[Recording], courses: Sequence[Course], stops: Stops
) -> tuple[float, float]:
    good = [stop is not None for run, stop in zip(runs, stops, strict=True) if run.succeeded]
    saved, lengths = _saved(runs, courses, stops)
    return sum(good) / max(len(good), 1), sum(saved) / max(sum(lengths), 1.0)


def _own(recordings: Sequence[Recording]) -> dict[str, list[Recording]]:
    groups: dict[str, list[Recording]] = {}
    for run in recordings:
        if run.outcome in ("success", "failure"):
            groups.setdefault(run.corpus, []).append(run)
    return groups


def _rated(recordings: Sequence[Recording]) -> dict[str, list[Recording]]:
    return by_corpus([run for runs in _own(recordings).values() for run in runs])


def _by_corpus(policy: Policy, runs: Sequence[Recording], courses: Mapping[str, Course]) -> Stops:
    """Apply a policy within each corpus: one corpus's lengths say nothing about another's."""
    stops: dict[str, int | None] = {}
    for own in _own(runs).values():
        found = policy(own, [courses[run.run_id] for run in own])
        stops |= {run.run_id: stop for run, stop in zip(own, found, strict=True)}
    return [stops[run.run_id] for run in runs]


def _figures(
    corpus: str,
    profile: str,
    method: str,
    runs: Sequence[Recording],
    courses: Sequence[Course],
    stops: Stops,
    seed: int,
) -> list[Measure]:
    tasks = [run.key for run in runs]
    failed = [not run.succeeded for run in runs]
    stopped = [stop is not None for stop in stops]
    true = sum(bad and stop for bad, stop in zip(failed, stopped, strict=True))
    false = sum(stopped) - true
    saved, lengths = _saved(runs, courses, stops)
    estimates = {
        "precision": wilson(true, true + false),
        "precision_balanced": balanced_precision(tasks, failed, stopped, seed).estimate,
        "true_stops": wilson(true, sum(failed)),
        "false_stops": wilson(false, len(runs) - sum(failed)),
        "steps_saved": ratio_of_sums(tasks, saved, lengths, seed).estimate,
    }
    return [
        Measure("abort", corpus, profile, method, name, estimate)
        for name, estimate in estimates.items()
    ]


def _saved(
    runs: Sequence[Recording], courses: Sequence[Course], stops: Stops
) -> tuple[list[float], list[float]]:
    """Return steps after the stop, and all steps, of runs that failed; 0 for the others."""
    saved, lengths = [], []
    for run, course, stop in zip(runs, courses, stops, strict=True):
        counts = not run.succeeded
        lengths.append(float(course.length) if counts else 0.0)
        saved.append(float(course.length - 1 - stop) if counts and stop is not None else 0.0)
    return saved, lengths


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
