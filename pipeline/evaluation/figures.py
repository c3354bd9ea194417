"""Figures: ROC and calibration of a ranking, savings of stopping early (extra ``plots``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from ontrack.pipeline.evaluation.corpus import Recording
from ontrack.pipeline.evaluation.ranking import Scores
from ontrack.topics.errors import InvalidSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN: Final = ("rank_score", "paper", "cosine", "edit_distance", "n_steps")
BINS: Final = 10


def require_matplotlib() -> None:
    """Fail early, before the experiment, where figures cannot be drawn.

    Raises
    ------
    InvalidSettings
        matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InvalidSettings(
            'figures need matplotlib: pip install "ontrack[plots]", or leave --plot out'
        ) from error


def roc_points(scores: Sequence[float], positive: Sequence[bool]) -> list[tuple[float, float]]:
    """Return false and true positive rates at every threshold, from (0, 0) to (1, 1)."""
    values, is_positive = np.asarray(scores, np.float64), np.asarray(positive, np.bool_)
    ups, downs = max(int(is_positive.sum()), 1), max(int((~is_positive).sum()), 1)
    points = [(0.0, 0.0)]
    for threshold in np.unique(values)[::-1]:
        above = values >= threshold
        points.append(
            (
                float((above & ~is_positive).sum()) / downs,
                float((above & is_positive).sum()) / ups,
            )
        )
    return points


def calibration_points(
    scores: Sequence[float], positive: Sequence[bool], bins: int = BINS
) -> list[tuple[float, float]]:
    """Return the share of successes in equal parts of the runs, by ascending score.

    The first coordinate is the middle of the part, as a share of the runs; equal scores are kept
    in the order of the runs.
    """
    order = np.argsort(np.asarray(scores, np.float64), kind="stable")
    parts = np.array_split(np.asarray(positive, np.float64)[order], min(bins, len(order)))
    points, before = [], 0
    for part in parts:
        points.append(((before + len(part) / 2) / len(order), float(part.mean())))
        before += len(part)
    return points


def plot_ranking(
    path: Path,
    recordings: Sequence[Recording],
    scored: Mapping[str, Mapping[int, Scores]],
    k: int,
    profile: str,
) -> None:
    """Write ROC and calibration after k steps, over all runs."""
    figure = _figure()
    roc, calibration = figure.subplots(1, 2)
    positive = [run.succeeded for run in recordings]
    for method in SHOWN:
        column = [scored[run.run_id][k][method] for run in recordings]
        known = [
            (score, good) for score, good in zip(column, positive, strict=True) if score is not None
        ]
        if known:
            scores, goods = zip(*known, strict=True)
            _line(roc, roc_points(scores, goods), method)
            _line(calibration, calibration_points(scores, goods), method, marker="o")
    after = f"after {k} steps" if k else "whole runs"
    _dress(roc, f"ROC, {after}, profile {profile}", "false positive rate", "true positive rate")
    roc.plot([0, 1], [0, 1], color="0.8", zorder=0)
    _dress(calibration, "Successes by score", "share of runs with a lower score", "successes")
    _save(figure, path)


def plot_savings(
    path: Path, curves: Mapping[str, Sequence[tuple[float, float]]], profile: str
) -> None:
    """Write steps saved against false stops, by kind of policy."""
    figure = _figure()
    axes = figure.subplots(1, 1)
    for name, points in curves.items():
        _line(axes, points, name, marker="o")
    _dress(
        axes,
        f"Stopping early, profile {profile}",
        "successful runs stopped",
        "steps of failing runs saved",
    )
    _save(figure, path)


def _figure() -> Figure:
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(11, 5), layout="constrained")


def _line(
    axes: Axes, points: Sequence[tuple[float, float]], label: str, marker: str | None = None
) -> None:
    axes.plot([x for x, _ in points], [y for _, y in points], label=label, marker=marker, ms=4)


def _dress(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(color="0.92")
    axes.legend(frameon=False)


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"--plot {str(path)!r}: {error}") from error
