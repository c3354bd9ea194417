"""Who gets which partitions: the same numbers of all topics, evenly, and as few moves as possible.

A run's events and its proposals have the same partition number, and one worker must have both. Of
aiokafka's own assignors none that leaves partitions where they are does that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)

NAME = "ontrack-together"


class Held(NamedTuple):
    """What a member says that it has.

    Parameters
    ----------
    round
        The assignment that gave it; of two members that say they have the same, the later counts.
    partitions
        Numbers, the same for all topics.
    """

    round: int = 0
    partitions: tuple[int, ...] = ()


def spread(partitions: int, held: Mapping[str, Held]) -> dict[str, list[int]]:
    """Give every partition to one member, evenly; whoever has one keeps it as far as that goes.

    Parameters
    ----------
    held
        By member.

    Returns
    -------
    dict
        Numbers by member; no member has two more than another.
    """
    owner: dict[int, str] = {}
    for member in sorted(held, key=lambda name: (held[name].round, name)):
        owner |= dict.fromkeys(held[member].partitions, member)
    kept: dict[str, list[int]] = {member: [] for member in sorted(held)}
    for number in range(partitions):
        if number in owner:
            kept[owner[number]].append(number)
    share, more = divmod(partitions, len(kept))
    # Who has most of its own keeps one more than the others.
    for member in sorted(kept, key=lambda name: -len(kept[name])):
        limit = share + (more > 0)
        more -= len(kept[member]) >= limit > share
        kept[member] = kept[member][:limit]
    given = {number for numbers in kept.values() for number in numbers}
    for number in range(partitions):
        if number not in given:
            least = min(kept, key=lambda name: len(kept[name]))
            kept[least].append(number)
    return {member: sorted(numbers) for member, numbers in kept.items()}


def assignor() -> type[AbstractPartitionAssignor]:
    """Make the assignor of one consumer; aiokafka wants a class, and it remembers what it has."""
    mine = Held()

    class Together(AbstractPartitionAssignor):  # type: ignore[misc]
        name = NAME

        @classmethod
        def assign(
            cls, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
        ) -> dict[str, ConsumerProtocolMemberAssignment]:
            """Assign, as the group's leader."""
            held = {member: _read(told.user_data) for member, told in members.items()}
            topics = sorted({topic for told in members.values() for topic in told.subscription})
            counts = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics}
            numbers = spread(max(counts.values(), default=0), held)
            this = json.dumps(max(item.round for item in held.values()) + 1).encode()
            return {
                member: ConsumerProtocolMemberAssignment(0, _places(counts, numbers[member]), this)
                for member in members
            }

        @classmethod
        def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
            """Say what this member has."""
            told = json.dumps([mine.round, mine.partitions]).encode()
            return ConsumerProtocolMemberMetadata(0, sorted(topics), told)

        @classmethod
        def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
            """Remember what this member got."""
            nonlocal mine
            numbers = {place.partition for place in assignment.partitions()}
            round_ = int(json.loads(assignment.user_data or b"0"))
            mine = Held(round_, tuple(sorted(numbers)))

    return Together


def _places(counts: Mapping[str, int], numbers: Sequence[int]) -> list[Any]:
    """Return a member's partitions topic by topic; a topic may have fewer than another."""
    return [
        (topic, [number for number in numbers if number < count]) for topic, count in counts.items()
    ]


def _read(told: bytes | None) -> Held:
    if not told:
        return Held()
    round_, partitions = json.loads(told)
    return Held(int(round_), tuple(map(int, partitions)))
