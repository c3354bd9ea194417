"""Long folds leave the event loop, give the same bytes, and readers see a whole state meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from ontrack.pipeline.folding import offload
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.pipeline.folding.record import Record, Said
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace.long_runs import long_references, long_run
from ontrack.topics import codecs
from ontrack.topics.errors import EventAfterEnd
from ontrack.topics.events import Event, Proposal, RunEnded, RunStarted, Step

STEPS = 12


@dataclass
class Holder:
    state: PartitionState


def fresh() -> tuple[Fold, Holder]:
    fold = make_fold(Settings(encoder="hashing"))
    fold.library.fill(long_references(STEPS))
    return fold, Holder(fold.partition())


def record(event: Event, offset: int) -> Record:
    key = event.run_id.encode()
    return Record(codecs.encode(event), key, "events", 0, offset, timestamp_ms=1000 + offset)


def run_of(number: int, steps: int = STEPS) -> list[Step]:
    return long_run(number, steps)


def records(runs: int = 2) -> list[Record]:
    events: list[Event] = []
    for steps in zip(*(run_of(number) for number in range(runs)), strict=True):
        events += steps
    events += [RunEnded(run_id=f"open-{number}", outcome="success") for number in range(runs)]
    return [record(event, offset) for offset, event in enumerate(events)]


def bytes_of(said: list[Said]) -> list[bytes]:
    return [codecs.encode(item) for item in said]


@pytest.fixture
def all_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "CELLS_MAX", 0)


class Watched(Fold):
    """Notes on which thread each record is folded; may wait in the middle of one."""

    threads: list[bool]
    entered: threading.Event
    may_go_on: threading.Event

    def apply(self, state: PartitionState, record: Record) -> list[Said]:
        on_loop = threading.current_thread() is threading.main_thread()
        self.threads.append(on_loop)
        said = super().apply(state, record)
        if not on_loop:
            self.entered.set()
            assert self.may_go_on.wait(30)
        return said


@pytest.fixture
def watched() -> Iterator[tuple[Watched, Holder]]:
    fold, holder = fresh()
    fold.__class__ = Watched
    assert isinstance(fold, Watched)
    fold.threads, fold.entered, fold.may_go_on = [], threading.Event(), threading.Event()
    fold.may_go_on.set()
    yield fold, holder
    fold.may_go_on.set()


async def test_the_end_of_a_long_run_leaves_the_event_loop_and_its_steps_do_not(
    watched: tuple[Watched, Holder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step has at most as many rows as are active; the final solve has all steps."""
    fold, holder = watched
    *steps, last = run_of(0)
    for offset, step in enumerate([*steps, last]):
        await offload.apply(fold, holder, record(step, offset))
    known = holder.state.runs[last.run_id]
    assert known.knowledge.references is not None
    width = known.knowledge.references.count * known.knowledge.references.width
    assert offload.final_cells(known, 512) == STEPS * width
    assert offload.final_cells(known, STEPS // 2) == -(-STEPS // 4) * width
    monkeypatch.setattr(offload, "CELLS_MAX", STEPS * width - 1)
    monkeypatch.setattr(offload, "cells", lambda known: 0)
    end = RunEnded.model_validate({"run_id": last.run_id, "outcome": "success"})
    step = last.model_copy(update={"seq": STEPS})
    assert not offload.is_long(known, holder.state, record(step, STEPS), 512)
    await offload.apply(fold, holder, record(end, STEPS))
    assert fold.threads[-1] is False
    assert set(fold.threads[:-1]) == {True}


@pytest.mark.usefixtures("all_is_long")
async def test_a_record_folded_in_a_thread_gives_the_same_bytes() -> None:
    fold, holder = fresh()
    twin, plain = fresh()
    for item in records():
        said = await offload.apply(fold, holder, item)
        assert bytes_of(said) == bytes_of(twin.apply(plain.state, item))
    assert holder.state.ended == plain.state.ended
    assert holder.state.duplicates == plain.state.duplicates == 0


async def test_only_what_is_large_leaves_the_event_loop(watched: tuple[Watched, Holder]) -> None:
    fold, holder = watched
    steps = run_of(0)
    for offset, step in enumerate(steps[:-1]):
        await offload.apply(fold, holder, record(step, offset))
    assert fold.threads == [True] * (STEPS - 1)
    known = holder.state.runs[steps[0].run_id]
    assert 0 < offload.cells(known) <= offload.CELLS_MAX
    large = steps[-1].model_copy(update={"result": "x" * offload.BYTES_MAX})
    await offload.apply(fold, holder, record(large, STEPS))
    assert fold.threads[-1] is False


@pytest.mark.parametrize(("rows", "long"), [(12, False), (13, True)])
async def test_the_bound_counts_the_row_that_the_step_will_add(rows: int, long: bool) -> None:
    fold, holder = fresh()
    first, second = run_of(0, 2)
    await offload.apply(fold, holder, record(first, 0))
    known = holder.state.runs[first.run_id]
    assert known.transport is not None
    # 10 references of 126 steps: (12 + 1) * 1,260 cells are within 16,384, (13 + 1) * 1,260 not.
    plan = np.zeros((10, rows, 126), dtype=np.float32)
    grown = replace(known, transport=replace(known.transport, plan=plan))
    assert offload.is_long(grown, holder.state, record(second, 1), 512) is long
    unbegun = replace(grown, highest=-1)
    assert not offload.is_long(unbegun, holder.state, record(second, 1), 512)


@pytest.mark.usefixtures("all_is_long")
async def test_the_first_record_of_a_run_stays_where_the_library_is(
    watched: tuple[Watched, Holder],
) -> None:
    fold, holder = watched
    for offset, step in enumerate(run_of(0, 3)):
        await offload.apply(fold, holder, record(step, offset))
    assert fold.threads == [True, False, False]


@pytest.mark.usefixtures("all_is_long")
async def test_while_a_step_is_folded_in_a_thread_the_gate_sees_the_run_before_it(
    watched: tuple[Watched, Holder],
) -> None:
    fold, holder = watched
    first, second, third = run_of(0, 3)
    await offload.apply(fold, holder, record(first, 0))
    before = holder.state.runs[first.run_id]
    question = Proposal(run_id=third.run_id, task_id=third.task_id, tool=third.tool, args={})
    asked_before = fold.propose(holder.state, question)
    fold.may_go_on.clear()
    folding = asyncio.create_task(offload.apply(fold, holder, record(second, 1)))
    # The loop is free: it polls while the thread has folded the step and not returned yet.
    while not fold.entered.is_set():
        await asyncio.sleep(0.001)
    assert not folding.done()
    assert holder.state.runs.get(first.run_id) is before
    assert holder.state.positions.get(first.run_id) == 0
    assert fold.propose(holder.state, question) == asked_before
    fold.may_go_on.set()
    await folding
    assert holder.state.runs[first.run_id].highest == 1
    assert holder.state.positions[first.run_id] == 1
    assert fold.propose(holder.state, question).seq == 2


@pytest.mark.usefixtures("all_is_long")
async def test_a_run_that_ends_in_a_thread_is_never_taken_for_a_new_one(
    watched: tuple[Watched, Holder],
) -> None:
    fold, holder = watched
    (first,) = run_of(0, 1)
    await offload.apply(fold, holder, record(first, 0))
    fold.may_go_on.clear()
    end = RunEnded(run_id=first.run_id, outcome="success")
    folding = asyncio.create_task(offload.apply(fold, holder, record(end, 1)))
    while not fold.entered.is_set():
        await asyncio.sleep(0.001)
    question = Proposal(run_id=first.run_id, tool="anything", args={})
    with pytest.raises(EventAfterEnd):
        fold.propose(holder.state, question)
    assert first.run_id in holder.state.runs  # whoever looked before the end still finds it
    fold.may_go_on.set()
    await folding
    assert first.run_id not in holder.state.runs


@pytest.mark.usefixtures("all_is_long")
async def test_after_a_fault_in_the_thread_readers_see_the_state_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fold, holder = fresh()
    state = holder.state
    first, second = run_of(0, 2)
    await offload.apply(fold, holder, record(first, 0))

    def fails(_state: PartitionState, _record: Record) -> list[Said]:
        raise RuntimeError("boom")

    monkeypatch.setattr(fold, "apply", fails)
    with pytest.raises(RuntimeError, match="boom"):
        await offload.apply(fold, holder, record(second, 1))
    assert holder.state is state


@pytest.mark.parametrize(
    ("starts", "asks"),
    [
        ([], [True, False]),
        ([RunStarted(run_id="open-0", task_id="t")], [True, False, False]),
        ([RunStarted(run_id="open-0")], [True, True, False]),
        ([RunStarted(run_id="open-0"), RunStarted(run_id="open-0", task_id="t")], [1, 1, 0, 0]),
    ],
    ids=["no start", "named", "without a task", "named late"],
)
def test_the_library_is_asked_until_a_run_knows_its_task_and_by_nothing_else(
    starts: list[Event], asks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    fold, holder = fresh()
    knowledge, asked = fold.library.knowledge, list[Any]()

    def noted(*given: Any) -> Any:
        asked.append(given)
        return knowledge(*given)

    monkeypatch.setattr(fold.library, "knowledge", noted)
    told = []
    for offset, event in enumerate([*starts, *run_of(0)[:2]]):
        before = len(asked)
        told.append(offload.asks_library(holder.state, record(event, offset)))
        fold.apply(holder.state, record(event, offset))
        assert told[-1] or len(asked) == before
    assert told == list(map(bool, asks))
