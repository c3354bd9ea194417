"""Loops over rows of numbers as vector instructions, for the compiled step.

The compiler would vectorise such loops by itself, but a row of 40 numbers is too short for what it
makes of it: checks whether arrays overlap, four registers at a time, and the rest number by number.
Here the last register of a row is masked instead. :func:`loop` makes an intrinsic of what is to be
done to one register, written with :class:`Lanes`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

cgutils: Any = _cgutils

LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8
"""float32 numbers in a register; where a processor has fewer, LLVM takes two."""

_INDEX, _NUMBER, _BIT = ir.IntType(64), ir.IntType(32), ir.IntType(1)
_NAMES = {"float": "f32", "double": "f64"}


def fill(builder: Any, value: Any, size: int) -> Any:
    """Fill a vector with one value."""
    kind = ir.VectorType(value.type, size)
    nothing, first = ir.Constant(kind, ir.Undefined), ir.Constant(_NUMBER, 0)
    lane = builder.insert_element(nothing, value, first)
    everywhere = ir.Constant(ir.VectorType(_NUMBER, size), [0] * size)
    return builder.shuffle_vector(lane, nothing, everywhere)


class Lanes:
    """A register of float32 or float64 numbers: arithmetic makes instructions."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value
        self.size = value.type.count
        self.is_double = isinstance(value.type.element, ir.DoubleType)

    def _of(self, other: Lanes | float) -> Any:
        if isinstance(other, Lanes):
            return other.value
        return ir.Constant(self.value.type, [other] * self.size)

    def _made(self, value: Any) -> Lanes:
        return Lanes(self.builder, value)

    def __add__(self, other: Lanes | float) -> Lanes:
        return self._made(self.builder.fadd(self.value, self._of(other)))

    def __sub__(self, other: Lanes | float) -> Lanes:
        return self._made(self.builder.fsub(self.value, self._of(other)))

    def __mul__(self, other: Lanes | float) -> Lanes:
        return self._made(self.builder.fmul(self.value, self._of(other)))

    def __truediv__(self, other: Lanes | float) -> Lanes:
        return self._made(self.builder.fdiv(self.value, self._of(other)))

    def times_plus(self, factor: Lanes | float, other: Lanes | float) -> Lanes:
        """``self * factor + other``, in one instruction where there is one."""
        name = f"llvm.fmuladd.v{self.size}{_NAMES[str(self.value.type.element)]}"
        kind = ir.FunctionType(self.value.type, [self.value.type] * 3)
        fused = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self._made(self.builder.call(fused, [self.value, self._of(factor), self._of(other)]))

    def at_least(self, floor: float) -> Lanes:
        """Raise what is below a number to it; what is not a number stays so."""
        below = self.builder.fcmp_ordered("<", self.value, self._of(floor))
        return self._made(self.builder.select(below, self._of(floor), self.value))

    def at_most(self, ceiling: float) -> Lanes:
        """Lower what is above a number to it; what is not a number stays so."""
        above = self.builder.fcmp_ordered(">", self.value, self._of(ceiling))
        return self._made(self.builder.select(above, self._of(ceiling), self.value))

    def larger(self, other: Lanes) -> Lanes:
        """Larger of both."""
        above = self.builder.fcmp_ordered(">", self.value, other.value)
        return self._made(self.builder.select(above, self.value, other.value))

    def if_positive(self, masses: Lanes) -> Lanes:
        """Set to 0 where ``masses`` are not positive."""
        has = self.builder.fcmp_ordered(">", masses.value, self._of(0.0))
        return self._made(self.builder.select(has, self.value, self._of(0.0)))

    def unless_above(self, values: Lanes, ceiling: float) -> Lanes:
        """Set to infinity where ``values`` are above a number."""
        above = self.builder.fcmp_ordered(">", values.value, self._of(ceiling))
        return self._made(self.builder.select(above, self._of(math.inf), self.value))

    def differs(self, other: Lanes) -> Lanes:
        """1 where two numbers are not equal, 0 where they are; no number equals nothing."""
        unequal = self.builder.fcmp_unordered("!=", self.value, other.value)
        return self._made(self.builder.select(unequal, self._of(1.0), self._of(0.0)))

    def outside(self, lowest: float, highest: float) -> Lanes:
        """1 where a value is not within bounds, or no number; 0 elsewhere."""
        low = self.builder.fcmp_unordered("<", self.value, self._of(lowest))
        high = self.builder.fcmp_unordered(">", self.value, self._of(highest))
        either = self.builder.or_(low, high)
        return self._made(self.builder.select(either, self._of(1.0), self._of(0.0)))

    def magnitude(self) -> Lanes:
        """Absolute value."""
        negative = self.builder.fcmp_ordered("<", self.value, self._of(0.0))
        return self._made(self.builder.select(negative, self.builder.fneg(self.value), self.value))

    # ------------------------------------------------------------------ exp and log

    @property
    def _format(self) -> tuple[int, int, float]:
        """Bits, digits of the mantissa, and 1.5 times two to that power.

        Adding the last leaves a whole number in the last bits.
        """
        return (64, 52, 1.5 * 2.0**52) if self.is_double else (32, 23, 1.5 * 2.0**23)

    @property
    def _ln2(self) -> tuple[float, float]:
        """``ln 2`` in two parts, the first so short that a whole number times it is exact."""
        if self.is_double:
            return math.floor(math.log(2.0) * 2.0**32) / 2.0**32, 1.9082149292705877e-10
        high = math.floor(math.log(2.0) * 2.0**14) / 2.0**14
        return high, math.log(2.0) - high

    def _bits(self, value: Any) -> Any:
        return self.builder.bitcast(value, ir.VectorType(ir.IntType(self._format[0]), self.size))

    def _constant(self, bits: int) -> Any:
        return ir.Constant(
            ir.VectorType(ir.IntType(self._format[0]), self.size), [bits] * self.size
        )

    def _series(self, coefficients: Sequence[float]) -> Lanes:
        """Sum of ``c_n self^n``, pairs first: shorter chains than one term after the other."""
        terms = [self._made(self._of(c)) for c in coefficients]
        power = self
        while len(terms) > 1:
            if len(terms) % 2:
                terms.append(self._made(self._of(0.0)))
            terms = [
                high.times_plus(power, low)
                for low, high in zip(terms[::2], terms[1::2], strict=True)
            ]
            power = power * power
        return terms[0]

    def exp(self) -> Lanes:
        """``e^self`` for what neither under- nor overflows, to the last digit or two.

        With ``self = n ln 2 + r``: Taylor's series in r (|r| < 0.35), up to the 7th power in
        float32 and the 13th in float64, times 2^n.
        """
        _, digits, shift = self._format
        high, low = self._ln2
        shifted = self.times_plus(1.0 / math.log(2.0), shift)
        whole = shifted - shift
        rest = whole.times_plus(-low, whole.times_plus(-high, self))
        terms = 14 if self.is_double else 8
        series = rest._series([1.0 / math.factorial(n) for n in range(terms)])
        power = self.builder.shl(self._bits(shifted.value), self._constant(digits))
        bits = self.builder.add(self._bits(series.value), power)
        return self._made(self.builder.bitcast(bits, self.value.type))

    def log(self) -> Lanes:
        """Natural logarithm of positive normal numbers, to the last digit or two.

        With ``self = 2^n m`` and m in [sqrt 1/2, sqrt 2): ``log m = 2 artanh s``, where
        ``s = (m - 1) / (m + 1)``; series up to the 9th or 21st power (|s| < 0.172).
        """
        builder, digits, shift = self.builder, self._format[1], self._format[2]
        half = 0x3FE6A09E667F3BCD if self.is_double else 0x3F3504F3
        shift_bits = 0x4338000000000000 if self.is_double else 0x4B400000
        bits = self._bits(self.value)
        n = builder.ashr(builder.sub(bits, self._constant(half)), self._constant(digits))
        m = builder.sub(bits, builder.shl(n, self._constant(digits)))
        m = self._made(builder.bitcast(m, self.value.type))
        n = builder.add(n, self._constant(shift_bits))
        whole = self._made(builder.bitcast(n, self.value.type)) - shift
        s = (m - 1.0) / (m + 1.0)
        z, (high, low) = s * s, self._ln2
        series = z._series([1.0 / n for n in range(3, 22 if self.is_double else 10, 2)])
        rest = (s * z).times_plus(series, s)
        return whole.times_plus(high, whole.times_plus(low, rest * 2.0))


