"""``bench distance``: trajectory distance beside the public metric it agrees with, ``ek``.

``ek`` (MIT) is the yardstick and no part of the product: only whoever wants its rows installs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import cycle
from random import Random
from typing import Any, NamedTuple

from ontrack.operators.trajectory import SCHEMES, Scheme, TrajectoryDistance, fold_text
from ontrack.pipeline.bench.clock import Contestant
from ontrack.topics.events import Step

OURS, THEIRS = "ontrack", "ek"
STEPS = 300
EQUAL = "exact on equal runs"

_TOOLS, _VALUES, _ARGUMENTS, _PAIRS = 12, 40, 3, 4
_CHANGED, _MOVED = 60, 20

Call = tuple[str, dict[str, Any]]


class Yardstick(NamedTuple):
    """What is taken from ``ek``: its metric, and how it writes a step down."""

    metric: Callable[..., Any]
    step: Callable[[str, dict[str, Any]], Any]


def yardstick() -> Yardstick | None:
    """Return ``ek``'s trajectory metric; None where it is not installed."""
    try:
        metric = import_module("ek.agents.trajectory").TrajectoryMetric
        step = import_module("ek.agents.base").Step
    except ImportError:
        return None
    return Yardstick(metric, step)


def pair(seed: int, steps: int = STEPS) -> tuple[list[Call], list[Call]]:
    """Return a run and a reference of as many steps: some others, some in another place."""
    rng = Random(seed)

    def call() -> Call:
        args = {f"argument_{k}": f"Value {rng.randrange(_VALUES)}" for k in range(_ARGUMENTS)}
        return f"tool_{rng.randrange(_TOOLS)}", args

    run = [call() for _ in range(steps)]
    reference = list(run)
    for _ in range(_CHANGED * steps // STEPS):
        reference[rng.randrange(steps)] = call()
    for _ in range(_MOVED * steps // STEPS):
        reference.insert(rng.randrange(steps), reference.pop(rng.randrange(steps)))
    return run, reference


def contestants(steps: int = STEPS) -> list[Contestant]:
    """Return what is timed: each scheme, ours and theirs on the same runs.

    Weights are 1 on both sides, and both fold case and white space, which is what ``ek`` does
    unless told otherwise. Nothing is prepared beforehand: a call begins with lists of steps.
    """
    pairs = [pair(seed, steps) for seed in range(_PAIRS)]
    equal = [(run, [(tool, dict(args)) for tool, args in run]) for run, _ in pairs]
    theirs = yardstick()
    found: list[Contestant] = []
    cases: list[tuple[str, Scheme, list[tuple[list[Call], list[Call]]]]] = [
        (scheme, scheme, pairs) for scheme in SCHEMES
    ]
    for name, scheme, of_calls in [*cases, (EQUAL, "exact", equal)]:
        size = f"{name}, {steps} steps"
        found.append(
            _timed(OURS, size, TrajectoryDistance(scheme, canonicaliser=fold_text), _step, of_calls)
        )
        if theirs is not None:
            metric = theirs.metric(scheme=scheme)
            found.append(_timed(THEIRS, size, metric, theirs.step, of_calls, OURS))
    return found


def _step(tool: str, args: dict[str, Any]) -> Step:
    return Step(run_id="bench", tool=tool, args=args)


def _timed(
    name: str,
    size: str,
    distance: Callable[[Any, Any], Any],
    step: Callable[[str, dict[str, Any]], Any],
    pairs: Sequence[tuple[list[Call], list[Call]]],
    ratio_to: str | None = None,
) -> Contestant:
    made = cycle([tuple([step(*call) for call in side] for side in each) for each in pairs])
    return Contestant(name, size, lambda: next(made), lambda given: distance(*given), ratio_to)
