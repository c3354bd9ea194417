"""The self-healing watermark, without a broker: whatever is delivered, all is said, once.

The fakes below keep topics as lists in memory; everything else is the real thing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiokafka.errors import KafkaTimeoutError, TopicAuthorizationFailedError
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.operators import snapshot
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.kafka.log import record_of
from ontrack.pipeline.kafka.messages import Message, Told, source_offset, topic_of
from ontrack.pipeline.kafka.owner import PartitionOwner
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.catalog import catalogue
from ontrack.topics.errors import BrokerUnavailable
from ontrack.topics.events import ErrorInfo, Event, Notice, Proposal, RunEnded, RunStarted, Step

SETTINGS = Settings(encoder="hashing", profile="paper")
TOPICS = catalogue()
EVENTS, PROPOSALS = TOPICS.events.name, TOPICS.proposals.name
OUTPUTS = tuple(
    spec.name
    for spec in (TOPICS.verdicts, TOPICS.interventions, TOPICS.scorecards, TOPICS.dead_letters)
)
PARTITION = 0


@dataclass(frozen=True)
class Stored:
    """A message as a consumer would hand it over."""

    topic: str
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int = PARTITION
    at_ms: int | None = None

    @property
    def timestamp(self) -> int:
        return 1_700_000_000_000 + self.offset if self.at_ms is None else self.at_ms


@dataclass
class FakeKafka:
    """Log reader and emitter over lists; ``holes`` are offsets without a message.

    ``now_ms`` is the broker's clock; where there is none, a millisecond goes by with each message.
    """

    topics: dict[str, list[Stored]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    first: int = 0
    holes: frozenset[int] = frozenset()
    dies_after: int | None = None
    reads: list[tuple[int, int]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    refuses: str | None = None
    now_ms: int | None = None

    def append(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Any = ()
    ) -> Stored:
        offset = self.ends.get(topic, 0)
        while topic == EVENTS and offset in self.holes:
            offset += 1
        self.ends[topic] = offset + 1
        message = Stored(topic, offset, key, value, tuple(headers), at_ms=self.now_ms)
        self.topics.setdefault(topic, []).append(message)
        return message

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        await asyncio.sleep(0)
        return (self.first if topic == EVENTS else 0), self.ends.get(topic, 0)

    async def read(
        self, topic: str, partition: int, start: int, stop: int
    ) -> AsyncIterator[list[Stored]]:
        if topic == EVENTS:
            self.reads.append((start, stop))
        low = max(start, self.first if topic == EVENTS else 0)
        found = [m for m in self.topics.get(topic, []) if low <= m.offset < stop]
        for begin in range(0, len(found), 3):
            await asyncio.sleep(0)
            yield found[begin : begin + 3]

    async def tail(self, topic: str, partition: int, count: int) -> list[Stored]:
        await asyncio.sleep(0)
        return self.topics.get(topic, [])[-count:]

    async def emit(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if self.gate is not None:
                await self.gate.wait()
            if self.dies_after is not None:
                if self.dies_after == 0:
                    raise ProcessDied
                self.dies_after -= 1
            if message.topic == self.refuses:
                raise BrokerUnavailable("no rights")
            self.append(message.topic, message.key, message.value, message.headers)

    def said(self, topic: str) -> list[bytes | None]:
        return [message.value for message in self.topics.get(topic, [])]


class ProcessDied(Exception):
    """What a kill -9 looks like from inside the test."""


class FakeFollower:
    """Remembers up to when knowledge was asked for; ``fails`` is what it answers before."""

    def __init__(self) -> None:
        self.covered_ms = -1
        self.asked: list[int] = []
        self.fails: list[Exception] = []

    def has_covered(self, time_ms: int) -> bool:
        return time_ms <= self.covered_ms

    async def cover(self, time_ms: int) -> None:
        if self.fails:
            raise self.fails.pop(0)
        self.asked.append(time_ms)
        self.covered_ms = max(self.covered_ms, time_ms)


FOLD = make_fold(SETTINGS)
ASKED = Proposal(run_id="a", tool="look")


def new_owner(
    kafka: FakeKafka,
    metrics: Metrics | None = None,
    batch_max: int = 4,
    checkpoint_events: int = 10_000,
    run_idle_s: int = 60,
) -> Any:
    reader: Any = kafka
    follower: Any = FakeFollower()
    chosen = SETTINGS.model_copy(
        update={
            "batch_events_max": batch_max,
            "checkpoint_events": checkpoint_events,
            "run_idle_s": run_idle_s,
        }
    )
    return PartitionOwner(
        PARTITION, chosen, TOPICS, FOLD, reader, reader, follower, metrics or Metrics()
    )


def fill(kafka: FakeKafka, values: Iterable[Event | bytes]) -> list[Record]:
    """Append events, or raw bytes, to the log; return them as they will be delivered."""
    records = []
    for value in values:
        raw = value if isinstance(value, bytes) else codecs.encode(value)
        key = b"junk" if isinstance(value, bytes) else value.run_id.encode()
        records.append(record_of(kafka.append(EVENTS, key, raw)))  # type: ignore[arg-type]
    return records


def straight(kafka: FakeKafka, fold: Fold = FOLD) -> dict[str, list[bytes]]:
    """What should be said: the log folded once, in order, from its first offset."""
    state = PartitionState()
    expected: dict[str, list[bytes]] = {name: [] for name in OUTPUTS}
    for message in kafka.topics.get(EVENTS, []):
        if message.offset >= kafka.first:
            for output in fold.apply(state, record_of(message)):  # type: ignore[arg-type]
                assert not isinstance(output, Notice)
                expected[topic_of(TOPICS, output)].append(codecs.encode(output))
    return expected


def said(kafka: FakeKafka) -> dict[str, list[bytes | None]]:
    return {name: kafka.said(name) for name in OUTPUTS}


def look(run_id: str = "a", n: int = 0) -> Step:
    return Step(run_id=run_id, tool="look", args={"n": n})


def mixed(count: int) -> list[Event | bytes]:
    """Two runs, one in a loop, with junk in between, ended near the end."""
    again = Step(run_id="b", tool="retry", action="try", error=ErrorInfo(message="no"))
    found: list[Event | bytes] = [RunStarted(run_id="a")]
    for n in range(count):
        found += [look("a", n), again, b"junk %d" % n][: 2 + (n % 3 == 0)]
    return [*found, RunEnded(run_id="a"), RunEnded(run_id="b")]


async def test_what_is_delivered_in_order_is_said_in_order() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    records = fill(kafka, mixed(6))
    await owner.take(records[:5])
    await owner.take(records[5:])
    expected = straight(kafka)
    assert said(kafka) == expected
    assert all(expected.values())  # the example covers every output topic
    assert owner.watermark.next_offset == len(records)
    assert kafka.reads == [(0, 0)]


async def test_an_owner_that_starts_late_folds_the_log_first() -> None:
    kafka = FakeKafka()
    fill(kafka, mixed(6))
    owner = new_owner(kafka)
    assert not owner.ready
    await owner.resume()
    assert owner.ready
    assert said(kafka) == straight(kafka)


async def test_what_is_delivered_again_is_passed_over_and_counted() -> None:
    kafka, metrics = FakeKafka(), Metrics()
    owner = new_owner(kafka, metrics)
    await owner.resume()
    records = fill(kafka, mixed(3))
    await owner.take(records)
    await owner.take(records[2:5])
    await owner.take([records[0], records[0], records[-1]])
    assert said(kafka) == straight(kafka)
    assert "ontrack_redelivered_events_total 6.0" in metrics.text().decode()


async def test_a_gap_is_filled_from_the_log_before_what_follows() -> None:
    kafka, metrics = FakeKafka(), Metrics()
    owner = new_owner(kafka, metrics)
    await owner.resume()
    records = fill(kafka, mixed(6))
    await owner.take([records[0], records[4], records[5], records[9]])
    assert owner.watermark.next_offset == 10
    await owner.take(records[6:])
    assert said(kafka) == straight(kafka)
    assert kafka.reads[1:] == [(1, 4), (6, 9)]
    assert "ontrack_filled_events_total 6.0" in metrics.text().decode()


async def test_a_tail_that_was_never_delivered_is_caught() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    records = fill(kafka, mixed(4))
    await owner.take(records[:3])
    await owner.catch_up()  # may still be on its way
    assert owner.watermark.next_offset == 3
    await owner.catch_up()
    assert owner.watermark.next_offset == len(records)
    assert said(kafka) == straight(kafka)


async def test_what_came_since_the_last_look_is_left_to_the_delivery() -> None:
    kafka, metrics = FakeKafka(), Metrics()
    owner = new_owner(kafka, metrics)
    await owner.resume()
    for n in range(5):
        records = fill(kafka, [look(n=2 * n), look(n=2 * n + 1)])
        await owner.catch_up()
        await owner.take(records)
    assert kafka.reads == [(0, 0)]
    assert "ontrack_redelivered_events_total 0.0" in metrics.text().decode()
    assert 'ontrack_watermark_lag{partition="0"} 2.0' in metrics.text().decode()


async def test_whether_a_partition_is_ready_can_be_seen() -> None:
    kafka, metrics = FakeKafka(), Metrics()
    fill(kafka, mixed(2))
    owner = new_owner(kafka, metrics)

    def shown() -> float | None:
        return metrics.registry.get_sample_value("ontrack_partition_ready", {"partition": "0"})

    kafka.gate = asyncio.Event()
    starting = asyncio.create_task(owner.resume())
    while shown() is None:
        await asyncio.sleep(0)
    assert (owner.ready, shown()) == (False, 0)
    kafka.gate.set()
    await starting
    assert (owner.ready, shown()) == (True, 1)
    owner.revoke()
    assert shown() == 0


async def test_a_batch_in_flight_does_not_show_a_partition_again_that_another_worker_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka, metrics, released = FakeKafka(), Metrics(), asyncio.Event()
    owner = new_owner(kafka, metrics)
    await owner.resume()

    async def slowly(_time_ms: int) -> None:
        await released.wait()

    monkeypatch.setattr(owner._follower, "cover", slowly)
    monkeypatch.setattr(owner._follower, "has_covered", lambda _time_ms: False)
    taking = asyncio.create_task(owner.take(fill(kafka, mixed(2))))
    await asyncio.sleep(0.01)
    owner.revoke()
    metrics.forget(owner.partition)
    released.set()
    await taking
    shown = {
        family.name
        for family in metrics.registry.collect()
        for sample in family.samples
        if family.type == "gauge" and sample.labels.get("partition") == "0"
    }
    assert shown == set()


async def test_nothing_is_caught_before_the_owner_is_ready() -> None:
    kafka = FakeKafka()
    fill(kafka, mixed(2))
    owner = new_owner(kafka)
    await owner.catch_up()
    await owner.catch_up()
    assert not any(said(kafka).values())


async def test_a_cold_start_says_nothing_twice() -> None:
    kafka = FakeKafka()
    fill(kafka, mixed(6))
    await new_owner(kafka).resume()
    before = said(kafka)
    second = new_owner(kafka)
    await second.resume()
    assert said(kafka) == before
    await second.take(fill(kafka, [look("c")]))
    assert len(kafka.said(OUTPUTS[0])) == len(before[OUTPUTS[0]]) + 1


@pytest.mark.parametrize("alive_for", range(0, 20, 3))
async def test_a_process_that_dies_while_publishing_loses_and_repeats_nothing(
    alive_for: int,
) -> None:
    kafka = FakeKafka(dies_after=alive_for)
    fill(kafka, mixed(6))
    with pytest.raises(ProcessDied):
        await new_owner(kafka).resume()
    kafka.dies_after = None
    await new_owner(kafka).resume()
    assert said(kafka) == straight(kafka)


async def test_a_floor_that_a_late_former_owner_overwrote_is_the_highest_at_the_tail() -> None:
    kafka = FakeKafka()
    records = fill(kafka, [look(n=n) for n in range(8)])
    await new_owner(kafka).resume()
    first = kafka.topics[OUTPUTS[0]][2]
    kafka.append(first.topic, first.key, first.value, first.headers)  # offset 2 said once more
    before = kafka.said(OUTPUTS[0])
    owner = new_owner(kafka)
    await owner.resume()
    assert owner.watermark.floors[OUTPUTS[0]] == Told(records[-1].offset)
    assert kafka.said(OUTPUTS[0]) == before


async def test_each_output_topic_has_a_floor_of_its_own() -> None:
    """Verdicts may have been acknowledged where the interventions of the same steps were not."""
    kafka = FakeKafka()
    fill(kafka, mixed(6))
    await new_owner(kafka).resume()
    kafka.topics[TOPICS.interventions.name].pop()
    await new_owner(kafka).resume()
    assert said(kafka) == straight(kafka)


async def test_a_floor_beyond_the_log_belongs_to_a_former_log_and_is_dropped() -> None:
    kafka = FakeKafka()
    fill(kafka, [look(n=n) for n in range(8)])
    await new_owner(kafka).resume()
    kafka.topics[EVENTS].clear()  # somebody deleted the topic and made it anew
    kafka.ends[EVENTS] = 0
    fill(kafka, [look("new", n) for n in range(3)])
    await new_owner(kafka).resume()
    assert kafka.said(OUTPUTS[0])[8:] == straight(kafka)[OUTPUTS[0]]


async def test_no_checkpoint_is_waited_for_while_the_log_is_being_folded() -> None:
    """A rebalance in a recovery took four seconds longer, and wrote nothing all the same."""
    kafka = FakeKafka()
    fill(kafka, [look(n=n) for n in range(8)])
    kafka.gate = asyncio.Event()  # outputs are not acknowledged before it is set
    owner = new_owner(kafka)
    recovering = asyncio.create_task(owner.resume())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not owner.ready
    await asyncio.wait_for(owner.save(), 0.5)
    kafka.gate.set()
    await recovering
    assert owner.ready


@pytest.mark.parametrize("held", ["in a checkpoint", "in memory"])
async def test_a_state_beyond_the_logs_end_is_of_a_former_log_and_is_dropped(held: str) -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    await owner.take(fill(kafka, [look(n=n) for n in range(8)]))
    if held == "in a checkpoint":
        await owner.save()
        owner = new_owner(kafka)
    else:
        owner.revoke()
    kafka.topics[EVENTS].clear()  # somebody deleted the topic and made it anew
    kafka.ends[EVENTS] = 0
    fill(kafka, [look("early")])
    await owner.resume()
    await owner.take(fill(kafka, [look("late", n) for n in range(4)]))
    assert owner.watermark.next_offset == 5
    assert set(owner.state.runs) == {"early", "late"}
    assert kafka.said(OUTPUTS[0])[8:] == straight(kafka)[OUTPUTS[0]]


async def test_dead_letters_of_proposals_do_not_hide_those_of_events() -> None:
    """Both stand on one topic, but their offsets are of two topics."""
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    for _ in range(5):
        await owner.decide([record_of(kafka.append(PROPOSALS, b"a", b"junk"))])  # type: ignore[arg-type]
    fill(kafka, [b"junk 0", b"junk 1", *(look(n=n) for n in range(6))])
    await new_owner(kafka).resume()
    letters = kafka.said(TOPICS.dead_letters.name)
    assert len(letters) == 7
    assert letters[5:] == straight(kafka)[TOPICS.dead_letters.name]


async def test_offsets_without_a_message_are_passed_over() -> None:
    kafka = FakeKafka(holes=frozenset({0, 3, 4, 8, 9, 13}))
    owner = new_owner(kafka)
    await owner.resume()
    records = fill(kafka, mixed(5))
    await owner.take(records[:6])
    await owner.take(records[6:])
    kafka.ends[EVENTS] += 2  # markers at the end
    await owner.catch_up()
    await owner.catch_up()
    assert owner.watermark.next_offset == kafka.ends[EVENTS]
    assert said(kafka) == straight(kafka)


async def test_a_log_that_lost_its_beginning_is_folded_from_what_is_left() -> None:
    kafka = FakeKafka()
    fill(kafka, mixed(6))
    kafka.first = 5
    owner = new_owner(kafka)
    await owner.resume()
    assert said(kafka) == straight(kafka)


async def test_knowledge_is_read_up_to_the_first_event_of_a_run_before_it_is_folded() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    for n in range(3):
        records = fill(kafka, [look(run_id="a", n=n), look(run_id=f"new-{n}", n=n)])
        await owner.take(records)
        assert owner._follower.covered_ms >= records[-1].timestamp_ms


async def test_knowledge_is_not_asked_for_where_no_run_begins() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    first, *later = fill(kafka, [look(n=n) for n in range(3)])
    await owner.take([first])
    assert owner._follower.asked == [first.timestamp_ms]
    for record in later:
        await owner.take([record])
    await owner.decide(ask(kafka))
    assert owner._follower.asked == [first.timestamp_ms]


async def test_knowledge_is_read_again_where_a_run_without_a_step_may_still_name_its_task() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    started = fill(kafka, [RunStarted(run_id="a"), RunStarted(run_id="a", task_id="t")])
    for record in started:
        await owner.take([record])
    assert owner._follower.asked == [record.timestamp_ms for record in started]


async def test_a_batch_asks_for_knowledge_once() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    records = fill(kafka, [look(run_id=f"r-{n}", n=n) for n in range(4)])
    await owner.take(records)
    assert owner._follower.asked == [records[-1].timestamp_ms]


async def test_knowledge_is_asked_for_again_where_the_broker_does_not_answer() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    owner._follower.fails = [KafkaTimeoutError(), KafkaTimeoutError()]
    await owner.take(fill(kafka, [look("a"), look("b")]))
    assert said(kafka) == straight(kafka)
    assert not owner._follower.fails


def ask(kafka: FakeKafka, asked: Proposal = ASKED) -> list[Record]:
    """Append a proposal to its topic."""
    message = kafka.append(PROPOSALS, asked.run_id.encode(), codecs.encode(asked))
    return [record_of(message)]


async def test_a_proposal_of_an_unknown_run_has_its_knowledge_read() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    asked = ask(kafka)
    await owner.decide(asked)
    assert owner._follower.asked == [asked[-1].timestamp_ms]


async def test_a_revoked_owner_says_nothing_and_a_resumed_one_goes_on_where_it_was() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    records = fill(kafka, mixed(8))
    await owner.take(records[:6])
    owner.revoke()
    assert not owner.ready
    before = said(kafka)
    await owner.take(records[6:9])
    await owner.catch_up()
    assert said(kafka) == before
    other = new_owner(kafka)  # somebody else had it for a while
    await other.resume()
    kafka.reads.clear()
    await owner.resume()
    assert kafka.reads[-1] == (6, len(records))  # its own state, not folded from the beginning
    assert said(kafka) == straight(kafka)


async def test_a_batch_in_flight_at_the_revocation_is_finished_and_may_be_said_twice() -> None:
    kafka = FakeKafka(gate=asyncio.Event())
    records = fill(kafka, [look(n=n) for n in range(6)])
    owner = new_owner(kafka)
    task = asyncio.create_task(owner.resume())
    while not owner.watermark.next_offset:
        await asyncio.sleep(0)
    owner.revoke()
    assert kafka.gate is not None
    kafka.gate.set()
    await task
    assert not owner.ready
    assert owner.watermark.next_offset < len(records)
    await new_owner(kafka).resume()
    assert said(kafka) == straight(kafka)


async def test_a_batch_that_broke_off_for_want_of_knowledge_is_said_by_the_next_owner() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    await owner.take(fill(kafka, [look()]))
    batch = fill(kafka, [look(n=1), look(n=2), look("b")])
    owner._follower.fails = [TopicAuthorizationFailedError()]
    with pytest.raises(TopicAuthorizationFailedError):
        await owner.take(batch)
    await owner.save()  # as a worker does that stops
    await new_owner(kafka).resume()
    assert said(kafka) == straight(kafka)


async def test_a_batch_whose_outputs_were_refused_is_said_by_the_next_owner() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    await owner.take(fill(kafka, [look()]))
    kafka.refuses = TOPICS.verdicts.name
    with pytest.raises(BrokerUnavailable):
        await owner.take(fill(kafka, [look(n=1), look("b")]))
    kafka.refuses = None
    await owner.save()
    await new_owner(kafka).resume()
    assert said(kafka) == straight(kafka)


async def test_a_batch_that_was_cancelled_while_it_was_published_is_said_by_the_next_owner() -> (
    None
):
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    await owner.take(fill(kafka, [look()]))
    fill(kafka, [look(n=1), look(n=2)])
    await owner.catch_up()
    kafka.gate = asyncio.Event()
    task = asyncio.create_task(owner.catch_up())
    while owner.watermark.next_offset < 3:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    kafka.gate = None
    await owner.save()
    successor = new_owner(kafka)
    await successor.resume()
    await successor.take(fill(kafka, [look(n=3)]))
    assert said(kafka) == straight(kafka)


async def test_a_step_sent_twice_is_judged_once_and_counted() -> None:
    kafka, metrics = FakeKafka(), Metrics()
    step = Step(run_id="a", seq=0, tool="look")
    fill(kafka, [step, step])
    await new_owner(kafka, metrics).resume()
    assert len(kafka.said(OUTPUTS[0])) == 1
    assert "ontrack_duplicate_steps_total 1.0" in metrics.text().decode()


async def test_who_waits_for_a_recovery_is_let_go_when_the_partition_leaves() -> None:
    owner = new_owner(FakeKafka())
    waiting = asyncio.create_task(owner.until_ready())
    await asyncio.sleep(0)
    owner.revoke()
    await asyncio.wait_for(waiting, 5)
    again = asyncio.create_task(owner.until_ready())  # and who comes later waits for the next
    await asyncio.sleep(0.01)
    assert not again.done()
    await owner.resume()
    await asyncio.wait_for(again, 5)


async def test_a_proposal_is_answered_once_over_restarts_and_without_touching_the_run() -> None:
    kafka = FakeKafka()
    fill(kafka, [look()])
    owner = new_owner(kafka)
    await owner.resume()
    runs = dict(owner.state.runs)
    asked = codecs.encode(Proposal(run_id="a", tool="look"))
    records = [
        record_of(kafka.append(PROPOSALS, b"a", asked))  # type: ignore[arg-type]
        for _ in range(3)
    ]
    for record in (records[0], records[1], records[0]):
        await owner.decide([record])
    assert owner.state.runs == runs
    second = new_owner(kafka)
    await second.resume()
    for record in records:
        await second.decide([record])
    assert len(kafka.said(TOPICS.decisions.name)) == 3


async def test_an_owner_that_lost_the_partition_leaves_proposals_to_the_next() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    owner.revoke()
    asked = kafka.append(PROPOSALS, b"a", codecs.encode(Proposal(run_id="a", tool="look")))
    await owner.decide([record_of(asked)])  # type: ignore[arg-type]
    assert kafka.said(TOPICS.decisions.name) == []


events = st.one_of(
    st.builds(look, st.sampled_from("abc"), st.integers(0, 2)),
    st.builds(
        Step,
        run_id=st.sampled_from("ab"),
        seq=st.integers(0, 4),
        tool=st.just("edit"),
        error=st.none() | st.just(ErrorInfo(message="no")),
    ),
    st.builds(RunStarted, run_id=st.sampled_from("abc")),
    st.builds(RunEnded, run_id=st.sampled_from("bc")),
    st.sampled_from([b"junk", b"[]"]),
)
plays = st.one_of(
    st.tuples(st.just("append"), st.lists(events, min_size=1, max_size=6)),
    st.tuples(st.just("deliver"), st.lists(st.integers(0, 40), min_size=1, max_size=8)),
    st.tuples(st.just("next"), st.integers(1, 6)),
    st.tuples(st.just("look"), st.none()),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.sampled_from(("die", "fail")), st.integers(0, 5)),
    st.tuples(st.just("save"), st.none()),
    st.tuples(st.just("lend"), st.none()),
    st.tuples(st.just("ask"), st.sampled_from([b"junk", None])),
)


async def played(kafka: FakeKafka, script: Sequence[tuple[str, Any]]) -> PartitionOwner:
    """Play a script of appends, deliveries, restarts, deaths and rebalances."""
    delivered: list[Record] = []
    owner = new_owner(kafka)
    await owner.resume()
    for kind, what in script:
        try:
            if kind == "append":
                delivered += fill(kafka, what)
            elif kind == "deliver":
                await owner.take([delivered[n] for n in what if n < len(delivered)])
            elif kind == "next":
                start = owner.watermark.next_offset
                await owner.take([r for r in delivered if r.offset >= start][:what])
            elif kind == "look":
                await owner.catch_up()
            elif kind == "restart":
                owner = new_owner(kafka)
                await owner.resume()
            elif kind == "save":
                await owner.save()
            elif kind in ("die", "fail"):
                kafka.dies_after = what
                await owner.catch_up()
                await owner.catch_up()
                kafka.dies_after = None
            elif kind == "lend":
                owner.revoke()
                await owner.take(delivered[-2:])
                await new_owner(kafka).resume()
                await owner.resume()
            else:
                value = what or codecs.encode(Proposal(run_id="a", tool="look"))
                asked = kafka.append(PROPOSALS, b"a", value)
                await owner.decide([record_of(asked)])  # type: ignore[arg-type]
        except ProcessDied:
            kafka.dies_after = None
            if kind == "fail":  # and the process lives on
                await owner.save()
            else:
                owner = new_owner(kafka)
            await owner.resume()
    await owner.catch_up()
    await owner.catch_up()
    return owner


@settings(max_examples=30)
@given(st.lists(plays, max_size=14), st.frozensets(st.integers(0, 30), max_size=5))
def test_whatever_is_lost_repeated_or_restarted_all_is_said_and_nothing_else(
    script: list[tuple[str, Any]], holes: frozenset[int]
) -> None:
    kafka = FakeKafka(holes=holes)
    owner = asyncio.run(played(kafka, script))
    expected = straight(kafka)
    found = said(kafka)
    of_proposals = {
        message.value
        for message in kafka.topics.get(TOPICS.dead_letters.name, [])
        if message.value is not None and b'"topic":"%b"' % PROPOSALS.encode() in message.value
    }
    letters = TOPICS.dead_letters.name
    found[letters] = [value for value in found[letters] if value not in of_proposals]
    assert found == expected  # in order, each once
    assert owner.watermark.next_offset == kafka.ends.get(EVENTS, 0)


async def test_proposals_that_were_not_delivered_are_read_and_answered_once() -> None:
    kafka = FakeKafka()
    for number in range(4):
        kafka.append(PROPOSALS, b"a", b"junk" if number else codecs.encode(ASKED))
    owner = new_owner(kafka)
    await owner.resume()  # what stood there unanswered
    late = [kafka.append(PROPOSALS, b"a", codecs.encode(ASKED)) for _ in range(3)]
    await owner.decide([record_of(late[-1])])  # the first two were never delivered
    await owner.decide([record_of(late[0])])
    answers = kafka.topics[TOPICS.decisions.name] + kafka.topics[TOPICS.dead_letters.name]
    sources = [source_offset(answer, PROPOSALS) for answer in answers]
    assert sorted(sources) == list(range(7))
    again = new_owner(kafka)
    await again.resume()
    said = kafka.topics[TOPICS.decisions.name] + kafka.topics[TOPICS.dead_letters.name]
    assert len(said) == len(answers)


def snapshots(kafka: FakeKafka) -> list[Stored]:
    return kafka.topics.get(TOPICS.snapshots.name, [])


async def folded(kafka: FakeKafka, values: Sequence[Event], every: int = 3) -> None:
    """Fold events with frequent checkpoints, as a worker does that is killed afterwards."""
    owner = new_owner(kafka, checkpoint_events=every)
    await owner.resume()
    for record in fill(kafka, values):
        await owner.take([record])


RUNS = [
    event
    for number in range(6)
    for event in (
        *[RunStarted(run_id="a", task_id="t")][: number == 0],
        Step(run_id="a", tool="look", args={"at": number}, result=f"r{number}"),
        Step(run_id="b", tool="look", args={"at": number}, result="same"),
        *[RunEnded(run_id="b")][: number == 5],
    )
]


async def test_a_cold_start_begins_at_the_checkpoint_and_says_the_same() -> None:
    kafka, plain = FakeKafka(), FakeKafka()
    await folded(kafka, RUNS[:9])
    successor = new_owner(kafka, checkpoint_events=3)
    await successor.resume()
    assert kafka.reads[-1][0] >= 9  # not from the log's start
    for record in fill(kafka, RUNS[9:]):
        await successor.take([record])
    straight = new_owner(plain)
    await straight.resume()
    await straight.take(fill(plain, RUNS))
    for topic in OUTPUTS:
        assert [m.value for m in kafka.topics.get(topic, [])] == [
            m.value for m in plain.topics.get(topic, [])
        ]
    await successor.save()
    assert [m.value for m in snapshots(kafka) if m.key == b"b"][-1] is None  # tombstone


async def test_without_snapshots_or_with_damaged_ones_the_log_gives_the_same_state() -> None:
    kafka = FakeKafka()
    await folded(kafka, RUNS[:9])
    said = {topic: len(kafka.topics.get(topic, [])) for topic in OUTPUTS}
    sound = list(snapshots(kafka))
    states = []
    for damage in ("none", "all gone", "bit", "run missing", "former owner's last words"):
        stored = list(sound)
        if damage == "all gone":
            stored = []
        elif damage == "bit":
            last = stored[-1]
            stored[-1] = replace(last, value=last.value[:-1] + bytes([last.value[-1] ^ 1]))
        elif damage == "run missing":
            stored = [entry for entry in stored if entry.key != b"a"]
        elif damage == "former owner's last words":
            stored.append(next(entry for entry in stored if entry.key == b"a"))
        kafka.topics[TOPICS.snapshots.name] = stored
        kafka.ends[TOPICS.snapshots.name] = len(stored)
        metrics = Metrics()
        owner = new_owner(kafka, metrics)
        await owner.resume()
        refused = metrics.text().decode().count("ontrack_snapshots_refused_total 1.0")
        assert refused == (damage not in ("none", "all gone")), damage
        states.append({run_id: snapshot.dump(s, 0) for run_id, s in owner.state.runs.items()})
        assert owner.state.positions == {"a": 7, "b": 8}
    assert all(state == states[0] for state in states)
    assert {topic: len(kafka.topics.get(topic, [])) for topic in OUTPUTS} == said


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.integers(1, 5))
def test_wherever_workers_are_killed_checkpoints_change_nothing(
    lives: list[int], every: int
) -> None:
    async def story() -> None:
        kafka, plain = FakeKafka(), FakeKafka()
        left = list(RUNS)
        for life in lives:
            owner = new_owner(kafka, checkpoint_events=every)
            await owner.resume()
            for record in fill(kafka, left[:life]):
                await owner.take([record])
            left = left[life:]
        last = new_owner(kafka, checkpoint_events=every)
        await last.resume()
        await last.take(fill(kafka, left))
        straight = new_owner(plain)
        await straight.resume()
        await straight.take(fill(plain, RUNS))
        for topic in OUTPUTS:
            assert [m.value for m in kafka.topics.get(topic, [])] == [
                m.value for m in plain.topics.get(topic, [])
            ]

    asyncio.run(story())


async def test_a_silent_run_is_closed_by_an_event_in_the_log_once() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka, run_idle_s=60)
    await owner.resume()
    await owner.take(fill(kafka, RUNS[:3]))
    heard = max(owner.state.heard_ms.values())
    await owner.close_idle(min(owner.state.heard_ms.values()) + 60_000)
    assert len(kafka.topics[EVENTS]) == 3  # not yet
    await owner.close_idle(heard + 60_001)
    await owner.close_idle(heard + 60_002)
    ends = [codecs.decode_event(message.value).event for message in kafka.topics[EVENTS][3:]]
    assert sorted(end.run_id for end in ends) == ["a", "b"]
    assert {(end.outcome, end.reason) for end in ends} == {("cancelled", "idle: no event for 60 s")}
    later = new_owner(kafka)  # and whoever reads the log comes to the same end
    await later.resume()
    assert not later.state.runs
    cards = [json.loads(m.value) for m in kafka.topics[TOPICS.scorecards.name]]
    assert sorted((card["run_id"], card["outcome"]) for card in cards) == [
        ("a", "cancelled"),
        ("b", "cancelled"),
    ]


async def test_the_same_end_twice_is_a_duplicate_and_another_one_a_dead_letter() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    end = RunEnded(run_id="a", outcome="success")
    await owner.take(fill(kafka, [*RUNS[:2], end, end, RunEnded(run_id="a", outcome="failure")]))
    letters = [json.loads(m.value) for m in kafka.topics[TOPICS.dead_letters.name]]
    assert [letter["offset"] for letter in letters] == [4]
    assert len(kafka.topics[TOPICS.scorecards.name]) == 1


async def test_where_the_logs_beginning_is_gone_no_number_is_given_twice() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    await owner.take(fill(kafka, RUNS[:7]))  # runs a and b, unnumbered steps
    kafka.first = 3  # retention
    cold = new_owner(kafka)
    await cold.resume()
    later = fill(kafka, [*RUNS[7:9], Step(run_id="n", tool="look"), Step(run_id="n", tool="see")])
    numbered = fill(kafka, [Step(run_id="c", seq=7, tool="look")])
    await cold.take([*later, *numbered])
    said: dict[str, bytes] = {}
    for message in kafka.topics[TOPICS.verdicts.name]:
        assert said.setdefault(json.loads(message.value)["id"], message.value) == message.value
    assert {"n:0", "n:1", "c:7"} <= said.keys()
    assert "gap" in json.loads(said["c:7"])["flags"]
    letters = [json.loads(m.value) for m in kafka.topics[TOPICS.dead_letters.name]]
    assert {letter["error"]["name"] for letter in letters} == {"BeginningLost"}
    assert [letter["offset"] for letter in letters] == [7, 8]


async def test_a_proposal_whose_answer_was_cancelled_is_answered_after_the_return() -> None:
    kafka = FakeKafka(gate=asyncio.Event())
    owner = new_owner(kafka)
    await owner.resume()
    task = asyncio.create_task(owner.decide(ask(kafka)))
    while not owner.asked.next_offset:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    kafka.gate = None
    owner.revoke()
    await owner.resume()
    assert len(kafka.said(TOPICS.decisions.name)) == 1


async def test_a_proposal_whose_answer_failed_is_answered_after_the_return() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    kafka.dies_after = 0
    with pytest.raises(ProcessDied):
        await owner.decide(ask(kafka))
    kafka.dies_after = None
    owner.revoke()
    await owner.resume()
    assert len(kafka.said(TOPICS.decisions.name)) == 1


@pytest.mark.parametrize("held", ["by the next owner", "in memory"])
async def test_proposals_on_a_topic_that_was_made_anew_are_answered(held: str) -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    for _ in range(5):
        await owner.decide(ask(kafka))
    owner.revoke()
    kafka.topics[PROPOSALS].clear()
    kafka.ends[PROPOSALS] = 0
    if held == "by the next owner":
        owner = new_owner(kafka)
    await owner.resume()
    await owner.decide(ask(kafka))
    assert len(kafka.said(TOPICS.decisions.name)) == 6
