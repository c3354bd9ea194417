import base64
import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.topics.adapters import PARTIAL, Origin, otlp
from ontrack.topics.codecs import decode_event, encode
from ontrack.topics.errors import InvalidEvent, WrongShape
from ontrack.topics.events import Agent, ErrorInfo, RunEnded, RunStarted, Step, Tokens

ORIGIN = Origin("file", "file")
TRACE = "0af7651916cd43dd8448eb211c80319c"
SECOND = 1_000_000_000
NOON = 1_767_268_800 * SECOND


def span_id(number):
    return f"{number:016x}"


def any_value(value):
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, dict):
        pairs = [{"key": key, "value": any_value(item)} for key, item in value.items()]
        return {"kvlistValue": {"values": pairs}}
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(item) for item in value]}}
    return {"stringValue": value}


def pairs(attributes):
    return [{"key": key, "value": any_value(value)} for key, value in attributes.items()]


def span(number, attributes, *, parent=None, at=None, name="s", trace=TRACE, **fields):
    start = NOON + (number if at is None else at) * SECOND
    return {
        "traceId": trace,
        "spanId": span_id(number),
        "parentSpanId": span_id(parent) if parent is not None else "",
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + SECOND // 2),
        "attributes": pairs(attributes),
        "status": {},
    } | fields


def agent_span(number, *, conversation=None, name="planner", **fields):
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
    if conversation is not None:
        attributes["gen_ai.conversation.id"] = conversation
    return span(number, attributes, name=f"invoke_agent {name}", **fields)


def tool_span(number, tool, args="{}", result="ok", *, more=None, **fields):
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "gen_ai.tool.call.id": f"call-{number}",
        "gen_ai.tool.call.arguments": args,
        "gen_ai.tool.call.result": result,
    }
    attributes = {key: value for key, value in attributes.items() if value is not None}
    return span(number, attributes | (more or {}), name=f"execute_tool {tool}", **fields)


def document(*spans, **resource):
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": pairs(resource)},
                "scopeSpans": [{"scope": {"name": "by hand"}, "spans": list(spans)}],
            }
        ]
    }


def runs_of(*documents):
    runs = otlp.runs()
    found = []
    for place, given_document in enumerate(documents, 1):
        found += runs.add(given_document, ORIGIN, place)
    return [*found, *runs.rest()]


def steps_of(*documents):
    return [event for run in runs_of(*documents) for event in run.events if event.type == "step"]


def seconds(event_time):
    return event_time.timestamp() - NOON // SECOND


