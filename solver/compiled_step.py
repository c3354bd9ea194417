"""The compiled streaming step: all of an event in one call, matrices in float32.

Imported by :mod:`ontrack.solver.kernels` only. Plan, cost, distances, Gibbs kernel and the products
of matrices are float32; scalings, logarithms of masses, sums over rows and what is reported are
float64 (docs/decisions/0015-float32-step.md). What float32 cannot hold is refused, and the caller
takes numpy for that event.
"""

from __future__ import annotations

import numpy as np
from numba import types

from ontrack.solver.arrays import TINY, Bools, Floats, Ints, Reals
from ontrack.solver.compiled_lanes import Row, loop
from ontrack.solver.compiled_parts import SUMS, entry, inner, logs, median, part, sum_of
from ontrack.solver.compiled_products import multiply, multiply_squared

_LINE, _SQUARE, _CUBE = (types.Array(types.float64, n, "C") for n in (1, 2, 3))
_SQUARE32, _CUBE32, _PAIR32 = (types.Array(types.float32, n, "C") for n in (2, 3, 4))
_BITS, _FLAGS = types.Array(types.int64, 3, "C"), types.Array(types.boolean, 3, "C")

OUT_OF_RANGE = -1
"""What :func:`advance` returns instead of a number of iterations where it gives up."""

# Exponents that float32 holds as normal numbers, and scalings whose products with them it holds.
_LOWEST, _HIGHEST, _LARGEST = -80.0, 25.0, 1e25
_TOO_HIGH = 1e9
_LARGEST_PAIR = 1e22
"""Of u times v: what is left out of a plan where a kernel of e^-80 counts as 0 is below 1e-12."""

_SMALLEST = 2.0**-126
"""The smallest normal float32: what is under a float32 logarithm is no less."""

_BLOCK = 1024
"""Numbers that are added up in float32 before the sum goes to a float64."""

# ------------------------------------------------------------------------- what is done to a row


def _add_up(row: Row) -> None:
    row.add(row[0])


def _add_products(row: Row) -> None:
    row.add_product(row[0], row[1])


def _add_entropy(row: Row) -> None:
    masses = row[0]
    row.add_product(masses, masses.at_least(_SMALLEST).log())


def _add_rows(row: Row) -> None:
    row[0] = row[0] + ((row[1] + row[2]) + (row[3] + row[4]))


def _count_others(row: Row) -> None:
    row.add(row[0].differs(row[1]))


def _price_row(row: Row) -> None:
    """Exponents ``-M / epsilon`` of cost, cross term and nodes' term; a NaN stays one."""
    of_steps, weight, linear, factor = row.scalars
    gradient = row[1].times_plus(-2.0, row[2] + of_steps).at_least(0.0)
    row[3] = (row[0] * linear + gradient * weight) * factor


def _exponentiate(row: Row) -> None:
    """Gibbs kernel in place; counts exponents that are too low, and far more for one too high."""
    exponents = row[0]
    low = exponents.outside(_LOWEST, np.inf)
    row.add(exponents.outside(-np.inf, _HIGHEST) * _TOO_HIGH + low)
    row[0] = exponents.exp().if_positive(exponents - _LOWEST)


def _fit_row(row: Row) -> None:
    """Row scalings from products with the kernel; the largest change of log u.

    Arrays: products, their logarithms, the same one iteration before, log mu, mu, u, u in float32.
    """
    (eta,) = row.scalars
    products, log_mu, mu = row[0].at_least(TINY).log(), row[3], row[4]
    change = (products - row[2]).magnitude() * eta
    u = ((log_mu - products) * eta).at_least(-700.0).at_most(700.0).exp().if_positive(mu)
    row[1], row[5], row[6] = products, u, u
    row.keep_largest(change.if_positive(mu).unless_above(u, _LARGEST))


def _fit_column(row: Row) -> None:
    """Column scalings; arrays: products, then v, in float32, log nu, nu, v."""
    (eta,) = row.scalars
    products = row[0].at_least(TINY).log()
    v = ((row[1] - products) * eta).at_least(-700.0).at_most(700.0).exp().if_positive(row[2])
    row[0], row[3] = v, v
    row.keep_largest(v)


def _blend_row(row: Row) -> None:
    """Arrays: kernel, v, old row, new row. Kernel first: u_i v_j alone could overflow."""
    factor, kept = row.scalars
    row[3] = (row[0] * factor * row[1]) + row[2] * kept


def _convert_row(row: Row) -> None:
    row[1] = row[0]


