import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.topics.adapters import PARTIAL, Origin, openai_agents
from ontrack.topics.codecs import decode_event, encode
from ontrack.topics.errors import InvalidEvent, WrongShape
from ontrack.topics.events import Agent, ErrorInfo, RunEnded, RunStarted, Step

ORIGIN = Origin("file", "file")


def at(second):
    return f"2026-01-01T12:00:{second:02d}+00:00"


def trace(trace_id="trace_1", **fields):
    return {"object": "trace", "id": trace_id, "workflow_name": "w"} | fields


def span(number, data, *, parent=None, ended=True, trace_id="trace_1", **fields):
    return {
        "object": "trace.span",
        "id": f"span_{number}",
        "trace_id": trace_id,
        "parent_id": None if parent is None else f"span_{parent}",
        "started_at": at(number),
        "ended_at": at(number + 1) if ended else None,
        "span_data": data,
        "error": None,
    } | fields


def agent(number, name="planner", **fields):
    return span(number, {"type": "agent", "name": name, "tools": []}, **fields)


def function(number, name, given_input="{}", output="ok", **fields):
    data = {"type": "function", "name": name, "input": given_input, "output": output}
    return span(number, data, **fields)


def recorded(*items, end=True):
    """Write items as the lines of a processor: a start and an end for each span."""
    lines = [{"event": "trace_start", "data": trace()}]
    for item in items:
        begun = item | {"ended_at": None, "error": None}
        begun["span_data"] = begun["span_data"] | {"output": None}
        lines += [{"event": "span_start", "data": begun}, {"event": "span_end", "data": item}]
    return [*lines, {"event": "trace_end", "data": trace()}] if end else lines


def runs_of(lines):
    runs = openai_agents.runs()
    found = []
    for place, line in enumerate(lines, 1):
        found += runs.add(line, ORIGIN, place)
    return [*found, *runs.rest()]


def steps_of(lines):
    return [event for run in runs_of(lines) for event in run.events if event.type == "step"]


ITEMS = [agent(1), function(2, "get", '{"id": 1}', "x", parent=1), function(4, "put", parent=1)]


class TestARun:
    def test_function_spans_become_steps(self):
        (run,) = runs_of(recorded(*ITEMS))
        started, first, second, ended = run.events
        planner = Agent(id="planner", name="planner")
        assert started == RunStarted(run_id="trace_1", agent=planner, time=started.time)
        assert first == Step(
            run_id="trace_1", seq=0, tool="get", args={"id": 1}, result="x", agent=planner,
            call_id="span_2", time=first.time, started_at=first.time, ended_at=first.ended_at,
        )  # fmt: skip
        assert (first.started_at.second, first.ended_at.second) == (2, 3)
        assert second.tool == "put"
        assert ended == RunEnded(run_id="trace_1", time=ended.time)
        assert run.flags == ()

    @pytest.mark.parametrize("form", ["bare lines", "ends only", "one document", "documents"])
    def test_the_exporters_forms_say_the_same(self, form):
        (expected,) = runs_of(recorded(*ITEMS))
        lines = {
            "bare lines": [trace(), *ITEMS],
            "ends only": [
                {"event": "trace_start", "data": trace()},
                *({"event": "span_end", "data": item} for item in reversed(ITEMS)),
                {"event": "trace_end", "data": trace()},
            ],
            "one document": [{"data": [trace(), *ITEMS]}],
            "documents": [{"data": [trace(), *ITEMS[1:]]}, {"data": ITEMS[:1]}],
        }[form]
        (run,) = runs_of(lines)
        assert run.events == expected.events
        assert run.flags == ()

    def test_a_trace_is_handed_out_as_soon_as_its_end_is_read(self):
        runs = openai_agents.runs()
        lines = recorded(*ITEMS)
        for line in lines[:-1]:
            assert list(runs.add(line, ORIGIN, 1)) == []
        assert len(list(runs.add(lines[-1], ORIGIN, 9))) == 1
        assert list(runs.rest()) == []

    def test_interleaved_traces_are_told_apart(self):
        one = [function(1, "a"), function(2, "b")]
        two = [function(1, "c", trace_id="t2"), function(2, "d", trace_id="t2")]
        lines = [trace(), trace("t2"), one[0], two[0], one[1], two[1]]
        assert [
            (run.events[0].run_id, [step.tool for step in run.events[1:-1]], run.place)
            for run in runs_of(lines)
        ] == [("trace_1", ["a", "b"], 1), ("t2", ["c", "d"], 2)]

    def test_calls_that_ran_at_once_stand_in_the_order_in_which_they_began(self):
        lines = [trace(), function(3, "late"), function(1, "early")]
        assert [step.tool for step in steps_of(lines)] == ["early", "late"]

    def test_an_agent_used_as_a_tool_works_for_the_call(self):
        items = [
            agent(1),
            function(2, "ask_helper", parent=1),
            agent(3, "helper", parent=2),
            function(4, "search", parent=3),
        ]
        outer, inner = steps_of(recorded(*items))
        assert (outer.agent.name, outer.parents) == ("planner", None)
        assert (inner.agent.name, inner.parents) == ("helper", (0,))

    def test_a_task_id_may_stand_in_the_metadata(self):
        (run,) = runs_of([trace(metadata={"task_id": 7}), function(1, "get")])
        assert run.events[0].task_id == "7"

    def test_arguments_that_are_no_object_are_kept_raw(self):
        (step,) = steps_of([function(1, "get", "not json")])
        assert step.args == {"_raw": "not json"}


