"""What the compiled step does to rows of numbers, one register at a time.

Matrices are float32; logarithms and exponentials of scalings are float64
(docs/decisions/0015-float32-step.md). Each loop is called with its lines, its numbers, and how many
elements there are.
"""

from __future__ import annotations

import numpy as np

from ontrack.solver.arrays import TINY
from ontrack.solver.compiled_lanes import Row, loop

# Exponents that float32 holds as normal numbers, and scalings whose products with them it holds.
_LOWEST, _HIGHEST, LARGEST = -80.0, 25.0, 1e25

TOO_HIGH = 1e9
"""What :data:`exponentials` adds up for an exponent that float32 does not hold."""

_SMALLEST = 2.0**-126
"""The smallest normal float32: what is under a float32 logarithm is no less."""


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
    row.add(exponents.outside(-np.inf, _HIGHEST) * TOO_HIGH + low)
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
    row.keep_largest(change.if_positive(mu).unless_above(u, LARGEST))


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


row_total = loop(1, 0, _add_up, result="sum")
row_product = loop(2, 0, _add_products, result="sum")
row_others = loop(2, 0, _count_others, result="sum")
row_entropy = loop(1, 0, _add_entropy, result="sum")
add_four_rows = loop(5, 0, _add_rows, double=True)
price, exponentials = loop(4, 4, _price_row), loop(1, 0, _exponentiate, result="sum")
fit_rows = loop(7, 1, _fit_row, double=True, result="max")
fit_columns = loop(4, 1, _fit_column, double=True, result="max")
blend, convert = loop(4, 2, _blend_row), loop(2, 0, _convert_row, double=True)