_total, _product = loop(1, 0, _add_up, result="sum"), loop(2, 0, _add_products, result="sum")
_others, _entropy = loop(2, 0, _count_others, result="sum"), loop(1, 0, _add_entropy, result="sum")
_four_rows = loop(5, 0, _add_rows, double=True)
_price, _exponentials = loop(4, 4, _price_row), loop(1, 0, _exponentiate, result="sum")
_fit_rows = loop(7, 1, _fit_row, double=True, result="max")
_fit_columns = loop(4, 1, _fit_column, double=True, result="max")
_blend, _convert = loop(4, 2, _blend_row), loop(2, 0, _convert_row, double=True)

# ------------------------------------------------------------------------- structure terms


@part()
def _masses(plan: Reals, size: int, rows: Floats, columns: Floats) -> None:
    """Row and column sums of a plan's first rows; columns in float64, many small numbers each."""
    width = plan.shape[1]
    columns[:] = 0.0
    whole = size - size % 4
    for i in range(0, whole, 4):
        _four_rows(columns, plan[i], plan[i + 1], plan[i + 2], plan[i + 3], width)
    for i in range(whole, size):
        for j in range(width):
            columns[j] += np.float64(plan[i, j])
    for i in range(size):
        rows[i] = _total(plan[i], width)


