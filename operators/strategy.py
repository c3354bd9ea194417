"""Strategy: which known way of doing the task a run follows, and whether it keeps changing."""

from __future__ import annotations

from dataclasses import dataclass

from ontrack.operators.limits import require
from ontrack.operators.transport import Alignment


@dataclass(frozen=True, slots=True)
class StrategyParams:
    """When changes of strategy warn.

    Parameters
    ----------
    switch_margin
        Loss by which another reference must be better before it counts as a switch.
    switch_window, switches_max
        More switches than ``switches_max`` among the last ``switch_window`` steps warn; a single
        one is benign.
    """

    switch_margin: float = 0.02
    switch_window: int = 8
    switches_max: int = 2

    def __post_init__(self) -> None:
        require(self, 1, 1000, "switch_window", "switches_max")
        require(self, 0.0, 100.0, "switch_margin")


@dataclass(frozen=True, slots=True)
class StrategyState:
    """The reference followed, and in which of the last steps it changed."""

    following: int | None = None
    switches: tuple[tuple[int, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class StrategySignal:
    """``changed`` are the steps of the window that changed strategy, ``looked_at`` its length."""

    oscillating: bool
    changed: tuple[int, ...]
    looked_at: int


def step(
    params: StrategyParams, state: StrategyState, seq: int, alignment: Alignment
) -> tuple[StrategyState, StrategySignal]:
    """Update which reference is followed; tell whether the run oscillates between them."""
    following, switched = state.following, False
    if following is None:
        following = alignment.best
    elif alignment.best != following:
        margin = float(alignment.losses[following] - alignment.losses[alignment.best])
        if margin > params.switch_margin:
            following, switched = alignment.best, True
    switches = (*state.switches, (seq, switched))[-params.switch_window :]
    changed = tuple(place for place, flag in switches if flag)
    oscillating = switched and len(changed) > params.switches_max
    return StrategyState(following, switches), StrategySignal(oscillating, changed, len(switches))
