"""The compiled kernel in float64: iterations of the converged solve, losses and frontier alone.

Imported by :mod:`ontrack.solver.kernels` only, and only where it was chosen: importing it imports
numba and compiles every function, or loads it from numba's cache. Formulas, names and order of work
are those of ``objective``, ``scaling``, ``frontier``, ``streaming`` and ``converged``; tests hold
both paths together within 1e-12 (docs/decisions/0008-compiled-kernel.md).
"""

from __future__ import annotations

import math

import numpy as np
from numba import types

from ontrack.solver.arrays import TINY, Bools, Floats
from ontrack.solver.compiled_parts import SUMS, entry, exp, inner, log, logs, part, sum_of
from ontrack.solver.compiled_step import advance as advance

# Not read-only, though inputs are never written to: numba finds the one exact match fastest.
_LINE, _SQUARE, _CUBE = (types.Array(types.float64, n, "C") for n in (1, 2, 3))
_FLAGS, _MASK, _LINKS = (types.Array(types.boolean, n, "C") for n in (1, 2, 3))
_REAL, _WHOLE = types.float64, types.int64


@part()
def _power(masses: Floats, exponent: float, out: Floats) -> None:
    """``masses ** exponent``, 0 for a mass of 0."""
    for i in range(masses.size):
        power = exp(exponent * log(max(masses[i], TINY)))
        out[i] = power if masses[i] > 0.0 else 0.0


@part()
def _fit(product: Floats, target: Floats, exponent: float) -> None:
    """Turn kernel products into scalings, ``target product^-eta``, in place."""
    for i in range(product.size):
        product[i] = target[i] * exp(-exponent * log(max(product[i], TINY)))


# ------------------------------------------------------------------------- sums


@part(SUMS)
def _rows(matrix: Floats, vector: Floats, out: Floats) -> None:
    """``out = matrix vector``, four rows at a time: their sums do not wait for each other."""
    rows, width = matrix.shape
    whole = rows - rows % 4
    for i in range(0, whole, 4):
        a = b = c = d = 0.0
        for j in range(width):
            factor = vector[j]
            a += matrix[i, j] * factor
            b += matrix[i + 1, j] * factor
            c += matrix[i + 2, j] * factor
            d += matrix[i + 3, j] * factor
        out[i], out[i + 1], out[i + 2], out[i + 3] = a, b, c, d
    for i in range(whole, rows):
        out[i] = inner(matrix[i], vector)


@part(SUMS)
def _columns(matrix: Floats, vector: Floats, out: Floats) -> None:
    """``out = matrix^T vector``, four rows at a time: ``out`` is read and written less often."""
    rows, width = matrix.shape
    whole = rows - rows % 4
    out[:] = 0.0
    for i in range(0, whole, 4):
        a, b, c, d = vector[i], vector[i + 1], vector[i + 2], vector[i + 3]
        for j in range(width):
            near = a * matrix[i, j] + b * matrix[i + 1, j]
            out[j] += near + (c * matrix[i + 2, j] + d * matrix[i + 3, j])
    for i in range(whole, rows):
        factor = vector[i]
        for j in range(width):
            out[j] += factor * matrix[i, j]


@part(SUMS)
def _squared_rows(matrix: Floats, vector: Floats, out: Floats) -> None:
    """``out = (matrix * matrix) vector``."""
    for i in range(matrix.shape[0]):
        total = 0.0
        for j in range(matrix.shape[1]):
            total += matrix[i, j] * matrix[i, j] * vector[j]
        out[i] = total


@part(SUMS)
def _masses(plan: Floats, rows: Floats, columns: Floats) -> None:
    """Row and column sums of a plan."""
    columns[:] = 0.0
    for i in range(plan.shape[0]):
        total = 0.0
        for j in range(plan.shape[1]):
            total += plan[i, j]
            columns[j] += plan[i, j]
        rows[i] = total


# ------------------------------------------------------------------------- parts of a step


@part(SUMS)
def _linear_cost(
    distance: Floats,
    plan: Floats,
    structure: Floats,
    cost: Floats,
    age: Floats,
    theta: float,
    total: Floats,
    work: Floats,
    rows: Floats,
    columns: Floats,
    of_steps: Floats,
    of_nodes: Floats,
) -> None:
    """``linear_cost(cost, linearise(distance, plan))`` of one reference, into ``total``.

    The last five are room to work in.
    """
    active, width = cost.shape
    _masses(plan, rows, columns)
    _squared_rows(distance, rows, of_steps)
    _squared_rows(structure, columns, of_nodes)  # D^R is symmetric
    np.dot(distance, plan, work)
    np.dot(work, structure, total)
    for i in range(active):
        weight = theta * age[i]
        for j in range(width):
            gradient = of_steps[i] + of_nodes[j] - 2.0 * total[i, j]
            # Not max(): a NaN has to stay one.
            gradient = 0.0 if gradient < 0.0 else gradient
            total[i, j] = (1.0 - theta) * cost[i, j] + weight * gradient


