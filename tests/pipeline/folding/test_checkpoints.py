"""Checkpoints change nothing: every kind of event, with saves and deaths and without."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from ontrack.pipeline.folding import checkpoint, offload, parts
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.metrics import Metrics
from ontrack.topics import codecs
from ontrack.topics.events import (
    ChildStarted,
    Event,
    GapClosed,
    ParentHalted,
    Proposal,
    RunEnded,
    RunStarted,
    Step,
)
from tests.pipeline.folding.test_family import small_fold
from tests.pipeline.kafka.test_owner import (
    EVENTS,
    SETTINGS,
    TOPICS,
    FakeKafka,
    ask,
    fill,
    new_owner,
    said,
    snapshots,
)

HOUR_MS = 3_600_000

NAMES = st.sampled_from("abc")
ANY_EVENT: st.SearchStrategy[Event | bytes] = st.one_of(
    st.builds(
        Step,
        run_id=NAMES,
        seq=st.none() | st.integers(0, 5),
        tool=st.sampled_from(("look", "edit")),
        result=st.sampled_from((None, "same", "other")),
        parent_run_id=st.none() | NAMES,
    ),
    st.builds(RunStarted, run_id=NAMES, parent_run_id=st.none() | NAMES),
    st.builds(RunEnded, run_id=NAMES, outcome=st.sampled_from(("success", "failure"))),
    st.builds(GapClosed, run_id=NAMES, seq=st.integers(1, 5)),
    st.builds(ChildStarted, run_id=NAMES, child_run_id=NAMES),
    st.builds(ParentHalted, run_id=NAMES, parent_run_id=NAMES),
    st.just(b"junk"),
)


@pytest.fixture(autouse=True)
def _owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners whose runs are halted at their third step."""
    monkeypatch.setattr("tests.pipeline.kafka.test_owner.FOLD", small_fold())


def told(kafka: FakeKafka) -> tuple[Any, ...]:
    """What consumers were told, and what was written into the log.

    Notices may come twice, so a dead letter's offset says nothing here.
    """
    outputs = said(kafka)
    letters = [json.loads(value or b"") for value in outputs.pop(TOPICS.dead_letters.name)]
    bad = [(letter["value_base64"], letter["error"]) for letter in letters]
    return outputs, bad, set(kafka.said(EVENTS))


async def lived(script: list[tuple[str, Any]], checkpoints: bool) -> FakeKafka:
    """Play a script with owners that save, or with owners that never do."""
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    for kind, what in script:
        if kind == "events":
            for record in fill(kafka, what):
                await owner.take([record])
        elif kind == "save" and checkpoints:
            await owner.save()
        elif kind == "die":
            owner = new_owner(kafka)
            await owner.resume()
        await owner.catch_up()  # our own notices come back to us
        await owner.catch_up()
    return kafka


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("events"), st.lists(ANY_EVENT, min_size=1, max_size=5)),
            st.tuples(st.just("save"), st.none()),
            st.tuples(st.just("die"), st.none()),
        ),
        max_size=12,
    )
)
def test_with_and_without_checkpoints_the_same_is_said(script: list[tuple[str, Any]]) -> None:
    with_them = asyncio.run(lived(script, checkpoints=True))
    without = asyncio.run(lived(script, checkpoints=False))
    assert told(with_them) == told(without)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "VALUE_BYTES_MAX", 150)  # entries are cut up
        in_parts = asyncio.run(lived(script, checkpoints=True))
    assert told(in_parts) == told(without)


async def played(*scripts: list[Event]) -> FakeKafka:
    """Scripts of events with a save after the first one and a death after each."""
    kafka = FakeKafka()
    for number, events in enumerate(scripts):
        owner = new_owner(kafka)
        await owner.resume()
        await owner.take(fill(kafka, events))
        for _ in range(4):
            await owner.catch_up()  # our own notices come back to us
        if number == 0:
            await owner.save()
    return kafka


