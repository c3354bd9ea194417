"""What compiled functions share: how they are compiled and cached, exp and log, sums.

Written out because the compiler turns these into vector instructions; calls of the C library would
take five times as long.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from ontrack.solver.arrays import TINY, Floats

F = TypeVar("F", bound=Callable[..., Any])

EXACT = frozenset({"contract"})
"""A product and a sum may become one instruction, which rounds once instead of twice."""

SUMS = frozenset({"contract", "reassoc"})
"""Sums may also be taken in another order, as BLAS does: a few rounding errors."""


def _digest() -> str:
    """Name the source of everything compiled.

    Numba's cache looks at the file of the function that is called, and would not notice a change in
    another one whose functions are compiled into it. Part of a function's name, this makes it.
    """
    files = sorted(Path(__file__).parent.glob("compiled*.py"))
    digest = hashlib.blake2b(digest_size=4)
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


_DIGEST = _digest()


def entry(signature: tuple[Any, ...], fastmath: frozenset[str] = EXACT) -> Callable[[F], F]:
    """Compile a function now, for one signature; keep the machine code where numba can.

    Where neither the package's folder nor the user's cache folder can be written to, it is
    compiled anew by every process.
    """

    def decorate(function: F) -> F:
        # numpy's division: Python's would raise on 0, and a loop that may raise is not vectorised.
        # Without the GIL: a long solve in a thread must not hold up the event loop.
        options: dict[str, Any] = {
            "fastmath": set(fastmath),
            "error_model": "numpy",
            "nogil": True,
        }
        function.__qualname__ = f"{function.__qualname__}_{_DIGEST}"
        try:
            made: Any = numba.njit(signature, cache=True, **options)(function)
        except (RuntimeError, OSError):
            # RuntimeError: numba found no folder. OSError: it found one and could not write.
            made = numba.njit(signature, **options)(function)
        return made  # type: ignore[no-any-return]

    return decorate


def part(fastmath: frozenset[str] = EXACT) -> Callable[[F], F]:
    """Mark what is compiled into its callers, for the types they pass."""

    def decorate(function: F) -> F:
        made: Any = numba.njit(fastmath=set(fastmath), error_model="numpy")(function)
        return made  # type: ignore[no-any-return]

    return decorate


# --------------------------------------------------------------------- exp and log


def _reader(source: Any, target: Any) -> Any:
    """Make a function that reads the bits of one type as those of another."""

    def read(context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return intrinsic(read)


_to_bits: Any = _reader(types.float64, types.int64)
_to_float: Any = _reader(types.int64, types.float64)

_LOG2_E = 1.0 / math.log(2.0)
# ln 2 in two parts: the last 21 bits of the first are 0, so that n times it is exact.
_LN2_HIGH = math.floor(math.log(2.0) * 2.0**32) / 2.0**32
_LN2_LOW = 1.9082149292705877e-10
_ROUND = 1.5 * 2.0**52  # adding it leaves a whole number in the last bits
_ROUND_BITS = 0x4338000000000000
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
(_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12, _E13) = (
    1.0 / math.factorial(n) for n in range(2, 14)
)


@part()
def exp(x: float) -> float:
    """``e^x`` within 4e-16 of it; 0 and infinity where it under- or overflows, as numpy has it.

    With ``x = n ln 2 + r``: Taylor's series in r up to the 13th power (|r| < 0.35, remainder
    5e-18), times 2^n in two factors, so that subnormal results come out right.
    """
    x = min(max(x, -760.0), 720.0)
    shifted = x * _LOG2_E + _ROUND
    n = _to_bits(shifted) - _ROUND_BITS
    whole = shifted - _ROUND
    r = (x - whole * _LN2_HIGH) - whole * _LN2_LOW
    r2 = r * r
    r4 = r2 * r2
    low = (1.0 + r) + r2 * (0.5 + _E3 * r) + r4 * ((_E4 + _E5 * r) + r2 * (_E6 + _E7 * r))
    high = (_E8 + _E9 * r) + r2 * (_E10 + _E11 * r) + r4 * (_E12 + _E13 * r)
    half = n >> 1
    series = low + r4 * r4 * high
    return series * _to_float((half + 1023) << 52) * _to_float((n - half + 1023) << 52)  # type: ignore[no-any-return]


@part()
def log(x: float) -> float:
    """Natural logarithm of a number >= TINY, within 3e-16 of it.

    With ``x = 2^n m`` and m in [sqrt 1/2, sqrt 2): ``log m = 2 artanh s``, where
    ``s = (m - 1) / (m + 1)``; series up to the 21st power (|s| < 0.172, remainder 2e-19).
    """
    bits = _to_bits(x)
    n = (bits - _SQRT_HALF_BITS) >> 52
    m = _to_float(bits - (n << 52))
    whole = _to_float(n + _ROUND_BITS) - _ROUND
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    z2 = z * z
    z4 = z2 * z2
    low = (1 / 3 + z * (1 / 5)) + z2 * (1 / 7 + z * (1 / 9))
    high = (1 / 11 + z * (1 / 13)) + z2 * (1 / 15 + z * (1 / 17)) + z4 * (1 / 19 + z * (1 / 21))
    series = low + z4 * high
    return whole * _LN2_HIGH + (whole * _LN2_LOW + 2.0 * s * z * series + 2.0 * s)  # type: ignore[no-any-return]


@part()
def logs(values: Floats, out: Floats) -> None:
    """``log(values)``, floored. Loops that do nothing else are the ones that get vectorised."""
    for i in range(values.size):
        out[i] = log(max(values[i], TINY))


# ------------------------------------------------------------------------- sums


@part(SUMS)
def sum_of(values: Floats) -> float:
    """Sum of a line."""
    result = 0.0
    for i in range(values.size):
        result += values[i]
    return result


@part(SUMS)
def inner(left: Floats, right: Floats) -> float:
    """Inner product of two lines."""
    result = 0.0
    for i in range(left.size):
        result += left[i] * right[i]
    return result


@part()
def median(values: Floats) -> float:
    """Median; 1 of none."""
    size = values.size
    if size == 0:
        return 1.0
    ordered = np.sort(values)
    return 0.5 * (ordered[(size - 1) // 2] + ordered[size // 2])  # type: ignore[no-any-return]
