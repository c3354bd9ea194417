"""Alignment of a sequence with a partial order: independent elements may come in any order.

The right side says who must come before whom; the left came in one order. The distance is the
smallest in-order distance between the left and any linear extension of the right. Equivalently: of
two pairs whose right elements are ordered, the left ones are in that order. So a chain gives
:func:`~ontrack.solver.alignment.in_order`, and no constraint at all
:func:`~ontrack.solver.alignment.any_order`; all else lies between these two.

Whether a sequence is a linear extension of a partial order of labels is NP-complete (Feigenbaum,
Kahn and Lund 1993), so no fast algorithm is exact on everything. Three steps, each exact where it
ends the search:

1. Bounds: the assignment from below; from above in-order alignments with linear extensions, each
   sorted by the partners of the last. O(k^3 + n m) a round.
2. Where they meet, that is the distance.
3. Else a search over (elements of the left that were read, down-set of the right that is passed),
   guided by the assignment's dual prices: a narrow beam for a better bound from above, then A*. At
   most n times as many states as the order has down-sets; a budget bounds them, and then the
   bounds are the answer.
"""

from __future__ import annotations

import heapq
import itertools
from typing import NamedTuple

import numpy as np

from ontrack.solver.alignment import NOBODY, Alignment, assigned, in_order
from ontrack.solver.arrays import Bools, Floats, Ints, check_shape

MOVES_MAX = 100_000
"""About a second, whatever the runs."""

ROUNDS_MAX = 20
BEAM = 128


class Bounded(NamedTuple):
    """An alignment with what is known about the best one.

    Parameters
    ----------
    alignment
        Allowed by the order; the best found.
    lower_bound
        No allowed alignment costs less. Equal to the distance where it is proven to be the best.
    """

    alignment: Alignment
    lower_bound: float

    @property
    def is_exact(self) -> bool:
        """Whether no better alignment exists."""
        return self.lower_bound == self.alignment.distance


def partial_order(
    cost: Floats,
    left_gap: Floats,
    right_gap: Floats,
    before: Bools,
    moves_max: int = MOVES_MAX,
) -> Bounded:
    """Return the cheapest alignment of the left with a linear extension of the right.

    Parameters
    ----------
    cost : (n, m)
    left_gap : (n,)
    right_gap : (m,)
        All as for :func:`~ontrack.solver.alignment.in_order`.
    before : (m, m) bool
        ``before[j, k]``: j comes before k, for j < k only. Need not be transitive.
    moves_max
        Moves from state to state that the search may look at.

    Raises
    ------
    ValueError
        If the shapes do not fit together, a cost is out of range, or j comes before an earlier k.
    """
    order = _Order(before)
    recorded = in_order(cost, left_gap, right_gap)
    check_shape("before", before, cost.shape[1:] * 2)
    if order.is_chain or recorded.distance == 0.0:
        return Bounded(recorded, recorded.distance)
    partner = assigned(cost, left_gap, right_gap)
    floor = _price(partner, cost, left_gap, right_gap)
    best = recorded
    for begin in (partner, _partner(recorded, len(left_gap))):
        found = _improved(begin, order, cost, left_gap, right_gap)
        if found.distance < best.distance:
            best = found
    slack = 1e-9 * (1.0 + best.distance)
    if best.distance <= floor + slack:
        return Bounded(best, best.distance)
    search = _Search(order, cost, left_gap, right_gap, partner)
    found = _improved(search.beam(BEAM), order, cost, left_gap, right_gap)
    best = found if found.distance < best.distance else best
    better, floor = search.run(best.distance - slack, floor, moves_max)
    if better is not None:
        found = _improved(better, order, cost, left_gap, right_gap)
        best = found if found.distance < best.distance else best
    return Bounded(best, best.distance if floor >= best.distance - slack else floor)