class TestARun:
    def test_tool_spans_become_steps_in_the_order_in_which_they_began(self):
        spans = [
            tool_span(4, "put", '{"id": 2}', "done", parent=1),
            tool_span(3, "get", '{"id": 1}', "x", parent=1),
            agent_span(1, conversation="c1"),
        ]
        (run,) = runs_of(document(*spans))
        started, first, second, ended = run.events
        agent = Agent(id="planner", name="planner")
        assert started == RunStarted(run_id="c1", agent=agent, time=started.time)
        assert first == Step(
            run_id="c1", seq=0, tool="get", args={"id": 1}, result="x", call_id="call-3",
            agent=agent, time=first.time, started_at=first.time, ended_at=first.ended_at,
        )  # fmt: skip
        assert (second.tool, second.args, second.result) == ("put", {"id": 2}, "done")
        assert ended == RunEnded(run_id="c1", time=ended.time)
        assert [seconds(e.time) for e in run.events] == [1, 3, 4, 4.5]
        assert (run.flags, run.place) == ((), 1)

    def test_spans_of_a_run_may_come_in_any_number_of_documents_in_any_order(self):
        spans = [agent_span(1), *(tool_span(n, f"t{n}", parent=1) for n in range(2, 7))]
        (whole,) = runs_of(document(*spans))
        (parts,) = runs_of(*(document(each) for each in reversed(spans)))
        assert whole.events == parts.events

    def test_without_a_conversation_the_trace_is_the_run(self):
        other = TRACE[::-1]
        runs = runs_of(document(tool_span(1, "a"), tool_span(1, "b", trace=other)))
        assert {(run.events[0].run_id, run.events[1].tool) for run in runs} == {
            (TRACE, "a"),
            (other, "b"),
        }

    def test_a_conversation_over_several_traces_is_one_run(self):
        other = TRACE[::-1]
        spans = [
            agent_span(1, conversation="c", trace=other, at=9),
            tool_span(2, "late", parent=1, trace=other, at=10),
            agent_span(1, conversation="c"),
            tool_span(2, "early", parent=1),
        ]
        (run,) = runs_of(document(*spans))
        assert [step.tool for step in run.events[1:-1]] == ["early", "late"]

    def test_a_conversation_that_only_the_models_span_names_holds_for_its_trace(self):
        chat = {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "c"}
        (run,) = runs_of(document(agent_span(1), span(2, chat, parent=1), tool_span(3, "t")))
        assert run.events[0].run_id == "c"

    def test_a_conversation_inside_another_is_a_run_of_its_own(self):
        spans = [
            agent_span(1, conversation="outer"),
            tool_span(2, "delegate", parent=1),
            agent_span(3, conversation="inner", name="helper", parent=2),
            tool_span(4, "search", parent=3),
            tool_span(5, "write", parent=1),
        ]
        outer, inner = runs_of(document(*spans))
        assert [step.tool for step in outer.events[1:-1]] == ["delegate", "write"]
        assert [step.tool for step in inner.events[1:-1]] == ["search"]
        assert (inner.events[0].run_id, inner.events[0].parent_run_id) == ("inner", "outer")
        assert inner.events[1].agent.name == "helper"
        assert outer.events[0].parent_run_id is None
        # Children end, and are exported, before their parents; still they are told of after them.
        assert [run.events for run in runs_of(document(*reversed(spans)))] == [
            outer.events,
            inner.events,
        ]

    def test_a_visitors_session_is_no_conversation(self):
        web = span(1, {"http.route": "/ask", "session.id": "visitor"})
        (run,) = runs_of(document(web, agent_span(2, conversation="c", parent=1)))
        assert (run.events[0].run_id, run.events[0].parent_run_id) == ("c", None)
        assert runs_of(document(web)) == []
        kind = {"openinference.span.kind": "AGENT", "session.id": "s"}
        assert runs_of(document(span(1, kind)))[0].events[0].run_id == "s"

    def test_links_and_calls_within_calls_are_parents(self):
        link = [{"traceId": TRACE, "spanId": span_id(2)}, {"traceId": TRACE, "spanId": "ff"}]
        spans = [
            agent_span(1),
            tool_span(2, "a", parent=1),
            tool_span(3, "b", parent=1),
            tool_span(4, "c", parent=3, links=link),
        ]
        assert [step.parents for step in steps_of(document(*spans))] == [None, None, (0, 1)]

    def test_one_call_recorded_by_two_instrumentations_is_one_step(self):
        same = {"gen_ai.tool.call.id": "call-2"}
        twice = [tool_span(2, "get", more=same), tool_span(3, "get", parent=2, more=same)]
        assert len(steps_of(document(*twice))) == 1
        again = [tool_span(2, "get", more=same), tool_span(3, "get", more=same)]
        assert len(steps_of(document(*again))) == 2

    def test_a_span_that_is_delivered_twice_counts_once(self):
        once = document(tool_span(1, "get"))
        assert len(steps_of(once, once)) == 1

    def test_the_service_names_the_agent_where_nothing_else_does(self):
        spans = [span(1, {"openinference.span.kind": "AGENT"}), tool_span(2, "t", parent=1)]
        (step,) = steps_of(document(*spans, **{"service.name": "shop", "service.version": "2"}))
        assert step.agent == Agent(id="shop", name="shop", version="2")

    def test_spans_of_other_things_are_no_run(self):
        assert runs_of(document(span(1, {"http.request.method": "GET"}))) == []

    def test_an_agent_that_called_no_tool_is_a_run_without_steps(self):
        (run,) = runs_of(document(agent_span(1)))
        assert [event.type for event in run.events] == ["run_started", "run_ended"]

    def test_a_task_id_is_taken_from_span_or_resource(self):
        (run,) = runs_of(document(tool_span(1, "t"), **{"ontrack.task_id": "7"}))
        assert run.events[0].task_id == "7"

    def test_calls_without_a_time_stay_in_the_order_in_which_they_came(self):
        spans = [tool_span(2, "b"), tool_span(1, "a", startTimeUnixNano="0")]
        assert [step.tool for step in steps_of(document(*spans))] == ["b", "a"]

    def test_metrics_and_logs_between_the_traces_are_passed_over(self):
        others = ({"resourceMetrics": []}, {"resourceLogs": [3]})
        assert len(steps_of(others[0], document(tool_span(1, "get")), others[1])) == 1

    def test_a_pending_span_announces_one_that_follows(self):
        pending = tool_span(9, "get", more={"logfire.span_type": "pending_span"})
        assert len(steps_of(document(pending, tool_span(1, "get")))) == 1