class Row:
    """The register of each array that a loop stands at, and what is added up over all of them."""

    def __init__(self, builder: Any, size: int, sums: list[Any]) -> None:
        self.builder, self.size, self._sums = builder, size, sums
        self.arrays: list[tuple[Any, Any]] = []
        self.scalars: list[Lanes] = []
        self.mask: Any = None

    def _call(self, name: str, element: Any, result: Any, arguments: list[Any]) -> Any:
        full = f"llvm.masked.{name}.v{self.size}{_NAMES[str(element)]}.p0"
        kind = ir.FunctionType(result, [each.type for each in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, kind, full)
        return self.builder.call(function, arguments)

    def __getitem__(self, index: int) -> Lanes:
        """Read from an array; 0 beyond the end of the row."""
        place, element = self.arrays[index]
        kind = ir.VectorType(element, self.size)
        zero = ir.Constant(kind, [0.0] * self.size)
        align = ir.Constant(_NUMBER, 4)
        value = self._call("load", element, kind, [place, align, self.mask, zero])
        return self._wide(Lanes(self.builder, value))

    def __setitem__(self, index: int, value: Lanes) -> None:
        """Write to an array, within the row."""
        place, element = self.arrays[index]
        kind, made = ir.VectorType(element, self.size), value.value
        if made.type != kind:
            made = self.builder.fptrunc(made, kind)
        align = ir.Constant(_NUMBER, 4)
        self._call("store", element, ir.VoidType(), [made, place, align, self.mask])

    def _wide(self, lanes: Lanes) -> Lanes:
        if self.size == LANES or lanes.is_double:
            return lanes
        kind = ir.VectorType(ir.DoubleType(), self.size)
        return Lanes(self.builder, self.builder.fpext(lanes.value, kind))

    def add(self, value: Lanes) -> None:
        """Add to what the loop returns; where the row ends, values must be 0."""
        total = Lanes(self.builder, self.builder.load(self._sums[0]))
        self.builder.store((total + value).value, self._sums[0])

    def add_product(self, left: Lanes, right: Lanes) -> None:
        """Add a product."""
        total = Lanes(self.builder, self.builder.load(self._sums[0]))
        self.builder.store(left.times_plus(right, total).value, self._sums[0])

    def keep_largest(self, value: Lanes) -> None:
        """Keep the largest value, at least 0, for what the loop returns."""
        largest = Lanes(self.builder, self.builder.load(self._sums[0]))
        self.builder.store(value.larger(largest).value, self._sums[0])


def loop(
    arrays: int,
    scalars: int,
    body: Callable[[Row], None],
    double: bool = False,
    result: str = "",
) -> Any:
    """Make an intrinsic ``f(line, ..., scalar, ..., size)`` that does a thing to rows of numbers.

    Parameters
    ----------
    arrays, scalars
        How many lines, contiguous and one-dimensional, and how many numbers there are. float32
        and float64 may be mixed: what is read becomes what the loop works in, what is written what
        the line holds.
    body
        What is done to one register.
    double
        Work in float64, with half as many numbers in a register.
    result
        ``sum`` or ``max`` of what the body adds, float64; nothing without.
    """
    size = LANES // 2 if double else LANES
    element = ir.DoubleType() if double else ir.FloatType()
    vector = ir.VectorType(element, size)

    def definition(context: Any, *kinds: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            zero = ir.Constant(vector, [0.0] * size)
            row = Row(builder, size, [cgutils.alloca_once_value(builder, zero)])
            data = [
                context.make_array(kind)(context, builder, value).data
                for kind, value in zip(kinds[:arrays], arguments, strict=False)
            ]
            for value in arguments[arrays : arrays + scalars]:
                number = value
                if number.type != element:
                    cast = builder.fpext if double else builder.fptrunc
                    number = cast(number, element)
                row.scalars.append(Lanes(builder, fill(builder, number, size)))
            stop, step = arguments[-1], ir.Constant(_INDEX, size)
            lanes = ir.Constant(ir.VectorType(_INDEX, size), list(range(size)))
            with cgutils.for_range_slice(builder, ir.Constant(_INDEX, 0), stop, step, _INDEX) as (
                index,
                _,
            ):
                left = fill(builder, builder.sub(stop, index), size)
                row.mask = builder.icmp_signed("<", lanes, left)
                row.arrays = []
                for line in data:
                    kind = line.type.pointee
                    place = builder.bitcast(
                        builder.gep(line, [index]), ir.VectorType(kind, size).as_pointer()
                    )
                    row.arrays.append((place, kind))
                body(row)
            if not result:
                return context.get_dummy_value()
            return reduced(builder, builder.load(row._sums[0]), result, double)

        returned = types.float64 if result else types.void
        return returned(*kinds), generate

    names = ["context", *(f"a{index}" for index in range(arrays + scalars + 1))]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    definition.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind) for name in names]
    )
    return intrinsic(definition)


def reduced(builder: Any, vector: Any, result: str, double: bool) -> Any:
    """Sum or largest number of a register, as float64."""
    size = vector.type.count
    while size > 1:
        size //= 2
        order = ir.VectorType(_NUMBER, size)
        nothing = ir.Constant(vector.type, ir.Undefined)
        low = builder.shuffle_vector(vector, nothing, ir.Constant(order, list(range(size))))
        high = builder.shuffle_vector(
            vector, nothing, ir.Constant(order, list(range(size, 2 * size)))
        )
        if result == "sum":
            vector = builder.fadd(low, high)
        else:
            above = builder.fcmp_ordered(">", low, high)
            vector = builder.select(above, low, high)
    number = builder.extract_element(vector, ir.Constant(_NUMBER, 0))
    return number if double else builder.fpext(number, ir.DoubleType())