@part(SUMS)
def _gibbs(total: Floats, epsilon: float, kernel: Floats) -> float:
    """Gibbs kernel of one reference; return the sum of its exponents, to be looked at."""
    costs, kernels = total.reshape(-1), kernel.reshape(-1)
    factor, checked = -1.0 / epsilon, 0.0
    for i in range(costs.size):
        exponent = costs[i] * factor
        checked += exponent
        kernels[i] = exp(exponent)
    return checked


@part()
def _scale(
    kernel: Floats,
    mu: Floats,
    row_target: Floats,
    column_target: Floats,
    u: Floats,
    v: Floats,
    exponent: float,
    iterations_max: int,
    tolerance: float,
    before: Floats,
    now: Floats,
) -> tuple[int, float]:
    """``scaling.scale`` of one reference, u and v in place; return iterations and residual.

    The last two are room to work in.
    """
    steps = u.size
    logs(u, before)
    turn, change = 0, 0.0
    while turn < iterations_max:
        turn += 1
        _rows(kernel, v, u)
        _fit(u, row_target, exponent)
        _columns(kernel, u, v)
        _fit(v, column_target, exponent)
        logs(u, now)
        change = 0.0
        for i in range(steps):
            if mu[i] > 0.0:
                change = max(change, abs(now[i] - before[i]))
        if change < tolerance:
            break
        before, now = now, before
    return turn, change


@part()
def _blend(kernel: Floats, u: Floats, v: Floats, gamma: float, old: Floats, plan: Floats) -> None:
    """Move the share gamma from the old plan to that of the scalings."""
    for i in range(plan.shape[0]):
        factor = gamma * u[i]
        for j in range(plan.shape[1]):
            # Row by row first: u_i v_j alone could overflow where K_ij is 0.
            plan[i, j] = kernel[i, j] * factor * v[j] + (1.0 - gamma) * old[i, j]


@part()
def _furthest(old: Floats, plan: Floats) -> float:
    """Largest change of an entry."""
    change = 0.0
    for i in range(plan.shape[0]):
        for j in range(plan.shape[1]):
            change = max(change, abs(plan[i, j] - old[i, j]))
    return change


# ------------------------------------------------------------------------- what is called
# Results are written to arrays of the caller: numba takes longer to hand over a new one than numpy
# takes to make it.


@entry(
    (
        _CUBE,
        _SQUARE,
        _SQUARE,
        _CUBE,
        _SQUARE,
        _LINE,
        _LINE,
        _SQUARE,
        _CUBE,
        _REAL,
        _REAL,
        _REAL,
        _REAL,
    )
    + (_WHOLE, _REAL, _FLAGS, _CUBE, _SQUARE, _SQUARE, _CUBE, _LINE, _LINE)
)
def iterate(
    plan: Floats,
    u: Floats,
    v: Floats,
    cost: Floats,
    distance: Floats,
    age: Floats,
    mu: Floats,
    marginal: Floats,
    structure: Floats,
    theta: float,
    epsilon: float,
    exponent: float,
    gamma: float,
    iterations_max: int,
    tolerance: float,
    frozen: Bools,
    new_plan: Floats,
    new_u: Floats,
    new_v: Floats,
    total_cost: Floats,
    residual: Floats,
    moved: Floats,
) -> int:
    """Take one conditional gradient iteration: linearise, scale, move the share gamma.

    Parameters
    ----------
    plan, u : (K, t, M) and (K, t)
    v ... tolerance
        As for :func:`ontrack.solver.kernels.iterate`, arrays and parameters one by one.
    frozen : (K,)
        References that are left as they are; nothing but plan, u and v is written for them.
    new_plan, new_u, new_v, total_cost, residual, moved
        Results, as in :class:`ontrack.solver.kernels.Iteration`.

    Returns
    -------
    int
        Scaling iterations until the last reference stopped; -1, and no results, if a cost, distance
        or age is not finite.
    """
    count, steps, width = plan.shape
    before, after, rows = np.empty(steps), np.empty(steps), np.empty(steps)
    of_steps, row_target = np.empty(steps), np.empty(steps)
    column_target, of_nodes = np.empty(width), np.empty(width)
    kernel, total = np.empty((steps, width)), np.empty((steps, width))
    _power(mu, exponent, row_target)
    iterations = 0
    for k in range(count):
        new_u[k] = u[k]
        new_v[k] = v[k]
        new_plan[k] = plan[k]
        if frozen[k]:
            continue
        _linear_cost(
            distance,
            plan[k],
            structure[k],
            cost[k],
            age,
            theta,
            total,
            kernel,
            rows,
            column_target,
            of_steps,
            of_nodes,
        )
        if not math.isfinite(_gibbs(total, epsilon, kernel)):
            return -1
        total_cost[k] = total
        _power(marginal[k], exponent, column_target)
        turns, residual[k] = _scale(
            kernel,
            mu,
            row_target,
            column_target,
            new_u[k],
            new_v[k],
            exponent,
            iterations_max,
            tolerance,
            before,
            after,
        )
        iterations = max(iterations, turns)
        _blend(kernel, new_u[k], new_v[k], gamma, plan[k], new_plan[k])
        moved[k] = _furthest(plan[k], new_plan[k])
    return iterations


