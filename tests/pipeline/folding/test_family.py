"""A halt reaches the runs that the halted one has started, in this partition and in others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.operators.profiles import make_profile
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.encoding.encoders import CachedEncoder, HashingEncoder
from ontrack.pipeline.folding.family import CHILDREN_MAX, Family
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.library import Library
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.events import (
    Agent,
    ChildStarted,
    Event,
    ParentHalted,
    Proposal,
    RunEnded,
    RunResumed,
    RunStarted,
    Step,
)
from ontrack.topics.knowledge import ToolContract
from ontrack.topics.verdicts import Authority, Intervention, InterventionName, Output, Scorecard
from tests.pipeline.folding.test_fold import records
from tests.pipeline.kafka.test_owner import EVENTS, TOPICS, FakeKafka, ProcessDied, fill, new_owner

STEPS_MAX = 3  # the third step halts a run


def small_fold(intervene: bool = True) -> Fold:
    encoder = CachedEncoder(HashingEncoder())
    profile = replace(make_profile("paper", encoder.name), steps_max=STEPS_MAX)
    return Fold(profile, encoder, Library(profile, encoder), intervene=intervene)


def look(run_id: str, n: int = 0, parent: str | None = None) -> Step:
    return Step(run_id=run_id, tool="look", args={"n": n}, parent_run_id=parent)


def halted(run_id: str) -> list[Event]:
    return [look(run_id, n) for n in range(STEPS_MAX)]


def folded(events: list[Event], fold: Fold | None = None) -> list[Any]:
    fold, state = fold or small_fold(), PartitionState()
    return [item for given in records(events) for item in fold.apply(state, given)]


def monitor() -> EmbeddedMonitor:
    found = EmbeddedMonitor(Settings(encoder="hashing"))
    found.fold = small_fold()
    return found


def halts(outputs: list[Output]) -> list[tuple[str, str]]:
    return [
        (output.run_id, output.id)
        for output in outputs
        if isinstance(output, Intervention) and output.intervention is InterventionName.HALT
    ]


def test_a_halt_reaches_children_and_their_children() -> None:
    events = [
        RunStarted(run_id="child", parent_run_id="parent"),
        look("child"),
        look("grandchild", parent="child"),
        *halted("parent"),
    ]
    embedded = monitor()
    outputs = [output for event in events for output in embedded.feed(event)]
    assert halts(outputs) == [
        ("parent", "parent:2:halt"),
        ("child", "child:parent:halt"),
        ("grandchild", "grandchild:parent:halt"),
    ]
    reached = next(output for output in outputs if output.id == "child:parent:halt")
    assert isinstance(reached, Intervention)
    assert reached.authority is Authority.INTERVENE
    assert reached.reason == "the run that started this one, 'parent', was halted; stop here"


def test_each_halt_by_a_parent_is_another_one() -> None:
    fold, state = small_fold(), PartitionState()
    events = [
        look("child", parent="parent"),
        ParentHalted(run_id="child", parent_run_id="parent"),
        RunResumed(run_id="child"),
        ParentHalted(run_id="child", parent_run_id="parent"),
    ]
    outputs = [item for given in records(events) for item in fold.apply(state, given)]
    said = [item.id for item in outputs if isinstance(item, Intervention)]
    assert said == ["child:parent:halt", "child:parent:halt:2"]


def test_a_child_that_goes_on_is_flagged_and_its_scorecard_counts_the_halt() -> None:
    embedded = monitor()
    for event in (look("child", parent="parent"), *halted("parent")):
        embedded.feed(event)
    (verdict,) = embedded.feed(look("child", 1))
    assert "after_halt" in verdict.flags  # type: ignore[union-attr]
    (card,) = embedded.feed(RunEnded(run_id="child"))
    assert isinstance(card, Scorecard)
    assert card.interventions == {"halt": 1}


def test_a_child_that_begins_after_its_parents_halt_is_halted_at_once() -> None:
    for last in ([], [RunEnded(run_id="parent")]):
        embedded = monitor()
        for event in (*halted("parent"), *last):
            embedded.feed(event)
        assert halts(embedded.feed(look("child", parent="parent"))) == [
            ("child", "child:parent:halt")
        ]


def test_a_run_that_names_itself_as_parent_has_none() -> None:
    assert folded([look("a", parent="a")])[0].type == "verdict"


def test_a_start_that_names_the_task_only_later_keeps_what_is_known_of_the_run() -> None:
    fold, state = small_fold(), PartitionState()
    agent = Agent(name="clerk")
    for item in records(
        [
            RunStarted(run_id="child", parent_run_id="parent", agent=agent, tenant="shop"),
            ParentHalted(run_id="child", parent_run_id="parent"),
            RunStarted(run_id="child", task_id="t"),
        ]
    ):
        fold.apply(state, item)
    known = state.runs["child"]
    assert (known.task_id, known.parent_run_id, known.abort.halted) == ("t", "parent", True)
    assert (known.agent, known.tenant) == (agent, "shop")


def test_a_run_whose_start_comes_in_two_parts_is_halted_by_its_parent_once() -> None:
    halt = ParentHalted(run_id="child", parent_run_id="parent")
    outputs = folded(
        [
            RunStarted(run_id="child", parent_run_id="parent"),
            halt,
            RunStarted(run_id="child", task_id="t"),
            look("child", parent="parent"),
            halt,
        ]
    )
    assert halts(outputs) == [("child", "child:parent:halt")]
    (verdict,) = [output for output in outputs if output.type == "verdict"]
    assert "after_halt" in verdict.flags


FIELDS = {"agent": Agent(name="clerk"), "tenant": "shop", "parent_run_id": "parent"}
some_fields = st.sets(st.sampled_from(sorted(FIELDS))).map(
    lambda names: {name: FIELDS[name] for name in names}
)


@settings(max_examples=40)
@given(some_fields, some_fields, st.booleans())
def test_a_start_in_two_parts_is_the_same_as_in_one(
    first: dict[str, Any], second: dict[str, Any], halt: bool
) -> None:
    rest: list[Event] = [look("a"), look("a", 1), RunEnded(run_id="a")]
    halting: list[Event] = [ParentHalted(run_id="a", parent_run_id="parent")] * halt
    parts: list[Event] = [
        RunStarted(run_id="a", **first),
        *halting,
        RunStarted(run_id="a", task_id="t", **second),
        *rest,
    ]
    whole: list[Event] = [
        RunStarted(run_id="a", task_id="t", **first | second),
        *halting,
        *rest,
    ]
    # The halt itself was said before the task was known.
    in_parts, at_once = (
        [output for output in folded(events) if not isinstance(output, Intervention)]
        for events in (parts, whole)
    )
    assert in_parts == at_once


def test_what_a_fold_asks_to_be_written_into_the_log() -> None:
    notices = [
        item
        for item in folded(
            [look("child", parent="parent"), ChildStarted(run_id="parent", child_run_id="child")]
            + halted("parent")
        )
        if isinstance(item, ChildStarted | ParentHalted)
    ]
    assert notices == [
        ChildStarted(run_id="parent", child_run_id="child"),
        ParentHalted(run_id="child", parent_run_id="parent"),
    ]


def test_notices_twice_or_for_nobody_change_nothing() -> None:
    halt = ParentHalted(run_id="child", parent_run_id="parent")
    outputs = folded([look("child"), halt, halt, RunEnded(run_id="child"), halt])
    assert len(halts(outputs)) == 1
    assert folded([halt, ChildStarted(run_id="a", child_run_id="b")]) == []


def test_shadow_mode_halts_no_child() -> None:
    shadow = small_fold(intervene=False)
    events = [*halted("parent"), ChildStarted(run_id="parent", child_run_id="child")]
    outputs = folded(
        [look("child"), *events, ParentHalted(run_id="child", parent_run_id="p")], shadow
    )
    assert {output.type for output in outputs} == {"verdict"}


@pytest.mark.parametrize(
    ("intervene", "effect", "decision"),
    [(True, "write", "block"), (True, "read", "allow"), (False, "write", "unknown")],
)
def test_a_halted_run_may_look_around_and_change_nothing_and_a_shadow_stops_nobody(
    intervene: bool, effect: Any, decision: str
) -> None:
    fold, state = small_fold(intervene), PartitionState()
    fold.library.fill(contracts=[ToolContract(name="touch", effect=effect)])
    for item in records(halted("a")):
        fold.apply(state, item)
    answer = fold.propose(state, Proposal(run_id="a", tool="touch"))
    assert answer.decision == decision
    assert [reason.signal for reason in answer.reasons] == ["halted"] * (effect == "write")


def test_memory_is_bounded() -> None:
    family = Family(runs_max=2)
    for number in range(CHILDREN_MAX + 5):
        family.add("a", str(number))
    assert len(family.children["a"]) == CHILDREN_MAX
    assert "0" not in family.children["a"]
    for parent in ("b", "c"):
        family.add(parent, "x")
        family.halt(parent)
    family.halt("d")
    assert list(family.children) == ["b", "c"]
    assert list(family.halted) == ["c", "d"]


# ------------------------------------------------------------------ over a log


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners with the fold of this file."""
    monkeypatch.setattr("tests.pipeline.kafka.test_owner.FOLD", small_fold())