def look(run_id: str, number: int = 0, parent: str | None = None) -> Step:
    return Step(run_id=run_id, tool="look", args={"n": number}, parent_run_id=parent)


async def test_a_halt_after_the_checkpoint_reaches_a_child_that_starts_later() -> None:
    rest = [look("parent", 1), look("parent", 2), RunEnded(run_id="parent")]
    kafka = await played([look("parent")], [*rest], [look("child", 0, "parent")])
    halts = [message.key for message in kafka.topics[TOPICS.interventions.name]]
    assert halts == [b"parent", b"child"]


async def test_a_second_end_after_the_checkpoint_is_a_dead_letter() -> None:
    other = RunEnded(run_id="a", outcome="failure")
    kafka = await played([look("a")], [RunEnded(run_id="a", outcome="success")], [other])
    (letter,) = kafka.topics[TOPICS.dead_letters.name]
    assert json.loads(letter.value or b"")["error"]["name"] == "EventAfterEnd"


async def test_where_the_beginning_is_gone_a_checkpoint_remembers_it() -> None:
    kafka = FakeKafka()
    first = new_owner(kafka)
    await first.resume()
    await first.take(fill(kafka, [look("u", 0), look("u", 1)]))
    kafka.first = 1  # retention
    second = new_owner(kafka)
    await second.resume()
    await second.take(fill(kafka, [look("u", 2), look("v")]))
    await second.save()
    third = new_owner(kafka)
    await third.resume()
    await third.take(fill(kafka, [look("u", 5)]))
    ids = [json.loads(message.value or b"")["id"] for message in kafka.topics[TOPICS.verdicts.name]]
    assert sorted(ids) == ["u:0", "u:1", "v:0"]  # none twice
    names = [
        json.loads(message.value or b"")["error"]["name"]
        for message in kafka.topics[TOPICS.dead_letters.name]
    ]
    assert names == ["BeginningLost", "BeginningLost"]


def heads_and_parts(kafka: FakeKafka) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """What stands on the topic after compaction: entries by key, and parts by key."""
    latest = {message.key or b"": message.value for message in snapshots(kafka)}
    kept = {key: value for key, value in latest.items() if value is not None}
    found = {key: value for key, value in kept.items() if parts.is_part(key)}
    return {key: value for key, value in kept.items() if key not in found}, found


async def test_one_run_that_is_too_large_for_a_message_stops_no_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint, "VALUE_BYTES_MAX", 200)
    kafka, metrics = FakeKafka(), Metrics()
    owner = new_owner(kafka, metrics)
    await owner.resume()
    for number in range(2):
        await owner.take(fill(kafka, [look("a", number)]))
        await owner.save()
    heads, found = heads_and_parts(kafka)
    assert heads.keys() == {b"a", b""}
    # Only those of the latest version are left, and no message was larger than it may be.
    assert found.keys() == {key for head in heads.values() for key in parts.part_keys(head)}
    assert len(found) > 2
    assert all(len(message.value or b"") <= 200 for message in snapshots(kafka))
    assert "ontrack_snapshots_refused_total 0.0" in metrics.text().decode()

    successor = new_owner(kafka, Metrics())
    with capture_logs() as logs:
        await successor.resume()
    assert "checkpoint_restored" in [each["event"] for each in logs]
    assert successor.state.runs["a"].highest == owner.state.runs["a"].highest == 1
    await successor.take(fill(kafka, [RunEnded(run_id="a")]))
    await successor.save()
    heads, found = heads_and_parts(kafka)
    assert heads.keys() == {b""}
    assert found.keys() == set(parts.part_keys(heads[b""]))


