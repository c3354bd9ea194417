"""Structure terms in the compiled step: what one event leaves over for the next one's gradient."""

from __future__ import annotations

import numpy as np

from ontrack.solver.arrays import Floats, Reals
from ontrack.solver.compiled_parts import part
from ontrack.solver.compiled_products import multiply, multiply_squared
from ontrack.solver.compiled_rows import add_four_rows, convert, row_others, row_total


@part()
def _masses(plan: Reals, size: int, rows: Floats, columns: Floats) -> None:
    """Row and column sums of a plan's first rows; columns in float64, many small numbers each."""
    width = plan.shape[1]
    columns[:] = 0.0
    whole = size - size % 4
    for i in range(0, whole, 4):
        add_four_rows(columns, plan[i], plan[i + 1], plan[i + 2], plan[i + 3], width)
    for i in range(whole, size):
        for j in range(width):
            columns[j] += np.float64(plan[i, j])
    for i in range(size):
        rows[i] = row_total(plan[i], width)


@part()
def structure_terms(
    distance: Reals,
    plan: Reals,
    structure: Reals,
    size: int,
    work: Reals,
    rows: Floats,
    narrow: Reals,
    cross: Reals,
    sides: Floats,
) -> None:
    """Write ``D^P T D^R`` of a plan's first rows, and what goes with it, for one reference.

    ``sides`` is, one after the other: ``(D^P)^2 p`` (size), ``(D^R)^2 q`` (M) and q (M), with the
    row sums p, left in ``rows``, and the column sums q. Called at the end of an event and, where
    nothing was carried over, at the beginning of the next one: the same code both times, so that
    the bits are the same. ``work`` (t, M) and ``narrow`` (2, t or M) are room to work in.
    """
    width = plan.shape[1]
    columns = sides[size + width :]
    _masses(plan, size, rows, columns)
    # Both matrices are symmetric, so that a product from the left does for one from the right.
    convert(rows, narrow[0], size)
    multiply_squared(narrow, distance, narrow, size)
    convert(narrow[1], sides, size)
    convert(columns, narrow[0], width)
    multiply_squared(narrow, structure, narrow, width)
    convert(narrow[1], sides[size:], width)
    multiply(distance, plan, work, 0, size, size)
    multiply(work, structure, cross, 0, size, width)


@part()
def unchanged(known: Reals, distance: Reals) -> bool:
    """Tell whether the distances of the old steps are those of before."""
    size, others = known.shape[0], 0.0
    for i in range(size):
        others += row_others(known[i], distance[i], size)
    return others == 0.0