class TestPartialRuns:
    def test_a_run_whose_upper_spans_are_missing_is_flagged(self):
        (run,) = runs_of(document(tool_span(2, "get", parent=1)))
        assert run.flags == (PARTIAL,)
        assert run.events[-1].outcome == "unknown"
        assert run.events[-1].reason == "partial recording: spans above the calls are missing"

    def test_what_called_the_agent_is_no_part_of_its_run(self):
        (run,) = runs_of(document(agent_span(2, parent=1), tool_span(3, "get", parent=2)))
        assert run.flags == ()

    def test_spans_above_each_other_in_a_circle_do_no_harm(self):
        spans = [
            tool_span(1, "a", parent=2),
            tool_span(2, "b", parent=1),
            tool_span(3, "c", parent=3),
        ]
        (run,) = runs_of(document(*spans))
        assert len(run.events) == 5
        assert run.flags == (PARTIAL,)

    def test_the_longest_silent_runs_go_first_where_too_much_is_held(self, monkeypatch):
        monkeypatch.setattr(otlp, "HELD_BYTES_MAX", 6_000)
        traces = [f"{n:032x}" for n in range(1, 5)]
        runs = otlp.runs()
        found = []
        for trace in traces:
            record = document(tool_span(1, "get", result="x" * 2_000, trace=trace))
            found.append([run.events[0].run_id for run in runs.add(record, ORIGIN, 1)])
        assert found == [[], [], traces[:2], []]
        late = document(tool_span(2, "put", trace=traces[0]))
        (*_, again) = [*runs.add(late, ORIGIN, 5), *runs.rest()]
        assert (again.events[0].run_id, again.flags) == (traces[0], (PARTIAL,))


