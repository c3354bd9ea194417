"""Alignment of two sequences under given costs: in order, or in any order.

Costs in, distance and alignment out. A pair costs what the matrix says; an element without a
counterpart costs its gap. A pair that may not be has an infinite cost.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ontrack.solver.arrays import Bools, Floats, Ints, check_shape

NOBODY = -1


class Alignment(NamedTuple):
    """Rows of an alignment and what they cost together.

    Parameters
    ----------
    distance
        Sum of the rows' costs.
    left, right : (r,) int64
        Who stands in each row; -1 where nobody does. Everybody stands in exactly one row.
    cost : (r,) float64
        Of each row.
    """

    distance: float
    left: Ints
    right: Ints
    cost: Floats


def argument_costs(left: Ints, right: Ints, weights: Floats) -> Floats:
    """Return the weighted Hamming distance of each two rows, (n, m).

    ``C[i, j] = sum over a of w_a [left[i, a] != right[j, a]]``, summed in the order of a.

    Parameters
    ----------
    left : (n, A)
        Values as numbers: equal numbers are equal values, and one of them may stand for "missing".
    right : (m, A)
    weights : (A,)

    Raises
    ------
    ValueError
        If the shapes do not fit together.
    """
    arguments = len(weights)
    check_shape("left", left, (len(left), arguments))
    check_shape("right", right, (len(right), arguments))
    costs = np.zeros((len(left), len(right)))
    for place, weight in enumerate(weights):
        costs += weight * (left[:, place, None] != right[None, :, place])
    return costs


def in_order(cost: Floats, left_gap: Floats, right_gap: Floats) -> Alignment:
    """Return the cheapest alignment whose pairs do not cross (Needleman and Wunsch 1970).

    ``D[i, j] = min(D[i-1, j-1] + C[i, j], D[i-1, j] + left_gap[i], D[i, j-1] + right_gap[j])``,
    one anti-diagonal at a time. O(n m) time; 4 bytes a pair beside the costs. Of equally cheap
    ones: read from the end, a pair comes before an element of the left alone, and that before one
    of the right alone.

    Parameters
    ----------
    cost : (n, m)
        Not negative; infinite where a pair may not be.
    left_gap : (n,)
        Not negative and finite.
    right_gap : (m,)

    Raises
    ------
    ValueError
        If the shapes do not fit together or a cost is out of range.
    """
    _check(cost, left_gap, right_gap)
    return _rows(*_traced(*_filled(cost, left_gap, right_gap)), cost, left_gap, right_gap)


def any_order(cost: Floats, left_gap: Floats, right_gap: Floats) -> Alignment:
    """Return the cheapest alignment when order does not count: an exact assignment.

    Pairing i with j saves ``left_gap[i] + right_gap[j] - C[i, j]``, where that is positive; the
    savings are maximised by :func:`scipy.optimize.linear_sum_assignment`. O(k^3) time for
    k = max(n, m). Rows: by the left, then who is left over of the right.

    Parameters
    ----------
    cost : (n, m)
    left_gap : (n,)
    right_gap : (m,)
        All as for :func:`in_order`. A pair as dear as its two gaps is a pair.

    Raises
    ------
    ValueError
        If the shapes do not fit together or a cost is out of range.
    """
    _check(cost, left_gap, right_gap)
    partner = assigned(cost, left_gap, right_gap)
    alone = np.setdiff1d(np.arange(len(right_gap)), partner)
    left = np.concatenate((np.arange(len(left_gap)), np.full(len(alone), NOBODY)))
    return _rows(left, np.concatenate((partner, alone)), cost, left_gap, right_gap)


def assigned(cost: Floats, left_gap: Floats, right_gap: Floats) -> Ints:
    """Return the partner of each element of the left in :func:`any_order`, or -1; (n,)."""
    partner = np.full(len(left_gap), NOBODY, dtype=np.int64)
    if cost.size:
        # Imported here: it takes longer than all else, and much is aligned without it.
        from scipy.optimize import linear_sum_assignment

        change = cost - left_gap[:, None] - right_gap
        rows, columns = linear_sum_assignment(np.minimum(change, 0.0))
        worth_it = change[rows, columns] <= 0.0
        partner[rows[worth_it]] = columns[worth_it]
    return partner


def _check(cost: Floats, left_gap: Floats, right_gap: Floats) -> None:
    check_shape("cost", cost, (len(left_gap), len(right_gap)))
    for name, array in (("cost", cost), ("left_gap", left_gap), ("right_gap", right_gap)):
        if not (array >= 0.0).all():  # false for NaN as well
            raise ValueError(f"{name} must not be negative or NaN")
    for name, array in (("left_gap", left_gap), ("right_gap", right_gap)):
        if np.isinf(array).any():
            raise ValueError(f"{name} must be finite")


def _filled(cost: Floats, left_gap: Floats, right_gap: Floats) -> tuple[Bools, Bools]:
    """Return what was chosen in each cell of the table, at ``[i + j, i]``, (n + m + 1, n + 1).

    First: an element of the right alone is cheaper than one of the left alone. Second: some gap is
    cheaper than the pair.
    """
    n, m = cost.shape
    right_alone = np.zeros((n + m + 1, n + 1), dtype=np.bool_)
    gap = np.zeros((n + m + 1, n + 1), dtype=np.bool_)
    # From i, j to i + 1, j - 1 are width - 1 entries; a slice cannot step by 0.
    width = m if m != 1 else 2
    costs = cost if m == width else np.repeat(cost, width, axis=1)
    flat, backwards = costs.reshape(-1), right_gap[::-1].copy()
    edge_left = np.concatenate(([0.0], np.cumsum(left_gap)))
    edge_right = np.concatenate(([0.0], np.cumsum(right_gap)))
    before, now, new = (np.full(n + 1, np.inf) for _ in range(3))
    other = np.empty(n + 1)
    now[0] = 0.0
    for diagonal in range(1, n + m + 1):
        first, last = max(1, diagonal - m), min(n, diagonal - 1)
        if first <= last:
            here, above = slice(first, last + 1), slice(first - 1, last)
            best, cells = new[here], last - first + 1
            start = (first - 1) * width + diagonal - first - 1
            pairs = flat[start : start + (cells - 1) * (width - 1) + 1 : width - 1]
            rest = other[:cells]
            np.add(now[above], left_gap[above], out=best)
            shift = m - diagonal
            np.add(now[here], backwards[shift + first : shift + last + 1], out=rest)
            np.less(rest, best, out=right_alone[diagonal, here])
            np.minimum(best, rest, out=best)
            np.add(before[above], pairs, out=rest)
            np.less(best, rest, out=gap[diagonal, here])
            np.minimum(best, rest, out=best)
        if diagonal <= m:
            new[0] = edge_right[diagonal]
        if diagonal <= n:
            new[diagonal] = edge_left[diagonal]
        before, now, new = now, new, before
    return right_alone, gap


def _traced(right_alone: Bools, gap: Bools) -> tuple[Ints, Ints]:
    """Walk back from the last cell; return who stands in each row."""
    i = gap.shape[1] - 1
    j = gap.shape[0] - 1 - i
    width = i + 1
    is_gap, is_right = gap.reshape(-1).data, right_alone.reshape(-1).data
    left: list[int] = []
    right: list[int] = []
    while i and j:
        cell = (i + j) * width + i
        if not is_gap[cell]:
            i, j = i - 1, j - 1
            left.append(i)
            right.append(j)
        elif is_right[cell]:
            j -= 1
            left.append(NOBODY)
            right.append(j)
        else:
            i -= 1
            left.append(i)
            right.append(NOBODY)
    left += [*range(i - 1, -1, -1), *[NOBODY] * j]
    right += [*[NOBODY] * i, *range(j - 1, -1, -1)]
    return np.array(left[::-1], dtype=np.int64), np.array(right[::-1], dtype=np.int64)


def _rows(left: Ints, right: Ints, cost: Floats, left_gap: Floats, right_gap: Floats) -> Alignment:
    costs = np.empty(len(left))
    no_left, no_right = left == NOBODY, right == NOBODY
    both = ~(no_left | no_right)
    costs[both] = cost[left[both], right[both]]
    costs[no_right] = left_gap[left[no_right]]
    costs[no_left] = right_gap[right[no_left]]
    return Alignment(float(sum(costs.tolist())), left, right, costs)
