import json
import math
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ontrack.topics.codecs import (
    Limits,
    decode_event,
    decode_output,
    decode_proposal,
    decode_reference,
    decode_tasks,
    decode_tools,
    encode,
    event_headers,
    event_type,
)
from ontrack.topics.errors import (
    InvalidEvent,
    InvalidSettings,
    MalformedMessage,
    MessageTooLarge,
    OnTrackError,
    TooDeep,
    UnknownEventType,
    WrongShape,
)
from ontrack.topics.events import ErrorInfo, Proposal, RunEnded, RunStarted, Step, Tokens
from ontrack.topics.knowledge import Effect, Provenance, Reference, ReferenceStep, ToolContract
from ontrack.topics.verdicts import Authority, Verdict, VerdictName

STEP = b'{"type":"step","run_id":"r","tool":"t","args":%s}'


def step_with(args: bytes) -> bytes:
    return STEP % args


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


text = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
times = st.none() | st.datetimes(timezones=st.just(UTC))
common = {"run_id": names, "seq": st.none() | st.integers(0, 2**53), "time": times}
steps = st.builds(
    Step,
    **common,
    tool=names,
    action=st.none() | text,
    args=st.dictionaries(text, plain, max_size=3),
    result=plain,
    error=st.none() | st.builds(ErrorInfo, message=text),
    parents=st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple),
    consumed=st.none() | st.lists(names, max_size=3).map(tuple),
    cost_usd=st.none() | st.floats(0, 1e6),
    tokens=st.none() | st.builds(Tokens, input=st.integers(0, 10**6)),
)
events = st.one_of(
    steps,
    st.builds(RunStarted, **common, task_id=st.none() | text),
    st.builds(
        RunEnded,
        **common,
        outcome=st.sampled_from(["success", "failure", "cancelled", "unknown"]),
        reward=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    ),
)


def test_a_step_is_decoded_from_its_bytes():
    event, flags = decode_event(
        b'{"type":"step","run_id":"r1","seq":0,"tool":"search","args":{"q":"tea"},"result":[1]}'
    )
    assert event == Step(run_id="r1", seq=0, tool="search", args={"q": "tea"}, result=[1])
    assert flags == ()


def test_encoding_is_compact_in_the_models_order_and_keeps_nulls():
    raw = encode(RunEnded(run_id="r", outcome="success"))
    assert raw == (
        b'{"run_id":"r","seq":null,"time":null,"agent":null,"task_id":null,"tenant":null,'
        b'"parent_run_id":null,"trace":null,"type":"run_ended","outcome":"success","reward":null,"reason":null}'
    )


@given(events)
def test_what_is_encoded_decodes_to_the_same_event_and_the_same_bytes(event):
    raw = encode(event)
    decoded, flags = decode_event(raw)
    assert decoded == event
    assert flags == ()
    assert encode(decoded) == raw


@given(st.binary(max_size=200))
@example(b"")
@example(b"\xff")
@example(b"null")
@example(b"[]")
@example(b"1" * 5000)
@example(b'"\\ud800"')
@example(nested(5000))
@example(b'{"type":{"a":1}}')
def test_any_bytes_give_an_event_or_an_invalid_event(raw):
    try:
        event, _ = decode_event(raw)
    except InvalidEvent as error:
        assert 0 < len(str(error)) < 1000  # noqa: PT017
    else:
        assert decode_event(encode(event)).event == event


@given(events, st.data())
def test_cut_or_flipped_lines_give_an_event_or_an_invalid_event(event, data):
    raw = bytearray(encode(event))
    place = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        del raw[place:]
    else:
        raw[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decoded, _ = decode_event(bytes(raw))
    except InvalidEvent as error:
        assert str(error)  # noqa: PT017
    else:
        assert decode_event(encode(decoded)).event == decoded


documents = st.fixed_dictionaries(
    {"type": st.sampled_from(["run_started", "step", "run_ended", "no"]) | plain},
    optional={name: plain for name in (*Step.model_fields, "outcome", "reward") if name != "type"},
)


@given(documents, st.booleans())
def test_any_object_gives_an_event_or_an_invalid_event(document, with_surrogate):
    raw = json.dumps(document | ({"x": "\ud83d"} if with_surrogate else {})).encode()
    try:
        event, flags = decode_event(raw)
    except InvalidEvent as error:
        assert str(error)  # noqa: PT017
    else:
        assert ("lone_surrogates" in flags) == with_surrogate
        assert decode_event(encode(event)).event == event


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b'{"type":"step"', b"not json", b"{'type':'step'}", b'{"a":1} {"b":2}', b"\x00"],
)
def test_bytes_that_are_no_json_are_malformed(raw):
    with pytest.raises(MalformedMessage, match="not JSON"):
        decode_event(raw)


