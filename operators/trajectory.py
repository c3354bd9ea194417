"""Trajectory distance: what it costs to turn one ordered list of tool calls into another.

Two calls of one tool differ by the weights of the arguments that are not alike; a call without a
counterpart costs its own weight and that of its arguments. Calls of different tools are no pair:
one was left out and one came in addition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np

from ontrack.operators.dependencies import declared_order
from ontrack.operators.trajectory_costs import (
    Calls,
    Canonicaliser,
    Pool,
    Trajectory,
    calls_of,
    fold_text,
    identical,
    masses,
    pools,
    steps_of,
    total_mass,
)
from ontrack.operators.trajectory_weights import (
    EFFECT_WEIGHTS,
    StepWeights,
    ToolWeights,
    weights_by_effect,
)
from ontrack.solver import alignment
from ontrack.solver.alignment import NOBODY, Alignment, argument_costs
from ontrack.solver.alignment_dag import MOVES_MAX, partial_order
from ontrack.solver.arrays import Bools, Floats, Ints

__all__ = [
    "EFFECT_WEIGHTS",
    "SCHEMES",
    "Scheme",
    "StepWeights",
    "ToolWeights",
    "TrajectoryComparison",
    "TrajectoryDistance",
    "corpus_distance",
    "fold_text",
    "weights_by_effect",
]

Scheme = Literal["in_order", "exact", "any_order", "superset"]
SCHEMES: Final[tuple[Scheme, ...]] = ("in_order", "exact", "any_order", "superset")

Row = tuple[int | None, int | None, float]


@dataclass(frozen=True, slots=True)
class TrajectoryComparison:
    """How far one trajectory is from another.

    Parameters
    ----------
    scheme
        What was compared.
    distance
        In weights; 0 at best.
    max_distance
        The distance of trajectories with nothing in common.
    lower_bound
        No allowed alignment costs less. Below the distance only where DAG mode gave up searching.
    """

    scheme: Scheme
    distance: float
    max_distance: float
    lower_bound: float
    _align: Callable[[], Alignment] = field(repr=False, compare=False)

    @property
    def alignment(self) -> tuple[Row, ...]:
        """Rows (step of the predicted or None, step of the reference or None, cost), from 0.

        Every step stands in one row, and the costs sum to the distance. Written down when asked
        for, so that a corpus of distances does not pay for it.
        """
        return _as_rows(self._align())

    @property
    def normalised(self) -> float:
        """Distance divided by the largest possible one; 0 where nothing was expected or done."""
        return min(1.0, self.distance / self.max_distance) if self.max_distance else 0.0

    @property
    def is_exact(self) -> bool:
        """Whether no better alignment exists."""
        return self.lower_bound == self.distance


def corpus_distance(comparisons: Iterable[TrajectoryComparison]) -> float:
    """Return the sum of distances divided by the sum of largest distances; 0 of none.

    Never a mean of ratios: in one, a run of two steps would weigh as much as one of two hundred.

    Examples
    --------
    >>> compare = TrajectoryDistance()
    >>> corpus_distance([compare(["a"], ["b"]), compare(["a"] * 9, ["a"] * 9)])
    0.1
    """
    pairs = [(each.distance, each.max_distance) for each in comparisons]
    largest = math.fsum(most for _, most in pairs)
    return math.fsum(distance for distance, _ in pairs) / largest if largest else 0.0


@dataclass(frozen=True, slots=True)
class TrajectoryDistance:
    """Distance between a predicted trajectory and a reference; a pure function.

    Parameters
    ----------
    scheme
        ``in_order``: the cheapest alignment, order kept, gaps allowed. ``exact``: 0 where both are
        the same, else all that can be. ``any_order``: the cheapest assignment, order ignored.
        ``superset``: what the reference's calls weigh that were not made exactly so; further calls
        are free.
    weights
        What calls and arguments cost.
    canonicaliser
        Applied to every text in arguments, however deep, before comparing; see :func:`fold_text`.
    dag
        With ``in_order``: independent steps of the reference may come in any order. What depends on
        what is read from its steps (:func:`~ontrack.operators.dependencies.declared_order`); the
        result is a bound where ``is_exact`` is false.
    moves_max
        Effort in DAG mode, see :func:`~ontrack.solver.alignment_dag.partial_order`.

    Raises
    ------
    ValueError
        For an unknown scheme, or ``dag`` with another scheme than ``in_order``.

    Examples
    --------
    >>> gold = [("search", {"q": "cat"}), ("answer", {"a": "meow"})]
    >>> TrajectoryDistance()(gold, gold).distance
    0.0
    >>> detour = [("search", {"q": "cat"}), ("search", {"q": "cat"}), ("answer", {"a": "meow"})]
    >>> found = TrajectoryDistance()(detour, gold)
    >>> found.distance, found.max_distance, found.normalised
    (2.0, 10.0, 0.2)
    >>> found.alignment
    ((0, None, 2.0), (1, 0, 0.0), (2, 1, 0.0))
    >>> TrajectoryDistance(scheme="superset")(detour, gold).distance
    0.0
    >>> shouted = [("search", {"q": "CAT"}), ("answer", {"a": "meow"})]
    >>> TrajectoryDistance()(shouted, gold).distance
    1.0
    >>> TrajectoryDistance(canonicaliser=fold_text)(shouted, gold).distance
    0.0
    """

    scheme: Scheme = "in_order"
    weights: StepWeights = StepWeights()
    canonicaliser: Canonicaliser | None = None
    dag: bool = False
    moves_max: int = MOVES_MAX

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}, got {self.scheme!r}")
        if self.dag and self.scheme != "in_order":
            raise ValueError(f"dag goes with in_order; {self.scheme} knows no order to loosen")

    def __call__(self, predicted: Trajectory, reference: Trajectory) -> TrajectoryComparison:
        """Compare two trajectories.

        Parameters
        ----------
        predicted, reference
            Steps, calls, ``(tool, arguments)``, mappings with ``tool`` and ``args``, or names of
            tools; a :class:`~ontrack.topics.knowledge.Reference` as well.

        Raises
        ------
        InvalidInput
            If something in them is no call, or an argument no JSON value.
        """
        left, right = calls_of(predicted), calls_of(reference)
        if self.scheme == "exact":
            return self._exact(left, right)
        left_mass, right_mass = masses(left, self.weights), masses(right, self.weights)
        most = sum(right_mass.tolist())
        if self.scheme != "superset":
            most += sum(left_mass.tolist())
        floor: float | None = None
        if self.scheme == "in_order":
            cost = self._cost(left, right)
            if self.dag:
                before = declared_order(steps_of(reference))
                found, floor = partial_order(cost, left_mass, right_mass, before, self.moves_max)
            else:
                found = alignment.in_order(cost, left_mass, right_mass)
        else:
            pairs = self._assigned(left, right, left_mass, right_mass)
            found = _out_of_order(pairs, left_mass, right_mass, self.scheme == "superset")
        floor = found.distance if floor is None else floor
        return TrajectoryComparison(self.scheme, found.distance, most, floor, lambda: found)

    def _exact(self, left: Calls, right: Calls) -> TrajectoryComparison:
        most = total_mass(left, self.weights) + total_mass(right, self.weights)
        same = identical(left, right, self.canonicaliser)

        def align() -> Alignment:
            return _in_step(masses(left, self.weights), masses(right, self.weights), same)

        distance = 0.0 if same else most
        return TrajectoryComparison(self.scheme, distance, most, distance, align)

    def _cost(self, left: Calls, right: Calls) -> Floats:
        """Return what pairs cost, (n, m); infinite between different tools."""
        cost = np.full((len(left), len(right)), np.inf)
        for pool in pools(left, right, self.canonicaliser):
            cost[np.ix_(pool.left, pool.right)] = argument_costs(
                pool.left_values, pool.right_values, self._argument_weights(pool)
            )
        return cost

    def _assigned(self, left: Calls, right: Calls, left_mass: Floats, right_mass: Floats) -> _Pairs:
        """Assign tool by tool: equal calls in their order, the others exactly.

        Some cheapest assignment pairs all that is equal, since costs obey the triangle inequality.
        """
        size = len(left)
        found = _Pairs(
            np.full(size, NOBODY, np.int64), np.zeros(size), np.zeros(size, dtype=np.bool_)
        )
        for pool in pools(left, right, self.canonicaliser):
            here, there = _equal_pairs(pool.left_values, pool.right_values)
            found.partner[pool.left[here]] = pool.right[there]
            found.equal[pool.left[here]] = True
            here = np.setdiff1d(np.arange(len(pool.left)), here)
            there = np.setdiff1d(np.arange(len(pool.right)), there)
            if not (len(here) and len(there)):
                continue
            cost = argument_costs(
                pool.left_values[here], pool.right_values[there], self._argument_weights(pool)
            )
            rest, others = pool.left[here], pool.right[there]
            mates = alignment.assigned(cost, left_mass[rest], right_mass[others])
            rows = np.flatnonzero(mates != NOBODY)
            found.partner[rest[rows]] = others[mates[rows]]
            found.cost[rest[rows]] = cost[rows, mates[rows]]
        return found

    def _argument_weights(self, pool: Pool) -> Floats:
        weights = self.weights.of(pool.tool)
        return np.array([weights.of(name) for name in pool.names], dtype=np.float64)


class _Pairs(NamedTuple):
    """Partners of the left (-1: none), what the pairs cost, which are equal calls; each (n,)."""

    partner: Ints
    cost: Floats
    equal: Bools


def _equal_pairs(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Pair equal rows, the first with the first."""
    waiting: dict[bytes, list[int]] = {}
    for j in range(len(right) - 1, -1, -1):
        waiting.setdefault(right[j].tobytes(), []).append(j)
    pairs = [(i, same.pop()) for i in range(len(left)) if (same := waiting.get(left[i].tobytes()))]
    found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _out_of_order(
    pairs: _Pairs, left_mass: Floats, right_mass: Floats, required_only: bool
) -> Alignment:
    """Return the rows of an assignment: by the left, then who is left over of the right."""
    alone = np.setdiff1d(np.arange(len(right_mass)), pairs.partner)
    paired = pairs.partner != NOBODY
    if required_only:  # a call with other arguments is not the one that was required
        costs = np.zeros(len(left_mass))
        missed = paired & ~pairs.equal
        costs[missed] = right_mass[pairs.partner[missed]]
    else:
        costs = np.where(paired, pairs.cost, left_mass)
    costs = np.concatenate((costs, right_mass[alone]))
    left = np.concatenate((np.arange(len(left_mass)), np.full(len(alone), NOBODY)))
    right = np.concatenate((pairs.partner, alone))
    return Alignment(sum(costs.tolist()), left, right, costs)


def _in_step(left_mass: Floats, right_mass: Floats, same: bool) -> Alignment:
    """Put the i-th beside the i-th; where not all are the same, every row is charged in full."""
    n, m = len(left_mass), len(right_mass)
    places, cost = np.arange(max(n, m)), np.zeros(max(n, m))
    if not same:
        cost[:n] += left_mass
        cost[:m] += right_mass
    left = np.where(places < n, places, NOBODY)
    right = np.where(places < m, places, NOBODY)
    return Alignment(sum(cost.tolist()), left, right, cost)


def _as_rows(found: Alignment) -> tuple[Row, ...]:
    left: list[int | None] = found.left.tolist()
    right: list[int | None] = found.right.tolist()
    for side in (left, right):
        if NOBODY in side:
            side[:] = [None if place == NOBODY else place for place in side]
    return tuple(zip(left, right, found.cost.tolist(), strict=True))
