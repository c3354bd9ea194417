"""Timing several things in turns, so that a machine that changes its pace does not favour one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np

SLICE_NS = 5_000_000
"""What takes longer than this in a round joins only every so many rounds."""

WARM_UP_CALLS = 10
WARM_UP_NS = 300_000_000


@dataclass(frozen=True, slots=True)
class Contestant:
    """One thing to time.

    Parameters
    ----------
    name, size
        What it is, and on what: ``engine`` at ``t=m=40,K=3``.
    prepare
        Makes the input of one call; not timed.
    run
        What is timed.
    ratio_to
        Name of the contestant of the same size that this one is compared with.
    """

    name: str
    size: str
    prepare: Callable[[], Any]
    run: Callable[[Any], Any]
    ratio_to: str | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """Times of one contestant.

    Parameters
    ----------
    p50_us, p95_us, p99_us
        Percentiles of one call, in microseconds.
    events_per_s
        Calls divided by the time they took together.
    ratio
        This median divided by that of ``ratio_to``, both of this run.
    samples
        Calls timed; a percentile of few of them is close to the slowest.
    p20_us
        A percentile that pauses of a busy machine hardly reach, in microseconds.
    """

    name: str
    size: str
    p50_us: float
    p95_us: float
    p99_us: float
    events_per_s: float
    ratio_to: str | None
    ratio: float | None
    samples: int
    p20_us: float


def measure(contestants: Sequence[Contestant], seconds: float) -> list[Figure]:
    """Time all contestants round after round until the time is used up, each at least once.

    Parameters
    ----------
    seconds
        Time for warm-up and rounds together; the last round is finished.
    """
    deadline = perf_counter_ns() + int(seconds * 1e9)
    every = [max(1, math.ceil(_warm_up(each) / SLICE_NS)) for each in contestants]
    times: list[list[int]] = [[] for _ in contestants]
    turn = 0
    while turn == 0 or perf_counter_ns() < deadline:
        for contestant, period, taken in zip(contestants, every, times, strict=True):
            if turn % period == 0:
                taken.append(_time(contestant))
        turn += 1
    medians = {
        (each.name, each.size): float(np.median(taken))
        for each, taken in zip(contestants, times, strict=True)
    }
    return [_figure(each, taken, medians) for each, taken in zip(contestants, times, strict=True)]


def _warm_up(contestant: Contestant) -> int:
    """Call a few times; return the shortest time in ns."""
    taken = [_time(contestant)]
    while len(taken) < WARM_UP_CALLS and sum(taken) < WARM_UP_NS:
        taken.append(_time(contestant))
    return min(taken)


def _time(contestant: Contestant) -> int:
    given, run = contestant.prepare(), contestant.run
    begin = perf_counter_ns()
    run(given)
    return perf_counter_ns() - begin


def _figure(
    contestant: Contestant, taken: list[int], medians: dict[tuple[str, str], float]
) -> Figure:
    p20, p50, p95, p99 = np.percentile(taken, [20, 50, 95, 99]).tolist()
    ratio = None
    if contestant.ratio_to is not None:
        ratio = p50 / medians[contestant.ratio_to, contestant.size]
    return Figure(
        name=contestant.name,
        size=contestant.size,
        p50_us=p50 / 1e3,
        p95_us=p95 / 1e3,
        p99_us=p99 / 1e3,
        events_per_s=1e9 * len(taken) / sum(taken),
        ratio_to=contestant.ratio_to,
        ratio=ratio,
        samples=len(taken),
        p20_us=p20 / 1e3,
    )
