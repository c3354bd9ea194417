"""The compiled streaming step: all of an event in one call, matrices in float32.

Imported by :mod:`ontrack.solver.kernels` only. Plan, cost, distances, Gibbs kernel and the products
of matrices are float32; scalings, logarithms of masses, sums over rows and what is reported are
float64 (docs/decisions/0015-float32-step.md). What float32 cannot hold is refused, and the caller
takes numpy for that event.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.np.numpy_support import carray

from ontrack.solver.arrays import Floats, Reals
from ontrack.solver.compiled_arguments import Data, direct
from ontrack.solver.compiled_frontier import activate, cover, mask
from ontrack.solver.compiled_parts import entry, inner, logs, part, sum_of
from ontrack.solver.compiled_products import multiply
from ontrack.solver.compiled_rows import (
    TOO_HIGH,
    blend,
    convert,
    exponentials,
    price,
    row_entropy,
    row_product,
    row_total,
)
from ontrack.solver.compiled_scaling import scale
from ontrack.solver.compiled_terms import structure_terms, unchanged
from ontrack.solver.problem import FIGURES

_DOUBLES, _SINGLES = Data(np.float64), Data(np.float32)
_WHOLE, _TRUTHS = Data(np.int64), Data(np.bool_)

OUT_OF_RANGE = -1
"""What :func:`advance` returns instead of a number of iterations where it gives up."""

_LARGEST_PAIR = 1e22
"""Of u times v: what is left out of a plan where a kernel of e^-80 counts as 0 is below 1e-12."""

_BLOCK = 1024
"""Numbers that are added up in float32 before the sum goes to a float64."""


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
    figures: Floats,
) -> None:
    """Write loss, coverage, what the newest row matched, and leakages of one reference."""
    steps, width = plan.shape
    theta, epsilon, lam = numbers[2], numbers[3], numbers[6]
    costs, masses, crosses = cost.reshape(-1), plan.reshape(-1), cross.reshape(-1)
    linear = crossed = entropy = 0.0
    for start in range(0, masses.size, _BLOCK):
        size = min(_BLOCK, masses.size - start)
        linear += row_product(costs[start:], masses[start:], size)
        crossed += row_product(crosses[start:], masses[start:], size)
        entropy += row_entropy(masses[start:], size)
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
    figures[0] = loss + lam * gap
    figures[2] = min(max(covered / wanted, 0.0), 1.0)
    figures[3] = rows[steps - 1]
    figures[4] = figures[5] = 0.0
    for j in range(width):
        figures[4] += plan[steps - 1, j] * told[width + j]
        figures[5] += plan[steps - 1, j] * cost[steps - 1, j]
    leakages = told[2 * width :]
    for i in range(steps):
        leakage = 1.0 - rows[i] / mu[i] if mu[i] > 0.0 else 0.0
        leakages[i] = min(max(leakage, 0.0), 1.0)


@entry(
    (_DOUBLES, types.float64, types.int64, _SINGLES, _WHOLE)
    + (_SINGLES, _DOUBLES, _SINGLES)
    + (_SINGLES, _SINGLES, _DOUBLES, _DOUBLES)
    + (_SINGLES, _DOUBLES, _TRUTHS)
)
def advance_at(
    given: Any,
    ahead: float,
    old: int,
    structures: Any,
    parents: Any,
    kept_before: Any,
    numbers_before: Any,
    known_before: Any,
    costs: Any,
    distances: Any,
    ages: Any,
    masses: Any,
    kept_after: Any,
    numbers_after: Any,
    flags_after: Any,
) -> int:
    """Do all of an event, as :func:`ontrack.solver.streaming.advance`; t steps with the new one.

    Called as :data:`advance`, with contiguous arrays; shapes are not looked at.

    Parameters
    ----------
    given
        kappa, dormant weight, theta, epsilon, eta, gamma, lambda, iterations, tolerance, K, M; nu
        of all references (K M).
    ahead
        Share of nu ahead of the frontier.
    old
        t - 1.
    structures, parents : (K, M, M), (K, M, words)
        References: distances, parents as bits.
    kept_before, numbers_before : (2, K, t - 1, M), (K, 3 (t - 1) + 5 M + 6)
        The same as the results of the event before.
    known_before : (t - 1, t - 1)
        Distances that their structure terms belong to; where others are given now, the terms are
        computed anew.
    costs, distances, ages, masses : (K, t, M), (t, t), (t,), (t,)
    kept_after, numbers_after : (2, K, t, M), (K, 3 t + 5 M + 6)
        Results: plan and cross term after, and what :class:`ontrack.solver.reading.Reading` says.
    flags_after : (5, K, M)
        Result: satisfied, active, lookahead before the event, satisfied and active after it.

    Returns
    -------
    int
        Scaling iterations until the last reference stopped; or :data:`OUT_OF_RANGE`, and no
        results, where float32 does not hold the numbers, or something is not finite.
    """
    settings = carray(given, 11)
    count, width = int(settings[9]), int(settings[10])
    numbers, steps = carray(given, 11 + count * width), old + 1
    structure = carray(structures, (count, width, width))
    links = carray(parents, (count, width, (width + 63) // 64))
    kept = carray(kept_before, (2, count, old, width))
    before = carray(numbers_before, (count, FIGURES + 3 * old + 5 * width))
    known = carray(known_before, (old, old))
    cost, distance = carray(costs, (count, steps, width)), carray(distances, (steps, steps))
    age, mu = carray(ages, steps), carray(masses, steps)
    new_kept = carray(kept_after, (2, count, steps, width))
    after = carray(numbers_after, (count, FIGURES + 3 * steps + 5 * width))
    flags = carray(flags_after, (5, count, width))
    plan, cross, new_plan, new_cross = kept[0], kept[1], new_kept[0], new_kept[1]
    nu = numbers[11:].reshape(count, width)
    kappa, dormant, theta, epsilon, eta = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    gamma, iterations_max, tolerance = numbers[5], int(numbers[7]), numbers[8]
    work = np.empty((steps, width), np.float32)
    kernel = np.empty((steps, width), np.float32)
    narrow_u, narrow_v = np.empty((1, steps), np.float32), np.empty((1, width), np.float32)
    narrow = np.empty((2, max(steps, width)), np.float32)
    rows, log_mu = np.empty(steps), np.empty(steps)
    of_steps, log_nodes = np.empty((3, steps)), np.empty(width)
    words = np.empty((2, links.shape[2]), np.int64)
    carried = old > 0 and unchanged(known, distance)
    own = 0 if carried else old
    own_cross, own_sides = np.empty((own, width), np.float32), np.empty(own + 2 * width)
    linear, factor, rest = 1.0 - theta, -1.0 / epsilon, 1.0 - gamma
    logs(mu, log_mu)
    mass, iterations = sum_of(mu), 0
    if not np.isfinite(sum_of(distance[old])):
        return OUT_OF_RANGE
    for k in range(count):
        now_cross, now_sides = own_cross, own_sides
        lines, told = before[k, FIGURES:], after[k, FIGURES:]
        u, v = lines[:old], lines[old : old + width]
        new_u, new_v = told[:steps], told[steps : steps + width]
        new_sides = told[steps + width : 2 * steps + 3 * width]
        figures, told = after[k, :FIGURES], told[2 * steps + 3 * width :]
        newest = told[width : 2 * width]
        if carried:
            now_cross, now_sides = cross[k], lines[old + width : 2 * old + 3 * width]
        else:
            structure_terms(
                distance, plan[k], structure[k], old, work, rows, narrow, own_cross, own_sides
            )
        marginal, columns = told[:width], now_sides[old + width :]
        cover(columns, nu[k], kappa, words, flags[0, k])
        activate(nu[k], links[k], words, flags[1, k])
        mask(
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
        convert(now_sides[old : old + width], narrow[0], width)
        for i in range(old):
            price(
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
                rows[j] = row_total(plan[k, j], width)
                newest_side += distance[old, j] * distance[old, j] * rows[j]
            multiply(distance, plan[k], work, old, steps, old)
            multiply(work, structure[k], new_cross[k], old, steps, width)
        price(
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
        low = exponentials(exponents, exponents.size)
        if not low < TOO_HIGH:
            return OUT_OF_RANGE
        new_v[:] = v
        turns, residual = scale(
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
        figures[1] = residual
        iterations = max(iterations, turns)
        for i in range(old):
            share = gamma * new_u[i]
            blend(kernel[i], narrow_v[0], plan[k, i], new_plan[k, i], share, rest, width)
        share, last = gamma * new_u[old], kernel[old]
        blend(last, narrow_v[0], last, new_plan[k, old], share, 0.0, width)
        structure_terms(
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
            figures,
        )
        columns = new_sides[steps + width :]
        cover(columns, nu[k], kappa, words, flags[3, k])
        activate(nu[k], links[k], words, flags[4, k])
    return iterations


advance = direct(advance_at)
"""The step as it is called: arguments are not looked at for their types (:class:`Data`)."""
