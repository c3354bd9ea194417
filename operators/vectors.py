"""The texts of a step and their vectors: what an encoder gives to the operators."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ontrack.operators.canonical import arguments_text, value_text
from ontrack.topics.events import ErrorInfo, Proposal, Step

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
    result = result_text(step.result, step.error, result_characters_max)
    return step.action or "", arguments_text(step.args), result


def result_text(result: Any, error: ErrorInfo | None, characters_max: int) -> str:
    """Return the text of what a call returned: the result or, without one, the error."""
    text = value_text(result, characters_max)
    if error is not None and not text:
        return f"{error.type or ''} {error.message or ''}".strip()
    return text


def _no_rows() -> npt.NDArray[np.int8]:
    return np.zeros((0, 0), dtype=np.int8)


def _no_scales() -> npt.NDArray[np.float32]:
    return np.zeros(0, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class History:
    """Vectors of earlier steps, oldest first, a byte a component.

    Cosines are right to about 1e-3, far finer than any threshold on them, at a quarter of the
    memory of float32: histories are the larger part of what a run keeps.

    Parameters
    ----------
    rows
        Shape (n, d), int8.
    scales
        What each row is multiplied by, shape (n,).
    """

    rows: npt.NDArray[np.int8] = field(default_factory=_no_rows)
    scales: npt.NDArray[np.float32] = field(default_factory=_no_scales)

    def __len__(self) -> int:
        return len(self.scales)

    def cosines(self, vector: Vector, places: list[int] | None = None) -> npt.NDArray[np.float32]:
        """Return the cosine of a unit vector with each row, or with the rows at ``places``."""
        rows = self.rows if places is None else self.rows[places]
        scales = self.scales if places is None else self.scales[places]
        found: npt.NDArray[np.float32] = (rows.astype(np.float32) @ vector) * scales
        return found

    def push(self, vector: Vector, rows_max: int) -> History:
        """Return the history with one more row, the oldest dropped beyond ``rows_max``."""
        scale = float(np.abs(vector).max()) / 127.0
        kept = min(len(self), rows_max - 1)
        first = len(self) - kept
        rows = np.zeros((kept + 1, len(vector)), np.int8)
        scales = np.empty(kept + 1, np.float32)
        if kept:
            rows[:kept], scales[:kept] = self.rows[first:], self.scales[first:]
        if scale:
            rows[kept] = np.rint(vector / scale)
        scales[kept] = scale
        return History(rows, scales)