def test_bytes_that_are_not_utf_8_are_malformed_and_say_where():
    with pytest.raises(MalformedMessage, match="byte 0xff at offset 44"):
        decode_event(b'{"type":"step","run_id":"r","tool":"t","x":"\xff"}')


def test_a_message_over_the_limit_is_refused_before_it_is_parsed():
    with pytest.raises(MessageTooLarge, match="101 bytes, the limit is 100"):
        decode_event(b"?" * 101, Limits(message_bytes=100))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"[]", "expected an object, found an array of 0 items"),
        (b"3", "expected an object, found a number"),
        (b'{"type":"step","run_id":"r"}', "field `tool` is missing"),
        (b'{"type":"step","tool":"t"}', "field `run_id` is missing"),
        (b'{"type":"run_started","run_id":7}', "field `run_id` should be a valid string, found 7"),
        (b'{"type":"run_started","run_id":""}', "field `run_id` should have at least 1 character"),
        (step_with(b'"x"'), "field `args` should be an object, found a text of 1 char"),
        (b'{"type":"step","run_id":"r","tool":"t","parents":[0,"a"]}', r"field `parents\[1\]`"),
        (b'{"type":"step","run_id":"r","tool":"t","tokens":{"input":-1}}', "field `tokens.input`"),
        (b'{"type":"step","run_id":"r","tool":"t","seq":1.5}', "field `seq`"),
        (b'{"type":"step","run_id":"r","tool":"t","seq":true}', "field `seq`.* found true"),
        (b'{"type":"run_ended","run_id":"r","outcome":"won"}', "field `outcome`.*'success'"),
        (b'{"type":"run_started","run_id":"r","time":"2026-01-01T00:00:00"}', "timezone"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_found_and_expected(raw, said):
    with pytest.raises(WrongShape, match=said):
        decode_event(raw)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e400"])
@pytest.mark.parametrize(("type_", "field"), [(b"step", b"cost_usd"), (b"run_ended", b"reward")])
def test_numbers_of_the_event_itself_must_be_finite(type_, field, number):
    raw = b'{"type":"%s","run_id":"r","tool":"t","%s":%s}' % (type_, field, number)
    with pytest.raises(WrongShape, match=f"field `{field.decode()}` should be a finite number"):
        decode_event(raw)


def test_many_wrong_fields_are_counted_and_not_all_listed():
    raw = b'{"type":"step","run_id":1,"seq":"x","task_id":2,"tenant":3,"tool":4}'
    with pytest.raises(WrongShape, match="; and 2 more$"):
        decode_event(raw)


@pytest.mark.parametrize(
    "raw", [b'{"run_id":"r"}', b'{"type":"stepp"}', b'{"type":null}', b'{"type":["step"]}']
)
def test_an_unknown_or_missing_type_lists_the_known_ones(raw):
    with pytest.raises(UnknownEventType, match="one of run_started, step, run_ended"):
        decode_event(raw)


def test_errors_never_echo_long_input():
    long = b"x" * 100_000
    bad = [
        long,
        b'{"type":"%s"}' % long,
        b'{"type":"run_ended","run_id":"r","outcome":"%s"}' % long,
        b'{"type":"run_started","run_id":"%s"}' % long,
        b'{"type":"step","run_id":"r","tool":"t","seq":%s}' % (b"9" * 4000),
        b'{"type":"step","run_id":"r","tool":"t","seq":%s}' % (b"9" * 5000),
    ]
    for raw in bad:
        with pytest.raises(InvalidEvent) as caught:
            decode_event(raw)
        assert len(str(caught.value)) < 300


def test_nesting_up_to_the_limit_passes_and_one_level_more_is_too_deep():
    limits = Limits(depth=5)
    assert decode_event(step_with(b'{"a":' + nested(4) + b"}"), limits).flags == ()
    with pytest.raises(TooDeep, match="`args` is nested deeper than 5 levels"):
        decode_event(step_with(b'{"a":' + nested(5) + b"}"), limits)


def test_brackets_side_by_side_or_in_strings_are_not_depth():
    raw = step_with(b'{"a":[' + b"[]," * 500 + b'"' + b"[{" * 500 + b'"]}')
    assert decode_event(raw, Limits(depth=3)).flags == ()


@pytest.mark.parametrize("levels", [65, 190, 201, 2000, 100_000])
def test_a_result_that_is_far_too_deep_is_too_deep_whatever_the_parser_does(levels):
    raw = b'{"type":"step","run_id":"r","tool":"t","result":%s}' % nested(levels)
    with pytest.raises(TooDeep):
        decode_event(raw)


def test_half_a_surrogate_pair_becomes_the_replacement_character():
    raw = step_with(rb'{"cut \ud83d":"\udc00"},"result":"\ud83d\ude00"')
    event, flags = decode_event(raw)
    assert event.args == {"cut \ufffd": "\ufffd"}
    assert event.result == "😀"
    assert flags == ("lone_surrogates",)
    assert decode_event(encode(event)).flags == ()


def test_numbers_that_are_not_finite_become_null_in_args_and_result():
    raw = b'{"type":"step","run_id":"r","tool":"t","args":{"a":[NaN,1e400]},"result":-Infinity}'
    event, flags = decode_event(raw)
    assert (event.args, event.result) == ({"a": [None, None]}, None)
    assert flags == ("non_finite",)


@pytest.mark.parametrize("number", [b"1e+400", b"1E400", b"9e99999", b"-1e0400"])
def test_every_spelling_of_an_overflowing_number_is_found(number):
    event, flags = decode_event(step_with(b'{"a":%s}' % number))
    assert (event.args, flags) == ({"a": None}, ("non_finite",))


@pytest.mark.parametrize(
    ("number", "kept"),
    [
        (2**64 - 1, 2**64 - 1),
        (2**64, str(2**64)),
        (-(2**63), -(2**63)),
        (-(2**63) - 1, str(-(2**63) - 1)),
        (10**30, "1" + "0" * 30),
    ],
)
def test_integers_beyond_64_bits_become_their_decimal_text(number, kept):
    event, flags = decode_event(step_with(b'{"a":%d}' % number))
    assert event.args == {"a": kept}
    assert flags == (("huge_number",) if isinstance(kept, str) else ())


@pytest.mark.parametrize("digits", [4299, 4301, 5000, 100_000])
def test_an_integer_of_thousands_of_digits_keeps_them_all_as_text(digits):
    event, flags = decode_event(step_with(b'{"a":%s}' % (b"7" * digits)))
    assert event.args == {"a": "7" * digits}
    assert flags == ("huge_number",)


def test_several_treatments_are_all_named():
    event, flags = decode_event(step_with(rb'{"a":"\ud800","b":NaN,"c":1%s}' % (b"0" * 40)))
    assert event.args == {"a": "\ufffd", "b": None, "c": "1" + "0" * 40}
    assert flags == ("huge_number", "lone_surrogates", "non_finite")


@given(plain)
def test_ordinary_values_are_never_changed(value):
    raw = step_with(json.dumps({"v": value}).encode())
    event, flags = decode_event(raw)
    assert flags == ()
    assert event.args == {"v": value}


@given(st.floats() | st.integers())
def test_taming_leaves_only_what_every_json_reader_takes(number):
    event, flags = decode_event(step_with(json.dumps({"v": number}).encode()))
    kept = event.args["v"]
    ordinary = math.isfinite(number) and (isinstance(number, float) or -(2**63) <= number < 2**64)
    assert (flags == ()) == ordinary
    assert kept == number if ordinary else kept in (None, str(number))


def test_limits_that_cannot_be_kept_are_refused():
    for limits in ({"depth": 0}, {"depth": 1000}, {"message_bytes": 0}):
        with pytest.raises(InvalidSettings):
            Limits(**limits)


def test_a_proposal_is_decoded_with_or_without_its_type():
    expected = Proposal(run_id="r", tool="rm", args={"path": "/"})
    for raw in (
        b'{"type":"proposal","run_id":"r","tool":"rm","args":{"path":"/"}}',
        b'{"run_id":"r","tool":"rm","args":{"path":"/"}}',
    ):
        assert decode_proposal(raw).event == expected


def test_a_step_is_no_proposal():
    with pytest.raises(UnknownEventType, match='unknown type "step"; expected proposal'):
        decode_proposal(step_with(b"{}"))


def test_a_proposal_is_treated_like_an_event():
    event, flags = decode_proposal(rb'{"run_id":"r","tool":"t","args":{"a":"\ud800","b":NaN}}')
    assert event.args == {"a": "\ufffd", "b": None}
    assert flags == ("lone_surrogates", "non_finite")
    with pytest.raises(TooDeep):
        decode_proposal(b'{"run_id":"r","tool":"t","args":{"a":%s}}' % nested(70))


def verdict(**fields) -> Verdict:
    base = {"id": "r:0", "run_id": "r", "seq": 0, "verdict": VerdictName.OK, "severity": 0}
    rest = {"authority": Authority.WARN, "profile": "p", "settings": "s", "engine": "0"}
    return Verdict(**base, **rest, **fields)


def test_a_verdict_survives_the_topic():
    sent = verdict(score=0.5)
    assert decode_output(encode(sent)) == sent


def test_a_score_that_is_not_finite_is_written_as_null():
    assert decode_output(encode(verdict(score=math.inf))).score is None


def test_an_output_of_unknown_type_lists_the_known_ones():
    with pytest.raises(UnknownEventType, match="one of verdict, intervention"):
        decode_output(b'{"type":"step"}')


def test_an_output_with_a_missing_field_names_it():
    with pytest.raises(WrongShape, match="field `id` is missing"):
        decode_output(b'{"type":"verdict"}')


TOOL = {"name": "get", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}


@pytest.mark.parametrize(
    "given_",
    [
        TOOL,
        [TOOL],
        {"tools": [TOOL]},
        {"jsonrpc": "2.0", "id": 1, "result": {"tools": [TOOL]}},
        [{"result": {"serverInfo": {}}}, {"method": "x"}, {"result": {"tools": [TOOL]}}],
        {"tools": [TOOL, TOOL]},
    ],
)
def test_tools_are_taken_in_every_shape_they_come_in(given_):
    (tool,) = decode_tools(given_)
    assert (tool.name, tool.effect, tool.input_schema) == ("get", Effect.READ, {"type": "object"})
    assert decode_tools(json.dumps(given_).encode()) == (tool,)


def test_an_openai_function_is_a_tool():
    function = {"name": "send", "description": "Send.", "parameters": {"type": "object"}}
    (tool,) = decode_tools([{"type": "function", "function": function, "effect": "write"}])
    assert (tool.name, tool.input_schema) == ("send", {"type": "object"})
    assert tool.effect is Effect.WRITE


def test_a_tool_survives_the_topic_with_the_names_of_mcp():
    (tool,) = decode_tools(TOOL)
    raw = encode(tool)
    assert b'"inputSchema"' in raw
    assert decode_tools(raw) == (tool,)


def test_two_descriptions_of_one_tool_are_refused():
    with pytest.raises(WrongShape, match=r'tools\[1\]: "get" is described twice'):
        decode_tools([TOOL, {"name": "get"}])


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        (3, r"expected \{tools: \[...\]\} or a list, found a number"),
        ({"tool": []}, "expected"),
        ([{"name": "a"}, {"nam": "b"}], r"tools\[1\]: field `name` is missing"),
        ([{"name": "a", "effect": "maybe"}], r"tools\[0\]: field `effect`"),
        ([3], r"tools\[0\]: "),
    ],
)
def test_a_wrong_tool_is_named_by_its_position(given_, said):
    with pytest.raises(WrongShape, match=said):
        decode_tools(given_)


