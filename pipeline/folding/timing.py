"""How long the engine takes, measured around it: the fold itself knows no clock."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from ontrack.pipeline.folding.fold import Fold
    from ontrack.pipeline.folding.partition import PartitionState
    from ontrack.pipeline.folding.record import Record, Said


Observe = Callable[[float], None]


def unobserved(_seconds: float) -> None:
    """Take a time and forget it."""


def timed_apply(
    fold: Fold, state: PartitionState, record: Record, observe: Observe = unobserved
) -> list[Said]:
    """Fold one record and tell how many seconds that took, in whichever thread it is done."""
    began = time.perf_counter()
    said = fold.apply(state, record)
    observe(time.perf_counter() - began)
    return said


class Durations(Collector):
    """A histogram of seconds for the hot path: one lock and one bisection an observation.

    The library's own histogram takes two locks and walks through its buckets, which costs three
    times as much (docs/telemetry.md).

    Parameters
    ----------
    name
        Ends in ``_seconds``.
    bounds
        Upper bounds of the buckets, ascending; +Inf is added.
    """

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        place = bisect_left(self._bounds, seconds)
        with self._lock:
            self._counts[place] += 1
            self._sum += seconds

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Return the histogram as it stands."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        buckets, below = [], 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), counts, strict=True):
            below += count
            buckets.append((bound, float(below)))
        family = HistogramMetricFamily(self._name, self._documentation)
        family.add_metric([], buckets, total)
        yield family
