"""Abort: halt a run whose recent steps are mostly severe (Table 6 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass

from ontrack.operators.limits import require


@dataclass(frozen=True, slots=True)
class AbortParams:
    """Severe-flag density.

    Parameters
    ----------
    window
        Steps looked back on.
    density
        Share of severe steps in the window from which on the run is halted.
    """

    window: int = 6
    density: float = 0.6

    def __post_init__(self) -> None:
        require(self, 1, 1000, "window")
        require(self, 0.0, 1.0, "density")


@dataclass(frozen=True, slots=True)
class AbortState:
    """(seq, severe) of the last steps; whether the run was halted already."""

    recent: tuple[tuple[int, bool], ...] = ()
    halted: bool = False


@dataclass(frozen=True, slots=True)
class AbortSignal:
    """``halt`` is True once, at the step that crosses the threshold.

    ``evidence`` are the severe steps among the last ``window``.
    """

    halt: bool
    density: float
    evidence: tuple[int, ...]
    window: int


def step(
    params: AbortParams, state: AbortState, seq: int, severe: bool
) -> tuple[AbortState, AbortSignal]:
    """Count the severe steps of the window; the window counts as full from the start."""
    recent = (*state.recent, (seq, severe))[-params.window :]
    evidence = tuple(place for place, flagged in recent if flagged)
    density = len(evidence) / params.window
    halt = not state.halted and density >= params.density
    return AbortState(recent, state.halted or halt), AbortSignal(
        halt, density, evidence, params.window
    )
