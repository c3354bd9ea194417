"""Statistics of the experiments: ranking within tasks, intervals, precision.

Runs of one task are not independent, so every interval of a ranking comes from resampling tasks,
never runs. Resampling is done by weights: a task drawn twice counts twice. All methods are
evaluated under the same draws, so differences between them have intervals of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ontrack.operators import rates
from ontrack.pipeline.evaluation.measures import Estimate

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

RESAMPLES = 1000
LEVEL = 0.95


def auroc(scores: Sequence[float] | Floats, positive: Sequence[bool] | Bools) -> float | None:
    """Return the probability that a positive scores above a negative; a tie counts half.

    Source: Mann and Whitney (1947), with midranks. None unless both classes are there.
    """
    values, is_positive = np.asarray(scores, np.float64), np.asarray(positive, np.bool_)
    concordant, pairs = concordance(values, is_positive)
    return concordant / pairs if pairs else None


def concordance(scores: Floats, positive: Bools) -> tuple[float, int]:
    """Return concordant pairs (ties count half) and the number of pairs of the two classes."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return 0.0, 0
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    midranks = ends - (counts - 1) / 2.0  # of each distinct value, counted from 1
    rank_sum = float(midranks[place][positive].sum())
    return rank_sum - positives * (positives + 1) / 2.0, positives * negatives


def task_weights(tasks: int, seed: int, resamples: int = RESAMPLES) -> Ints:
    """Draw how often each task counts in each resample, shape (resamples, tasks)."""
    if tasks == 0:
        return np.zeros((resamples, 0), dtype=np.int64)
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(tasks, np.full(tasks, 1.0 / tasks), size=resamples)
    return np.asarray(drawn, dtype=np.int64)


def percentile_interval(values: Floats) -> tuple[float | None, float | None]:
    """Return the interval that holds the middle 95 % of resampled values; NaNs are left out."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None, None
    low, high = np.quantile(finite, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Resampled:
    """A value, what it became in each resample, and the runs it rests on."""

    value: float | None
    draws: Floats
    n: int

    @property
    def estimate(self) -> Estimate:
        """The value with its percentile interval."""
        if self.value is None:
            return Estimate(None, None, None, self.n)
        return Estimate(self.value, *percentile_interval(self.draws), self.n)

    def minus(self, other: Resampled) -> Estimate:
        """Return the difference with its interval, draw by draw."""
        if self.value is None or other.value is None:
            return Estimate(None, None, None, self.n)
        interval = percentile_interval(self.draws - other.draws)
        return Estimate(self.value - other.value, *interval, self.n)


class Grouped:
    """Runs of several tasks with their outcomes, on which many scores are to be evaluated.

    Parameters
    ----------
    tasks
        Task of each run.
    positive
        Whether the run succeeded.
    seed
        Of the resampling.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        positive: Sequence[bool],
        seed: int,
        resamples: int = RESAMPLES,
    ) -> None:
        self.positive = np.asarray(positive, np.bool_)
        names, codes = np.unique(np.asarray(tasks, dtype=object).astype(str), return_inverse=True)
        self.codes: Ints = np.asarray(codes, dtype=np.int64)
        self.tasks = len(names)
        members = [np.flatnonzero(self.codes == task) for task in range(self.tasks)]
        self._mixed = [
            runs for runs in members if self.positive[runs].any() and not self.positive[runs].all()
        ]
        self.mixed_tasks = len(self._mixed)
        self.runs_in_mixed = sum(map(len, self._mixed))
        self._weights = task_weights(self.tasks, seed, resamples)
        self._mixed_weights = task_weights(self.mixed_tasks, seed, resamples)

    def within_task(self, scores: Sequence[float]) -> Resampled:
        """AUROC over pairs of runs of the same task; tasks of one class have no such pair.

        Each pair counts once, so a task counts by its number of pairs.
        """
        values = np.asarray(scores, np.float64)
        found = [concordance(values[runs], self.positive[runs]) for runs in self._mixed]
        concordant = np.array([each[0] for each in found])
        pairs = np.array([each[1] for each in found], dtype=np.float64)
        if not found:
            return Resampled(None, np.zeros(0), 0)
        draws = (self._mixed_weights @ concordant) / (self._mixed_weights @ pairs)
        value = float(concordant.sum() / pairs.sum())
        return Resampled(value, draws, self.runs_in_mixed)

    def pooled(self, scores: Sequence[float]) -> Resampled:
        """AUROC over all pairs of runs, whatever their tasks."""
        values = np.asarray(scores, np.float64)
        value = auroc(values, self.positive)
        if value is None:
            return Resampled(None, np.zeros(0), len(values))
        weights = self._weights[:, self.codes].astype(np.float64)
        return Resampled(value, weighted_auroc(values, self.positive, weights), len(values))


