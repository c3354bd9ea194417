"""Information gain (L1): does the newest result say anything that no earlier one said?"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ontrack.operators.vectors import Vector, push, unit_history


@dataclass(frozen=True, slots=True)
class GainParams:
    """``window``: results remembered; the gain is measured against these."""

    window: int = 256


def _no_results() -> npt.NDArray[np.float16]:
    return np.zeros((0, 0), dtype=np.float16)


@dataclass(frozen=True, slots=True)
class GainState:
    """Vectors of the last ``window`` results, shape (n, d)."""

    results: npt.NDArray[np.float16] = field(default_factory=_no_results)


def step(params: GainParams, state: GainState, result: Vector) -> tuple[GainState, float | None]:
    """Return ``1 - max_i cos(result, result_i)`` over earlier results, in [0, 1].

    None where the step has no result to compare (a zero vector); 1 for the first result.
    """
    if not result.any():
        return state, None
    history = state.results if len(state.results) else np.zeros((0, len(result)), np.float16)
    gain = 1.0
    if len(history):
        gain = min(1.0, max(0.0, 1.0 - float(unit_history(history, result).max())))
    return GainState(push(history, result, params.window)), gain
