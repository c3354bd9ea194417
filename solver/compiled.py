"""The compiled kernel: the fast path as loops over contiguous arrays, one reference after another.

Imported by :mod:`ontrack.solver.kernels` only, and only where it was chosen: importing it imports
numba and compiles every function, or loads it from numba's cache. Formulas, names and order of work
are those of ``objective``, ``scaling``, ``frontier``, ``streaming`` and ``converged``; tests hold
both paths together within 1e-12 (docs/decisions/0008-compiled-kernel.md).

Numba keys its cache by this file alone, so nothing compiled may live in another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from ontrack.solver.arrays import TINY, Bools, Floats

F = TypeVar("F", bound=Callable[..., Any])

# Inputs are declared read-only, which takes writable ones as well.
_IN1, _IN2, _IN3 = (types.Array(types.float64, n, "C", readonly=True) for n in (1, 2, 3))
_OUT1, _OUT2 = (types.Array(types.float64, n, "C") for n in (1, 2))
_FLAGS2, _FLAGS3 = (types.Array(types.boolean, n, "C", readonly=True) for n in (2, 3))
_REAL, _WHOLE = types.float64, types.int64

EXACT = frozenset({"contract"})
"""A product and a sum may become one instruction, which rounds once instead of twice."""

SUMS = frozenset({"contract", "reassoc"})
"""Sums may also be taken in another order, as BLAS does: a few rounding errors of 1e-16."""


def compiled(signature: object, fastmath: frozenset[str] = EXACT) -> Callable[[F], F]:
    """Compile a function now, for one signature; keep the machine code where numba can.

    Where neither the package's folder nor the user's cache folder can be written to, it is
    compiled anew by every process.
    """

    def decorate(function: F) -> F:
        # numpy's division: Python's would raise on 0, and a loop that may raise is not vectorised.
        options = {"fastmath": set(fastmath), "error_model": "numpy"}
        try:
            made: F = numba.njit(signature, cache=True, **options)(function)
        except (RuntimeError, OSError):
            # RuntimeError: numba found no folder. OSError: it found one and could not write.
            made = numba.njit(signature, **options)(function)
        return made

    return decorate


# --------------------------------------------------------------------- exp, log and powers
# Written out because the compiler turns these into vector instructions; calls of the C library
# would take five times as long.


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _bits(context: Any, number: Any) -> Any:
    """Read a float64's 64 bits as an integer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.int64))

    return types.int64(types.float64), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _float(context: Any, bits: Any) -> Any:
    """Read 64 bits as a float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.float64))

    return types.float64(types.int64), generate


_LOG2_E = 1.0 / math.log(2.0)
# ln 2 in two parts: the first has 20 trailing zero bits, so its product with an exponent is exact.
_LN2_HIGH = math.floor(math.log(2.0) * 2.0**32) / 2.0**32
_LN2_LOW = 1.9082149292705877e-10
_ROUND = 1.5 * 2.0**52  # adding it leaves a whole number in the last bits
_ROUND_BITS = 0x4338000000000000
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
(_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12, _E13) = (
    1.0 / math.factorial(n) for n in range(2, 14)
)


@compiled(_REAL(_REAL))
def exp(x: float) -> float:
    """``e^x`` within 4e-16 of it; 0 and infinity where it under- or overflows, as numpy has it.

    With ``x = n ln 2 + r``: Taylor's series in r up to the 13th power (|r| < 0.35, remainder
    5e-18), times 2^n in two factors, so that subnormal results come out right.
    """
    x = min(max(x, -760.0), 720.0)
    shifted = x * _LOG2_E + _ROUND
    n = _bits(shifted) - _ROUND_BITS
    whole = shifted - _ROUND
    r = (x - whole * _LN2_HIGH) - whole * _LN2_LOW
    r2 = r * r
    r4 = r2 * r2
    low = (1.0 + r) + r2 * (0.5 + _E3 * r) + r4 * ((_E4 + _E5 * r) + r2 * (_E6 + _E7 * r))
    high = (_E8 + _E9 * r) + r2 * (_E10 + _E11 * r) + r4 * (_E12 + _E13 * r)
    half = n >> 1
    series = low + r4 * r4 * high
    return series * _float((half + 1023) << 52) * _float((n - half + 1023) << 52)  # type: ignore[no-any-return]


@compiled(_REAL(_REAL))
def log(x: float) -> float:
    """Natural logarithm of a number >= TINY, within 3e-16 of it.

    With ``x = 2^n m`` and m in [sqrt 1/2, sqrt 2): ``log m = 2 artanh s``, ``s = (m - 1) / (m + 1)``,
    series up to the 21st power (|s| < 0.172, remainder 2e-19).
    """
    bits = _bits(x)
    n = (bits - _SQRT_HALF_BITS) >> 52
    m = _float(bits - (n << 52))
    whole = _float(n + _ROUND_BITS) - _ROUND
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    z2 = z * z
    z4 = z2 * z2
    low = (1 / 3 + z * (1 / 5)) + z2 * (1 / 7 + z * (1 / 9))
    high = (1 / 11 + z * (1 / 13)) + z2 * (1 / 15 + z * (1 / 17)) + z4 * (1 / 19 + z * (1 / 21))
    series = low + z4 * high
    return whole * _LN2_HIGH + (whole * _LN2_LOW + 2.0 * s * z * series + 2.0 * s)  # type: ignore[no-any-return]


@compiled(types.void(_IN1, _REAL, _OUT1))
def _power(masses: Floats, exponent: float, out: Floats) -> None:
    """``masses ** exponent``, 0 for a mass of 0."""
    for i in range(masses.size):
        power = exp(exponent * log(max(masses[i], TINY)))
        out[i] = power if masses[i] > 0.0 else 0.0


@compiled(types.void(_OUT1, _IN1, _REAL))
def _fit(product: Floats, target: Floats, exponent: float) -> None:
    """Turn kernel products into scalings, ``target product^-eta``, in place."""
    for i in range(product.size):
        product[i] = target[i] * exp(-exponent * log(max(product[i], TINY)))


# ------------------------------------------------------------------------- sums


@compiled(_REAL(_IN1), SUMS)
def _sum(values: Floats) -> float:
    total = 0.0
    for i in range(values.size):
        total += values[i]
    return total


@compiled(types.void(_IN2, _IN1, _OUT1), SUMS)
def _rows(matrix: Floats, vector: Floats, out: Floats) -> None:
    """``out = matrix vector``."""
    for i in range(matrix.shape[0]):
        total = 0.0
        for j in range(matrix.shape[1]):
            total += matrix[i, j] * vector[j]
        out[i] = total


@compiled(types.void(_IN2, _IN1, _OUT1), SUMS)
def _columns(matrix: Floats, vector: Floats, out: Floats) -> None:
    """``out = matrix^T vector``."""
    for j in range(matrix.shape[1]):
        out[j] = 0.0
    for i in range(matrix.shape[0]):
        factor = vector[i]
        for j in range(matrix.shape[1]):
            out[j] += factor * matrix[i, j]


@compiled(types.void(_IN2, _OUT1, _OUT1), SUMS)
def _masses(plan: Floats, rows: Floats, columns: Floats) -> None:
    """Row and column sums of a plan."""
    for j in range(plan.shape[1]):
        columns[j] = 0.0
    for i in range(plan.shape[0]):
        total = 0.0
        for j in range(plan.shape[1]):
            total += plan[i, j]
            columns[j] += plan[i, j]
        rows[i] = total


@compiled(types.void(_IN2, _IN1, _OUT1), SUMS)
def _squared_rows(matrix: Floats, vector: Floats, out: Floats) -> None:
    """``out = (matrix * matrix) vector``."""
    for i in range(matrix.shape[0]):
        total = 0.0
        for j in range(matrix.shape[1]):
            total += matrix[i, j] * matrix[i, j] * vector[j]
        out[i] = total
