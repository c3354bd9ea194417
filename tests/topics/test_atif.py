"""ATIF trajectories: turns with calls and observations, subagents, what was copied."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.topics.adapters import FOREIGN, PARTIAL, Origin, atif
from ontrack.topics.codecs import decode_event, encode
from ontrack.topics.errors import InvalidEvent, WrongShape
from ontrack.topics.events import Agent, ErrorInfo, RunEnded, RunStarted, Step, Tokens
from ontrack.topics.jsontext import parse

ORIGIN = Origin("file", "file")
T0, T1 = "2026-05-01T10:00:00Z", "2026-05-01T10:00:01Z"


def trajectory(*steps, **fields):
    agent = {"name": "coder", "version": "1.2", "model_name": "m"}
    head = {"schema_version": "ATIF-v1.8", "session_id": "s1", "agent": agent}
    return head | {"steps": list(steps)} | fields


def call(name="run", call_id="c1", **args):
    return {"tool_call_id": call_id, "function_name": name, "arguments": args}


def turn(*calls, results=(), **fields):
    return {
        "step_id": 1,
        "source": "agent",
        "message": "I look.",
        "timestamp": T1,
        "tool_calls": list(calls),
        "observation": {"results": list(results)},
    } | fields


def result(content, call_id="c1", **fields):
    return {"source_call_id": call_id, "content": content} | fields


def steps_of(*turns):
    return [e for e in atif.events(trajectory(*turns), ORIGIN) if isinstance(e, Step)]


METRICS = {"prompt_tokens": 9, "completion_tokens": 4, "cached_tokens": 2, "cost_usd": 0.5}


def test_a_trajectory_becomes_a_start_a_step_a_call_and_an_end():
    record = trajectory(
        {"step_id": 1, "source": "user", "message": "fix it", "timestamp": T0},
        turn(
            call("ls", "a", path="."), call("cat", "b"),
            results=[result("text", "b"), result("a.py", "a")], metrics=METRICS,
        ),
    )  # fmt: skip
    common = {"run_id": "s1", "time": T1, "action": "I look."}
    assert list(atif.events(record, ORIGIN)) == [
        RunStarted(run_id="s1", time=T0, agent=Agent(id="coder", version="1.2")),
        Step(
            **common, seq=0, tool="ls", args={"path": "."}, result="a.py", call_id="a",
            cost_usd=0.5, tokens=Tokens(input=9, output=4),
        ),
        Step(**common, seq=1, tool="cat", result="text", call_id="b"),
        RunEnded(run_id="s1", time=T1),
    ]  # fmt: skip


@pytest.mark.parametrize("version", ["ATIF-v1.0", "ATIF-v1.4", "ATIF-v1.8", "ATIF-v2.0"])
def test_trajectories_of_every_version_are_recognised(version):
    record = trajectory(turn(call()), schema_version=version)
    assert next(a.name for a in FOREIGN if a.recognise(record)) == "atif"


def test_a_result_without_the_id_of_a_call_belongs_to_an_only_call():
    assert steps_of(turn(call(), results=[{"content": "x"}]))[0].result == "x"
    two = steps_of(turn(call(), call("b", "c2"), results=[{"content": "x"}]))
    assert [step.result for step in two] == [None, None]


def test_a_result_of_another_call_is_not_taken():
    assert steps_of(turn(call(), results=[result("x", "gone")]))[0].result is None


def test_what_was_copied_from_another_trajectory_is_not_run_again():
    copied = turn(call("old"), is_copied_context=True)
    assert [step.tool for step in steps_of(copied, turn(call("new")))] == ["new"]


@pytest.mark.parametrize(
    ("found", "extra", "error"),
    [
        (result("x"), {}, None),
        (result("x", is_error=True), {}, ErrorInfo(type="error", message="x")),
        (result("x", extra={"is_error": True}), {}, ErrorInfo(type="error", message="x")),
        (result("x", extra={"error": "down"}), {}, ErrorInfo(type="error", message="down")),
        (result("x"), {"tool_result_is_error": True}, ErrorInfo(type="error", message="x")),
        (result("x"), {"tool_result_is_error": False}, None),
    ],
)
def test_errors_are_read_where_writers_put_them(found, extra, error):
    (step,) = steps_of(turn(call(), results=[found], extra=extra))
    assert (step.error, step.result) == (error, "x")


def test_embedded_subagents_are_runs_of_their_own():
    child = {"trajectory_id": "kid", "session_id": "s1", "agent": {"name": "k"}}
    child |= {"steps": [turn(call("grep"))], "subagent_trajectories": [{"steps": []}]}
    (parent, kid, grandchild) = atif.runs().add(
        trajectory(turn(call("task")), subagent_trajectories=[child]), ORIGIN, 3
    )
    assert [run.events[0].run_id for run in (parent, kid, grandchild)] == ["s1", "kid", "kid:0"]
    assert [run.events[0].parent_run_id for run in (parent, kid, grandchild)] == [None, "s1", "kid"]
    assert [step.tool for step in kid.events[1:-1]] == ["grep"]
    assert {run.place for run in (parent, kid, grandchild)} == {3}


def test_a_subagent_in_a_later_record_knows_who_referred_to_it():
    reference = [{"session_id": "s2", "trajectory_path": "kid.json"}]
    runs = atif.runs()
    first = turn(call("task"), results=[result("done", subagent_trajectory_ref=reference)])
    list(runs.add(trajectory(first), ORIGIN, 1))
    (kid,) = runs.add(trajectory(turn(call("grep")), session_id="s2"), ORIGIN, 2)
    assert {event.parent_run_id for event in kid.events[:-1]} == {"s1"}


def test_a_trajectory_that_goes_on_elsewhere_is_partial():
    (run,) = atif.runs().add(trajectory(continued_trajectory_ref="next.json"), ORIGIN, 1)
    assert run.flags == (PARTIAL,)
    assert "next.json" in run.events[-1].reason


@pytest.mark.parametrize(
    "wrong",
    [
        3,
        trajectory() | {"schema_version": "1.0"},
        trajectory() | {"steps": {}},
        trajectory("x"),
        trajectory(turn(call(None))),
        trajectory(turn(call("x" * 300))),
        trajectory(turn("x")),
        trajectory(turn(tool_calls=3)),
        trajectory(turn(call(), results=["x"])),
        trajectory(subagent_trajectories=["x"]),
        trajectory(turn(call()), session_id="s" * 600),
    ],
)
def test_a_wrong_record_is_a_wrong_shape(wrong):
    with pytest.raises(WrongShape):
        list(atif.events(wrong, ORIGIN))


def test_nothing_of_a_wrong_record_is_remembered():
    runs = atif.runs()
    reference = [{"session_id": "s2"}]
    first = turn(call(), results=[result("x", subagent_trajectory_ref=reference)])
    with pytest.raises(WrongShape):
        list(runs.add(trajectory(first, subagent_trajectories=["x"]), ORIGIN, 1))
    (run,) = runs.add(trajectory(session_id="s2"), ORIGIN, 2)
    assert run.events[0].parent_run_id is None


def test_what_is_yielded_goes_through_the_door_of_the_topic_unchanged():
    for event in atif.events(trajectory(turn(call(), results=[result("x")])), ORIGIN):
        assert decode_event(encode(event)) == (event, ())


keys = st.sampled_from(
    [
        "tool_calls", "function_name", "tool_call_id", "arguments", "observation", "results",
        "content", "source_call_id", "metrics", "cost_usd", "extra", "error", "is_error",
        "subagent_trajectory_ref", "session_id", "steps", "timestamp", "message", "prompt_tokens",
    ]
)  # fmt: skip
words = st.sampled_from(["run", "rm", "c1", "s1", "s2", "", T0])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)
calls = anything | st.builds(call, words, words | st.none())
results = anything | st.builds(result, anything, words, extra=anything)
turns = anything | st.builds(
    lambda made, found, fields: turn(*made, results=found) | fields,
    st.lists(calls, max_size=3),
    st.lists(results, max_size=3),
    st.dictionaries(keys, anything, max_size=2),
)
kids = st.lists(
    anything | st.builds(lambda found: {"steps": found, "session_id": "s2"}, st.lists(turns)),
    max_size=2,
)
records = anything | st.builds(
    lambda found, fields: trajectory(*found, **fields),
    st.lists(turns, max_size=4),
    st.fixed_dictionaries(
        {},
        optional={
            "session_id": anything,
            "trajectory_id": anything,
            "agent": anything,
            "subagent_trajectories": anything | kids,
            "continued_trajectory_ref": anything,
        },
    ),
)


def names_in(value):
    """Collect the names of functions in a record: the slow way."""
    if isinstance(value, list):
        return set().union(*map(names_in, value))
    if not isinstance(value, dict):
        return set()
    here = {value["function_name"]} if isinstance(value.get("function_name"), str) else set()
    return here.union(*map(names_in, value.values()))


@given(st.lists(records, max_size=3))
def test_any_records_give_events_with_their_own_tools_or_a_wrong_shape(found):
    runs = atif.runs()
    for place, record in enumerate(found, 1):
        assert atif.recognise(record) in (True, False)
        try:
            given_back = list(runs.add(record, ORIGIN, place))
        except WrongShape as error:
            assert str(error)  # noqa: PT017
            continue
        for run in given_back:
            assert [run.events[0].type, run.events[-1].type] == ["run_started", "run_ended"]
            assert {step.tool for step in run.events[1:-1]} <= names_in(record)
            assert run.events[0].run_id != run.events[0].parent_run_id
    assert list(runs.rest()) == []


@given(st.data())
def test_cut_and_flipped_bytes_give_events_or_an_error(data):
    raw = bytearray(json.dumps(trajectory(turn(call(), results=[result("x")]))).encode())
    for position in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=3)):
        raw[position] ^= 1 << data.draw(st.integers(0, 7))
    cut = bytes(raw[: data.draw(st.just(len(raw)) | st.integers(0, len(raw)))])
    try:
        events = list(atif.events(parse(cut).value, ORIGIN))
    except InvalidEvent as error:
        assert str(error)  # noqa: PT017
    else:
        assert len(events) <= 3
