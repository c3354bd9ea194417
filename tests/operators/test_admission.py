from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from ontrack.operators.admission import AGAIN_STEPS_MAX, Admission, admit, refuse_after_end
from ontrack.operators.seen import SeenSteps
from ontrack.topics.errors import ConflictingDuplicate, EventAfterEnd, RunTooLong
from ontrack.topics.events import ErrorInfo, Proposal, Step
from tests import strategies


def step(**fields: Any) -> Step:
    return Step(**{"run_id": "r", "tool": "t", **fields})


class Door:
    """Admits steps one after another and keeps what admission needs of the earlier ones."""

    def __init__(self, steps_max: int = 100) -> None:
        self.seen = SeenSteps()
        self.highest, self.steps_max = -1, steps_max

    def admit(self, event: Step) -> Admission:
        found = admit("r", self.seen, self.highest, self.steps_max, event)
        if not found.duplicate:
            self.seen = self.seen.insert(found.seq, found.digest)
            self.highest = max(self.highest, found.seq)
        return found


def test_without_numbers_steps_are_numbered_as_they_arrive() -> None:
    door = Door()
    assert [door.admit(step(args={"n": n})).seq for n in range(3)] == [0, 1, 2]


def test_a_step_without_a_number_goes_behind_the_highest_one() -> None:
    door = Door()
    door.admit(step(seq=7))
    assert door.admit(step()).seq == 8


def test_a_gap_and_a_late_step_are_accepted_and_flagged() -> None:
    door = Door()
    found = {n: door.admit(step(seq=n)).flags for n in (0, 1, 4, 2, 5, 3)}
    assert found == {0: (), 1: (), 4: ("gap",), 2: ("late",), 5: (), 3: ("late",)}


def test_a_run_that_begins_in_the_middle_has_a_gap() -> None:
    assert Door().admit(step(seq=3)).flags == ("gap",)


def span(number: int) -> dict[str, str]:
    return {"trace_id": "a" * 32, "span_id": f"{number:016x}"}


def spans(count: int, **fields: Any) -> list[Step]:
    return [
        step(trace=span(number), started_at="2026-01-01T00:00:00Z", **fields)
        for number in range(1, count + 1)
    ]


def test_a_span_that_is_delivered_again_is_a_duplicate_and_an_equal_call_is_none() -> None:
    door = Door()
    calls = spans(3, args={"q": "same"}, result="same")
    assert [door.admit(call).seq for call in calls] == [0, 1, 2]
    assert [door.admit(call).duplicate for call in calls] == [True] * 3
    assert not door.admit(step(args={"q": "same"}, result="same")).duplicate


def test_equal_calls_under_one_span_around_them_are_a_loop_and_no_duplicates() -> None:
    door = Door()
    times = ["2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", None, None]
    calls = [step(trace=span(1), started_at=time) for time in times]
    assert [door.admit(call).duplicate for call in calls] == [False] * 4
    assert door.admit(calls[0]).duplicate


def test_a_trace_without_a_span_names_no_call() -> None:
    door = Door()
    for number in range(2):
        found = door.admit(step(trace={"trace_id": "a" * 32}))
        assert (found.seq, found.duplicate) == (number, False)


def test_a_span_is_known_again_for_as_many_steps_as_stated() -> None:
    door = Door(steps_max=1000)
    calls = spans(AGAIN_STEPS_MAX + 1)
    for call in calls:
        door.admit(call)
    assert not door.admit(calls[0]).duplicate
    assert door.admit(calls[2]).duplicate


def test_a_trace_changes_nothing_about_a_numbered_step() -> None:
    door = Door()
    door.admit(step(seq=0))
    assert door.admit(step(seq=0, trace={"trace_id": "a" * 32, "span_id": "b" * 16})).duplicate


def test_the_same_step_again_is_a_duplicate_whatever_the_key_order() -> None:
    door = Door()
    door.admit(step(seq=0, args={"a": 1, "b": 2}))
    assert door.admit(step(seq=0, args={"b": 2, "a": 1})).duplicate


def test_when_a_step_was_sent_does_not_make_it_another() -> None:
    door = Door()
    door.admit(step(seq=0, time="2026-01-01T00:00:00Z"))
    assert door.admit(step(seq=0, time="2026-01-01T00:00:09Z")).duplicate


@pytest.mark.parametrize(
    "change",
    [
        {"args": {"a": 2}},
        {"tool": "other"},
        {"action": "other"},
        {"result": "other"},
        {"error": ErrorInfo(message="boom")},
        {"call_id": "other"},
        {"parents": (0,)},
        {"consumed": ("x",)},
        {"produced": ("x",)},
    ],
)
def test_a_number_used_twice_with_other_content_is_a_conflict(change: dict[str, Any]) -> None:
    door = Door()
    door.admit(step(seq=1, args={"a": 1}))
    with pytest.raises(ConflictingDuplicate, match="already has a step 1"):
        door.admit(step(seq=1, args={"a": 1}).model_copy(update=change))


def test_beyond_the_limit_of_steps_a_run_is_refused_but_not_its_duplicates() -> None:
    door = Door(steps_max=2)
    door.admit(step(seq=0))
    door.admit(step(seq=1))
    assert door.admit(step(seq=1)).duplicate
    with pytest.raises(RunTooLong, match="has 2 steps"):
        door.admit(step(seq=2))
    with pytest.raises(RunTooLong):
        door.admit(step())


@pytest.mark.parametrize("event", [step(), Proposal(run_id="r", tool="t")])
def test_an_event_after_the_end_is_refused_with_what_to_do(event: Step | Proposal) -> None:
    error = refuse_after_end(event)
    assert isinstance(error, EventAfterEnd)
    assert f"a {event.type} after run_ended" in str(error)


@given(strategies.runs())
def test_each_step_of_a_run_is_admitted_once_in_any_order_of_arrival(run: strategies.Run) -> None:
    door = Door()
    admitted = [found for found in map(door.admit, run.arrivals) if not found.duplicate]
    assert sorted(found.seq for found in admitted) == [step.seq for step in run.steps]
    assert door.highest == run.steps[-1].seq
    late = [found.seq for found in admitted if "late" in found.flags]
    assert (late == []) == ([f.seq for f in admitted] == [s.seq for s in run.steps])
