"""Information gain (L1): does the newest result say anything that no earlier one said?"""

from __future__ import annotations

from dataclasses import dataclass, field

from ontrack.operators.limits import require
from ontrack.operators.vectors import History, Vector


@dataclass(frozen=True, slots=True)
class GainParams:
    """``window``: results remembered; the gain is measured against these."""

    window: int = 256

    def __post_init__(self) -> None:
        require(self, 1, 4096, "window")


@dataclass(frozen=True, slots=True)
class GainState:
    """Vectors of the last ``window`` results."""

    results: History = field(default_factory=History)


def step(params: GainParams, state: GainState, result: Vector) -> tuple[GainState, float | None]:
    """Return ``1 - max_i cos(result, result_i)`` over earlier results, in [0, 1].

    None where the step has no result to compare (a zero vector); 1 for the first result.
    """
    if not result.any():
        return state, None
    gain = 1.0
    if len(state.results):
        gain = min(1.0, max(0.0, 1.0 - float(state.results.cosines(result).max())))
    return GainState(state.results.push(result, params.window)), gain
