"""Langfuse exports: how frameworks tell of tools, each in its own way."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.topics.adapters import FOREIGN, PARTIAL, Origin, langfuse
from ontrack.topics.codecs import decode_event, encode
from ontrack.topics.errors import InvalidEvent, WrongShape
from ontrack.topics.events import Agent, ErrorInfo, RunEnded, RunStarted, Step, Tokens
from ontrack.topics.jsontext import parse

ORIGIN = Origin("file", "file")


def at(second):
    return f"2026-05-01T10:00:{second:02d}.000Z"


def observed(kind, name, begun=1, *, attributes=None, **fields):
    return {
        "id": f"{name}-{begun}",
        "type": kind,
        "name": name,
        "startTime": at(begun),
        "endTime": at(begun + 1),
        "level": "DEFAULT",
        "metadata": json.dumps({"attributes": attributes or {}}),
    } | fields


def trace(*observations, **fields):
    head = {"id": "t1", "name": "helper", "timestamp": at(0), "version": "7"}
    return {"trace": head | fields, "observations": list(observations)}


def steps_of(*observations):
    return [e for e in langfuse.events(trace(*observations), ORIGIN) if isinstance(e, Step)]


def openai_call(name="weather", args='{"city": "Oslo"}', call_id="c1"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": args}}


def generation(output, begun=0, **fields):
    return observed("GENERATION", "chat", begun, output=json.dumps(output), **fields)


TOOL = observed("TOOL", "weather", 2, input='{"city": "Oslo"}', output="cold")


def test_a_trace_is_a_run_and_its_tool_observations_are_steps():
    asked = generation(
        {"role": "assistant", "tool_calls": [openai_call()]},
        usageDetails={"input": 12, "output": 5, "total": 17},
        totalCost=0.25,
    )
    # Exports are in no order.
    assert list(langfuse.events(trace(TOOL, asked), ORIGIN)) == [
        RunStarted(run_id="t1", time=at(0), agent=Agent(name="helper", version="7")),
        Step(
            run_id="t1", seq=0, time=at(2), started_at=at(2), ended_at=at(3), tool="weather",
            args={"city": "Oslo"}, result="cold", call_id="c1", cost_usd=0.25,
            tokens=Tokens(input=12, output=5),
        ),
        RunEnded(run_id="t1", time=at(3)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.operation.name": "execute_tool"},
        {"openinference.span.kind": "TOOL", "tool.name": "weather"},
        {"langsmith.span.kind": "tool"},
        {"ai.operationId": "ai.toolCall", "ai.toolCall.name": "weather"},
        {"gen_ai.tool.name": "weather"},
    ],
)
def test_spans_that_their_framework_marks_are_tools(attributes):
    name = "weather" if len(attributes) == 1 and "gen_ai.tool.name" not in attributes else "span"
    (step,) = steps_of(observed("SPAN", name, attributes=attributes, output="cold"))
    assert (step.tool, step.result) == ("weather", "cold")


@pytest.mark.parametrize("kind", ["SPAN", "AGENT", "CHAIN", "EVENT", "GENERATION", "RETRIEVER"])
def test_other_observations_are_no_steps(kind):
    assert steps_of(observed(kind, "plan", input="a", output="b")) == []


def tool_message(**fields):
    return {"type": "tool", "tool_call_id": "c1", "content": "cold", "status": "success"} | fields


@pytest.mark.parametrize(
    "output",
    [
        tool_message(),
        {"lc": 1, "type": "constructor", "id": ["ToolMessage"], "kwargs": tool_message()},
    ],
)
def test_a_span_that_answers_with_a_message_of_langgraph_is_a_tool(output):
    tools = observed("SPAN", "tools", 1, output=json.dumps({"messages": [output]}))
    call = observed("SPAN", "weather", 2, output=json.dumps(output), input="{'city': 'Oslo'}")
    asked = generation({"additional_kwargs": {"tool_calls": [openai_call()]}})
    (step,) = steps_of(tools, call, asked)
    # The arguments are the repr of an object there; the model's own text of them is used.
    assert (step.tool, step.args, step.result) == ("weather", {"city": "Oslo"}, "cold")
    assert step.call_id == "c1"


def test_what_wraps_the_observation_of_a_call_is_not_a_second_call():
    inner = observed("SPAN", "weather", 2, output=tool_message(), parentObservationId="run-1")
    assert len(steps_of(observed("SPAN", "run", 1, output=tool_message()), inner)) == 1


def test_two_calls_with_the_same_arguments_are_two_steps():
    again = TOOL | {"id": "again", "startTime": at(4)}
    call = openai_call(call_id=None)
    asked = [generation({"tool_calls": [call]}), generation({"tool_calls": [call]}, 3)]
    assert len(steps_of(TOOL, again, *asked)) == 2


STATED = [
    {"choices": [{"message": {"tool_calls": [openai_call()]}}]},
    {"content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}}]},
    [{"role": "assistant", "parts": [
        {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Oslo"}}]}],
    {"output": [{"type": "function_call", "call_id": "c1", "name": "weather",
                 "arguments": '{"city": "Oslo"}'}]},
    [{"toolCallId": "c1", "toolName": "weather", "input": '{"city": "Oslo"}'}],
    {"tool_calls": [{"name": "weather", "args": {"city": "Oslo"}, "id": "c1",
                     "type": "tool_call"}]},
    {"candidates": [{"content": {"parts": [
        {"functionCall": {"id": "c1", "name": "weather", "args": {"city": "Oslo"}}}]}}]},
]  # fmt: skip
ANSWERED = [
    {"role": "tool", "tool_call_id": "c1", "content": "cold"},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "cold"}]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "result": "cold"}]},
    {"type": "function_call_output", "call_id": "c1", "output": "cold"},
    {"role": "tool", "content": [{"type": "tool-result", "toolCallId": "c1", "result": "cold"}]},
]


@pytest.mark.parametrize("stated", STATED)
@pytest.mark.parametrize("answered", ANSWERED)
def test_a_call_that_only_messages_tell_of_is_a_step_with_the_result_in_later_ones(
    stated, answered
):
    (step,) = steps_of(generation(stated), generation("Cold.", 5, input=json.dumps([answered])))
    assert (step.tool, step.args, step.result) == ("weather", {"city": "Oslo"}, "cold")
    assert (step.call_id, step.time.second) == ("c1", 1)


@pytest.mark.parametrize("stated", STATED)
def test_a_call_that_is_observed_and_stated_counts_once(stated):
    assert len(steps_of(generation(stated), TOOL)) == 1


def test_a_generation_that_holds_another_states_the_same_call():
    call = {"function_call": {"name": "weather", "args": {}}}
    inner = generation(call, 1, parentObservationId="chat-0")
    assert len(steps_of(generation(call, 0), inner)) == 1


@pytest.mark.parametrize(
    "said",
    [
        '{"type": "tool_use", "name": "rm"}',
        [{"type": "text", "text": '{"tool_calls": [{"function": {"name": "rm"}}]}'}],
        [{"type": "tool_result", "tool_use_id": "x", "content": {"function": {"name": "rm"}}}],
    ],
)
def test_what_looks_like_a_call_within_a_text_or_a_result_is_none(said):
    assert steps_of(generation({"role": "assistant", "content": said})) == []


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"level": "ERROR", "statusMessage": "x"}, ErrorInfo(type="error", message="x")),
        ({"level": "WARNING", "statusMessage": "slow"}, None),
        ({"output": tool_message(status="error")}, ErrorInfo(type="error", message="cold")),
        (
            {"output": {"content": [{"type": "text", "text": "no"}], "isError": True}},
            ErrorInfo(type="error", message="no"),
        ),
        ({"metadata": {"attributes": {"error.type": "Timeout"}}}, ErrorInfo(type="Timeout")),
    ],
)  # fmt: skip
def test_errors_are_what_the_host_or_the_tool_calls_an_error(fields, error):
    (step,) = steps_of(TOOL | fields)
    assert step.error == error


def test_arguments_that_a_host_wraps_are_the_models():
    (step,) = steps_of(generation(STATED[1]), TOOL | {"input": {"input": {"city": "Oslo"}}})
    assert step.args == {"city": "Oslo"}
    (own,) = steps_of(TOOL | {"input": {"input": {"city": "Oslo"}}})
    assert own.args == {"input": {"city": "Oslo"}}


def notice(target, begun, parent, **attributes):
    return observed(
        "SPAN", target, begun, parentObservationId=parent,
        output=attributes.pop("output", None), attributes={"target": target} | attributes,
    )  # fmt: skip


def test_the_notices_of_beeai_add_up_to_a_step_a_call():
    tool, args = {"tool.name": "Wiki"}, {"tool.parameters": '{"q": "Oslo"}'}
    own = {"openinference.span.kind": "TOOL"}
    steps = steps_of(
        notice("agent.react.update", 1, "i1", **tool, **{"tool.parameters": "null"}),
        notice("agent.react.update", 2, "i1", **tool, **args, thought="Look."),
        notice("tool.search.wiki.start", 3, "agent.react.update-2", **own, **args),
        notice("tool.search.wiki.success", 4, "agent.react.update-2", **own, output="a city"),
        notice("agent.react.partial_update", 5, "i1", **tool, **args, output="a city"),
        notice("tool.maps.start", 6, "other", **own, **args),
        notice("tool.maps.error", 7, "other", **own, output="down"),
        notice("tool.maps.finish", 7, "other", **own),
    )
    assert [(s.tool, s.args, s.result, s.error) for s in steps] == [
        ("Wiki", {"q": "Oslo"}, "a city", None),
        ("maps", {"q": "Oslo"}, "down", ErrorInfo(type="error", message="down")),
    ]


def test_a_tool_that_never_ended_makes_the_run_partial():
    (run,) = langfuse.runs().add(trace(TOOL | {"endTime": None}), ORIGIN, 4)
    assert (run.flags, run.place) == ((PARTIAL,), 4)
    assert "1 tool" in run.events[-1].reason


def test_a_trace_of_the_api_is_read_too():
    record = {"id": "t9", "name": "helper", "observations": [TOOL]}
    assert [event.run_id for event in langfuse.events(record, ORIGIN)] == ["t9"] * 3


def test_a_trace_is_recognised():
    for record in (trace(TOOL), trace(), {"id": "t9", "observations": [TOOL]}):
        assert next(a.name for a in FOREIGN if a.recognise(record)) == "langfuse"


@pytest.mark.parametrize(
    "wrong", [3, {}, {"observations": []}, trace("x"), trace(TOOL, "x"), trace(TOOL, {"type": "?"})]
)
def test_a_wrong_record_is_a_wrong_shape(wrong):
    with pytest.raises(WrongShape):
        list(langfuse.events(wrong, ORIGIN))


def test_what_is_yielded_goes_through_the_door_of_the_topic_unchanged():
    for event in langfuse.events(trace(TOOL, generation(STATED[0])), ORIGIN):
        assert decode_event(encode(event)) == (event, ())


words = st.sampled_from(
    [
        "weather",
        "rm",
        "c1",
        "tool",
        "assistant",
        "tool_use",
        "tool_result",
        "function_call",
        "x",
        "agent.react.update",
        "tool.rm.start",
        "tool.rm.error",
        "TOOL",
        "constructor",
    ]
)
keys = st.sampled_from(
    [
        "type", "name", "id", "role", "content", "parts", "tool_calls", "function", "arguments",
        "input", "args", "output", "message", "messages", "choices", "kwargs", "tool_call_id",
        "tool_use_id", "toolName", "toolCallId", "attributes", "target", "function_call",
        "gen_ai.tool.name", "tool.name", "tool.parameters", "openinference.span.kind", "error.type",
    ]
)  # fmt: skip
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=10,
)
written = anything | anything.map(json.dumps)
observations = st.builds(
    observed,
    st.sampled_from(["SPAN", "TOOL", "GENERATION", "AGENT", "X"]),
    words,
    st.integers(0, 5),
).flatmap(
    lambda base: st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(("input", "output", "metadata", "name", "id", "type"), written)
        | {
            "parentObservationId": st.sampled_from(["x-1", "rm-2", "c1-0", None]),
            "endTime": anything,
            "usageDetails": anything,
            "totalCost": anything,
            "level": st.sampled_from(["ERROR", "DEFAULT", None]),
        },
    ).map(lambda fields: base | fields)
)


def texts_in(value):
    """Collect every text in a record, those in JSON texts included: the slow way."""
    if isinstance(value, str):
        try:
            inner = json.loads(value)
        except ValueError:
            inner = None
        found = texts_in(inner) if isinstance(inner, str | dict | list) else set()
        return found | {value}
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return set().union(*map(texts_in, value))
    return {str(value)}


@given(anything | st.lists(observations | anything, max_size=6).map(lambda found: trace(*found)))
def test_any_record_gives_events_with_its_own_tools_or_a_wrong_shape(record):
    assert langfuse.recognise(record) in (True, False)
    try:
        events = list(langfuse.events(record, ORIGIN))
    except WrongShape as error:
        assert str(error)  # noqa: PT017
        return
    assert [events[0].type, events[-1].type] == ["run_started", "run_ended"]
    known = texts_in(record) | {"(no tool)"}
    for step in events[1:-1]:
        assert step.tool in known or any(step.tool in text for text in known)


@given(st.data())
def test_cut_and_flipped_bytes_give_events_or_an_error(data):
    raw = bytearray(json.dumps(trace(TOOL, generation(STATED[0]))).encode())
    for position in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=3)):
        raw[position] ^= 1 << data.draw(st.integers(0, 7))
    cut = bytes(raw[: data.draw(st.just(len(raw)) | st.integers(0, len(raw)))])
    try:
        events = list(langfuse.events(parse(cut).value, ORIGIN))
    except InvalidEvent as error:
        assert str(error)  # noqa: PT017
        return
    assert len(events) <= 4
