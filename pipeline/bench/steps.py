"""``bench step``: who takes part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

from ontrack.pipeline.bench.alignments import (
    AlignmentStep,
    by_the_book,
    converge,
    engine,
    make_step,
    pot_solver,
)
from ontrack.pipeline.bench.clock import Contestant
from ontrack.pipeline.bench.monitoring import MonitorStep
from ontrack.pipeline.making import use_kernel
from ontrack.pipeline.settings import Settings

SIZES = (20, 40, 80)
MAIN = 40
REFERENCES = 3
VARIANTS = 8
"""Wordings of a step that take turns where texts repeat."""

SEEDS = range(4)
"""Problems of each size, taken in turn: one alone might happen to stop early."""


def contestants(settings: Settings) -> list[Contestant]:
    """Return what is timed; ``pot`` only where POT is installed."""
    use_kernel(settings)  # before the problems are made: they are made by the engine itself
    found: list[Contestant] = []
    steps = {size: [make_step(size, REFERENCES, seed) for seed in SEEDS] for size in SIZES}
    for size in SIZES:
        found.append(_aligning("engine", size, steps[size], engine))
        found.append(_aligning("textbook", size, steps[size], by_the_book))
    found.append(_aligning("converged", MAIN, steps[MAIN], converge))
    pot = pot_solver()
    if pot is not None:
        found.append(_aligning("pot", MAIN, steps[MAIN], pot))
    for name, variants in (("monitor", None), ("monitor_cached", VARIANTS)):
        monitor = MonitorStep(settings, MAIN, REFERENCES, variants)
        found.append(Contestant(name, label(MAIN), monitor.message, monitor.apply, "engine"))
    return found


def label(size: int) -> str:
    """Return the size as it stands in a figure."""
    return f"t=m={size},K={REFERENCES}"


def _aligning(
    name: str,
    size: int,
    steps: Sequence[AlignmentStep],
    run: Callable[[AlignmentStep], Any],
) -> Contestant:
    inputs = cycle(steps)
    ratio_to = None if name == "engine" else "engine"
    return Contestant(name, label(size), lambda: next(inputs), run, ratio_to)
