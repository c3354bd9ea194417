"""Langfuse's exports of rows: an observation a record, in any order, traces apart or not."""

import json

import pytest

from ontrack.topics.adapters import PARTIAL, Origin, langfuse, langfuse_rows
from ontrack.topics.errors import WrongShape
from ontrack.topics.events import Agent, ErrorInfo, RunStarted, Step, Tokens

ORIGIN = Origin("file", "file")


def at(second):
    return f"2026-05-01 10:00:{second:02d}.000000"


def row(number, kind="TOOL", trace="t1", **fields):
    return {
        "id": f"o{number}",
        "trace_id": trace,
        "project_id": "p",
        "type": kind,
        "parent_observation_id": "",
        "start_time": at(number),
        "end_time": at(number + 1),
        "name": "weather",
        "metadata": {},
        "level": "DEFAULT",
        "status_message": "",
        "input": '{"city": "Oslo"}',
        "output": "cold",
    } | fields


def trace_row(trace="t1", **fields):
    told = {"id": trace, "timestamp": at(0), "project_id": "p", "session_id": "", "tags": []}
    return told | {"name": "helper", "release": "3", "version": ""} | fields


def score_row(trace="t1"):
    told = {"id": "s", "timestamp": at(0), "project_id": "p", "name": "liked", "value": 1}
    return told | {"trace_id": trace}


def runs_of(*records):
    runs = langfuse.runs()
    found = [run for n, record in enumerate(records, 1) for run in runs.add(record, ORIGIN, n)]
    return found + list(runs.rest())


def steps_of(*records):
    return [e for run in runs_of(*records) for e in run.events if isinstance(e, Step)]


def test_rows_of_a_trace_are_a_run_whatever_order_they_stand_in():
    (run,) = runs_of(row(2, output="warm"), trace_row(), row(1))
    assert run.place == 1
    assert run.flags == ()
    assert run.events[0] == RunStarted(
        run_id="t1", time="2026-05-01T10:00:00Z", agent=Agent(name="helper", version="3")
    )
    assert [(e.seq, e.result) for e in run.events if isinstance(e, Step)] == [
        (0, "cold"),
        (1, "warm"),
    ]


def test_a_row_tells_of_its_trace_where_traces_are_not_apart():
    (run,) = runs_of(row(1, trace_name="helper", release="3"))
    assert run.events[0].agent == Agent(name="helper", version="3")


def test_traces_in_one_file_are_runs_of_their_own():
    found = runs_of(row(1), row(2, trace="t2"), row(3), row(4, trace="t2"))
    assert [(run.events[0].run_id, len(run.events)) for run in found] == [("t1", 4), ("t2", 4)]


def test_traces_and_scores_alone_hold_no_runs():
    assert runs_of(trace_row(), score_row(), score_row(trace="")) == []


def test_a_page_of_the_api_is_read_under_its_names():
    camel = {
        "id": "o1", "traceId": "t1", "type": "TOOL", "startTime": "2026-05-01T10:00:01Z",
        "endTime": "2026-05-01T10:00:02Z", "name": "weather", "input": {"city": "Oslo"},
        "output": {"sky": "blue"},
    }  # fmt: skip
    page = {"data": [camel], "meta": {"cursor": None}}
    assert langfuse.recognise(page)
    (step,) = steps_of(page)
    assert (step.tool, step.args, step.result) == ("weather", {"city": "Oslo"}, {"sky": "blue"})


def test_the_failure_of_a_tool_is_its_level_and_message():
    (step,) = steps_of(row(1, level="ERROR", status_message="no such city", output=""))
    assert step.error == ErrorInfo(type="error", message="no such city")
    assert step.result is None


@pytest.mark.parametrize(
    "metadata",
    [
        {"attributes": json.dumps({"gen_ai.operation.name": "execute_tool"})},
        {"attributes": {"gen_ai.operation.name": "execute_tool"}},
        {"attributes.gen_ai.operation.name": "execute_tool"},
        json.dumps({"attributes": {"gen_ai.operation.name": "execute_tool"}}),
    ],
)
def test_attributes_are_read_as_an_object_as_text_and_by_paths(metadata):
    assert len(steps_of(row(1, "SPAN", metadata=metadata))) == 1
    assert steps_of(row(1, "SPAN")) == []


def test_calls_are_told_beside_an_output_that_was_not_exported():
    asked = row(
        1, "GENERATION", input="", output="", usage_details={"input": 3, "output": 4},
        cost_details={"total": 0.5}, tool_call_names=["weather"],
        tool_calls=[json.dumps({"id": "c1", "arguments": '{"city": "Oslo"}'})],
    )  # fmt: skip
    (step,) = steps_of(asked)
    assert (step.tool, step.args, step.call_id) == ("weather", {"city": "Oslo"}, "c1")
    assert (step.tokens, step.cost_usd) == (Tokens(input=3, output=4), 0.5)


def test_overlapping_windows_tell_of_an_observation_once_and_the_end_counts():
    begun = row(1, end_time=None, output="")
    assert [step.result for step in steps_of(begun, row(1), begun)] == ["cold"]


def test_a_run_of_which_the_file_lacks_the_upper_observations_is_partial():
    (run,) = runs_of(row(1, parent_observation_id="elsewhere"))
    assert run.flags == (PARTIAL,)
    assert "missing" in run.events[-1].reason


def test_what_is_held_has_a_limit_and_the_rest_of_a_trace_is_flagged(monkeypatch):
    monkeypatch.setattr(langfuse_rows, "HELD_BYTES_MAX", 1_500)
    found = runs_of(row(1), row(2, trace="t2"), row(3, trace="t3"), row(4))
    assert [run.events[0].run_id for run in found] == ["t1", "t2", "t3", "t1"]
    assert [run.flags for run in found] == [(), (), (), (PARTIAL,)]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (row(1, name="x" * 5_000), "tool"),
        ({"data": [row(1), {"id": "o2"}]}, "row 1"),
        (row(1, trace="t" * 5_000), "run_id"),
    ],
)
def test_a_row_that_cannot_be_used_is_told_with_its_record_and_nothing_of_it_is_taken(record, said):
    runs = langfuse.runs()
    with pytest.raises(WrongShape, match=said):
        list(runs.add(record, ORIGIN, 1))
    assert list(runs.rest()) == []
