"""Stall: activity without progress.

Spinning is new calls that bring no new state (low information gain, step after step); with
references the coverage must stand still as well (coverage velocity, Table 1).
"""

from __future__ import annotations

from dataclasses import dataclass

from ontrack.operators.limits import require


@dataclass(frozen=True, slots=True)
class StallParams:
    """When a run counts as stalled.

    Parameters
    ----------
    window
        w: consecutive steps without gain, and the distance over which coverage is compared.
    gain_min
        Information gain at or below which a step brought nothing new.
    velocity_min
        Reference steps covered over the window below which there is no progress. In steps, not in
        shares: a plan that keeps spreading a little mass must not look like progress.
    """

    window: int = 4
    gain_min: float = 0.05
    velocity_min: float = 1.0

    def __post_init__(self) -> None:
        require(self, 1, 1000, "window")
        require(self, 0.0, 1.0, "gain_min")
        require(self, 0.0, 1000.0, "velocity_min")


@dataclass(frozen=True, slots=True)
class StallState:
    """Sequence numbers of the current streak without gain; steps covered, over one window."""

    streak: tuple[int, ...] = ()
    covered: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StallSignal:
    """``velocity`` is m (rho_t - rho_{t-w}), None without references or before w steps."""

    stalled: bool
    velocity: float | None
    since: tuple[int, ...]


def step(
    params: StallParams,
    state: StallState,
    seq: int,
    gain: float | None,
    covered_steps: float | None,
) -> tuple[StallState, StallSignal]:
    """Update the streak and tell whether the run stalls at this step.

    ``covered_steps`` is the coverage times the reference's size, None without references.
    A step without a result leaves the streak as it is: it neither shows progress nor its lack.
    """
    streak = state.streak
    if gain is not None:
        streak = (*streak, seq)[-(params.window * 4) :] if gain <= params.gain_min else ()
    velocity, covered = None, state.covered
    if covered_steps is not None:
        if len(covered) == params.window:
            velocity = covered_steps - covered[0]
        covered = (*covered, covered_steps)[-params.window :]
    spinning = len(streak) >= params.window
    moving = velocity is not None and velocity >= params.velocity_min
    stalled = spinning and not moving
    return StallState(streak, covered), StallSignal(stalled, velocity, streak)