class TestEncodings:
    def test_ids_numbers_and_names_are_read_in_every_spelling(self):
        raw = bytes.fromhex(TRACE)
        plain = document(agent_span(1), tool_span(2, "get", '{"a": 1}', parent=1))
        other = json.loads(
            json.dumps(plain)
            .replace(TRACE, base64.b64encode(raw).decode())
            .replace(span_id(1), base64.b64encode(bytes.fromhex(span_id(1))).decode())
            .replace(span_id(2), base64.b64encode(bytes.fromhex(span_id(2))).decode())
            .replace("resourceSpans", "resource_spans")
            .replace("scopeSpans", "scope_spans")
            .replace("traceId", "trace_id")
            .replace("spanId", "span_id")
            .replace("parentSpanId", "parent_span_id")
            .replace("TimeUnixNano", "_time_unix_nano")
            .replace("stringValue", "string_value")
        )
        for resource in other["resource_spans"]:
            for scope in resource["scope_spans"]:
                for item in scope["spans"]:
                    item["parent_span_id"] = item.pop("parentSpanId", item.get("parent_span_id"))
                    item["start_time_unix_nano"] = int(item["start_time_unix_nano"])
        assert otlp.recognise(other)
        assert runs_of(other)[0].events == runs_of(plain)[0].events

    def test_older_documents_have_their_scopes_under_another_name(self):
        record = document(tool_span(1, "get"))
        (resource,) = record["resourceSpans"]
        resource["instrumentationLibrarySpans"] = resource.pop("scopeSpans")
        assert [step.tool for step in steps_of(record)] == ["get"]

    @pytest.mark.parametrize(
        ("name", "attributes"),
        [
            ("running tool", {"gen_ai.tool.name": "get", "tool_arguments": '{"id": 1}',
                              "tool_response": "x", "gen_ai.tool.call.id": "c"}),
            ("get", {"openinference.span.kind": "TOOL", "tool.name": "get",
                     "input.value": '{"id": 1}', "output.value": "x", "tool_call.id": "c"}),
            ("get", {"openinference.span.kind": "TOOL", "tool.parameters": '{"id": 1}',
                     "output.value": "x", "tool_call.id": "c"}),
            ("get.tool", {"traceloop.span.kind": "tool", "traceloop.entity.name": "get",
                          "traceloop.entity.input": '{"id": 1}', "traceloop.entity.output": "x",
                          "gen_ai.tool.call.id": "c"}),
            ("ai.toolCall", {"ai.toolCall.name": "get", "ai.toolCall.id": "c",
                             "ai.toolCall.args": '{"id": 1}', "ai.toolCall.result": "x"}),
            ("execute_tool get", {"gen_ai.operation.name": "execute_tool",
                                  "gcp.vertex.agent.tool_call_args": '{"id": 1}',
                                  "gcp.vertex.agent.tool_response": "x",
                                  "gen_ai.tool.call.id": "c"}),
            ("execute_tool get", {"gen_ai.operation.name": "execute_tool",
                                  "gen_ai.tool.name": "get", "gen_ai.tool.call.id": "c",
                                  "gen_ai.tool.call.arguments": {"id": 1},
                                  "gen_ai.tool.call.result": "x"}),
        ],
    )  # fmt: skip
    def test_older_and_other_conventions_say_the_same(self, name, attributes):
        (step,) = steps_of(document(span(1, attributes, name=name)))
        assert (step.tool, step.args, step.result, step.call_id) == ("get", {"id": 1}, "x", "c")

    def test_arguments_and_results_may_stand_in_events(self):
        events = [
            {"name": "gen_ai.tool.message",
             "attributes": pairs({"role": "tool", "content": '{"id": 1}', "id": "c"})},
            {"name": "gen_ai.choice", "attributes": pairs({"message": "x", "id": "c"})},
        ]  # fmt: skip
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "get"}
        (step,) = steps_of(document(span(1, attributes, events=events)))
        assert (step.args, step.result, step.call_id) == ({"id": 1}, "x", "c")

    def test_a_result_may_be_an_object_and_text_stays_text(self):
        value = {"a": [1, 2.5, True, None], "b": {"c": "d"}}
        record = document(tool_span(1, "get", result=value), tool_span(2, "get", result='{"a": 1}'))
        assert [step.result for step in steps_of(record)] == [value, '{"a": 1}']

    def test_tokens_and_cost_of_the_call_itself_are_kept(self):
        more = {
            "gen_ai.usage.input_tokens": 12,
            "gen_ai.usage.output_tokens": 3,
            "gen_ai.usage.cost": 0.25,
        }
        (step,) = steps_of(document(tool_span(1, "ask", more=more)))
        assert (step.tokens, step.cost_usd) == (Tokens(input=12, output=3), 0.25)


class TestErrors:
    @pytest.mark.parametrize("code", [2, "2", "STATUS_CODE_ERROR"])
    def test_a_status_of_error_is_an_error(self, code):
        status = {"code": code, "message": "no such id"}
        record = document(tool_span(1, "get", more={"error.type": "KeyError"}, status=status))
        assert steps_of(record)[0].error == ErrorInfo(type="KeyError", message="no such id")

    def test_an_exception_event_is_an_error(self):
        said = {"exception.type": "ValueError", "exception.message": "bad"}
        events = [{"name": "exception", "attributes": pairs(said)}]
        record = document(tool_span(1, "get", result=None, events=events))
        (step,) = steps_of(record)
        assert (step.error, step.result) == (ErrorInfo(type="ValueError", message="bad"), None)

    def test_an_exception_that_was_handled_is_none(self):
        said = {"exception.type": "ValueError", "exception.escaped": "False"}
        handled = [{"name": "exception", "attributes": pairs(said)}]
        raised = [{"name": "exception", "attributes": pairs({"exception.type": "ValueError"})}]
        record = document(
            tool_span(1, "get", events=handled),
            tool_span(2, "get", events=raised, status={"code": "STATUS_CODE_OK"}),
        )
        assert [step.error for step in steps_of(record)] == [None, None]

    def test_a_bare_status_of_error_has_no_words(self):
        record = document(tool_span(1, "get", status={"code": 2}))
        assert steps_of(record)[0].error == ErrorInfo(type="error")

    def test_an_agent_that_failed_is_a_run_that_failed(self):
        status = {"code": 2, "message": "out of credit"}
        (run,) = runs_of(document(agent_span(1, status=status), tool_span(2, "t", parent=1)))
        assert (run.events[-1].outcome, run.events[-1].reason) == ("failure", "out of credit")

    def test_the_last_turn_of_a_conversation_says_how_it_ended(self):
        failed = agent_span(1, conversation="c", status={"code": 2, "message": "no"})
        again = agent_span(2, conversation="c", trace=TRACE[::-1])
        assert runs_of(document(failed, again))[0].events[-1].outcome == "unknown"
        assert runs_of(document(failed))[0].events[-1].outcome == "failure"

    def test_a_model_call_that_failed_is_no_run_that_failed(self):
        chat = {"gen_ai.operation.name": "chat", "error.type": "timeout"}
        (run,) = runs_of(document(span(1, chat), tool_span(2, "t")))
        assert run.events[-1].outcome == "unknown"