class _Order:
    """A strict partial order on 0 … m - 1 as bitsets."""

    def __init__(self, before: Bools) -> None:
        if np.tril(before).any():
            raise ValueError("before must hold only pairs j < k: who comes earlier comes before")
        self.size = len(before)
        self.parents = [np.flatnonzero(before[:, k]).tolist() for k in range(self.size)]
        self.children: list[list[int]] = [[] for _ in range(self.size)]
        self.below = [0] * self.size
        for k, parents in enumerate(self.parents):
            for j in parents:
                self.below[k] |= self.below[j] | (1 << j)
                self.children[j].append(k)
        self.above = [0] * self.size
        for j in range(self.size - 1, -1, -1):
            for k in self.children[j]:
                self.above[j] |= self.above[k] | (1 << k)

    @property
    def is_chain(self) -> bool:
        """Whether only one linear extension exists."""
        return all(bits == (1 << k) - 1 for k, bits in enumerate(self.below))

    def extension(self, place: list[float]) -> Ints:
        """Return a linear extension that takes by place: who, or who comes after, stands first."""
        due = list(place)
        for j in range(self.size - 1, -1, -1):
            due[j] = min([due[j], *[due[k] for k in self.children[j]]])
        waits_for = [len(parents) for parents in self.parents]
        ready = [(due[j], j) for j in range(self.size) if not waits_for[j]]
        heapq.heapify(ready)
        taken: list[int] = []
        while ready:
            _, j = heapq.heappop(ready)
            taken.append(j)
            for k in self.children[j]:
                waits_for[k] -= 1
                if not waits_for[k]:
                    heapq.heappush(ready, (due[k], k))
        return np.array(taken, dtype=np.int64)


def _improved(
    partner: Ints, order: _Order, cost: Floats, left_gap: Floats, right_gap: Floats
) -> Alignment:
    """Sort the right by its partners, align in order, and again while that helps.

    Partners that the order allows are kept by the first extension, so that no round is worse.
    """
    best: Alignment | None = None
    for _ in range(ROUNDS_MAX):
        place = [float("inf")] * order.size
        for i, j in enumerate(partner.tolist()):
            if j != NOBODY:
                place[j] = float(i)
        extension = order.extension(place)
        found = in_order(cost[:, extension], left_gap, right_gap[extension])
        if best is not None and found.distance >= best.distance:
            break
        right = found.right.copy()
        somebody = right != NOBODY
        right[somebody] = extension[right[somebody]]
        best = found._replace(right=right)
        partner = _partner(best, len(left_gap))
    assert best is not None
    return best


def _partner(alignment: Alignment, size: int) -> Ints:
    partner = np.full(size, NOBODY, dtype=np.int64)
    there = alignment.left != NOBODY
    partner[alignment.left[there]] = alignment.right[there]
    return partner


def _price(partner: Ints, cost: Floats, left_gap: Floats, right_gap: Floats) -> float:
    paired = partner != NOBODY
    alone = np.ones(len(right_gap), dtype=np.bool_)
    alone[partner[paired]] = False
    pairs = cost[np.flatnonzero(paired), partner[paired]].sum()
    return float(pairs + left_gap[~paired].sum() + right_gap[alone].sum())


def _dual(
    partner: Ints, cost: Floats, left_gap: Floats, right_gap: Floats
) -> tuple[Floats, Floats]:
    """Return prices u, v: ``u_i + v_j <= C_ij``, ``u <= left_gap``, ``v <= right_gap``.

    The largest v that an optimal assignment allows, by Bellman and Ford; their sum is its cost.
    """
    paired = np.flatnonzero(partner != NOBODY)
    mates = partner[paired]
    v = np.minimum(
        right_gap,
        (cost - left_gap[:, None])[partner == NOBODY].min(axis=0, initial=np.inf),
    )
    if len(paired):
        steps = cost[paired] - cost[paired, mates][:, None]
        for _ in range(len(paired) + 1):
            lower = np.minimum(v, (steps + v[mates][:, None]).min(axis=0))
            if (lower >= v - 1e-12).all():
                break
            v = lower
    u = np.minimum(left_gap, (cost - v).min(axis=1, initial=np.inf))
    return u, v


