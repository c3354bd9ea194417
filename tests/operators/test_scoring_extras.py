from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import scoring_extras
from ontrack.operators.scoring_extras import CallMemory, ExtraKind, Extras, InternalError
from ontrack.topics.events import ErrorInfo, Step
from ontrack.topics.knowledge import ToolContract

RECOVERY, REPEAT, EXPLORATION = ExtraKind


def call(tool: str = "find", result: object = "nothing", error: str | None = None, **args) -> Step:
    failed = None if error is None else ErrorInfo(message=error)
    return Step(run_id="r", tool=tool, args=args, result=result, error=failed)


def kinds(steps: list[Step], calls_max: int = 1024, contract: ToolContract | None = None):
    memory, found = CallMemory(), []
    for event in steps:
        written = scoring_extras.canonical(event, contract, 65_536)
        memory, kind = scoring_extras.step(memory, event, written, calls_max)
        found.append(kind)
    return found


def test_the_same_call_with_the_same_result_is_a_redundant_repeat():
    assert kinds([call(day="Mon"), call(day="Mon")]) == [EXPLORATION, REPEAT]


def test_another_tool_or_other_arguments_or_another_result_explore():
    steps = [call(day="Mon"), call("look", day="Mon"), call(day="Tue"), call(result=[], day="Mon")]
    assert kinds(steps) == [EXPLORATION] * 4


def test_a_repeat_is_found_however_its_arguments_are_written_down():
    assert kinds(
        [call(a=1, b="x  y", request_id="17"), call(b=" x y", a=1.0, request_id="18")]
    ) == [EXPLORATION, REPEAT]


def test_a_repeat_is_found_although_its_result_tells_another_time():
    first, second = (call(result=f"free at 10, took {ms} ms") for ms in (12, 48))
    assert kinds([first, second]) == [EXPLORATION, REPEAT]


def test_a_search_at_another_hour_is_no_repeat():
    hours = [call("free", result=[], start=f"2026-01-0{day}T10:00:00Z") for day in (1, 2, 3)]
    assert kinds(hours) == [EXPLORATION] * 3
    assert kinds([hours[0], hours[1], hours[0]])[2] is REPEAT


def test_what_follows_an_error_is_a_recovery_and_only_that():
    steps = [call(day="Mon"), call("book", error="503"), call(day="Mon"), call(day="Mon")]
    assert kinds(steps) == [EXPLORATION, EXPLORATION, RECOVERY, REPEAT]


def test_the_retry_of_a_failed_call_is_a_recovery_although_others_came_between():
    steps = [call("book", error="503"), call("wait"), call("look"), call("book", result="done")]
    assert kinds(steps)[3] is RECOVERY


def test_once_a_call_has_succeeded_its_repeat_is_no_recovery_any_more():
    steps = [call("book", error="503"), call("book"), call("look"), call("book")]
    assert kinds(steps) == [EXPLORATION, RECOVERY, EXPLORATION, REPEAT]


def test_a_result_that_begins_with_an_error_is_an_error():
    steps = [call(result="Error: user not found"), call("other")]
    assert kinds(steps) == [EXPLORATION, RECOVERY]
    assert kinds([call(result="no errors found"), call("other")])[1] is EXPLORATION


@pytest.mark.parametrize(
    "result",
    [
        {"error": None, "items": []},
        {"error": False},
        {"error": "", "slots": []},
        {"failed": 0, "passed": 3},
        {"failure": {}, "ok": True},
        '{"error": null, "items": []}',
    ],
)
def test_a_result_with_an_empty_field_for_errors_is_no_error(result):
    assert kinds([call(result=result), call("other"), call(result=result)])[1:] == [
        EXPLORATION,
        REPEAT,
    ]


@pytest.mark.parametrize("result", [{"error": "down"}, {"failed": 2, "passed": 1}])
def test_a_result_whose_field_for_errors_holds_something_is_an_error(result):
    assert kinds([call(result=result), call("other")])[1] is RECOVERY


def test_declared_identity_decides_what_is_never_masked():
    at = [call(ts=day, topic="x") for day in (1, 2)]
    slots = ToolContract(name="find", declared_effect="read", identity=("ts",))
    assert kinds(at)[1] is REPEAT
    assert kinds(at, contract=slots)[1] is EXPLORATION


def test_what_was_forgotten_counts_as_exploration():
    steps = [call(day=day) for day in ("Mon", "Tue", "Wed", "Mon")]
    assert kinds(steps, calls_max=3)[3] is REPEAT
    assert kinds(steps, calls_max=2)[3] is EXPLORATION


def test_recovery_is_no_waste_unless_asked_for():
    extras = Extras(recovery=4, redundant_repeat=9, exploration=2)
    assert (extras.total, extras.waste(), extras.waste(recovery_is_waste=True)) == (15, 11, 15)


def test_parts_that_do_not_add_up_are_an_error_of_ours():
    assert scoring_extras.checked(Extras(exploration=2), 2) == Extras(exploration=2)
    with pytest.raises(InternalError, match="3 calls are over budget, but their kinds add up to 2"):
        scoring_extras.checked(Extras(exploration=2), 3)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from((1, 2)), st.booleans())))
def test_kinds_are_those_of_a_scorer_that_remembers_everything(drawn):
    steps = [call(tool, day=day, error="x" if failed else None) for tool, day, failed in drawn]
    expected, last = [], {}
    for place, (tool, day, failed) in enumerate(drawn):
        if (place and drawn[place - 1][2]) or last.get((tool, day)):
            expected.append(RECOVERY)
        elif (tool, day, failed) in drawn[:place]:
            expected.append(REPEAT)
        else:
            expected.append(EXPLORATION)
        last[tool, day] = failed
    assert kinds(steps) == expected


@given(st.lists(st.integers(0, 9), max_size=60))
def test_the_memory_is_bounded(days):
    memory = CallMemory()
    for day in days:
        event = call(day=day, error="x")
        written = scoring_extras.canonical(event, None, 65_536)
        memory, _ = scoring_extras.step(memory, event, written, 4)
        assert len(memory.pairs) <= 64
        assert len(memory.failed) <= 32