def test_tasks_are_taken_as_a_list_or_under_their_name():
    task = {"id": "t", "references": [["a", {"tool": "b"}]], "step_budget": 8, "allowed": ["b"]}
    for given_ in ([task], {"tasks": [task]}, task):
        (decoded,) = decode_tasks(given_)
        assert [step.tool for step in decoded.references[0]] == ["a", "b"]
        assert decode_tasks(encode(decoded)) == (decoded,)


def test_a_wrong_task_is_named_by_its_position():
    with pytest.raises(WrongShape, match=r"tasks\[0\]: .*reference 0 of task 't' has no steps"):
        decode_tasks([{"id": "t", "references": [[]]}])
    with pytest.raises(WrongShape, match=r'tasks\[1\]: the id "t" is used twice'):
        decode_tasks([{"id": "t"}, {"id": "t"}])


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"id": "x" * 512, "references": [["a"]]}, "has 512 characters; its references are called"),
        ({"id": "x" * 510, "references": [["a"]] * 11}, "has 510 characters"),
        ({"id": "x", "references": [["a"], ["a"] * 513]}, "reference 1 .* has 513 steps; .* 512"),
    ],
)
def test_a_task_whose_references_could_not_be_references_is_refused(task, said):
    with pytest.raises(WrongShape, match=said):
        decode_tasks([task])


