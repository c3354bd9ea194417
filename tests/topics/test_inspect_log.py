import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.topics.adapters import Origin, inspect_log, openai_agents, otlp
from ontrack.topics.codecs import decode_event, encode
from ontrack.topics.errors import InvalidEvent, WrongShape
from ontrack.topics.events import Agent, ErrorInfo, RunEnded, RunStarted, Step

ORIGIN = Origin("file", "file")


def at(second):
    return f"2026-01-01T12:00:{second:02d}+00:00"


def tool(number, name, arguments=None, result="ok", **fields):
    return {
        "event": "tool",
        "id": f"call_{number}",
        "type": "function",
        "function": name,
        "arguments": {} if arguments is None else arguments,
        "result": result,
        "error": None,
        "timestamp": at(number),
        "completed": at(number + 1),
        "events": [],
    } | fields


def sample(*events, **fields):
    return {
        "id": 3,
        "epoch": 2,
        "uuid": "u1",
        "events": [{"event": "sample_init"}, *events],
        "messages": [],
        "attachments": {},
        "scores": {"match": {"value": "C"}},
        "started_at": at(0),
        "completed_at": at(59),
    } | fields


def log(*samples, **fields):
    evaluation = {"task": "shop", "model": "lab/model", "eval_id": "e1", "run_id": "r1"}
    return {
        "version": 2,
        "status": "success",
        "eval": evaluation,
        "samples": list(samples),
    } | fields


def runs_of(record):
    runs = inspect_log.runs()
    return [*runs.add(record, ORIGIN, 1), *runs.rest()]


def steps_of(record):
    return [event for run in runs_of(record) for event in run.events if event.type == "step"]


class TestARun:
    def test_tool_events_become_steps(self):
        (run,) = runs_of(log(sample(tool(1, "get", {"id": 1}, "x"), {"event": "model"})))
        started, step, ended = run.events
        assert started == RunStarted(
            run_id="u1", task_id="shop/3", agent=Agent(id="lab/model"), time=started.time
        )
        assert step == Step(
            run_id="u1", seq=0, tool="get", args={"id": 1}, result="x", call_id="call_1",
            time=step.time, started_at=step.time, ended_at=step.ended_at,
        )  # fmt: skip
        assert (step.started_at.second, step.ended_at.second) == (1, 2)
        assert ended == RunEnded(run_id="u1", outcome="success", reward=1.0, time=ended.time)
        assert (run.place, run.flags) == (1, ())

    def test_each_sample_and_epoch_is_a_run_of_the_samples_task(self):
        samples = [sample(id=name, epoch=n, uuid=None) for name in "ab" for n in (1, 2)]
        started = [run.events[0] for run in runs_of(log(*samples))]
        assert [(event.run_id, event.task_id) for event in started] == [
            ("e1/a@1", "shop/a"),
            ("e1/a@2", "shop/a"),
            ("e1/b@1", "shop/b"),
            ("e1/b@2", "shop/b"),
        ]

    def test_calls_within_a_call_come_after_it_and_depend_on_it(self):
        inner = [{"event": "subtask", "events": [tool(2, "search")]}, tool(3, "read")]
        steps = steps_of(log(sample(tool(1, "delegate", events=inner), tool(4, "write"))))
        assert [(step.tool, step.parents) for step in steps] == [
            ("delegate", None),
            ("search", (0,)),
            ("read", (0,)),
            ("write", None),
        ]

    @pytest.mark.parametrize("name", ["attachment", "tc"])
    def test_long_texts_are_put_back_where_the_log_names_them(self, name):
        event = tool(1, "get", {"a": [f"{name}://h1"]}, f"{name}://h2")
        (step,) = steps_of(log(sample(event, attachments={"h1": "long", "h2": "longer"})))
        assert (step.args, step.result) == ({"a": ["long"]}, "longer")

    def test_a_text_that_the_log_lacks_stays_a_name(self):
        (step,) = steps_of(log(sample(tool(1, "get", result="attachment://h"))))
        assert step.result == "attachment://h"

    def test_parts_of_a_result_are_joined(self):
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        assert steps_of(log(sample(tool(1, "get", result=parts))))[0].result == "a\nb"

    def test_without_events_the_messages_are_read(self):
        call = {"id": "c", "function": "get", "arguments": {"id": 1}, "type": "function"}
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "no such id",
             "error": {"type": "parsing", "message": "no such id"}},
        ]  # fmt: skip
        first, second = steps_of(log(sample(events=[], messages=messages)))
        assert (first.tool, first.args, first.result, first.call_id) == ("get", {"id": 1}, "x", "c")
        assert (second.result, second.error) == (
            None,
            ErrorInfo(type="parsing", message="no such id"),
        )

    def test_a_call_that_still_runs_has_no_result(self):
        event = tool(1, "get", result=None, completed=None, pending=True)
        (step,) = steps_of(log(sample(event)))
        assert (step.result, step.ended_at) == (None, None)