class _Search:
    """A* for pairs that cost less than a ceiling.

    A state is (i, passed): the first i of the left were read; passed are who of the right have a
    partner, and all who come before them. Whoever was passed without a partner has paid its gap.
    """

    def __init__(
        self, order: _Order, cost: Floats, left_gap: Floats, right_gap: Floats, partner: Ints
    ) -> None:
        u, v = _dual(partner, cost, left_gap, right_gap)
        self._n = len(left_gap)
        self._start = float(u.sum() + v.sum())
        # Reduced costs: what a move adds to the lower bound, never negative.
        self._skip: list[float] = np.maximum(left_gap - u, 0.0).tolist()
        self._leave: list[float] = np.maximum(right_gap - v, 0.0).tolist()
        reduced = np.maximum(cost - u[:, None] - v, 0.0)
        worth_it = cost <= left_gap[:, None] + right_gap
        self._moves: list[list[tuple[int, float, int]]] = [
            [
                (j, float(reduced[i, j]), order.below[j])
                for j in np.flatnonzero(worth_it[i]).tolist()
            ]
            for i in range(self._n)
        ]
        self._twin = _twins(order, cost, right_gap)

    def run(self, ceiling: float, floor: float, moves_max: int) -> tuple[Ints | None, float]:
        """Return the partners of the best alignment below the ceiling, and a lower bound.

        No partners: none was found, and the bound says whether there can be one.
        """
        rank = itertools.count()
        start = (self._start, 0, next(rank), 0, None)
        queue: list[tuple[float, int, int, int, _Trail]] = [start]
        seen: dict[tuple[int, int], float] = {}
        looked_at = 0
        while queue:
            bound, minus_i, _, passed, trail = heapq.heappop(queue)
            i = -minus_i
            if i > self._n:
                return _followed(trail, self._n), bound
            if seen.get((i, passed), np.inf) < bound:
                continue
            if looked_at >= moves_max:
                return None, max(floor, bound)
            for after, step, mate in self._following(i, passed):
                looked_at += 1
                total = bound + step
                if total < ceiling and total < seen.get((i + 1, after), np.inf):
                    seen[i + 1, after] = total
                    item = (total, -(i + 1), next(rank), after, (trail, i, mate))
                    heapq.heappush(queue, item)
        return None, np.inf

    def beam(self, width: int) -> Ints:
        """Return the partners of a good alignment: of each i only the most promising states."""
        states: list[tuple[float, int, _Trail]] = [(self._start, 0, None)]
        for i in range(self._n + 1):
            reached: dict[int, tuple[float, int, _Trail]] = {}
            for bound, passed, trail in states:
                for after, step, mate in self._following(i, passed):
                    total = bound + step
                    if after not in reached or total < reached[after][0]:
                        reached[after] = total, after, (trail, i, mate)
            states = sorted(reached.values(), key=lambda state: state[:2])[:width]
        return _followed(states[0][2], self._n)

    def _following(self, i: int, passed: int) -> list[tuple[int, float, int]]:
        """Return (passed, what it adds to the bound, partner) after one more of the left."""
        if i == self._n:
            rest = sum(self._leave[j] for j in range(len(self._leave)) if not passed >> j & 1)
            return [(passed, rest, NOBODY)]
        found = [(passed, self._skip[i], NOBODY)]
        for j, step, below in self._moves[i]:
            twin = self._twin[j]
            if passed >> j & 1 or (twin != NOBODY and not passed >> twin & 1):
                continue
            new = below & ~passed
            total = step
            while new:
                lowest = new & -new
                total += self._leave[lowest.bit_length() - 1]
                new ^= lowest
            found.append((passed | below | 1 << j, total, j))
        return found


_Trail = tuple["_Trail", int, int] | None


def _followed(trail: _Trail, size: int) -> Ints:
    partner = np.full(size, NOBODY, dtype=np.int64)
    while trail is not None:
        trail, i, j = trail
        if i < size:
            partner[i] = j
    return partner


def _twins(order: _Order, cost: Floats, right_gap: Floats) -> list[int]:
    """Return for each of the right the last one before it that nothing tells it apart from, or -1.

    Of twins the first is taken first: any other choice gives the same distance.
    """
    last: dict[tuple[int, int, bytes], int] = {}
    twins: list[int] = []
    for j in range(order.size):
        look = np.append(cost[:, j], right_gap[j]).tobytes()
        key = order.below[j], order.above[j], look
        twins.append(last.get(key, NOBODY))
        last[key] = j
    return twins