@part()
def _structure_terms(
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
    _convert(rows, narrow[0], size)
    multiply_squared(narrow, distance, narrow, size)
    _convert(narrow[1], sides, size)
    _convert(columns, narrow[0], width)
    multiply_squared(narrow, structure, narrow, width)
    _convert(narrow[1], sides[size:], width)
    multiply(distance, plan, work, 0, size, size)
    multiply(work, structure, cross, 0, size, width)


@part()
def _unchanged(known: Reals, distance: Reals) -> bool:
    """Tell whether the distances of the old steps are those of before."""
    size, others = known.shape[0], 0.0
    for i in range(size):
        others += _others(known[i], distance[i], size)
    return others == 0.0


# ------------------------------------------------------------------------- frontier


@part()
def _cover(columns: Floats, nu: Floats, kappa: float, words: Ints, satisfied: Bools) -> None:
    """Satisfied nodes, as flags and as bits in the first row of ``words``."""
    words[:] = 0
    for j in range(nu.size):
        satisfied[j] = nu[j] > 0.0 and columns[j] / nu[j] >= kappa
        words[0, j >> 6] |= np.int64(satisfied[j]) << (j & 63)


@part()
def _activate(nu: Floats, links: Ints, words: Ints, active: Bools) -> None:
    """Active nodes, as flags and as bits in the second row of ``words``."""
    for j in range(nu.size):
        missing = np.int64(0)
        for word in range(links.shape[1]):
            missing |= links[j, word] & ~words[0, word]
        active[j] = nu[j] > 0.0 and missing == 0
        words[1, j >> 6] |= np.int64(active[j]) << (j & 63)


@part()
def _mask(
    nu: Floats,
    links: Ints,
    words: Ints,
    satisfied: Bools,
    active: Bools,
    ahead: float,
    dormant: float,
    lookahead: Bools,
    marginal: Floats,
) -> None:
    """Nodes one step ahead, and nu-hat."""
    for j in range(nu.size):
        near = np.int64(0)
        for word in range(links.shape[1]):
            near |= links[j, word] & words[1, word]
        lookahead[j] = near != 0 and not active[j]
        share = ahead if lookahead[j] else dormant
        marginal[j] = nu[j] * (1.0 if active[j] or satisfied[j] else share)


# ------------------------------------------------------------------------- one iteration


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
def _scale(
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
    _convert(v, narrow_v[0], width)
    turn, change, now = 0, 0.0, 1
    while turn < iterations_max:
        turn += 1
        after, before = of_steps[now], of_steps[1 - now]
        _rows(kernel, narrow_v[0], products)
        change = _fit_rows(products, after, before, log_mu, mu, u, narrow_u[0], eta, newest + 1)
        if turn == 1 and mu[newest] > 0.0 and (change < tolerance or iterations_max == 1):
            begun = np.log(max(median(old_u), TINY))
            change = max(change, abs(eta * (log_mu[newest] - after[newest]) - begun))
        multiply(narrow_u, kernel, narrow_v, 0, 1, newest + 1)
        largest = _fit_columns(narrow_v[0], log_nodes, marginal, v, eta, width)
        if largest > _LARGEST:
            return turn, np.inf
        if change < tolerance or change == np.inf:
            break
        now = 1 - now
    return turn, change


@part()
def _report(
    numbers: Floats,
    mass: float,
    mu: Floats,
    nu: Floats,
    cost: Reals,
    rows: Floats,
    plan: Reals,
    cross: Reals,
    sides: Floats,
    told: Floats,
) -> None:
    """Write loss, coverage, what the newest row matched, and leakages of one reference."""
    steps, width = plan.shape
    theta, epsilon, lam = numbers[2], numbers[3], numbers[6]
    costs, masses, crosses = cost.reshape(-1), plan.reshape(-1), cross.reshape(-1)
    linear = crossed = entropy = 0.0
    for start in range(0, masses.size, _BLOCK):
        size = min(_BLOCK, masses.size - start)
        linear += _product(costs[start:], masses[start:], size)
        crossed += _product(crosses[start:], masses[start:], size)
        entropy += _entropy(masses[start:], size)
    columns = sides[steps + width :]
    quadratic = inner(sides[:steps], rows) - 2.0 * crossed
    quadratic += inner(sides[steps : steps + width], columns)
    quadratic = 0.0 if quadratic < 0.0 else quadratic
    total = sum_of(rows)
    gap = abs(total - mass) + abs(total - sum_of(told[:width]))
    loss = (1.0 - theta) * linear + theta / 2.0 * quadratic + epsilon * (entropy - total)
    covered = wanted = 0.0
    for j in range(width):
        covered += min(columns[j], nu[j])
        wanted += nu[j]
    figures = told[2 * width : 2 * width + 6]
    figures[0] = loss + lam * gap
    figures[2] = min(max(covered / wanted, 0.0), 1.0)
    figures[3] = rows[steps - 1]
    figures[4] = figures[5] = 0.0
    for j in range(width):
        figures[4] += plan[steps - 1, j] * told[width + j]
        figures[5] += plan[steps - 1, j] * cost[steps - 1, j]
    leakages = told[2 * width + 6 :]
    for i in range(steps):
        leakage = 1.0 - rows[i] / mu[i] if mu[i] > 0.0 else 0.0
        leakages[i] = min(max(leakage, 0.0), 1.0)


# ------------------------------------------------------------------------- what is called


@entry(
    (_LINE, types.float64, _CUBE32, _BITS)
    + (_PAIR32, _SQUARE, _SQUARE32)
    + (_CUBE32, _SQUARE32, _LINE, _LINE)
    + (_PAIR32, _SQUARE, _FLAGS)
)
def advance(
    numbers: Floats,
    ahead: float,
    structure: Reals,
    links: Ints,
    kept: Reals,
    before: Floats,
    known: Reals,
    cost: Reals,
    distance: Reals,
    age: Floats,
    mu: Floats,
    new_kept: Reals,
    after: Floats,
    flags: Bools,
) -> int:
    """Do all of an event, as :func:`ontrack.solver.streaming.advance`; t steps with the new one.

    Parameters
    ----------
    numbers
        kappa, dormant weight, theta, epsilon, eta, gamma, lambda, iterations, tolerance; nu of all
        references (K M).
    ahead
        Share of nu ahead of the frontier.
    structure, links : (K, M, M), (K, M, words)
        References: distances, parents as bits.
    kept, before : (2, K, t - 1, M), (K, ...)
        Plan before and cross term, or the plan alone. A row of ``before`` begins like one of
        ``after``: with u and v; the other structure terms follow where the cross term is there.
    known : (t - 1, t - 1)
        Distances that the structure terms belong to.
    cost, distance, age, mu : (K, t, M), (t, t), (t,), (t,)
    new_kept, after : (2, K, t, M), (K, 3 t + 5 M + 6)
        Results: plan and cross term after, and what :class:`ontrack.solver.reading.Reading` says.
    flags : (5, K, M)
        Result: satisfied, active, lookahead before the event, satisfied and active after it.

    Returns
    -------
    int
        Scaling iterations until the last reference stopped; or :data:`OUT_OF_RANGE`, and no
        results, where float32 does not hold the numbers, or something is not finite.
    """
    count, old, width = kept.shape[1:]
    steps = old + 1
    plan, new_plan, new_cross = kept[0], new_kept[0], new_kept[1]
    cross = kept[kept.shape[0] - 1]
    nu = numbers[9:].reshape(count, width)
    kappa, dormant, theta, epsilon, eta = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    gamma, iterations_max, tolerance = numbers[5], int(numbers[7]), numbers[8]
    work = np.empty((steps, width), np.float32)
    kernel = np.empty((steps, width), np.float32)
    narrow_u, narrow_v = np.empty((1, steps), np.float32), np.empty((1, width), np.float32)
    narrow = np.empty((2, max(steps, width)), np.float32)
    rows, log_mu = np.empty(steps), np.empty(steps)
    of_steps, log_nodes = np.empty((3, steps)), np.empty(width)
    words = np.empty((2, links.shape[2]), np.int64)
    carried = kept.shape[0] == 2 and old > 0 and _unchanged(known, distance)
    own = 0 if carried else old
    own_cross, own_sides = np.empty((own, width), np.float32), np.empty(own + 2 * width)
    linear, factor, rest = 1.0 - theta, -1.0 / epsilon, 1.0 - gamma
    logs(mu, log_mu)
    mass, iterations = sum_of(mu), 0
    if not np.isfinite(sum_of(distance[old])):
        return OUT_OF_RANGE
    for k in range(count):
        now_cross, now_sides = own_cross, own_sides
        u, v = before[k, :old], before[k, old : old + width]
        new_u, new_v = after[k, :steps], after[k, steps : steps + width]
        new_sides = after[k, steps + width : 2 * steps + 3 * width]
        told = after[k, 2 * steps + 3 * width :]
        newest = told[width : 2 * width]
        if carried:
            now_cross, now_sides = cross[k], before[k, old + width :]
        else:
            _structure_terms(
                distance, plan[k], structure[k], old, work, rows, narrow, own_cross, own_sides
            )
        marginal, columns = told[:width], now_sides[old + width :]
        _cover(columns, nu[k], kappa, words, flags[0, k])
        _activate(nu[k], links[k], words, flags[1, k])
        _mask(
            nu[k],
            links[k],
            words,
            flags[0, k],
            flags[1, k],
            ahead,
            dormant,
            flags[2, k],
            marginal,
        )
        _convert(now_sides[old : old + width], narrow[0], width)
        for i in range(old):
            _price(
                cost[k, i],
                now_cross[i],
                narrow[0],
                kernel[i],
                now_sides[i],
                theta * age[i],
                linear,
                factor,
                width,
            )
        new_cross[k, old] = np.float32(0.0)
        newest_side = 0.0
        if theta * age[old] != 0.0:  # 0 as a rule: a step ages after its own event
            for j in range(old):
                rows[j] = _total(plan[k, j], width)
                newest_side += distance[old, j] * distance[old, j] * rows[j]
            multiply(distance, plan[k], work, old, steps, old)
            multiply(work, structure[k], new_cross[k], old, steps, width)
        _price(
            cost[k, old],
            new_cross[k, old],
            narrow[0],
            kernel[old],
            newest_side,
            theta * age[old],
            linear,
            factor,
            width,
        )
        for j in range(width):
            newest[j] = kernel[old, j] * -epsilon
        exponents = kernel.reshape(-1)
        low = _exponentials(exponents, exponents.size)
        if not low < _TOO_HIGH:
            return OUT_OF_RANGE
        new_v[:] = v
        turns, residual = _scale(
            kernel,
            mu,
            log_mu,
            marginal,
            u,
            new_u,
            new_v,
            eta,
            iterations_max,
            tolerance,
            of_steps,
            log_nodes,
            narrow_u,
            narrow_v,
        )
        if residual == np.inf or (low > 0.0 and new_u.max() * new_v.max() > _LARGEST_PAIR):
            return OUT_OF_RANGE
        told[2 * width + 1] = residual
        iterations = max(iterations, turns)
        for i in range(old):
            share = gamma * new_u[i]
            _blend(kernel[i], narrow_v[0], plan[k, i], new_plan[k, i], share, rest, width)
        share, last = gamma * new_u[old], kernel[old]
        _blend(last, narrow_v[0], last, new_plan[k, old], share, 0.0, width)
        _structure_terms(
            distance,
            new_plan[k],
            structure[k],
            steps,
            work,
            rows,
            narrow,
            new_cross[k],
            new_sides,
        )
        _report(
            numbers,
            mass,
            mu,
            nu[k],
            cost[k],
            rows,
            new_plan[k],
            new_cross[k],
            new_sides,
            told,
        )
        columns = new_sides[steps + width :]
        _cover(columns, nu[k], kappa, words, flags[3, k])
        _activate(nu[k], links[k], words, flags[4, k])
    return iterations