class TestErrors:
    def test_an_error_is_kept_and_the_empty_result_beside_it_is_none(self):
        error = {"type": "timeout", "message": "too slow"}
        (step,) = steps_of(log(sample(tool(1, "get", result="", error=error))))
        assert (step.error, step.result) == (ErrorInfo(type="timeout", message="too slow"), None)

    def test_a_call_that_failed_without_words_is_an_error(self):
        (step,) = steps_of(log(sample(tool(1, "get", failed=True))))
        assert step.error == ErrorInfo(type="error")


class TestOutcome:
    @pytest.mark.parametrize(
        ("scores", "outcome", "reward"),
        [
            ({"a": {"value": "C"}}, "success", 1.0),
            ({"a": {"value": "I"}}, "failure", 0.0),
            ({"a": {"value": "P"}}, "unknown", 0.5),
            ({"a": {"value": 1}, "b": {"value": True}}, "success", 1.0),
            ({"a": {"value": 0.0}}, "failure", 0.0),
            ({"a": {"value": 0.7}}, "unknown", 0.7),
            ({"a": {"value": "C"}, "b": {"value": "I"}}, "unknown", 1.0),
            ({"a": {"value": {"x": 1}}}, "unknown", None),
            ({"a": {"value": "something"}}, "unknown", None),
            (None, "unknown", None),
        ],
    )
    def test_scores_that_agree_say_how_it_ended(self, scores, outcome, reward):
        (run,) = runs_of(log(sample(scores=scores)))
        assert (run.events[-1].outcome, run.events[-1].reward) == (outcome, reward)

    def test_limits_and_errors_are_the_reason(self):
        limited = sample(limit={"type": "message", "limit": 9})
        broken = sample(error={"message": "sandbox gone", "traceback": "t"})
        reasons = [run.events[-1].reason for run in runs_of(log(limited, broken))]
        assert reasons == ["limit: message", "sandbox gone"]


class TestBadInput:
    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            (3, "expected an Inspect log"),
            ({"eval": {}, "samples": []}, "expected an Inspect log"),
            (log() | {"samples": None}, "expected `samples`"),
            (log(3), r"samples\[0\]: expected a sample with an `id`"),
            (log(sample(), sample(id=None)), r"samples\[1\]: expected a sample with an `id`"),
            (log(sample(tool(1, None))), r"samples\[0\]: step: field `tool`"),
            (log(sample(tool(1, "t" * 300))), r"samples\[0\]: step: field `tool`"),
            (log(sample(uuid="u" * 600)), r"samples\[0\]: run_started: field `run_id`"),
        ],
    )
    def test_a_wrong_log_is_a_wrong_shape(self, wrong, said):
        with pytest.raises(WrongShape, match=said):
            runs_of(wrong)

    def test_a_log_without_samples_says_what_to_do(self):
        record = {"eval": {"task": "t"}, "plan": {}}
        assert inspect_log.recognise(record)
        with pytest.raises(WrongShape, match="log_samples"):
            runs_of(record)


