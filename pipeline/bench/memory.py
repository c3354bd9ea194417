"""Memory of many open runs in one process, really folded: ``ontrack bench memory``."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.folding.runs import RunStore
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts
from ontrack.pipeline.workplace.long_runs import long_references, open_runs

PROGRESS_S = 10.0


def measure(
    settings: Settings, runs: int, steps: int, tell: Callable[[str], object]
) -> dict[str, Any]:
    """Fold open runs in this process and return what that took.

    ``peak_rss_mib`` is the highest resident size of the whole process, interpreter, encoder and
    references included; ``start_rss_mib`` that before the first event.

    Parameters
    ----------
    runs, steps
        Runs that are open at the end, and steps of each.
    tell
        Called with a line every few seconds.

    Raises
    ------
    RuntimeError
        Not all runs are open at the end: then the figure would mean nothing.
    """
    monitor = EmbeddedMonitor(settings, long_references(steps), contracts())
    start = peak_rss_mib()
    began = told = time.monotonic()
    events = 0
    for event in open_runs(runs, steps):
        monitor.feed(event)
        events += 1
        now = time.monotonic()
        if now - told > PROGRESS_S:
            told = now
            share = events / (runs * steps)
            tell(f"{events:,} events ({share:.0%}), peak {peak_rss_mib():,.0f} MiB")
    store = monitor.state.runs
    if len(store) != runs:
        raise RuntimeError(f"{len(store):,} of {runs:,} runs are open; nothing was measured")
    return {
        "runs": runs,
        "steps": steps,
        "events": events,
        "open_runs": len(store),
        "kept_as_bytes": store.cold if isinstance(store, RunStore) else 0,
        "warm_runs_max": settings.warm_runs_max,
        "encoder": settings.encoder,
        "start_rss_mib": round(start, 1),
        "peak_rss_mib": round(peak_rss_mib(), 1),
        "seconds": round(time.monotonic() - began, 1),
    }


def peak_rss_mib() -> float:
    """Return the highest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
