"""Gaps of many steps as figures: percentiles and shares, by corpus and by place in the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ontrack.pipeline.evaluation.corpus import EVERYTHING
from ontrack.pipeline.evaluation.measures import Estimate, Measure
from ontrack.pipeline.evaluation.statistics import (
    RESAMPLES,
    percentile_interval,
    ratio_of_sums,
    task_weights,
)
from ontrack.pipeline.evaluation.tracking import StepGap
from ontrack.pipeline.evaluation.tracking_runs import CONTROLLED, FAST, TrackingJob

Floats = npt.NDArray[np.float64]

EXPERIMENT: Final = "tracking"
PLACES: Final = ((1, 5), (6, 10), (11, 20), (21, 40), (41, 80), (81, 10_000))
"""Steps, from and to, over which the place in a run is told apart."""

SIZES: Final[Mapping[str, Callable[[StepGap], float]]] = {
    "loss_gap": lambda each: abs(each.loss),
    "score_gap": lambda each: abs(each.score),
    "leakage_gap": lambda each: abs(each.leakage),
    "leakage_gap_rest": lambda each: abs(each.leakage_rest),
    "coverage_gap": lambda each: abs(each.coverage),
    "plan_gap": lambda each: each.plan,
    "regret": lambda each: each.regret,
}
SHARES: Final[Mapping[str, Callable[[StepGap], bool]]] = {
    "same_best": lambda each: each.same_best,
    "loss_is_lower": lambda each: each.loss < 0,
    "leak_differs": lambda each: each.leaks != each.other_leaks,
    "leak_only_here": lambda each: each.leaks and not each.other_leaks,
    "leak_only_there": lambda each: each.other_leaks and not each.leaks,
    "leak_differs_at_one_threshold": lambda each: each.leaks != each.other_leaks_alike,
    "solve_converged": lambda each: each.converged,
}
QUANTILES: Final = (0.5, 0.95, 0.99)
_SLICE = 100  # resamples at a time: weights of all steps for all of them would not fit


class Gap(NamedTuple):
    """A step's gap and the task that it is resampled with."""

    task: str
    gap: StepGap


def summarise(
    jobs: Sequence[TrackingJob],
    found: Sequence[Mapping[str, Sequence[StepGap]]],
    profile: str,
    seed: int,
) -> list[Measure]:
    """Return the figures of every corpus, of all together, and of these by place in the run.

    Intervals come from resampling tasks: steps of a run, and runs of a task, resemble each other.
    The controlled campaign is a corpus of its own and no part of the others taken together.
    """
    gaps: dict[str, dict[str, list[Gap]]] = {}
    for job, by_method in zip(jobs, found, strict=True):
        names = [job.corpus] if job.corpus == CONTROLLED else [job.corpus, EVERYTHING]
        for method, steps in by_method.items():
            for name in names:
                of_corpus = gaps.setdefault(name, {})
                of_corpus.setdefault(method, []).extend(Gap(job.task, each) for each in steps)
    if len([name for name in gaps if name not in (CONTROLLED, EVERYTHING)]) == 1:
        gaps[EVERYTHING] = {}
    measures: list[Measure] = []
    for corpus in sorted(gaps, key=lambda name: (name in (CONTROLLED, EVERYTHING), name)):
        for method, members in gaps[corpus].items():
            measures += _figures(corpus, profile, method, members, seed, None)
            if method == FAST:
                for first, last in PLACES:
                    here = [each for each in members if first <= each.gap.step <= last]
                    if here:
                        place = (first, last)
                        measures += _figures(corpus, profile, method, here, seed, place)
    return measures


def shown(measures: Sequence[Measure]) -> list[Measure]:
    """Return what fits a table: by place in the run only what grows, and of all corpora together.

    Other settings are shown by their gaps' medians and tails, and whether they lead elsewhere.
    """
    grows = (
        "loss_gap_p50",
        "loss_gap_p95",
        "leakage_gap_p50",
        "leakage_gap_rest_p95",
        "plan_gap_p50",
        "same_best",
        "leak_differs",
    )
    corpora = {each.corpus for each in measures if each.corpus not in (CONTROLLED, EVERYTHING)}
    whole = EVERYTHING if len(corpora) > 1 else next(iter(corpora), CONTROLLED)

    def fits(each: Measure) -> bool:
        if each.method == FAST and each.k is None:
            return True
        return each.corpus == whole and each.measure in grows

    return [each for each in measures if fits(each)]


def _figures(
    corpus: str,
    profile: str,
    method: str,
    gaps: Sequence[Gap],
    seed: int,
    place: tuple[int, int] | None,
) -> list[Measure]:
    tasks = [each.task for each in gaps]
    estimates: list[tuple[str, Estimate]] = []
    for name, size in SIZES.items():
        values = np.array([size(each.gap) for each in gaps])
        for quantile, estimate in zip(QUANTILES, quantiles(tasks, values, seed), strict=True):
            estimates.append((f"{name}_p{quantile * 100:g}", estimate))
    ones = [1.0] * len(gaps)
    for name, share in SHARES.items():
        hits = [float(share(each.gap)) for each in gaps]
        estimates.append((name, ratio_of_sums(tasks, hits, ones, seed).estimate))
    k, steps = (None, None) if place is None else (place[1], f"{place[0]}–{place[1]}")
    if place == PLACES[-1]:
        steps = f"{PLACES[-1][0]} and more"
    more = {"steps": steps, "tasks": len(set(tasks))}
    return [
        Measure(EXPERIMENT, corpus, profile, method, name, estimate, k, more)
        for name, estimate in estimates
    ]


def quantiles(
    tasks: Sequence[str], values: Floats, seed: int, resamples: int = RESAMPLES
) -> list[Estimate]:
    """Return :data:`QUANTILES` of the values, with intervals from resampling tasks.

    A quantile is the smallest value that at least this share of the steps does not exceed.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    _, codes = np.unique(np.asarray(tasks, dtype=object).astype(str), return_inverse=True)
    codes = codes[order]
    weights = task_weights(int(codes.max()) + 1, seed, resamples)
    places = [int(np.ceil(share * len(values))) - 1 for share in QUANTILES]
    draws: list[list[Floats]] = [[] for _ in QUANTILES]
    for first in range(0, resamples, _SLICE):
        counted = np.cumsum(weights[first : first + _SLICE][:, codes], axis=1)
        for share, kept in zip(QUANTILES, draws, strict=True):
            # A whole number of steps is counted, so a half below leaves rounding no say.
            below = counted < np.ceil(share * counted[:, -1:] - 1e-9) - 0.5
            kept.append(ordered[below.sum(axis=1)])
    return [
        Estimate(float(ordered[place]), *percentile_interval(np.concatenate(kept)), len(values))
        for place, kept in zip(places, draws, strict=True)
    ]
