"""Grouping: successes under one task id that are about different things.

Ids collide: two lists of tasks under the same numbers, two customers with their own. Runs of one
task share what they are about (identity values) and how it is done (tools); where they fall into
groups that share almost nothing, references of one group would stop runs of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ontrack.operators.limits import require
from ontrack.operators.mining import Success
from ontrack.operators.stripping import Contracts
from ontrack.operators.values import ValueParams, identity_arguments

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupParams:
    """When two runs are about the same.

    Parameters
    ----------
    overlap_min
        Share of the smaller run's identity values, and of its tools, that two runs of one task have
        in common. On recorded runs the share of values was below 0.2 or above 0.5.
    values_min
        A run with fewer identity values is taken for one of the largest group.
    """

    overlap_min: float = 0.25
    values_min: int = 2
    values: ValueParams = ValueParams()

    def __post_init__(self) -> None:
        require(self, 0.0, 1.0, "overlap_min")
        require(self, 1, 1000, "values_min")


def colliding(
    params: GroupParams, contracts: Contracts, successes: Mapping[str, Sequence[Success]]
) -> dict[str, tuple[Group, ...]]:
    """Find the task ids that stand for several tasks, with the groups of their successes.

    Two runs that share with each other and not with a third prove it. Runs of which no two share
    anything may just as well be about another object each time: they count only where some other
    id is proven to collide.
    """
    several = {
        task_id: found
        for task_id, runs in successes.items()
        if len(found := groups(params, contracts, runs)) > 1
    }
    proven = {task_id for task_id, found in several.items() if len(found[0]) > 1}
    return several if proven else {}


def groups(
    params: GroupParams, contracts: Contracts, successes: Sequence[Success]
) -> tuple[Group, ...]:
    """Group runs that have identity values and tools in common, directly or through others.

    The largest group comes first; each lists places in ``successes``.
    """
    values = [_values(params, contracts, success) for success in successes]
    tools = [frozenset(step.tool for step in success.steps) for success in successes]
    telling = [place for place, found in enumerate(values) if len(found) >= params.values_min]
    leader = {place: place for place in telling}

    def led(place: int) -> int:
        while leader[place] != place:
            leader[place] = leader[leader[place]]
            place = leader[place]
        return place

    for index, one in enumerate(telling):
        for other in telling[:index]:
            alike = min(_overlap(values[one], values[other]), _overlap(tools[one], tools[other]))
            if alike >= params.overlap_min:
                leader[led(one)] = led(other)
    members: dict[int, list[int]] = {}
    for place in telling:
        members.setdefault(led(place), []).append(place)
    found = sorted(members.values(), key=lambda group: (-len(group), group[0])) or [[]]
    found[0] += [place for place in range(len(successes)) if place not in leader]
    return tuple(tuple(sorted(group)) for group in found if group)


def _values(
    params: GroupParams, contracts: Contracts, success: Success
) -> frozenset[tuple[str, str]]:
    """Return what a run is about: values by the argument's name, whatever the tool."""
    return frozenset(
        (argument.path.rsplit(".", 1)[-1], argument.value)
        for step in success.steps
        for argument in identity_arguments(params.values, step, contracts.get(step.tool))
        if not argument.is_text
    )


def _overlap(one: frozenset[object], other: frozenset[object]) -> float:
    """Overlap coefficient: what is common, of the smaller one."""
    return len(one & other) / max(1, min(len(one), len(other)))