def weighted_auroc(scores: Floats, positive: Bools, weights: Floats) -> Floats:
    """AUROC under many weightings at once; NaN where a class has no weight.

    Parameters
    ----------
    scores, positive : (n,)
    weights : (b, n)

    Returns
    -------
    (b,) float64
    """
    distinct, place = np.unique(scores, return_inverse=True)
    up = np.zeros((len(weights), len(distinct)))
    down = np.zeros_like(up)
    for run, (column, is_positive) in enumerate(zip(place, positive, strict=True)):
        (up if is_positive else down)[:, column] += weights[:, run]
    below = np.cumsum(down, axis=1) - down
    concordant = (up * (below + 0.5 * down)).sum(axis=1)
    pairs = up.sum(axis=1) * down.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(pairs > 0, concordant / pairs, np.nan))


def wilson(hits: int, n: int) -> Estimate:
    """Return a proportion with Wilson's 95 % interval."""
    if n == 0:
        return Estimate(None, None, None, 0)
    low, high = rates.wilson(hits, n)
    return Estimate(hits / n, low, high, n)


def ratio_of_sums(
    tasks: Sequence[str],
    upper: Sequence[float],
    lower: Sequence[float],
    seed: int,
    resamples: int = RESAMPLES,
) -> Resampled:
    """Return a ratio of two sums over runs, resampled by task.

    Parameters
    ----------
    tasks, upper, lower
        Of each run: its task, its part of the numerator and of the denominator.
    """
    over, under = sums_by_task(tasks, {"over": upper, "under": lower}).values()
    total = float(under.sum())
    if not total:
        return Resampled(None, np.zeros(0), len(tasks))
    weights = task_weights(len(over), seed, resamples)
    with np.errstate(invalid="ignore", divide="ignore"):
        draws = (weights @ over) / (weights @ under)
    return Resampled(float(over.sum()) / total, draws, len(tasks))


def sums_by_task(
    tasks: Sequence[str], columns: Mapping[str, Sequence[float] | Floats]
) -> dict[str, Floats]:
    """Add up each column by task, tasks in the order of their names."""
    _, codes = np.unique(np.asarray(tasks, dtype=object).astype(str), return_inverse=True)
    size = int(codes.max()) + 1 if len(codes) else 0
    return {
        name: np.bincount(codes, weights=np.asarray(column, np.float64), minlength=size).astype(
            np.float64
        )
        for name, column in columns.items()
    }


def balanced_precision(
    tasks: Sequence[str],
    failed: Sequence[bool],
    stopped: Sequence[bool],
    seed: int,
    resamples: int = RESAMPLES,
) -> Resampled:
    """Precision of stopping as it would be with as many failures as successes.

    ``tpr / (tpr + fpr)``: the share of stopped runs that would have failed, at a base rate of 0.5.
    """
    is_failed = np.asarray(failed, np.float64)
    is_stopped = np.asarray(stopped, np.float64)
    sums = sums_by_task(
        tasks,
        {
            "true": is_failed * is_stopped,
            "false": (1 - is_failed) * is_stopped,
            "failures": is_failed,
            "successes": 1 - is_failed,
        },
    )
    weights = task_weights(len(sums["true"]), seed, resamples)
    plain = np.ones((1, len(sums["true"])), dtype=np.int64)

    def value(of: Ints) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            true = (of @ sums["true"]) / (of @ sums["failures"])
            false = (of @ sums["false"]) / (of @ sums["successes"])
            return np.asarray(true / (true + false), dtype=np.float64)

    point = float(value(plain)[0])
    return Resampled(
        point if math.isfinite(point) else None, value(weights), int(sum(map(bool, stopped)))
    )
