"""Claude Code transcripts: calls and results on different lines, subagents, cut files."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ontrack.topics.adapters import FOREIGN, PARTIAL, Origin, claude_code
from ontrack.topics.adapters.claude_code import CANCELLED, recognise
from ontrack.topics.codecs import decode_event, encode
from ontrack.topics.errors import InvalidEvent, WrongShape
from ontrack.topics.events import Agent, ErrorInfo, RunEnded, RunStarted, Step, Tokens
from ontrack.topics.jsontext import parse

ORIGIN = Origin("file", "file")
T0, T1, T2 = (f"2026-05-01T10:00:0{second}.000Z" for second in (0, 1, 2))


def line(kind, content, **fields):
    message = {"role": kind, "content": content, **fields.pop("message", {})}
    return {"type": kind, "sessionId": "s", "uuid": "u", "message": message} | fields


def use(call_id="c1", name="Bash", **args):
    return {"type": "tool_use", "id": call_id, "name": name, "input": args}


def outcome(content, call_id="c1", **fields):
    return {"type": "tool_result", "tool_use_id": call_id, "content": content} | fields


def text(said):
    return {"type": "text", "text": said}


def runs_of(*lines):
    transcript = claude_code.runs()
    for place, item in enumerate(lines, 1):
        assert list(transcript.add(item, ORIGIN, place)) == []
    return list(transcript.rest())


def steps_of(*lines):
    (run,) = runs_of(*lines)
    return [event for event in run.events if isinstance(event, Step)]


SESSION = (
    {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
    line("user", "list the files", timestamp=T0, version="2.1", parentUuid=None),
    line("assistant", [text("I look.")], message={"id": "m1"}, timestamp=T1),
    line(
        "assistant", [use(command="ls")], timestamp=T1,
        message={
            "id": "m1",
            "usage": {"input_tokens": 3, "cache_read_input_tokens": 40, "output_tokens": 9},
        },
    ),
    line("user", [outcome([text("a.py"), text("b.py")])], timestamp=T2),
    line("assistant", [text("Two files.")], message={"id": "m2"}, timestamp=T2),
)  # fmt: skip


def test_a_session_is_a_run_with_a_step_a_call():
    (run,) = runs_of(*SESSION)
    started, step, ended = run.events
    assert started == RunStarted(run_id="s", time=T0, agent=Agent(id="claude-code", version="2.1"))
    assert step == Step(
        run_id="s", seq=0, time=T1, action="I look.", tool="Bash", args={"command": "ls"},
        result="a.py\nb.py", call_id="c1", started_at=T1, ended_at=T2,
        tokens=Tokens(input=43, output=9),
    )  # fmt: skip
    assert ended == RunEnded(run_id="s", time=T2)
    assert (run.place, run.flags) == (2, ())


def test_results_come_in_any_order_and_steps_in_the_order_of_the_calls():
    steps = steps_of(
        line("assistant", [use("a", "Read")], message={"id": "m"}),
        line("assistant", [use("b", "Grep")], message={"id": "m"}),
        line("user", [outcome("B", "b")]),
        line("user", [outcome("A", "a")]),
    )
    assert [(step.seq, step.tool, step.result) for step in steps] == [
        (0, "Read", "A"),
        (1, "Grep", "B"),
    ]


def test_tokens_of_a_message_count_once_with_the_last_numbers_written():
    def part(block, output):
        usage = {"input_tokens": 5, "output_tokens": output}
        return line("assistant", [block], message={"id": "m", "usage": usage})

    steps = steps_of(part(text("x"), 1), part(use("a"), 1), part(use("b"), 30))
    assert [step.tokens for step in steps] == [Tokens(input=5, output=30), None]


@pytest.mark.parametrize(
    ("block", "told", "error"),
    [
        (outcome("no such file", is_error=True), "Error: no such file", ("error", "no such file")),
        (outcome("fine", is_error=False), {"stdout": "fine", "interrupted": False}, None),
        (outcome("refused", is_error=True), "User rejected tool use", (CANCELLED, "refused")),
        (outcome("half"), {"stdout": "half", "interrupted": True}, (CANCELLED, "half")),
    ],
)
def test_errors_are_told_from_what_a_person_broke_off(block, told, error):
    (step,) = steps_of(line("assistant", [use()]), line("user", [block], toolUseResult=told))
    assert step.error == (error and ErrorInfo(type=error[0], message=error[1]))
    assert step.result == block["content"]


def test_an_interruption_breaks_off_the_calls_without_a_result():
    said = "[Request interrupted by user for tool use]"
    (run,) = runs_of(
        line("assistant", [use("a"), use("b")]),
        line("user", [outcome("A", "a")]),
        line("user", [text(said)]),
    )
    _, first, second, _ = run.events
    assert (first.error, second.error) == (None, ErrorInfo(type=CANCELLED, message=said))
    assert run.flags == ()


def test_data_of_images_is_not_carried_but_told_apart():
    def image(data):
        source = {"type": "base64", "media_type": "image/png", "data": data}
        return [{"type": "image", "source": source}]

    shots = ["A" * 2_000_000, "A" * 2_000_000, "B" * 2_000_000]
    steps = steps_of(
        line("assistant", [use(str(n), "Shot") for n in range(3)]),
        *(line("user", [outcome(image(data), str(n))]) for n, data in enumerate(shots)),
    )
    assert steps[0].result == steps[1].result != steps[2].result
    assert steps[0].result[0]["source"]["media_type"] == "image/png"
    assert len(encode(steps[0])) < 1_000


def test_a_long_error_is_whole_in_the_result_and_cut_in_the_message():
    (step,) = steps_of(
        line("assistant", [use()]), line("user", [outcome("x" * 9_999, is_error=True)])
    )
    assert (len(step.result), len(step.error.message)) == (9_999, 2_000)


def test_a_subagent_in_a_file_of_its_own_is_a_run_with_a_parent():
    (run,) = runs_of(
        line("assistant", [use()], agentId="a7", isSidechain=True), line("user", [], agentId="a7")
    )
    assert {event.run_id for event in run.events} == {"s:a7"}
    assert [event.parent_run_id for event in run.events[:2]] == ["s", "s"]


def test_subagents_within_the_session_are_told_apart_by_the_chain_of_their_lines():
    def side(uuid, before, content, kind="assistant"):
        return line(kind, content, uuid=uuid, parentUuid=before, isSidechain=True)

    session, one, two = runs_of(
        line("assistant", [use("task", "Task")]),
        side("x1", None, "first", "user"),
        side("y1", None, "second", "user"),
        side("y2", "y1", [use("b", "Grep")]),
        side("x2", "x1", [use("a", "Read")]),
        side("x3", "x2", [outcome("A", "a")], "user"),
        side("y3", "y2", [outcome("B", "b")], "user"),
        line("user", [outcome("done", "task")]),
    )
    found = [
        [(s.run_id, s.tool, s.result) for s in run.events[1:-1]] for run in (session, one, two)
    ]
    assert found == [[("s", "Task", "done")], [("s:x1", "Read", "A")], [("s:y1", "Grep", "B")]]


def test_lines_of_the_printed_stream_are_read_too():
    head = {"session_id": "p", "parent_tool_use_id": None}
    call = {"type": "assistant", "message": {"role": "assistant", "content": [use()]}} | head
    back = {"type": "user", "message": {"role": "user", "content": [outcome("ok")]}} | head
    (step,) = steps_of({"type": "system", "subtype": "init", "uuid": "u"} | head, call, back)
    assert (step.run_id, step.result) == ("p", "ok")
    assert recognise(call)


def test_what_a_line_repeats_counts_once():
    call, back = line("assistant", [use()]), line("user", [outcome("ok")])
    assert len(steps_of(call, call, back, back)) == 1


@pytest.mark.parametrize(
    ("lines", "lacks"),
    [
        ([line("assistant", [use()])], "the results of 1 calls"),
        ([line("user", [outcome("x")])], "the calls of 1 results"),
        ([line("user", "go on", parentUuid="gone")], "its first lines"),
    ],
)
def test_a_cut_transcript_is_flagged_as_partial(lines, lacks):
    (run,) = runs_of(*lines)
    assert run.flags == (PARTIAL,)
    assert lacks in run.events[-1].reason
    assert run.events[-1].outcome == "unknown"


@pytest.mark.parametrize(
    "wrong",
    [
        3,
        [],
        {},
        {"type": 3, "sessionId": "s"},
        {"type": "assistant", "sessionId": "s"},
        {"type": "user", "sessionId": "s", "message": {"content": 3}},
        {"type": "user", "message": {"content": "hello"}},
        line("assistant", [{"type": "tool_use", "id": "a", "input": {}}]),
        line("assistant", [{"type": "tool_use", "name": "Bash", "input": {}}]),
        line("assistant", [use(name="x" * 300)]),
        line("user", "x", sessionId="s" * 600),
    ],
)
def test_a_wrong_line_is_a_wrong_shape_and_nothing_of_it_is_taken(wrong):
    transcript = claude_code.runs()
    list(transcript.add(SESSION[1], ORIGIN, 1))
    with pytest.raises(WrongShape):
        list(transcript.add(wrong, ORIGIN, 2))
    (run,) = transcript.rest()
    assert [event.type for event in run.events] == ["run_started", "run_ended"]


def test_lines_that_belong_to_no_session_are_passed_over():
    assert runs_of({"type": "summary", "summary": "x", "leafUuid": "u"}) == []


def test_a_transcript_is_recognised_by_its_first_line_with_a_session():
    heads = [next((a.name for a in FOREIGN if a.recognise(item)), None) for item in SESSION[:3]]
    assert heads == [None, "claude-code", "claude-code"]


def test_what_is_yielded_goes_through_the_door_of_the_topic_unchanged():
    (run,) = runs_of(*SESSION)
    for event in run.events:
        assert decode_event(encode(event)) == (event, ())


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
blocks = st.one_of(
    anything,
    st.builds(use, st.sampled_from("abc"), st.sampled_from(["Bash", "Read"])),
    st.builds(outcome, anything, st.sampled_from("abcd"), is_error=anything),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("type", "id", "name", "input"), anything)),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["tool_use", "tool_result", "text"])},
        optional=dict.fromkeys(("id", "name", "input", "text", "tool_use_id", "content"), anything),
    ),
)
lines_of_any_kind = anything | st.builds(
    lambda kind, content, fields: line(kind, content) | fields,
    st.sampled_from(["user", "assistant", "system", "result"]),
    anything | st.lists(blocks, max_size=4),
    st.fixed_dictionaries(
        {},
        optional={
            "message": anything,
            "sessionId": st.sampled_from(["s", "t", "", None, 3]),
            "timestamp": st.sampled_from([T0, "soon", "0001-01-01T00:00:00+23:59"]) | anything,
            "version": anything,
            "agentId": st.sampled_from(["x", None]),
            "isSidechain": st.booleans(),
            "uuid": st.sampled_from("uvw"),
            "parentUuid": st.sampled_from(["u", "v", None]),
            "toolUseResult": anything | st.just({"interrupted": True}),
        },
    ),
)


def names_in(value):
    """Collect the names of calls that stand in a message's content, the slow way."""
    if isinstance(value, list):
        return set().union(*map(names_in, value))
    if not isinstance(value, dict):
        return set()
    here = {value["name"]} if isinstance(value.get("name"), str) else set()
    return here.union(*map(names_in, value.values()))


