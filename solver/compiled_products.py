"""Products of small float32 matrices for the compiled step, as vector instructions.

BLAS packs its operands first, which takes longer than multiplying matrices of this size, and its
code has left the caches by the next event. Here every element is one chain of additions in the
order of the inner index, whatever the shapes around it, so equal operands give equal bits.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from ontrack.solver.arrays import Reals
from ontrack.solver.compiled_lanes import LANES, Lanes, cgutils, fill
from ontrack.solver.compiled_parts import part

ROWS = 8 if LANES == 16 else 4
"""Rows of a tile: as many sums as stay in registers, three a row."""

_TWO, _THREE = 2 * LANES, 3 * LANES

_FLOAT, _INDEX, _NUMBER = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VECTOR, _MASK = ir.VectorType(_FLOAT, LANES), ir.VectorType(ir.IntType(1), LANES)


class _Columns:
    """Reads and writes a tile's columns of one row; those beyond the matrix are left alone."""

    def __init__(self, builder: Any, vectors: int, width: Any) -> None:
        self.builder, self.vectors = builder, vectors
        self.zero = ir.Constant(_VECTOR, [0.0] * LANES)
        self._align = ir.Constant(_NUMBER, 4)
        lanes = ir.Constant(ir.VectorType(_INDEX, LANES), list(range(LANES)))
        left = builder.sub(width, ir.Constant(_INDEX, LANES * (vectors - 1)))
        self._mask = builder.icmp_signed("<", lanes, fill(builder, left, LANES))
        pointer = _VECTOR.as_pointer()
        self._load = self._named("load", _VECTOR, [pointer, _NUMBER, _MASK, _VECTOR])
        self._store = self._named("store", ir.VoidType(), [_VECTOR, pointer, _NUMBER, _MASK])

    def _named(self, name: str, result: Any, arguments: list[Any]) -> Any:
        kind, full = ir.FunctionType(result, arguments), f"llvm.masked.{name}.v{LANES}f32.p0"
        return cgutils.get_or_insert_function(self.builder.module, kind, full)

    def _at(self, data: Any, start: Any, vector: int) -> Any:
        place = self.builder.add(start, ir.Constant(_INDEX, vector * LANES))
        return self.builder.bitcast(self.builder.gep(data, [place]), _VECTOR.as_pointer())

    def read(self, data: Any, start: Any) -> list[Any]:
        places = [self._at(data, start, vector) for vector in range(self.vectors)]
        whole = [self.builder.load(place, align=4) for place in places[:-1]]
        rest = [places[-1], self._align, self._mask, self.zero]
        return [*whole, self.builder.call(self._load, rest)]

    def write(self, data: Any, start: Any, values: list[Any]) -> None:
        places = [self._at(data, start, vector) for vector in range(self.vectors)]
        for value, place in zip(values[:-1], places, strict=False):
            self.builder.store(value, place, align=4)
        self.builder.call(self._store, [values[-1], places[-1], self._align, self._mask])


def _tile(rows: int, vectors: int, squared: bool = False) -> Any:
    """Make ``tile(a, row, b, column, width, out, depth)``: some rows and columns of ``out = a b``.

    ``squared``: of ``out = a (b * b)``, and row r of a gives row r + 1 of out.
    ``width`` is what is left of the columns, at most ``vectors * LANES`` and more than one vector
    fewer. Only the first ``depth`` columns of a and rows of b take part.
    """

    def tile(
        context: Any, a: Any, row: Any, b: Any, column: Any, width: Any, out: Any, depth: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            left, row, right, column, width, out, depth = arguments
            kinds = signature.args
            left = context.make_array(kinds[0])(context, builder, left)
            right = context.make_array(kinds[2])(context, builder, right)
            out = context.make_array(kinds[5])(context, builder, out)
            stride = cgutils.unpack_tuple(builder, left.shape)[1]
            line = cgutils.unpack_tuple(builder, right.shape)[1]
            columns = _Columns(builder, vectors, width)
            one = [ir.Constant(_INDEX, index) for index in range(rows)]
            sums = [
                [cgutils.alloca_once_value(builder, columns.zero) for _ in range(vectors)]
                for _ in range(rows)
            ]
            with cgutils.for_range(builder, depth) as loop:
                start = builder.add(builder.mul(loop.index, line), column)
                factors = columns.read(right.data, start)
                if squared:
                    factors = [builder.fmul(factor, factor) for factor in factors]
                for index in range(rows):
                    place = builder.mul(builder.add(row, one[index]), stride)
                    place = builder.gep(left.data, [builder.add(place, loop.index)])
                    factor = Lanes(builder, fill(builder, builder.load(place), LANES))
                    for target, other in zip(sums[index], factors, strict=True):
                        before = Lanes(builder, builder.load(target))
                        added = factor.times_plus(Lanes(builder, other), before)
                        builder.store(added.value, target)
            target_line = cgutils.unpack_tuple(builder, out.shape)[1]
            for index in range(rows):
                target = builder.add(row, ir.Constant(_INDEX, index + squared))
                start = builder.add(builder.mul(target, target_line), column)
                columns.write(out.data, start, [builder.load(each) for each in sums[index]])
            return context.get_dummy_value()

        return types.void(a, row, b, column, width, out, depth), generate

    return intrinsic(tile)


_one3, _one2, _one1 = _tile(1, 3), _tile(1, 2), _tile(1, 1)
_many3, _many2, _many1 = _tile(ROWS, 3), _tile(ROWS, 2), _tile(ROWS, 1)


@part()
def multiply(a: Reals, b: Reals, out: Reals, first: int, rows: int, depth: int) -> None:
    """Write rows ``first`` to ``rows`` of ``out = a[:, :depth] b[:depth]``; b and out as wide."""
    width = b.shape[1]
    whole = first + (rows - first) // ROWS * ROWS
    for column in range(0, width, _THREE):
        left = min(width - column, _THREE)
        if left > _TWO:
            for i in range(first, whole, ROWS):
                _many3(a, i, b, column, left, out, depth)
            for i in range(whole, rows):
                _one3(a, i, b, column, left, out, depth)
        elif left > LANES:
            for i in range(first, whole, ROWS):
                _many2(a, i, b, column, left, out, depth)
            for i in range(whole, rows):
                _one2(a, i, b, column, left, out, depth)
        else:
            for i in range(first, whole, ROWS):
                _many1(a, i, b, column, left, out, depth)
            for i in range(whole, rows):
                _one1(a, i, b, column, left, out, depth)


_squared3, _squared2, _squared1 = _tile(1, 3, True), _tile(1, 2, True), _tile(1, 1, True)


@part()
def multiply_squared(a: Reals, b: Reals, out: Reals, size: int) -> None:
    """Write the second row of ``out``: first row of a, times the squared elements of b, (size,)."""
    for column in range(0, size, _THREE):
        left = min(size - column, _THREE)
        if left > _TWO:
            _squared3(a, 0, b, column, left, out, size)
        elif left > LANES:
            _squared2(a, 0, b, column, left, out, size)
        else:
            _squared1(a, 0, b, column, left, out, size)
