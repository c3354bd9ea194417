"""The texts of a step and their vectors: what an encoder gives to the operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ontrack.operators.canonical import arguments_text, value_text
from ontrack.topics.events import Proposal, Step

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepVectors:
    """Unit vectors, shape (d,), of one step's texts; zero where there is no text."""

    action: Vector
    args: Vector
    result: Vector


def step_texts(step: Step | Proposal, result_characters_max: int) -> tuple[str, str, str]:
    """Return the texts of a step to encode: action, arguments, result (or error)."""
    if isinstance(step, Proposal):
        return step.action or "", arguments_text(step.args), ""
    result = value_text(step.result, result_characters_max)
    if step.error is not None and not result:
        result = f"{step.error.type or ''} {step.error.message or ''}".strip()
    return step.action or "", arguments_text(step.args), result


def unit_history(history: npt.NDArray[np.float16], vector: Vector) -> npt.NDArray[np.float32]:
    """Cosine of one unit vector with each row of a history, shape (n,).

    Histories are kept in float16: half the memory, and cosines are right to about 1e-3, far finer
    than any threshold on them.
    """
    return history.astype(np.float32) @ vector


def push(
    history: npt.NDArray[np.float16], vector: Vector, rows_max: int
) -> npt.NDArray[np.float16]:
    """Return the history with one more row, the oldest dropped beyond ``rows_max``."""
    kept = history[max(0, len(history) - rows_max + 1) :]
    return np.concatenate([kept, vector.astype(np.float16)[None, :]])