@given(st.lists(lines_of_any_kind, max_size=8))
@example([line("assistant", [use()], toolUseResult={"interrupted": True})])
def test_any_lines_give_events_with_their_own_tools_or_a_wrong_shape(lines):
    transcript, taken = claude_code.runs(), []
    for place, item in enumerate(lines, 1):
        assert recognise(item) in (True, False)
        try:
            list(transcript.add(item, ORIGIN, place))
        except InvalidEvent as error:
            assert str(error)  # noqa: PT017
        else:
            taken.append(item)
    for run in transcript.rest():
        kinds = [event.type for event in run.events]
        assert kinds == ["run_started", *["step"] * (len(kinds) - 2), "run_ended"]
        steps = run.events[1:-1]
        assert {step.tool for step in steps} <= names_in(taken)
        assert [step.seq for step in steps] == list(range(len(steps)))


@given(st.data())
def test_cut_flipped_and_mixed_bytes_give_events_of_these_lines_or_an_error(data):
    raw = [json.dumps(item).encode() for item in SESSION]
    other = [item.replace(b'"s"', b'"t"') for item in raw]
    mixed = data.draw(st.permutations(raw + other))
    broken = bytearray(b"\n".join(mixed))
    for at in data.draw(st.lists(st.integers(0, len(broken) - 1), max_size=3)):
        broken[at] ^= 1 << data.draw(st.integers(0, 7))
    cut = bytes(broken[: data.draw(st.integers(0, len(broken)))])
    transcript = claude_code.runs()
    for place, item in enumerate(cut.split(b"\n"), 1):
        try:
            record, flags = parse(item)
            list(transcript.add(record, ORIGIN, place, flags))
        except InvalidEvent as error:
            assert str(error)  # noqa: PT017
    for run in transcript.rest():
        assert all(step.tool.encode() in cut or "�" in step.tool for step in run.events[1:-1])
