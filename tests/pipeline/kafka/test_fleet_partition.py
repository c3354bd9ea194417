"""The reader of the fleet's minutes, without a broker: whatever breaks, the lines are the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from ontrack.operators.fleet_state import FleetParams
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.kafka.fleet import Fleet, FleetPartition, params_of
from ontrack.pipeline.kafka.merged import merged
from ontrack.pipeline.kafka.messages import topic_of
from ontrack.pipeline.kafka.turns import Turns
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, references, simulate_run, task_ids
from ontrack.topics import codecs
from ontrack.topics.catalog import catalogue
from ontrack.topics.fleet import FleetAggregate
from ontrack.topics.verdicts import Output, Verdict
from tests.fleet_oracle import as_counted, by_plain_python
from tests.pipeline.kafka.test_owner import FakeKafka, ProcessDied, Stored

TOPICS = catalogue()
FLEET, STATES, VERDICTS = TOPICS.fleet.name, TOPICS.fleet_states.name, TOPICS.verdicts.name
MINUTE = 60_000
NOON = 1_796_040_000_000
PARAMS = FleetParams(silent_ms=60 * MINUTE)
LATER = NOON + 600 * MINUTE


def outputs_of_some_runs() -> list[Output]:
    monitor = EmbeddedMonitor(Settings(encoder="hashing"), references(), contracts())
    faults = (None, "loop", "stall", "irreversible")
    runs = [
        simulate_run(task_ids()[n % 3], n, faults[n % 4], run_id=f"r{n}").events for n in range(8)
    ]
    return [output for events in runs for event in events for output in monitor.feed(event)]


OUTPUTS = outputs_of_some_runs()
END = Verdict.model_validate_json(codecs.encode(next(o for o in OUTPUTS if o.type == "verdict")))
END = END.model_copy(update={"run_id": "end", "id": "end:0"})


def publish(kafka: FakeKafka, output: Output, at_ms: int) -> None:
    kafka.now_ms = at_ms
    kafka.append(topic_of(TOPICS, output), b"k", codecs.encode(output))


def published(every_ms: int = 7000) -> FakeKafka:
    """A broker with the outputs of all runs, one after the other."""
    kafka = FakeKafka()
    for number, output in enumerate(OUTPUTS):
        publish(kafka, output, NOON + number * every_ms)
    return kafka


def reader(kafka: Any, metrics: Metrics | None = None) -> FleetPartition:
    return FleetPartition(0, PARAMS, TOPICS, kafka, kafka, metrics or Metrics(), Turns())


def advance(part: FleetPartition) -> None:
    asyncio.run(_with_turns(part))


async def _with_turns(part: FleetPartition) -> None:
    part._turns = Turns()  # its lock belongs to the loop of this call
    await part.advance()


def lines(kafka: FakeKafka) -> dict[str, FleetAggregate]:
    """The last line of each id."""
    found = [codecs.decode_fleet(value or b"") for value in kafka.said(FLEET)]
    return {line.id: line for line in found}


def finished(kafka: FakeKafka, part: FleetPartition) -> dict[str, FleetAggregate]:
    """The final lines, once an output has come that is much later than all others."""
    publish(kafka, END, LATER)
    advance(part)
    return {name: line for name, line in lines(kafka).items() if line.final}


def expected(kafka: FakeKafka) -> dict[tuple[int, str], Any]:
    timed, seen = [], set()
    for topic in (VERDICTS, TOPICS.interventions.name, TOPICS.scorecards.name):
        for message in kafka.topics.get(topic, ()):
            output = codecs.decode_output(message.value or b"")
            if output.id not in seen and output.id != END.id:
                seen.add(output.id)
                timed.append((output, message.timestamp))
    return by_plain_python(timed, PARAMS)


def test_what_stands_on_the_topics_is_counted_minute_by_minute() -> None:
    kafka, metrics = published(), Metrics()
    part = reader(kafka, metrics)
    advance(part)
    told = lines(kafka)
    assert {line.partition for line in told.values()} == {0}
    first = next(iter(kafka.topics[FLEET]))
    line = codecs.decode_fleet(first.value or b"")
    assert first.key == line.group.key.text.encode()
    assert dict(first.headers)["ce_type"] == b"ontrack.fleet"
    assert as_counted(finished(kafka, part).values()) == expected(kafka)
    count = metrics.registry.get_sample_value
    final = count("ontrack_fleet_aggregates_total", {"kind": "final"})
    assert final == len([line for line in lines(kafka).values() if line.final])


@settings(max_examples=25)
@given(st.lists(st.integers(0, 40), max_size=6), st.integers(1, len(OUTPUTS)))
def test_killed_at_any_message_it_comes_to_the_same_final_lines(
    deaths: list[int], at_first: int
) -> None:
    kafka = FakeKafka()
    left = [(output, NOON + n * 7000) for n, output in enumerate(OUTPUTS)]
    for output, at_ms in left[:at_first]:
        publish(kafka, output, at_ms)
    left = left[at_first:]
    for messages in deaths:
        part = reader(kafka)
        kafka.dies_after = messages
        for _ in range(3):
            try:
                advance(part)
            except ProcessDied:
                break
            for output, at_ms in left[:5]:
                publish(kafka, output, at_ms)
            left = left[5:]
    kafka.dies_after = None
    for output, at_ms in left:
        publish(kafka, output, at_ms)
    assert as_counted(finished(kafka, reader(kafka)).values()) == expected(kafka)


def test_a_successor_begins_where_the_state_was_written() -> None:
    kafka = published()
    advance(reader(kafka))
    (state,) = kafka.topics[STATES]
    assert state.key == b""
    told = len(kafka.topics[FLEET])
    successor = reader(kafka)
    advance(successor)
    assert len(kafka.topics[FLEET]) == told  # nothing new, so nothing is said
    assert successor._offsets[VERDICTS] == kafka.ends[VERDICTS]


@pytest.mark.parametrize("damage", [b"", b"OTS3 nonsense", None])
def test_a_damaged_state_is_refused_and_the_one_before_counts(damage: bytes | None) -> None:
    kafka, metrics = published(), Metrics()
    advance(reader(kafka))
    kafka.append(STATES, b"", damage)
    part = reader(kafka, metrics)
    with capture_logs() as logs:
        advance(part)
    assert part._offsets[VERDICTS] == kafka.ends[VERDICTS]
    assert metrics.registry.get_sample_value("ontrack_snapshots_refused_total") == 1
    assert "fleet_state_refused" in {line["event"] for line in logs}
    assert as_counted(finished(kafka, part).values()) == expected(kafka)


def test_without_any_sound_state_it_begins_at_the_topics_beginning() -> None:
    kafka = published()
    advance(reader(kafka))
    kafka.topics[STATES] = [replace(kafka.topics[STATES][0], value=b"damaged")]
    assert as_counted(finished(kafka, reader(kafka)).values()) == expected(kafka)


def test_topics_that_were_made_anew_are_read_from_their_beginning() -> None:
    kafka = published()
    part = reader(kafka)
    advance(part)
    for topic in (VERDICTS, TOPICS.interventions.name, TOPICS.scorecards.name, FLEET):
        kafka.topics.pop(topic, None)
        kafka.ends.pop(topic, None)
    for number, output in enumerate(OUTPUTS[: len(OUTPUTS) // 3]):
        publish(kafka, output, NOON + 300 * MINUTE + number * 7000)
    with capture_logs() as logs:
        advance(part)
    assert "fleet_of_former_topics" in {line["event"] for line in logs}
    assert as_counted(finished(kafka, part).values()) == expected(kafka)


class Expiring(FakeKafka):
    """The first verdicts are gone."""

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        first, last = await super().bounds(topic, partition)
        return (20 if topic == VERDICTS else first), last


def test_outputs_that_expired_before_they_were_read_are_told_of() -> None:
    kafka, metrics = published(), Metrics()
    part = reader(kafka, metrics)
    part._restored = True
    part._offsets[VERDICTS] = 5
    expiring = Expiring(kafka.topics, kafka.ends)
    part._reader = expiring  # type: ignore[assignment]
    advance(part)
    name = "ontrack_fleet_skipped_total"
    assert metrics.registry.get_sample_value(name, {"reason": "expired"}) == 15


def test_messages_that_are_no_outputs_are_passed_over_and_counted() -> None:
    kafka, metrics = published(), Metrics()
    for value in (b"{", b"\xff", b'{"type":"lunch"}', None):
        kafka.append(VERDICTS, b"k", value)
    part = reader(kafka, metrics)
    advance(part)
    name = "ontrack_fleet_skipped_total"
    assert metrics.registry.get_sample_value(name, {"reason": "unreadable"}) == 3
    assert part._offsets[VERDICTS] == kafka.ends[VERDICTS]


def test_a_foreign_output_with_endless_names_gives_a_line_that_a_broker_takes() -> None:
    kafka = published()
    foreign = END.model_copy(update={"task_id": "t" * 300_000, "tenant": "u" * 300_000})
    publish(kafka, foreign, kafka.now_ms or NOON)
    lines_of_it = [line for line in finished(kafka, reader(kafka)).values() if line.group.tenant]
    assert {line.group.task_id for line in lines_of_it} >= {"t" * 512}
    messages = [*kafka.topics[FLEET], *kafka.topics[STATES]]
    assert max(len(each.key or b"") + len(each.value or b"") for each in messages) < 500_000


def test_a_partition_that_was_taken_away_says_nothing_more() -> None:
    kafka = published()
    part = reader(kafka)
    part.owned = False
    advance(part)
    assert kafka.said(FLEET) == kafka.said(STATES) == []


class Stoppable(FakeKafka):
    """A log reader whose connection can be closed."""

    async def stop(self) -> None:
        self.gate = None


def test_a_failure_is_logged_and_counted_and_the_reading_begins_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ontrack.pipeline.kafka.fleet.PAUSE_S", 0.0)
    monkeypatch.setattr("ontrack.pipeline.kafka.fleet.POLL_S", 0.01)
    kafka, metrics = Stoppable(**vars(published())), Metrics()
    kafka.refuses = FLEET

    async def run() -> None:
        fleet = Fleet(Settings(), TOPICS, kafka, metrics, Turns())  # type: ignore[arg-type]
        fleet._reader = kafka  # type: ignore[assignment]
        fleet.assign([0])
        await _until(lambda: _failures(metrics) > 1)
        kafka.refuses = None
        await _until(lambda: bool(kafka.said(STATES)))
        await fleet.stop()
        told = len(kafka.said(FLEET))
        publish(kafka, END, LATER)
        await asyncio.sleep(0.05)
        assert len(kafka.said(FLEET)) == told

    with capture_logs() as logs:
        asyncio.run(run())
    assert "fleet_failed" in {line["event"] for line in logs}


def _failures(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("ontrack_fleet_failures_total") or 0.0


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=60))
def test_topics_are_merged_by_time_and_each_keeps_its_order(said: list[tuple[str, int]]) -> None:
    kafka = FakeKafka()
    for topic, at_ms in sorted(said, key=lambda item: item[1]):
        kafka.now_ms = at_ms
        kafka.append(topic, None, b"")

    async def read() -> list[Stored]:
        spans = {TopicPartition(topic, 0): (0, kafka.ends.get(topic, 0)) for topic in "abc"}
        batches = merged(kafka, spans)  # type: ignore[arg-type]
        return [m async for batch in batches for m in batch]  # type: ignore[misc]

    found = asyncio.run(read())
    assert [m.timestamp for m in found] == sorted(at_ms for _, at_ms in said)
    for topic in "abc":
        assert [m for m in found if m.topic == topic] == kafka.topics.get(topic, [])


def test_a_run_is_open_for_longer_than_the_monitor_lets_it_be_silent() -> None:
    assert params_of(Settings(run_idle_s=60)).silent_ms > 60_000