@pytest.mark.parametrize("dies_at", range(12))
async def test_whenever_it_dies_while_it_writes_parts_the_run_is_known(
    monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    monkeypatch.setattr(checkpoint, "VALUE_BYTES_MAX", 150)
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    await owner.take(fill(kafka, [look("a", 0)]))
    await owner.save()
    before = len(snapshots(kafka))
    await owner.take(fill(kafka, [look("a", 1)]))
    await owner.save()
    stored = snapshots(kafka)[: before + dies_at]
    kafka.topics[TOPICS.snapshots.name] = stored
    kafka.ends[TOPICS.snapshots.name] = len(stored)
    metrics = Metrics()
    successor = new_owner(kafka, metrics)
    await successor.resume()
    assert successor.state.runs["a"].highest == 1
    assert "ontrack_snapshots_refused_total 0.0" in metrics.text().decode()


def test_a_part_that_is_missing_or_of_another_version_is_no_entry() -> None:
    entry = checkpoint.Entry(b"a", bytes(20_000_000), 7)
    *pieces, head = parts.split(entry)
    assert (len(pieces), head.key, head.offset) == (3, b"a", 7)
    whole = {one.key: one for one in (*pieces, head)}
    assert list(parts.joined(whole)) == [entry]
    for broken in ({"value": None}, {"value": b"else"}):
        lacking = whole | {pieces[1].key: replace(pieces[1], **broken)}
        assert [one.value for one in parts.joined(lacking)] == [None]


async def test_a_checkpoint_that_is_too_large_is_left_out_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint, "VALUE_BYTES_MAX", 10)
    monkeypatch.setattr(parts, "PARTS_MAX", 10)
    kafka, metrics = FakeKafka(), Metrics()
    owner = new_owner(kafka, metrics)
    await owner.resume()
    await owner.take(fill(kafka, [look("a")]))
    await owner.save()
    assert not snapshots(kafka)
    assert "ontrack_snapshots_refused_total 1.0" in metrics.text().decode()


async def test_the_entry_of_an_ended_run_goes_with_the_next_one_after_a_refusal_too() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    await owner.take(fill(kafka, [look("a"), look("b")]))
    await owner.save()
    entries = snapshots(kafka)
    damaged = [entry for entry in entries if entry.key != b""]
    kafka.topics[TOPICS.snapshots.name] = damaged  # the partition's own entry is gone
    successor = new_owner(kafka)
    await successor.resume()
    await successor.take(fill(kafka, [RunEnded(run_id="a")]))
    await successor.save()
    last = {entry.key: entry.value for entry in snapshots(kafka)}
    assert last[b"a"] is None
    assert last[b"b"] is not None


async def test_a_partition_lost_again_before_its_turn_is_not_taken() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    async with owner._turn:
        waiting = asyncio.create_task(owner.resume())
        await asyncio.sleep(0)
        owner.revoke()
    await waiting
    assert not owner.ready


async def test_a_worker_that_lags_behind_closes_no_run_as_silent() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka, run_idle_s=60)
    await owner.resume()
    await owner.take(fill(kafka, [look("a")]))
    fill(kafka, [look("a", 1)])  # not delivered yet
    await owner.catch_up()
    await owner.close_idle(1_700_000_000_000 + 120_000)
    assert len(kafka.topics[EVENTS]) == 2


async def test_a_silent_run_is_closed_though_workers_restart_more_often_than_it_is_waited_for() -> (
    None
):
    kafka = FakeKafka(now_ms=1_700_000_000_000)
    owner = new_owner(kafka, run_idle_s=6 * 3600)
    await owner.resume()
    await owner.take(fill(kafka, [look("silent")]))
    for number in range(3):  # a deployment every five hours; another run is busy
        assert kafka.now_ms is not None
        kafka.now_ms += 5 * HOUR_MS
        await owner.take(fill(kafka, [look("busy", number)]))
        await owner.close_idle(kafka.now_ms)
        await owner.save()
        owner = new_owner(kafka, run_idle_s=6 * 3600)
        await owner.resume()
    written = [codecs.decode_event(value or b"").event for value in kafka.said(EVENTS)]
    assert [event.run_id for event in written if isinstance(event, RunEnded)] == ["silent"]


