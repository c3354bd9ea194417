"""Who gets which partitions."""

from __future__ import annotations

from typing import Any

from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.kafka.assignor import Held, assignor, spread


class Cluster:
    def __init__(self, **counts: int) -> None:
        self.counts = counts

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        count = self.counts.get(topic)
        return None if count is None else set(range(count))


def assigned(cluster: Cluster, *members: Any) -> list[dict[str, list[int]]]:
    """Let the first member be the leader; every member hears what it got."""
    metadata = {
        f"m{number}": each.metadata(["events", "asked"]) for number, each in enumerate(members)
    }
    found = members[0].assign(cluster, metadata)
    for number, each in enumerate(members):
        each.on_assignment(found[f"m{number}"])
    return [{topic: list(places) for topic, places in found[name].assignment} for name in metadata]


def test_a_worker_gets_the_same_partitions_of_events_and_proposals() -> None:
    first, second = assignor(), assignor()
    one, two = assigned(Cluster(events=5, asked=5), first, second)
    assert one["events"] == one["asked"]
    assert two["events"] == two["asked"]
    assert sorted(one["events"] + two["events"]) == [0, 1, 2, 3, 4]


def test_who_stays_keeps_what_it_has_when_another_joins_and_when_one_leaves() -> None:
    members = [assignor() for _ in range(3)]
    cluster = Cluster(events=6, asked=6)
    first, second = assigned(cluster, *members[:2])
    fewer = assigned(cluster, *members)
    assert set(fewer[0]["events"]) < set(first["events"])
    assert set(fewer[1]["events"]) < set(second["events"])
    more = assigned(cluster, *members[:2])
    assert set(fewer[0]["events"]) < set(more[0]["events"])
    assert set(fewer[1]["events"]) < set(more[1]["events"])


def test_of_two_that_say_they_have_a_partition_the_later_assignment_counts() -> None:
    found = spread(2, {"away": Held(3, (0, 1)), "here": Held(7, (0,))})
    assert found == {"away": [1], "here": [0]}


def test_a_topic_with_fewer_partitions_is_given_as_far_as_it_goes() -> None:
    (only,) = assigned(Cluster(events=4, asked=2), assignor())
    assert only == {"asked": [0, 1], "events": [0, 1, 2, 3]}


def test_a_member_that_says_nothing_has_nothing() -> None:
    told = ConsumerProtocolMemberMetadata(0, ["events"], b"")
    found = assignor().assign(Cluster(events=2), {"m": told})  # type: ignore[arg-type]
    assert found["m"].assignment == [("events", [0, 1])]


held = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.builds(Held, st.integers(0, 5), st.sets(st.integers(0, 15)).map(tuple)),
    min_size=1,
    max_size=6,
)


@given(st.integers(0, 12), held)
def test_everything_is_given_once_and_evenly_whatever_members_say(
    partitions: int, told: dict[str, Held]
) -> None:
    found = spread(partitions, told)
    assert sorted(number for numbers in found.values() for number in numbers) == list(
        range(partitions)
    )
    sizes = [len(numbers) for numbers in found.values()]
    assert set(found) == set(told)
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 12), held)
def test_assigned_again_nothing_moves(partitions: int, told: dict[str, Held]) -> None:
    found = spread(partitions, told)
    again = spread(partitions, {name: Held(9, tuple(numbers)) for name, numbers in found.items()})
    assert again == found