def test_a_task_without_references_may_have_the_longest_id():
    (task,) = decode_tasks([{"id": "x" * 512}])
    assert task.written_references() == ()


@given(
    st.integers(500, 514),
    st.lists(st.integers(0, 514) | st.integers(510, 514), max_size=12),
)
@example(510, [512] * 10)
def test_every_task_that_is_accepted_gives_its_references(length, steps):
    task = {"id": "x" * length, "references": [["a"] * count for count in steps]}
    fits = length <= 512 and all(1 <= count <= 512 for count in steps)
    fits = fits and (not steps or length + len(f"/{len(steps) - 1}") <= 512)
    try:
        (decoded,) = decode_tasks([task])
    except WrongShape:
        assert not fits
    else:
        assert fits
        written = decoded.written_references()
        assert [len(reference.steps) for reference in written] == steps
        assert decode_tasks(encode(decoded)) == (decoded,)


def test_a_reference_survives_the_topic():
    reference = Reference(
        reference_id="x",
        task_id="t",
        provenance=Provenance.GOLD,
        steps=(ReferenceStep(tool="a", result={"n": 1}),),
    )
    assert decode_reference(encode(reference)) == reference
    with pytest.raises(WrongShape, match="reference: field `steps`"):
        decode_reference(b'{"reference_id":"x","task_id":"t","steps":[]}')


