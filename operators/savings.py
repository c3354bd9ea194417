"""Savings: what halts are estimated to have spared, in steps.

A halted run that ended without success is compared with the mean of the runs of the same agent,
task and tenant that failed or were cancelled without a halt: it saved what it is shorter,
``max(0, mean - steps)``. With few of those, nothing is said. Everything is in whole numbers, so
that the sum is the same in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

RUNS_MIN: Final = 5
"""Failed runs of a group that a comparison needs."""


class Part(Enum):
    """What an ended run is to the estimate."""

    STOPPED = "stopped"  # halted, and without success: it may have saved something
    LOST = "lost"  # failed or cancelled by itself: what stopped ones are compared with


def part_of(outcome: str, halted: bool) -> Part | None:
    """Return what an ended run is to the estimate; None where it takes no part in it."""
    if outcome == "success":
        return None
    if halted:
        return Part.STOPPED
    return Part.LOST if outcome in ("failure", "cancelled") else None


def steps_saved(
    stopped: Iterable[tuple[int, int]], lost_runs: int, lost_steps: int, runs_min: int = RUNS_MIN
) -> int | None:
    """Return the steps saved, times ``lost_runs``; None where there is too little to compare with.

    Parameters
    ----------
    stopped
        Numbers of steps, and how many stopped runs were of such a length.
    lost_runs, lost_steps
        Lost runs, and their steps together.
    """
    if lost_runs < runs_min or not lost_steps:
        return None
    return sum(max(0, lost_steps - steps * lost_runs) * runs for steps, runs in stopped)