@pytest.mark.usefixtures("owners")
async def test_partitions_tell_each_other_through_the_log() -> None:
    here, there = FakeKafka(), FakeKafka()  # two partitions: the child's and the parent's
    child, parent = new_owner(here), new_owner(there)
    await child.resume()
    await parent.resume()
    await child.take(fill(here, [look("child", parent="parent")]))
    written = here.topics[EVENTS][-1]
    assert codecs.decode_event(written.value or b"").event == ChildStarted(
        run_id="parent", child_run_id="child"
    )
    assert written.key == b"parent"  # which decides its partition
    told = codecs.decode_event(written.value or b"").event
    here.topics[EVENTS].pop()  # the broker puts it into the other partition
    here.ends[EVENTS] -= 1
    await parent.take(fill(there, [told, *halted("parent")]))
    halt = codecs.decode_event(there.topics[EVENTS][-1].value or b"").event
    await child.take(fill(here, [halt]))
    (said,) = here.topics[TOPICS.interventions.name]
    assert b'"id":"child:parent:halt"' in (said.value or b"")


@pytest.mark.usefixtures("owners")
async def test_children_and_halts_outlive_their_worker() -> None:
    for checkpoint_events in (1, 10_000):
        kafka = FakeKafka()
        first = new_owner(kafka, checkpoint_events=checkpoint_events)
        await first.resume()
        await first.take(
            fill(kafka, [look("child"), ChildStarted(run_id="parent", child_run_id="child")])
        )
        second = new_owner(kafka, checkpoint_events=checkpoint_events)
        await second.resume()
        await second.take(fill(kafka, halted("parent")))
        third = new_owner(kafka, checkpoint_events=checkpoint_events)
        await third.resume()  # the notice stands in the log
        halts = [message.key for message in kafka.topics[TOPICS.interventions.name]]
        assert halts == [b"parent", b"child"]
        late = ChildStarted(run_id="parent", child_run_id="late")
        await third.take(fill(kafka, [look("late"), late]))
        await third.catch_up()
        await third.catch_up()
        halts = [message.key for message in kafka.topics[TOPICS.interventions.name]]
        assert halts == [b"parent", b"child", b"late"]


@pytest.mark.usefixtures("owners")
async def test_a_worker_killed_while_it_tells_the_children_tells_them_again() -> None:
    for dies_after in range(4):
        kafka = FakeKafka()
        owner = new_owner(kafka)
        await owner.resume()
        children = [ChildStarted(run_id="parent", child_run_id=name) for name in ("b", "c")]
        await owner.take(fill(kafka, [look("b"), look("c"), *children]))
        kafka.dies_after = dies_after
        with pytest.raises(ProcessDied):
            await owner.take(fill(kafka, halted("parent")))
        kafka.dies_after = None
        successor = new_owner(kafka)
        await successor.resume()
        await successor.catch_up()
        await successor.catch_up()
        keys = [message.key for message in kafka.topics[TOPICS.interventions.name]]
        assert sorted(keys) == [b"b", b"c", b"parent"]
