"""Array types of the solver and the one floor that keeps its logarithms finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Hops = npt.NDArray[np.int16]

Reals = npt.NDArray[Any]
"""float64, or float32 where memory or time count."""

TINY = 1e-300
"""Floor of every denominator and logarithm: a normal double, so no precision is lost above it."""


def check_shape(name: str, array: npt.NDArray[np.generic], expected: tuple[int, ...]) -> None:
    """Raise a ValueError that names the array where its shape is not the expected one."""
    if array.shape != expected:
        raise ValueError(f"{name} has shape {array.shape}, expected {expected}")