# What the reader's parser lets through.
INTEGERS = st.integers(-(2**63), 2**64 - 1)
odd = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.sampled_from(["", "tool", "attachment://x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["event", "events", "id", "function", "value", "message", "role"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
TOOL = tool(1, "t")
SAMPLE = sample(tool(1, "get", {"id": 1}), tool(2, "put", error={"type": "t", "message": "m"}))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*((key,) for key in SAMPLE), *(("events", 1, key) for key in TOOL)]),
            odd,
        ),
        max_size=3,
    )
)  # fmt: skip
def test_whatever_is_changed_gives_events_of_the_input_or_a_clear_error(changes):
    changed = copy.deepcopy(SAMPLE)
    for path, new in changes:
        value = changed
        try:
            for key in path[:-1]:
                value = value[key]
            value[path[-1]] = new
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took this place away
    text = json.dumps(changed)
    try:
        (run,) = runs_of(log(changed))
    except InvalidEvent as error:
        assert str(error)  # noqa: PT017
        return
    assert [run.events[0].type, run.events[-1].type] == ["run_started", "run_ended"]
    for event in run.events:
        assert decode_event(encode(event)).event == event
        assert event.type != "step" or json.dumps(event.tool) in text


@given(odd)
def test_any_json_is_refused_or_read(value):
    with pytest.raises(WrongShape):
        list(inspect_log.events(value, ORIGIN))


class TestThreeEncodingsOfOneRun:
    """The same calls as a tracing SDK, an agents' SDK and an evaluation write them down."""

    CALLS = (
        ("find_user", {"email": "a@example.org"}, "user_1", None),
        ("get_order", {"id": "#7"}, '{"id": "#7", "items": [1, 2]}', None),
        ("refund", {"id": "#7", "lines": [{"n": 1, "why": "broken \u2014 é"}]}, None, "not paid"),
        ("refund", {"id": "#7", "lines": [{"n": 1, "why": "broken \u2014 é"}]}, "done", None),
        ("close", {}, "", None),
    )

    def spans(self):
        found = []
        for number, (name, args, result, error) in enumerate(self.CALLS, 1):
            attributes = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": name,
                "gen_ai.tool.call.arguments": json.dumps(args),
            }
            if result is not None:
                attributes["gen_ai.tool.call.result"] = result
            found.append(
                {
                    "traceId": "ab" * 16,
                    "spanId": f"{number:016x}",
                    "startTimeUnixNano": str(number * 1_000),
                    "endTimeUnixNano": str(number * 1_000 + 500),
                    "attributes": [
                        {"key": key, "value": {"stringValue": value}}
                        for key, value in attributes.items()
                    ],
                    "status": {"code": 2, "message": error} if error else {},
                }
            )
        # Spans are exported as they end, which is no order to rely on.
        return [{"resourceSpans": [{"scopeSpans": [{"spans": found[::-1]}]}]}]

    def agents(self):
        lines = []
        for number, (name, args, result, error) in enumerate(self.CALLS, 1):
            data = {"type": "function", "name": name, "input": json.dumps(args), "output": result}
            failed = {"message": "Error running tool", "data": {"tool_name": name, "error": error}}
            item = {"object": "trace.span", "id": f"s{number}", "trace_id": "t", "parent_id": None}
            item |= {"started_at": at(number), "ended_at": at(number + 1), "span_data": data}
            lines.append({"event": "span_end", "data": item | {"error": failed if error else None}})
        return [*lines, {"event": "trace_end", "data": {"object": "trace", "id": "t"}}]

    def inspect(self):
        events = [
            tool(number, name, args, "" if result is None else result,
                 error={"message": error} if error else None)
            for number, (name, args, result, error) in enumerate(self.CALLS, 1)
        ]  # fmt: skip
        return [log(sample(*events))]

    @pytest.mark.parametrize(
        ("adapter", "encoding"),
        [(otlp, "spans"), (openai_agents, "agents"), (inspect_log, "inspect")],
    )
    def test_they_give_equal_steps(self, adapter, encoding):
        runs = adapter.runs()
        found = []
        for place, record in enumerate(getattr(self, encoding)(), 1):
            found += runs.add(record, ORIGIN, place)
        (run,) = [*found, *runs.rest()]
        assert [
            (step.seq, step.tool, step.args, step.result, step.error) for step in run.events[1:-1]
        ] == [
            (seq, name, args, result, ErrorInfo(message=error) if error else None)
            for seq, (name, args, result, error) in enumerate(self.CALLS)
        ]