class TestBadInput:
    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            (3, "expected an OTLP document"),
            ({"resourceSpans": 3}, "expected an OTLP document"),
            ({"resourceSpans": [3]}, "`resourceSpans`: expected a list of objects"),
            ({"resourceSpans": [{"scopeSpans": 3}]}, r"resourceSpans\[0\].scopeSpans"),
            ({"resourceSpans": [{"scopeSpans": [{"spans": [[]]}]}]}, "`spans`"),
            (document(tool_span(1, "t", traceId=None)), "`traceId` or `spanId` is missing"),
            (document(tool_span(1, "t", spanId="0" * 16)), "`traceId` or `spanId` is missing"),
            (
                document(span(1, {"gen_ai.operation.name": "execute_tool"}, name=None)),
                f'span "{span_id(1)}": step: field `tool`',
            ),
            (document(tool_span(1, "t" * 300)), f'span "{span_id(1)}": step: field `tool`'),
        ],
    )
    def test_a_wrong_document_is_said_to_be_wrong_and_nothing_of_it_is_kept(self, wrong, said):
        runs = otlp.runs()
        with pytest.raises(WrongShape, match=said):
            list(runs.add(wrong, ORIGIN, 1))
        assert list(runs.rest()) == []

    @pytest.mark.parametrize("nanoseconds", ["x", 2**64 - 1, "99999999999999999999", -1, 1.5, None])
    def test_a_time_that_is_none_is_left_out(self, nanoseconds):
        record = document(tool_span(1, "t", endTimeUnixNano=nanoseconds))
        assert len(steps_of(record)) == 1

    def test_a_chain_of_many_spans_is_walked_once(self):
        # Walked up from each of its spans, this would not come back.
        spans = [tool_span(n, "t", parent=n - 1 or None) for n in range(1, 10_000)]
        assert len(steps_of(document(*spans))) == 9_999


SAMPLE = document(
    agent_span(1, conversation="c"),
    tool_span(2, "get", '{"id": 1}', parent=1),
    tool_span(3, "put", parent=2, status={"code": 2, "message": "no"},
              events=[{"name": "exception", "attributes": pairs({"exception.type": "E"})}],
              links=[{"traceId": TRACE, "spanId": span_id(2)}]),
    **{"service.name": "shop"},
)  # fmt: skip

odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "execute_tool", "TOOL", TRACE, span_id(1), "2", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["key", "value", "stringValue", "arrayValue", "values", "code", "spans"]),
        inner, max_size=3,
    ),
    max_leaves=6,
)  # fmt: skip


def places(value, path=()):
    yield path
    items = {}.items()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield from places(item, (*path, key))


def replaced(value, path, new):
    value = copy.deepcopy(value)
    at = value
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return value


PLACES = [path for path in places(SAMPLE) if path]


@given(st.lists(st.tuples(st.sampled_from(PLACES), odd), min_size=1, max_size=3))
def test_whatever_is_changed_gives_events_of_the_input_or_a_clear_error(changes):
    record = SAMPLE
    for path, new in changes:
        try:
            record = replaced(record, path, new)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took this place away
    try:
        runs = runs_of(record)
    except InvalidEvent as error:
        assert str(error)  # noqa: PT017
        return
    text = json.dumps(record)
    for run in runs:
        assert [run.events[0].type, run.events[-1].type] == ["run_started", "run_ended"]
        for event in run.events:
            assert decode_event(encode(event)).event == event
            assert event.type != "step" or json.dumps(event.tool)[1:-1] in text


@given(odd)
def test_any_json_is_refused_or_read(value):
    if not otlp.recognise(value):
        with pytest.raises(WrongShape):
            list(otlp.events(value, ORIGIN))