@entry((_CUBE, _SQUARE, _CUBE, _LINE, _SQUARE, _CUBE, _REAL, _REAL, _REAL, _LINE), SUMS)
def diagnostic_loss(
    cost: Floats,
    distance: Floats,
    plan: Floats,
    mu: Floats,
    marginal: Floats,
    structure: Floats,
    theta: float,
    epsilon: float,
    lam: float,
    losses: Floats,
) -> None:
    """Write the losses (K,); shapes as for :func:`ontrack.solver.objective.diagnostic_loss`."""
    count, steps, width = plan.shape
    left, right = np.empty((steps, width)), np.empty((steps, width))
    lefts, rights = left.reshape(-1), right.reshape(-1)
    rows, columns = np.empty(steps), np.empty(width)
    of_steps, of_nodes = np.empty(steps), np.empty(width)
    mass = sum_of(mu)
    for k in range(count):
        _masses(plan[k], rows, columns)
        _squared_rows(distance, rows, of_steps)
        _squared_rows(structure[k], columns, of_nodes)  # D^R is symmetric
        np.dot(distance, plan[k], left)
        np.dot(plan[k], structure[k], right)
        linear = crossed = entropy = 0.0
        masses, costs = plan[k].reshape(-1), cost[k].reshape(-1)
        for i in range(masses.size):
            linear += costs[i] * masses[i]
            crossed += lefts[i] * rights[i]
        for i in range(masses.size):
            entropy += masses[i] * log(max(masses[i], TINY))
        quadratic = inner(of_steps, rows) + inner(of_nodes, columns) - 2.0 * crossed
        quadratic = 0.0 if quadratic < 0.0 else quadratic
        total = sum_of(rows)
        gap = abs(total - mass) + abs(total - sum_of(marginal[k]))
        losses[k] = (
            (1.0 - theta) * linear
            + theta / 2.0 * quadratic
            + epsilon * (entropy - total)
            + lam * gap
        )


@entry(
    (
        _SQUARE,
        _SQUARE,
        _MASK,
        _LINKS,
        _REAL,
        _REAL,
        _REAL,
        _SQUARE,
        _MASK,
        _MASK,
        _MASK,
    )
)
def frontier(
    column_mass: Floats,
    nu: Floats,
    valid: Bools,
    parents: Bools,
    kappa: float,
    ahead: float,
    dormant: float,
    marginal: Floats,
    satisfied: Bools,
    active: Bools,
    lookahead: Bools,
) -> None:
    """Write the mask; all as in :mod:`ontrack.solver.frontier`."""
    count, width = nu.shape
    for k in range(count):
        for j in range(width):
            satisfied[k, j] = valid[k, j] and column_mass[k, j] / nu[k, j] >= kappa
        for j in range(width):
            blocked = False
            for i in range(width):
                blocked |= parents[k, j, i] & (not satisfied[k, i])
            active[k, j] = valid[k, j] and not blocked
        for j in range(width):
            near = False
            for i in range(width):
                near |= parents[k, j, i] & active[k, i]
            lookahead[k, j] = near and not active[k, j]
            share = ahead if lookahead[k, j] else dormant
            full = active[k, j] or satisfied[k, j]
            marginal[k, j] = nu[k, j] if full else nu[k, j] * share