PLAIN_EVENT = st.one_of(
    st.builds(Step, run_id=NAMES, tool=st.just("look")),
    st.builds(RunStarted, run_id=NAMES),
    st.builds(RunEnded, run_id=NAMES),
)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("event"), PLAIN_EVENT),
            st.tuples(st.just("wait"), st.integers(1, HOUR_MS)),
            st.tuples(st.sampled_from(("save", "die")), st.none()),
        ),
        max_size=20,
    )
)
def test_wherever_workers_restart_the_time_of_each_runs_last_event_is_known(
    script: list[tuple[str, Any]],
) -> None:
    async def story() -> None:
        kafka, plain = FakeKafka(now_ms=1_700_000_000_000), PartitionState()
        owner = new_owner(kafka)
        await owner.resume()
        for kind, what in script:
            if kind == "event":
                (record,) = fill(kafka, [what])
                await owner.take([record])
                small_fold().apply(plain, record)
            elif kind == "wait":
                assert kafka.now_ms is not None
                kafka.now_ms += what
            elif kind == "save":
                await owner.save()
            else:
                owner = new_owner(kafka)
                await owner.resume()
            assert owner.state.heard_ms == plain.heard_ms

    asyncio.run(story())


def watched(patch: pytest.MonkeyPatch, owners: list[Any]) -> tuple[Fold, list[int]]:
    """A fold that forgets fast, and the times it asked about before they were covered."""
    few = {"warm_runs_max": 1, "ended_runs_max": 1}
    fold, early = make_fold(SETTINGS.model_copy(update=few)), list[int]()
    plain = fold.library.knowledge

    def knowledge(task_id: str | None, run_id: str, time_ms: int | None) -> Any:
        if time_ms is not None and time_ms > owners[-1]._follower.covered_ms:
            early.append(time_ms)
        return plain(task_id, run_id, time_ms)

    patch.setattr(fold.library, "knowledge", knowledge)
    return fold, early


@settings(max_examples=30, deadline=None)
@given(
    st.booleans(),
    st.lists(
        st.one_of(
            st.tuples(
                st.sampled_from(("one by one", "a batch", "undelivered")),
                st.lists(
                    ANY_EVENT | st.builds(RunStarted, run_id=NAMES, task_id=st.just("t")),
                    min_size=1,
                    max_size=5,
                ),
            ),
            st.tuples(st.just("ask"), NAMES),
            st.tuples(st.sampled_from(("save", "die", "lend")), st.none()),
        ),
        max_size=14,
    ),
)
def test_the_library_is_never_asked_about_a_time_that_it_does_not_cover(
    threads: bool, script: list[tuple[str, Any]]
) -> None:
    owners: list[Any] = []

    async def story() -> None:
        kafka = FakeKafka()
        owners.append(new_owner(kafka, checkpoint_events=3))
        await owners[-1].resume()
        for kind, what in script:
            if kind == "one by one":
                for record in fill(kafka, what):
                    await owners[-1].take([record])
            elif kind == "a batch":
                await owners[-1].take(fill(kafka, what))
            elif kind == "undelivered":
                fill(kafka, what)
            elif kind == "ask":
                await owners[-1].decide(ask(kafka, Proposal(run_id=what, tool="look")))
            elif kind == "save":
                await owners[-1].save()
            elif kind == "die":
                owners.append(new_owner(kafka, checkpoint_events=3))
                await owners[-1].resume()
            else:
                owners[-1].revoke()
                await owners[-1].resume()
            for _ in range(4):
                await owners[-1].catch_up()

    with pytest.MonkeyPatch.context() as patch:
        fold, early = watched(patch, owners)
        patch.setattr("tests.pipeline.kafka.test_owner.FOLD", fold)
        if threads:
            patch.setattr(offload, "CELLS_MAX", -1)
        asyncio.run(story())
    assert early == []


def test_notices_are_events_of_the_log() -> None:
    for notice in (GapClosed(run_id="a", seq=1), ChildStarted(run_id="a", child_run_id="b")):
        assert codecs.decode_event(codecs.encode(notice)).event == notice
