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

# Not read-only, though inputs are never written to: numba finds the one exact match fastest.
_LINE, _SQUARE, _CUBE = (types.Array(types.float64, n, "C") for n in (1, 2, 3))
_FLAGS, _MASK, _LINKS = (types.Array(types.boolean, n, "C") for n in (1, 2, 3))
_REAL, _WHOLE = types.float64, types.int64

EXACT = frozenset({"contract"})
"""A product and a sum may become one instruction, which rounds once instead of twice."""

SUMS = frozenset({"contract", "reassoc"})
"""Sums may also be taken in another order, as BLAS does: a few rounding errors of 1e-16."""


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


# --------------------------------------------------------------------- exp, log and powers
# Written out because the compiler turns these into vector instructions; calls of the C library
# would take five times as long.


def _bits(context: Any, number: Any) -> Any:
    """Read a float64's 64 bits as an integer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.int64))

    return types.int64(types.float64), generate


def _float(context: Any, bits: Any) -> Any:
    """Read 64 bits as a float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.float64))

    return types.float64(types.int64), generate


_to_bits: Any = intrinsic(_bits)
_to_float: Any = intrinsic(_float)

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


@part()
def _log(values: Floats, out: Floats) -> None:
    """``log(values)``, floored. Loops that do nothing else are the ones that get vectorised."""
    for i in range(values.size):
        out[i] = log(max(values[i], TINY))


# ------------------------------------------------------------------------- sums


@part(SUMS)
def _sum(values: Floats) -> float:
    total = 0.0
    for i in range(values.size):
        total += values[i]
    return total


@part(SUMS)
def _inner(left: Floats, right: Floats) -> float:
    total = 0.0
    for i in range(left.size):
        total += left[i] * right[i]
    return total


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
        out[i] = _inner(matrix[i], vector)


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


@part()
def _median(values: Floats) -> float:
    """Median; 1 of none."""
    size = values.size
    if size == 0:
        return 1.0
    ordered = np.sort(values)
    return 0.5 * (ordered[(size - 1) // 2] + ordered[size // 2])  # type: ignore[no-any-return]


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
    steps, width = plan.shape
    _masses(plan, rows, columns)
    _squared_rows(distance, rows, of_steps)
    _squared_rows(structure, columns, of_nodes)  # D^R is symmetric
    np.dot(distance, plan, work)
    np.dot(work, structure, total)
    for i in range(steps):
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
    _log(u, before)
    turn, change = 0, 0.0
    while turn < iterations_max:
        turn += 1
        _rows(kernel, v, u)
        _fit(u, row_target, exponent)
        _columns(kernel, u, v)
        _fit(v, column_target, exponent)
        _log(u, now)
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
    plan, u : (K, t, M) and (K, t), or one row fewer
        A last row that is missing is taken for empty, its scaling for the median of the others.
    v ... tolerance
        As for :func:`ontrack.solver.kernels.iterate`, arrays and parameters one by one.
    frozen : (K,)
        References that are left as they are; nothing but plan, u and v is written for them.
    new_plan, new_u, new_v, total_cost, residual, moved
        Results, as in :class:`ontrack.solver.kernels.Iteration`. ``total_cost`` may have room for
        fewer rows than t: the last ones are written.

    Returns
    -------
    int
        Scaling iterations until the last reference stopped; -1, and no results, if a cost, distance
        or age is not finite.
    """
    count, old, width = plan.shape
    steps = len(mu)
    before, after, row_target = np.empty(steps), np.empty(steps), np.empty(steps)
    column_target, of_nodes = np.empty(width), np.empty(width)
    padded, kernel, total = (
        np.zeros((steps, width)),
        np.empty((steps, width)),
        np.empty((steps, width)),
    )
    wanted = steps - total_cost.shape[1]
    _power(mu, exponent, row_target)
    iterations = 0
    for k in range(count):
        padded[:old] = plan[k]
        new_u[k, :old] = u[k]
        if old < steps:
            new_u[k, old] = _median(u[k])
        new_v[k] = v[k]
        if frozen[k]:
            new_plan[k] = padded
            continue
        _linear_cost(
            distance,
            padded,
            structure[k],
            cost[k],
            age,
            theta,
            total,
            kernel,
            before,
            column_target,
            after,
            of_nodes,
        )
        if not math.isfinite(_gibbs(total, epsilon, kernel)):
            return -1
        total_cost[k] = total[wanted:]
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
        _blend(kernel, new_u[k], new_v[k], gamma, padded, new_plan[k])
        moved[k] = 0.0 if old < steps else _furthest(padded, new_plan[k])
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
    mass = _sum(mu)
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
            entropy += masses[i] * log(max(masses[i], TINY))
        quadratic = _inner(of_steps, rows) + _inner(of_nodes, columns) - 2.0 * crossed
        quadratic = 0.0 if quadratic < 0.0 else quadratic
        total = _sum(rows)
        gap = abs(total - mass) + abs(total - _sum(marginal[k]))
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


@entry(
    (_CUBE, _SQUARE, _SQUARE, _CUBE, _SQUARE, _LINE, _LINE, _SQUARE, _MASK, _LINKS, _CUBE)
    + (_REAL, _REAL, _REAL, _REAL, _REAL, _REAL, _REAL, _REAL, _WHOLE, _REAL)
    + (_SQUARE, _MASK, _MASK, _MASK, _CUBE, _SQUARE, _SQUARE, _CUBE, _LINE, _LINE)
)
def advance(
    plan: Floats,
    u: Floats,
    v: Floats,
    cost: Floats,
    distance: Floats,
    age: Floats,
    mu: Floats,
    nu: Floats,
    valid: Bools,
    parents: Bools,
    structure: Floats,
    kappa: float,
    ahead: float,
    dormant: float,
    theta: float,
    epsilon: float,
    exponent: float,
    gamma: float,
    lam: float,
    iterations_max: int,
    tolerance: float,
    marginal: Floats,
    satisfied: Bools,
    active: Bools,
    lookahead: Bools,
    new_plan: Floats,
    new_u: Floats,
    new_v: Floats,
    total_cost: Floats,
    residual: Floats,
    losses: Floats,
) -> int:
    """Do all of an event in one call, as :func:`ontrack.solver.streaming.advance`.

    Arguments and result are those of :func:`frontier`, :func:`iterate` and
    :func:`diagnostic_loss`.
    """
    count, old, width = plan.shape
    mass, rows = np.empty((count, width)), np.empty(old)
    for k in range(count):
        _masses(plan[k], rows, mass[k])
    frontier(
        mass, nu, valid, parents, kappa, ahead, dormant, marginal, satisfied, active, lookahead
    )
    iterations = iterate(
        plan,
        u,
        v,
        cost,
        distance,
        age,
        mu,
        marginal,
        structure,
        theta,
        epsilon,
        exponent,
        gamma,
        iterations_max,
        tolerance,
        np.zeros(count, dtype=np.bool_),
        new_plan,
        new_u,
        new_v,
        total_cost,
        residual,
        np.empty(count),
    )
    if iterations >= 0:
        diagnostic_loss(
            cost, distance, new_plan, mu, marginal, structure, theta, epsilon, lam, losses
        )
    return iterations
