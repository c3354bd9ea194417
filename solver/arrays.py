"""Array types of the solver, how compiled code wants them, and the floor of its logarithms."""

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


_FLOAT64, _FLOAT32 = np.dtype(np.float64), np.dtype(np.float32)
_BOOL = np.dtype(np.bool_)


def plain(*arrays: Floats) -> list[Floats]:
    """Return float64 arrays as compiled functions are declared for; a copy where one is not.

    They take contiguous and writable arrays, although they do not write to their inputs.
    """
    return [
        array
        if array.flags.carray and array.dtype is _FLOAT64
        else np.array(array, np.float64, order="C")
        for array in arrays
    ]


def singles(*arrays: Reals) -> list[Reals]:
    """Return the same as float32."""
    return [
        array
        if array.dtype is _FLOAT32 and array.flags.carray
        else np.array(array, np.float32, order="C")
        for array in arrays
    ]


def plain_flags(*arrays: Bools) -> list[Bools]:
    """Do the same for flags."""
    return [
        array
        if array.flags.carray and array.dtype is _BOOL
        else np.array(array, np.bool_, order="C")
        for array in arrays
    ]