def test_headers_are_a_cloud_event_in_binary_mode():
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    headers = event_headers(
        event_id="r:0", source="ontrack", event_type="ontrack.verdict", time=when, subject="r"
    )
    assert dict(headers) == {
        "ce_specversion": b"1.0",
        "ce_id": b"r:0",
        "ce_source": b"ontrack",
        "ce_type": b"ontrack.verdict",
        "ce_time": b"2026-01-02T03:04:05Z",
        "ce_subject": b"r",
        "content-type": b"application/json",
    }


def test_a_time_in_another_zone_keeps_its_offset():
    when = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    headers = dict(event_headers(event_id="i", source="s", event_type="t", time=when))
    assert headers["ce_time"] == b"2026-01-01T00:00:00+02:00"


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (Step(run_id="r", tool="t"), "ontrack.event.step"),
        (RunEnded(run_id="r"), "ontrack.event.run_ended"),
        (Proposal(run_id="r", tool="t"), "ontrack.proposal"),
        (verdict(), "ontrack.verdict"),
        (ToolContract(name="t"), "ontrack.contract"),
    ],
)
def test_every_record_has_a_cloud_event_type(record, name):
    assert event_type(record) == name


def test_every_invalid_event_is_an_error_of_the_project():
    assert issubclass(InvalidEvent, OnTrackError)
