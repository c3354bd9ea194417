"""Scaling iterations of the compiled step: float32 products, float64 logarithms and scalings."""

from __future__ import annotations

import numpy as np

from ontrack.solver.arrays import TINY, Floats, Reals
from ontrack.solver.compiled_parts import SUMS, logs, median, part
from ontrack.solver.compiled_products import multiply
from ontrack.solver.compiled_rows import LARGEST, convert, fit_columns, fit_rows


@part(SUMS)
def _rows(matrix: Reals, vector: Reals, out: Floats) -> None:
    """``out = matrix vector``, four rows at a time: their sums do not wait for each other."""
    rows, width = matrix.shape
    whole = rows - rows % 4
    for i in range(0, whole, 4):
        a = b = c = d = np.float32(0.0)
        for j in range(width):
            factor = vector[j]
            a += matrix[i, j] * factor
            b += matrix[i + 1, j] * factor
            c += matrix[i + 2, j] * factor
            d += matrix[i + 3, j] * factor
        out[i], out[i + 1], out[i + 2], out[i + 3] = a, b, c, d
    for i in range(whole, rows):
        a = np.float32(0.0)
        for j in range(width):
            a += matrix[i, j] * vector[j]
        out[i] = a


@part()
def scale(
    kernel: Reals,
    mu: Floats,
    log_mu: Floats,
    marginal: Floats,
    old_u: Floats,
    u: Floats,
    v: Floats,
    eta: float,
    iterations_max: int,
    tolerance: float,
    of_steps: Floats,
    log_nodes: Floats,
    narrow_u: Reals,
    narrow_v: Reals,
) -> tuple[int, float]:
    """``scaling.scale`` of one reference, v in place; return iterations and residual.

    The new step's first u is the median of the others. Finding it takes long, and it is wanted only
    where the first iteration is the last one. The residual is infinite where float32 does not hold
    the scalings. ``of_steps`` (3, t), ``log_nodes`` (M), ``narrow_u`` (1, t) and ``narrow_v``
    (1, M), the scalings in float32, are room to work in.
    """
    newest, width = u.size - 1, v.size
    logs(marginal, log_nodes)
    start, products = of_steps[0], of_steps[2]
    logs(old_u, start)
    for i in range(newest):  # as if u had come from an iteration: its product's logarithm
        start[i] = log_mu[i] - start[i] / eta
    start[newest] = np.nan
    convert(v, narrow_v[0], width)
    turn, change, now = 0, 0.0, 1
    while turn < iterations_max:
        turn += 1
        after, before = of_steps[now], of_steps[1 - now]
        _rows(kernel, narrow_v[0], products)
        change = fit_rows(products, after, before, log_mu, mu, u, narrow_u[0], eta, newest + 1)
        if turn == 1 and mu[newest] > 0.0 and (change < tolerance or iterations_max == 1):
            begun = np.log(max(median(old_u), TINY))
            change = max(change, abs(eta * (log_mu[newest] - after[newest]) - begun))
        multiply(narrow_u, kernel, narrow_v, 0, 1, newest + 1)
        largest = fit_columns(narrow_v[0], log_nodes, marginal, v, eta, width)
        if largest > LARGEST:
            return turn, np.inf
        if change < tolerance or change == np.inf:
            break
        now = 1 - now
    return turn, change
