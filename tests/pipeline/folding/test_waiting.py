"""Steps that overtake each other: what waits, what ends the waiting, and that nothing is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.operators.profiles import make_profile
from ontrack.pipeline.encoding.encoders import CachedEncoder, HashingEncoder
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.library import Library
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.pipeline.folding.waiting import BYTES_MAX
from ontrack.pipeline.kafka.messages import MORE_HEADER
from ontrack.topics import codecs
from ontrack.topics.events import Event, GapClosed, RunEnded, RunStarted, Step
from ontrack.topics.verdicts import DeadLetter, Output, Scorecard, Verdict
from tests.pipeline.folding.test_fold import fresh_fold, record, records, said
from tests.pipeline.kafka.test_owner import (
    EVENTS,
    TOPICS,
    FakeKafka,
    ProcessDied,
    fill,
    new_owner,
)
from tests.pipeline.kafka.test_owner import said as published

VERDICTS = TOPICS.verdicts.name


def look(seq: int, run_id: str = "a", **fields: Any) -> Step:
    return Step(run_id=run_id, seq=seq, tool="look", args={"n": seq}, result=f"r{seq}", **fields)


def looks(*numbers: int) -> list[Event]:
    return [look(number) for number in numbers]


def each(events: Sequence[Event], fold: Fold | None = None) -> list[list[Any]]:
    """What each event gives."""
    fold, state = fold or fresh_fold(), PartitionState()
    return [fold.apply(state, item) for item in records(events)]


def told(outputs: Sequence[Output]) -> list[tuple[Any, ...]]:
    return [
        (output.seq, output.flags) if isinstance(output, Verdict) else (output.type,)
        for output in outputs
    ]


def fold_with(reorder_steps_max: int) -> Fold:
    encoder = CachedEncoder(HashingEncoder())
    profile = make_profile("paper", encoder.name)
    return Fold(
        replace(profile, reorder_steps_max=reorder_steps_max), encoder, Library(profile, encoder)
    )


def test_a_step_that_overtook_another_waits_for_it_and_both_are_judged_in_order() -> None:
    given_ = each(looks(0, 2, 3, 1, 4))
    assert [told(outputs) for outputs in given_] == [
        [(0, ())],
        [],
        [],
        [(1, ()), (2, ()), (3, ())],
        [(4, ())],
    ]


def test_the_first_step_of_a_run_never_waits() -> None:
    assert [told(outputs) for outputs in each(looks(1, 2))] == [[(1, ("gap",))], [(2, ())]]


def test_a_run_announced_by_run_started_and_numbered_from_one_does_not_wait() -> None:
    given_ = each([RunStarted(run_id="a"), *looks(1, 2)])
    assert [told(outputs) for outputs in given_] == [[], [(1, ("gap",))], [(2, ())]]


def test_when_too_many_wait_all_are_taken_and_the_run_is_not_waited_for_again() -> None:
    given_ = each(looks(0, 2, 3, 4, 6), fold_with(3))
    assert [told(outputs) for outputs in given_] == [
        [(0, ())],
        [],
        [],
        [(2, ("gap",)), (3, ()), (4, ())],
        [(6, ("gap",))],
    ]


def test_when_too_many_bytes_wait_all_are_taken() -> None:
    large = look(2).model_copy(update={"result": "x" * BYTES_MAX})
    given_ = each([look(0), large])
    assert told(given_[1]) == [(2, ("gap",))]


def test_with_a_bound_of_zero_nothing_waits() -> None:
    assert [told(outputs) for outputs in each(looks(0, 2), fold_with(0))][1] == [(2, ("gap",))]


def test_the_end_of_a_run_lets_go_what_waits_before_its_scorecard() -> None:
    *_, last = each([*looks(0, 3, 2), RunEnded(run_id="a", outcome="success")])
    assert told(last) == [(2, ("gap",)), (3, ()), ("scorecard",)]
    assert isinstance(last[-1], Scorecard)
    assert last[-1].steps == 3
    assert last[-1].flags == ("gap",)


def test_a_gap_is_closed_by_its_notice_and_what_comes_later_is_late() -> None:
    given_ = each([*looks(0, 2, 3), GapClosed(run_id="a", seq=2), *looks(1, 5)])
    assert [told(outputs) for outputs in given_[3:]] == [
        [(2, ("gap",)), (3, ())],
        [(1, ("late",))],
        [(5, ("gap",))],  # not waited for again
    ]


def test_a_notice_that_comes_after_the_gap_was_filled_changes_nothing() -> None:
    given_ = each([*looks(0, 2, 1, 4), GapClosed(run_id="a", seq=2), *looks(3)])
    assert [told(outputs) for outputs in given_] == [
        [(0, ())],
        [],
        [(1, ()), (2, ())],
        [],
        [],
        [(3, ()), (4, ())],
    ]
    assert each([GapClosed(run_id="nobody", seq=2)]) == [[]]


def test_a_waiting_step_that_comes_again_is_a_duplicate_and_another_one_a_dead_letter() -> None:
    fold, state = fresh_fold(), PartitionState()
    other = look(2).model_copy(update={"result": "other"})
    given_ = [fold.apply(state, item) for item in records([*looks(0, 2, 2), other, look(1)])]
    assert [told(outputs) for outputs in given_[:3]] == [[(0, ())], [], []]
    assert state.duplicates == 1
    (letter,) = given_[3]
    assert isinstance(letter, DeadLetter)
    assert (letter.error.name, letter.offset) == ("ConflictingDuplicate", 3)
    assert told(given_[4]) == [(1, ()), (2, ())]


def test_a_waiting_step_counts_as_life_of_its_run() -> None:
    fold, state = fresh_fold(), PartitionState()
    for item in records(looks(0, 2)):
        fold.apply(state, item)
    assert state.positions == {"a": 1}
    assert state.heard_ms == {"a": 1_700_000_000_001}


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_whatever_overtakes_what_the_run_says_the_same_as_in_order(data: st.DataObject) -> None:
    """Oracle: the same steps, sorted."""
    count = data.draw(st.integers(2, 12))
    order = [0, *data.draw(st.permutations(range(1, count)))]
    ended = RunEnded(run_id="a")
    shuffled = [output for outputs in each([*looks(*order), ended]) for output in outputs]
    straight = [output for outputs in each([*looks(*range(count)), ended]) for output in outputs]
    assert said(shuffled) == said(straight)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 9), max_size=25),
    st.integers(1, 4),
)
def test_every_step_is_judged_once_whatever_arrives(numbers: list[int], bound: int) -> None:
    outputs = [
        output
        for given_ in each([*looks(*numbers), RunEnded(run_id="a")], fold_with(bound))
        for output in given_
    ]
    verdicts = [output.seq for output in outputs if isinstance(output, Verdict)]
    assert sorted(verdicts) == sorted(set(numbers))
    assert not any(isinstance(output, DeadLetter) for output in outputs)


def test_a_fault_of_ours_in_a_waiting_step_costs_that_step_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fold, state = fresh_fold(), PartitionState()
    items = records(looks(0, 2, 1, 3))
    for item in items[:2]:
        fold.apply(state, item)
    real = fold._vectors

    def breaks(call: Any, known: Any) -> Any:
        if call.seq == 2:
            raise ZeroDivisionError("a fault of ours")
        return real(call, known)

    monkeypatch.setattr(fold, "_vectors", breaks)
    first, letter = fold.apply(state, items[2])
    assert isinstance(first, Verdict)
    assert isinstance(letter, DeadLetter)
    assert (letter.offset, letter.error.name) == (1, "ZeroDivisionError")


# ------------------------------------------------------------------ over a log


async def test_the_owner_closes_a_gap_in_the_log_after_its_time_once() -> None:
    kafka = FakeKafka()
    owner = new_owner(kafka)
    await owner.resume()
    await owner.take(fill(kafka, looks(0, 2, 3)))
    since_ms = 1_700_000_000_001
    await owner.close_gaps(since_ms + 999)
    assert len(kafka.topics[EVENTS]) == 3
    await owner.close_gaps(since_ms + 1000)
    await owner.close_gaps(since_ms + 1001)
    (notice,) = kafka.topics[EVENTS][3:]
    assert codecs.decode_event(notice.value or b"").event == GapClosed(run_id="a", seq=2)
    assert notice.key == b"a"
    await owner.catch_up()
    await owner.catch_up()
    assert [json.loads(value)["id"] for value in kafka.said(VERDICTS)] == ["a:0", "a:2", "a:3"]  # type: ignore[arg-type]
    later = new_owner(kafka)  # and whoever reads the log comes to the same
    await later.resume()
    assert len(kafka.said(VERDICTS)) == 3


async def test_a_successor_that_finds_a_part_of_what_a_step_let_go_says_the_rest() -> None:
    for dies_after in range(5):
        kafka = FakeKafka()
        owner = new_owner(kafka)
        await owner.resume()
        await owner.take(fill(kafka, looks(0, 2, 3, 4)))
        kafka.dies_after = dies_after
        filler = fill(kafka, looks(1))
        with suppress(ProcessDied):
            await owner.take(filler)
        kafka.dies_after = None
        successor = new_owner(kafka)
        await successor.resume()
        ids = [json.loads(value)["id"] for value in kafka.said(VERDICTS)]  # type: ignore[arg-type]
        assert ids == ["a:0", "a:1", "a:2", "a:3", "a:4"], dies_after
        more = [dict(message.headers).get(MORE_HEADER) for message in kafka.topics[VERDICTS]]
        assert more == [None, b"0", b"1", b"2", None]


@settings(max_examples=40, deadline=None)
@given(
    st.permutations(range(1, 9)),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.integers(1, 3),
)
def test_waiting_steps_outlive_their_worker_with_and_without_checkpoints(
    order: list[int], lives: list[int], every: int
) -> None:
    async def story(checkpoint_events: int) -> FakeKafka:
        kafka = FakeKafka()
        left = looks(0, *order)
        for life in [*lives, len(left)]:
            owner = new_owner(kafka, checkpoint_events=checkpoint_events)
            await owner.resume()
            for item in fill(kafka, left[:life]):
                await owner.take([item])
            left = left[life:]
        return kafka

    with_them, without = asyncio.run(story(every)), asyncio.run(story(10_000))
    assert published(with_them) == published(without)
    ids = [json.loads(value)["id"] for value in with_them.said(VERDICTS)]  # type: ignore[arg-type]
    assert ids == [f"a:{number}" for number in range(9)]


def test_a_notice_in_the_log_is_an_event_like_any_other() -> None:
    fold, state = fresh_fold(), PartitionState()
    raw = b'{"type":"gap_closed","run_id":"a"}'
    (letter,) = fold.apply(state, record(raw))
    assert isinstance(letter, DeadLetter)
    assert "seq" in letter.error.text