class TestErrors:
    def test_what_the_tool_raised_is_the_error(self):
        error = {"message": "Error running tool", "data": {"tool_name": "get", "error": "no id"}}
        (step,) = steps_of(recorded(function(1, "get", output=None, error=error)))
        assert (step.error, step.result) == (ErrorInfo(message="no id"), None)

    @pytest.mark.parametrize("error", [{"message": "boom", "data": None}, "boom"])
    def test_otherwise_the_message_is(self, error):
        (step,) = steps_of(recorded(function(1, "get", error=error)))
        assert step.error == ErrorInfo(message="boom")

    def test_an_agent_that_failed_is_a_run_that_failed(self):
        error = {"message": "Max turns exceeded", "data": {"max_turns": 3}}
        (run,) = runs_of(recorded(agent(1, error=error)))
        assert (run.events[-1].outcome, run.events[-1].reason) == ("failure", "Max turns exceeded")


class TestPartialRuns:
    def test_a_call_without_an_end_is_a_step_without_a_result(self):
        begun = {"event": "span_start", "data": function(2, "get", None, None, ended=False)}
        (run,) = runs_of([*recorded(agent(1), end=False), begun])
        assert run.flags == (PARTIAL,)
        assert (run.events[1].tool, run.events[1].result, run.events[1].ended_at) == (
            "get",
            None,
            None,
        )
        assert run.events[-1].reason == "partial recording: a tool call has no end"

    def test_a_run_whose_upper_spans_are_missing_is_flagged(self):
        (run,) = runs_of([trace(), function(2, "get", parent=1)])
        assert (run.flags, run.events[-1].outcome) == ((PARTIAL,), "unknown")

    def test_what_comes_after_the_end_of_its_trace_is_a_partial_run(self):
        first, again = runs_of([*recorded(*ITEMS), function(9, "late")])
        assert (first.flags, again.flags) == ((), (PARTIAL,))
        assert [step.tool for step in again.events[1:-1]] == ["late"]

    def test_the_longest_silent_trace_goes_first_where_too_much_is_held(self, monkeypatch):
        monkeypatch.setattr(openai_agents, "HELD_BYTES_MAX", 5_000)
        runs = openai_agents.runs()
        found = [
            [run.events[0].run_id for run in runs.add(line, ORIGIN, 1)]
            for line in (function(1, "get", output="x" * 2_000, trace_id=t) for t in "abc")
        ]
        assert found == [[], ["a"], ["b"]]

    def test_spans_above_each_other_in_a_circle_do_no_harm(self):
        lines = [function(1, "a", parent=2), function(2, "b", parent=1), function(3, "c", parent=3)]
        assert [step.parents for step in steps_of(lines)] == [None, (0,), None]


class TestBadInput:
    @pytest.mark.parametrize(
        "wrong",
        [
            3,
            {},
            {"event": "span_end", "data": None},
            {"event": "span_end", "data": trace()},
            {"event": "trace_end", "data": function(1, "get")},
            {"data": [trace(), 3]},
            trace(None),
            function(1, "get", trace_id=None),
            function(1, "get", id=None),
            function(1, "get", span_data=None),
            function(1, "get", span_data={"type": 3}),
            function(1, None),
            function(1, ""),
            function(1, "t" * 300),
            agent(1, "n" * 600),
            trace("t" * 600),
        ],
    )
    def test_a_wrong_item_is_a_wrong_shape_and_nothing_of_it_is_kept(self, wrong):
        runs = openai_agents.runs()
        with pytest.raises(WrongShape):
            list(runs.add(wrong, ORIGIN, 1))
        assert list(runs.rest()) == []


# What the reader's parser lets through.
INTEGERS = st.integers(-(2**63), 2**64 - 1)
odd = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.sampled_from(["", "trace", "function", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "object", "id", "data", "error"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@given(
    lines=st.permutations(recorded(*ITEMS)),
    changes=st.lists(
        st.tuples(
            st.integers(0, 7),
            st.sampled_from([("event",), ("data",), *(("data", key) for key in ITEMS[1])]
                            + [("data", "span_data", key) for key in ITEMS[1]["span_data"]]),
            odd,
        ),
        max_size=3,
    ),
)  # fmt: skip
def test_whatever_is_changed_gives_events_of_the_input_or_a_clear_error(lines, changes):
    lines = copy.deepcopy(lines)
    for index, path, new in changes:
        value = lines[index]
        for key in path[:-1]:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, dict):
            value[path[-1]] = new
    text = json.dumps(lines)
    runs = openai_agents.runs()
    found = []
    for line in lines:
        try:
            found += runs.add(line, ORIGIN, 1)
        except InvalidEvent as error:
            assert str(error)  # noqa: PT017
    for run in [*found, *runs.rest()]:
        assert [run.events[0].type, run.events[-1].type] == ["run_started", "run_ended"]
        for event in run.events:
            assert decode_event(encode(event)).event == event
            assert event.type != "step" or json.dumps(event.tool) in text


@given(odd)
def test_any_json_is_refused_or_read(value):
    if not openai_agents.recognise(value):
        with pytest.raises(WrongShape):
            list(openai_agents.events(value, ORIGIN))
