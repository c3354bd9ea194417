"""Abort: stopping runs early; how many that would have failed, how many that would not?

Which run is stopped where is up to :mod:`ontrack.pipeline.evaluation.policies`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ontrack.operators.canonical import arguments_text, value_text
from ontrack.pipeline.evaluation.baselines import Trace
from ontrack.pipeline.evaluation.corpus import Recording, by_corpus
from ontrack.pipeline.evaluation.measures import Measure
from ontrack.pipeline.evaluation.policies import (
    POLICIES,
    WINDOW,
    Course,
    Policy,
    Stops,
    budget_limit,
    cosine_limit,
    flag_density,
    halt,
    step_limit,
)
from ontrack.pipeline.evaluation.statistics import balanced_precision, ratio_of_sums, wilson
from ontrack.pipeline.evaluation.watching import Watcher

_RESULT_CHARACTERS_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class AbortJob:
    """One run and its references, by run id."""

    run_id: str
    references: tuple[str, ...]


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
        running_cosine(trace, means),
        spent(run),
    )


def running_cosine(trace: Trace, means: Sequence[np.ndarray]) -> tuple[float, ...]:
    """Return the cosine of the steps so far with the nearest mean, after each step."""
    if not means:
        return ()
    directions = np.array([mean / max(float(np.linalg.norm(mean)), 1e-12) for mean in means])
    sums = np.cumsum(trace.calls.astype(np.float64), axis=0)
    lengths = np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    return tuple(float(each) for each in ((sums / lengths) @ directions.T).max(axis=1))


def spent(run: Recording) -> tuple[float, ...]:
    """Return what a run has spent after each step: dollars where steps have costs.

    Else characters of intents, arguments and results.
    """
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
