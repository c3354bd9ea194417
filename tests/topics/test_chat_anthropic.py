"""Chat messages of Anthropic's API: tools in content blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.topics.adapters import FOREIGN, Origin, chat
from ontrack.topics.errors import WrongShape
from ontrack.topics.events import ErrorInfo, Step

ORIGIN = Origin("file", "file")


def use(name="weather", call_id="c1", kind="tool_use", **args):
    return {"type": kind, "id": call_id, "name": name, "input": args}


def came_back(content, call_id="c1", kind="tool_result", **fields):
    return {"type": kind, "tool_use_id": call_id, "content": content} | fields


def text(said):
    return {"type": "text", "text": said}


def assistant(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def steps_of(*messages):
    return [e for e in chat.events(list(messages), ORIGIN) if isinstance(e, Step)]


def test_blocks_that_use_tools_are_steps_with_the_results_in_the_next_message():
    thinking = {"type": "thinking", "thinking": "hm", "signature": "x"}
    messages = (
        user(text("weather in Rome and Oslo?")),
        assistant(thinking, text("I look."), use("weather", "a", city="Rome"), use("maps", "b")),
        user(came_back("down", "b", is_error=True), came_back([text("30"), text("dry")], "a")),
        assistant(text("30 degrees.")),
    )
    assert steps_of(*messages) == [
        Step(
            run_id="file", seq=0, action="I look.", tool="weather", args={"city": "Rome"},
            result="30\ndry", call_id="a",
        ),
        Step(
            run_id="file", seq=1, action="I look.", tool="maps", result="down", call_id="b",
            error=ErrorInfo(type="error", message="down"),
        ),
    ]  # fmt: skip
    record = {"model": "m", "system": "s", "messages": list(messages)}
    assert next(adapter.name for adapter in FOREIGN if adapter.recognise(record)) == "chat"


@pytest.mark.parametrize(
    ("call", "back", "result", "error"),
    [
        (use(kind="mcp_tool_use"), came_back("x", kind="mcp_tool_result"), "x", None),
        (
            use("web_search", kind="server_tool_use"),
            came_back(
                {"type": "web_search_tool_result_error", "error_code": "max_uses"},
                kind="web_search_tool_result",
            ),
            {"type": "web_search_tool_result_error", "error_code": "max_uses"},
            ErrorInfo(type="error", message="max_uses"),
        ),
    ],
)
def test_what_a_server_runs_is_answered_within_the_same_message(call, back, result, error):
    (step,) = steps_of(user(text("go")), assistant(call, back, text("done")))
    assert (step.result, step.error) == (result, error)


def test_a_result_in_the_message_of_the_call_is_not_the_clients():
    (step,) = steps_of(user(text("go")), assistant(use(), came_back("early")))
    assert step.result is None


def test_an_id_used_again_is_answered_in_order():
    messages = (assistant(use()), user(came_back("1")), assistant(use()), user(came_back("2")))
    assert [step.result for step in steps_of(*messages)] == ["1", "2"]


def test_a_call_without_a_name_is_a_wrong_shape():
    with pytest.raises(WrongShape, match=r"messages\[0\].content\[1\]"):
        steps_of(assistant(text("x"), {"type": "tool_use", "id": "a"}))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["weather", "c1", "tool_use"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "name", "id", "text"]), inner, max_size=3)
    ),
    max_leaves=6,
)
blocks = st.one_of(
    anything,
    st.builds(use, anything, anything, st.sampled_from(["tool_use", "server_tool_use"])),
    st.builds(came_back, anything, anything, is_error=anything),
)
turns = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "assistant", "tool"]),
    anything | st.lists(blocks, max_size=4),
)


@given(st.lists(turns | anything, max_size=6))
def test_any_messages_give_events_with_their_own_tools_or_a_wrong_shape(messages):
    try:
        steps = steps_of(*messages)
    except WrongShape as error:
        assert str(error)  # noqa: PT017
    else:
        assert {step.tool for step in steps} <= {"weather", "c1", "tool_use"}
