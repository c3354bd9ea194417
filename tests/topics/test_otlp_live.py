"""Spans as they arrive: same steps and runs as from a recorded file, whatever the order."""

import inspect
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.topics.adapters import Origin, otlp, otlp_spans
from ontrack.topics.adapters.otlp_live import LiveSpans
from ontrack.topics.codecs import Limits, decode_event, encode
from ontrack.topics.errors import InvalidEvent, MessageTooLarge, TooDeep, WrongShape
from ontrack.topics.events import Agent, ErrorInfo
from tests.topics.test_otlp import (
    TRACE,
    agent_span,
    document,
    pairs,
    seconds,
    span,
    span_id,
    tool_span,
)

OTHER = TRACE[::-1]
SETTLE_S = 2.0


def told(events):
    """Steps as (run, what they returned), ends as (run, "ended")."""
    return [(e.run_id, e.result if e.type == "step" else "ended") for e in events]


class TestARun:
    def test_calls_below_an_agent_with_a_conversation_are_told_at_once(self):
        live = LiveSpans()
        spans = [
            tool_span(4, "put", '{"id": 2}', "done", parent=1),
            tool_span(3, "get", '{"id": 1}', "x", parent=1),
            agent_span(1, conversation="c1"),
        ]
        first, second = live.add(document(*spans), 0.0)
        assert (first.run_id, first.tool, first.args, first.result) == ("c1", "get", {"id": 1}, "x")
        assert (first.seq, first.call_id) == (None, "call-3")
        assert first.agent == Agent(id="planner", name="planner")
        assert (first.trace.trace_id, first.trace.span_id) == (TRACE, span_id(3))
        assert [seconds(t) for t in (first.started_at, first.ended_at)] == [3, 3.5]
        assert second.tool == "put"
        assert live.due(SETTLE_S) == []  # the conversation goes on
        assert live.rest() == []

    def test_a_call_whose_run_is_not_known_waits_until_the_trace_has_settled(self):
        live = LiveSpans()
        assert live.add(document(tool_span(2, "get", parent=1)), 10.0) == []
        assert live.due(11.9) == []
        assert told(live.due(12.0)) == [(TRACE, "ok")]
        # From now on nothing of this trace waits.
        assert told(live.add(document(tool_span(3, "put", parent=1)), 12.1)) == [(TRACE, "ok")]

    def test_a_call_waits_for_the_conversation_that_a_span_above_it_names(self):
        live = LiveSpans()
        assert live.add(document(tool_span(2, "get", parent=1)), 0.0) == []
        assert told(live.add(document(agent_span(1, conversation="c")), 1.0)) == [("c", "ok")]

    def test_the_only_conversation_of_a_trace_is_that_of_all_its_calls(self):
        live = LiveSpans()
        chat = span(9, {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "c"}, parent=1)
        assert live.add(document(tool_span(2, "get", parent=1), chat), 0.0) == []
        assert told(live.due(2.0)) == [("c", "ok")]

    def test_a_trace_stays_with_the_run_that_it_was_bound_to(self):
        live = LiveSpans()
        live.add(document(tool_span(2, "get", parent=1)), 0.0)
        live.due(2.0)
        late = [tool_span(3, "put", parent=1), agent_span(1, conversation="c")]
        assert told(live.add(document(*late), 3.0)) == [(TRACE, "ok")]
        assert told(live.due(5.0)) == [(TRACE, "ended")]

    def test_the_end_of_an_agent_without_a_conversation_is_the_end_of_its_run(self):
        live = LiveSpans()
        failed = agent_span(1, status={"code": 2, "message": "gave up"})
        assert live.add(document(failed, tool_span(2, "get", parent=1)), 0.0) == []
        step, ended = live.due(2.0)
        assert told([step, ended]) == [(TRACE, "ok"), (TRACE, "ended")]
        assert (ended.outcome, ended.reason) == ("failure", "gave up")
        assert (ended.trace.span_id, seconds(ended.time)) == (span_id(1), 2.5)
        assert live.spans_held == live.traces_held == live.bytes_held == 0

    def test_calls_that_come_a_little_after_the_end_come_before_it(self):
        live = LiveSpans()
        live.add(document(tool_span(2, "get", parent=1)), 0.0)
        live.due(2.0)
        assert live.add(document(agent_span(1)), 5.0) == []
        assert told(live.add(document(tool_span(3, "put", parent=1)), 6.0)) == [(TRACE, "ok")]
        assert told(live.due(7.0)) == [(TRACE, "ended")]

    def test_a_trace_that_has_ended_does_not_end_again(self):
        live = LiveSpans()
        whole = document(agent_span(1), tool_span(2, "get", parent=1))
        assert len([*live.add(whole, 0.0), *live.due(2.0)]) == 2
        assert [*live.add(whole, 3.0), *live.due(9.0), *live.rest()] == []

    def test_conversations_within_conversations_name_each_other(self):
        live = LiveSpans()
        spans = [
            agent_span(1, conversation="outer"),
            tool_span(2, "delegate", parent=1),
            agent_span(3, conversation="inner", name="helper", parent=2),
            tool_span(4, "search", parent=3),
        ]
        steps = live.add(document(*spans), 0.0)
        assert [(s.run_id, s.parent_run_id, s.agent.name) for s in steps] == [
            ("outer", None, "planner"),
            ("inner", "outer", "helper"),
        ]

    def test_spans_of_other_things_are_no_run(self):
        live = LiveSpans()
        assert live.add(document(span(1, {"http.request.method": "GET"})), 0.0) == []
        assert live.due(2.0) == []
        assert live.spans_held == 0

    def test_an_error_is_told(self):
        live = LiveSpans()
        failed = tool_span(2, "get", parent=1, status={"code": 2, "message": "no such file"})
        (step,) = live.add(document(failed, agent_span(1, conversation="c")), 0.0)
        assert step.error == ErrorInfo(message="no such file")


class TestTwice:
    def test_a_span_that_is_sent_again_is_told_once(self):
        live = LiveSpans()
        once = document(agent_span(1, conversation="c"), tool_span(2, "get", parent=1))
        assert len(live.add(once, 0.0)) == 1
        assert [*live.add(once, 0.1), *live.due(9.0), *live.add(once, 9.1), *live.rest()] == []

    def test_what_an_earlier_process_told_is_not_told_again(self):
        live = LiveSpans()
        live.remember(TRACE, span_id(2), TRACE)
        live.add(document(tool_span(2, "get", parent=1)), 0.0)
        more = document(agent_span(1, conversation="c"), tool_span(3, "put", parent=1))
        assert told(live.add(more, 0.0)) == [(TRACE, "ok")]
        assert told(live.due(2.0)) == [(TRACE, "ended")]

    def test_one_call_recorded_by_two_instrumentations_is_told_once(self):
        same = {"gen_ai.tool.call.id": "x"}
        inner = document(tool_span(3, "get", parent=2, more=same))
        outer = document(tool_span(2, "get", parent=1, more=same))
        for documents in ([inner, outer], [outer, inner]):
            live = LiveSpans()
            live.add(document(tool_span(9, "first", parent=1)), 0.0)
            assert len(live.due(2.0)) == 1
            assert len([e for d in documents for e in live.add(d, 3.0)]) == 1
        again = [document(tool_span(n, "get", parent=1, more=same)) for n in (4, 5)]
        assert len([e for d in again for e in live.add(d, 3.0)]) == 2

    def test_a_span_that_has_not_ended_yet_waits_for_itself(self):
        live = LiveSpans()
        running = tool_span(2, "get", result=None, parent=1, endTimeUnixNano="0")
        live.add(document(agent_span(1, conversation="c"), running), 0.0)
        assert told(live.add(document(tool_span(2, "get", parent=1)), 1.0)) == [("c", "ok")]
        assert live.due(9.0) == []
        lost = tool_span(3, "get", result=None, parent=1, endTimeUnixNano="0")
        assert live.add(document(lost), 10.0) == []
        assert told(live.due(12.0)) == [("c", None)]


class TestLimits:
    def spans(self, count):
        return [tool_span(n, "get", parent=1, trace=f"{n:032x}") for n in range(2, count + 2)]

    @pytest.mark.parametrize("limit", [{"traces_max": 3}, {"spans_max": 3}, {"bytes_max": 2200}])
    def test_the_trace_that_was_silent_for_the_longest_is_let_go(self, limit):
        live = LiveSpans(**limit)
        found = [live.add(document(one), n / 10) for n, one in enumerate(self.spans(5))]
        assert [len(events) for events in found] == [0, 0, 0, 1, 1]
        assert told(found[3]) == [(f"{2:032x}", "ok")]
        assert live.traces_held == live.spans_held == 3
        assert len(live.rest()) == 3

    def test_one_trace_alone_cannot_break_the_limits(self):
        live = LiveSpans(spans_max=10)
        spans = [tool_span(n, "get", parent=1) for n in range(2, 40)]
        told = [e.trace.span_id for one in spans for e in live.add(document(one), 0.0)]
        assert len(told) > 20
        assert live.spans_held <= 10
        told += [e.trace.span_id for e in [*live.add(document(*spans), 0.0), *live.rest()]]
        assert sorted(told) == [span_id(number) for number in range(2, 40)]  # each once

    def test_a_document_of_too_many_spans_is_refused(self):
        live = LiveSpans(document_spans_max=2)
        assert live.add(document(*self.spans(2)), 0.0) == []
        with pytest.raises(MessageTooLarge, match="3 spans at once, the limit is 2"):
            live.add(document({}, {}, {}), 0.0, on_bad=lambda _error: None)

    def test_the_oldest_that_is_remembered_is_forgotten(self):
        live = LiveSpans(remembered_max=2)
        spans = [document(one) for one in self.spans(3)]
        events = [e for one in spans for e in live.add(one, 0.0)] + live.rest()
        assert len(events) == 3
        again = [e for one in spans[::-1] for e in live.add(one, 1.0)] + live.rest()
        assert told(again) == [(f"{2:032x}", "ok")]

    def test_a_trace_that_falls_silent_is_let_go(self):
        live = LiveSpans(silence_s=60)
        live.add(document(tool_span(2, "get", parent=1)), 0.0)
        live.due(2.0)
        assert live.spans_held == 1
        assert live.due(60.0) == []
        assert live.spans_held == 0
        # Its run is remembered.
        named = tool_span(3, "put", parent=1, more={"gen_ai.conversation.id": "c"})
        live.add(document(named), 61.0)
        assert told(live.due(63.0)) == [(TRACE, "ok")]

    def test_time_never_goes_back(self):
        live = LiveSpans()
        live.add(document(tool_span(2, "get", parent=1)), 10.0)
        assert live.due(3.0) == []
        assert len(live.due(12.0)) == 1

    def test_what_waits_is_known_by_the_place_it_came_from(self):
        live = LiveSpans()
        live.add(document(tool_span(2, "get", parent=1)), 0.0, place=7)
        live.add(document(tool_span(3, "get", parent=1)), 1.0, place=8)
        assert set(live.waiting_places) == {7, 8}
        live.due(2.0)
        assert not live.waiting_places
        live.add(document(agent_span(1)), 3.0, place=9)
        assert set(live.waiting_places) == {9}  # the end of the run
        live.due(5.0)
        assert not live.waiting_places


class TestBadInput:
    def test_a_bad_span_is_named_and_nothing_is_taken(self):
        live = LiveSpans()
        bad = tool_span(3, "x" * 300, parent=1)
        with pytest.raises(WrongShape, match=r'span "0+3": step: field `tool`'):
            live.add(document(tool_span(2, "get", parent=1), bad), 0.0)
        assert live.spans_held == 0

    def test_the_good_spans_beside_a_bad_one_can_be_taken(self):
        live, found = LiveSpans(), []
        bad = [
            tool_span(3, "x" * 300),
            tool_span(4, "get", spanId=""),
            tool_span(5, "t", spanId="f"),
        ]
        good = tool_span(2, "get", parent=1)
        live.add(document(*bad, good, agent_span(1)), 0.0, on_bad=found.append)
        assert len(found) == 3
        assert "expected 16 hexadecimal digits" in str(found[2])
        assert told(live.due(2.0)) == [(TRACE, "ok"), (TRACE, "ended")]

    def test_limits_of_events_hold(self):
        live = LiveSpans(limits=Limits(message_bytes=1000, depth=4))
        with pytest.raises(MessageTooLarge, match="span"):
            live.add(document(tool_span(2, "get", result="x" * 1000)), 0.0)
        with pytest.raises(TooDeep, match="span"):
            live.add(document(tool_span(2, "get", args='{"a":' + "[" * 9 + "]" * 9 + "}")), 0.0)

    def test_numbers_that_nobody_can_store_are_treated_as_in_any_event(self):
        live = LiveSpans()
        args = '{"a": NaN, "b": 123456789012345678901234567890}'
        (step,) = live.add(document(tool_span(2, "t", args), agent_span(1)), 0.0) or live.rest()[:1]
        assert step.args == {"a": None, "b": "123456789012345678901234567890"}

    @pytest.mark.parametrize("bad", [None, [], 3, {"resourceSpans": 3}, {"resourceMetrics": []}])
    def test_what_is_no_document_of_spans_is_refused(self, bad):
        with pytest.raises(WrongShape):
            LiveSpans().add(bad, 0.0)

    def test_an_empty_request_is_none_that_is_wrong(self):
        assert LiveSpans().add({}, 0.0) == []
        assert LiveSpans().add({"resourceSpans": []}, 0.0) == []


@st.composite
def traces(draw):
    """Spans of up to two traces: agents, calls, models and requests, some of them not there."""
    spans = []
    for trace in (TRACE, OTHER)[: draw(st.integers(1, 2))]:
        count = draw(st.integers(1, 7))
        for number in range(1, count + 1):
            above = draw(st.none() | st.integers(1, count + 1)) if number > 1 else None
            above = above if above is None or above < number or above > count else None
            kind = draw(st.sampled_from(["call", "call", "call", "agent", "chat", "web"]))
            fields = {"trace": trace, "parent": above}
            more = {}
            if kind != "web" and draw(st.integers(0, 3)) == 0:
                more["gen_ai.conversation.id"] = draw(st.sampled_from(["c1", "c2"]))
            if kind == "call":
                name = draw(st.sampled_from(["get", "put"]))
                more["gen_ai.tool.call.id"] = draw(st.sampled_from(["a", "b"]))
                spans.append(
                    tool_span(number, name, result=f"{trace[:2]}{number}", more=more, **fields)
                )
            elif kind == "agent":
                one = agent_span(number, name=f"agent {number}", **fields)
                one["attributes"] += pairs(more)
                spans.append(one)
            else:
                extra = {"gen_ai.operation.name": "chat"} if kind == "chat" else {"http.route": "/"}
                spans.append(span(number, extra | more, **fields))
    return spans


def recorded(spans):
    """What the reader of files makes of them: the steps, by run and by what they returned."""
    runs = otlp.runs()
    found = [*runs.add(document(*spans), Origin("f", "f"), 1), *runs.rest()]
    return {
        (e.run_id, e.result, e.tool, e.call_id, e.agent, e.started_at, e.ended_at): e.error
        for run in found
        for e in run.events
        if e.type == "step"
    }


def call_of(result, tool, call_id):
    """What tells a call from others: two records of it have one id, and results of their own."""
    return result if call_id is None else (tool, call_id)


class TestAnyOrder:
    @given(traces(), st.data())
    @settings(max_examples=30)
    def test_order_partition_and_repetition_change_no_step_and_no_run(self, spans, data):
        sent = data.draw(st.permutations([*spans, *data.draw(st.lists(st.sampled_from(spans)))]))
        live, events, at_s = LiveSpans(settle_s=SETTLE_S), [], 0.0
        while sent:
            size = data.draw(st.integers(1, len(sent)))
            events += live.add(document(*sent[:size]), at_s)
            sent = sent[size:]
            at_s += data.draw(st.sampled_from([0.0, 0.0, 0.01]))
        events += live.due(data.draw(st.sampled_from([SETTLE_S, SETTLE_S * 3])))
        events += live.rest()
        assert {
            (e.run_id, e.result, e.tool, e.call_id, e.agent, e.started_at, e.ended_at): e.error
            for e in events
            if e.type == "step"
        } == recorded(spans)
        steps = [e for e in events if e.type == "step"]
        assert len({(s.trace.trace_id, s.trace.span_id) for s in steps}) == len(steps)
        ended = set()
        for event in events:  # nothing comes after the end of its run
            assert event.run_id not in ended
            if event.type == "run_ended":
                ended.add(event.run_id)
        assert (live.spans_held, live.traces_held, live.bytes_held) == (0, 0, 0)
        assert not live.waiting_places

    @given(traces(), st.data())
    @settings(max_examples=30)
    def test_spans_that_come_too_late_are_still_told_once(self, spans, data):
        live, events, at_s = LiveSpans(settle_s=SETTLE_S, spans_max=4), [], 0.0
        for one in data.draw(st.permutations([*spans, *spans])):
            at_s += data.draw(st.sampled_from([0.0, 1.0, 5.0]))
            events += live.add(document(one), at_s)
        events += live.rest()
        steps = [event.result for event in events if event.type == "step"]
        assert len(set(steps)) == len(steps)
        # Of two records of one call either may be told, or both.
        told = {call_of(s.result, s.tool, s.call_id) for s in events if s.type == "step"}
        assert {call_of(*key[1:4]) for key in recorded(spans)} <= told

    @given(st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=5), st.data())
    def test_damaged_documents_raise_nothing_but_invalid_events(self, junk, data):
        whole = document(agent_span(1, conversation="c"), tool_span(2, "get", parent=1))
        at = whole
        while data.draw(st.booleans()) and isinstance(at, dict | list) and at:
            keys = list(at) if isinstance(at, dict) else range(len(at))
            key = data.draw(st.sampled_from(list(keys)))
            if not isinstance(at[key], dict | list):
                break
            at = at[key]
        if isinstance(at, dict | list) and at:
            keys = list(at) if isinstance(at, dict) else range(len(at))
            at[data.draw(st.sampled_from(list(keys)))] = junk
        live, events = LiveSpans(), []
        try:
            events = [*live.add(whole, 0.0), *live.rest()]
        except InvalidEvent:
            assert live.spans_held == 0
        assert [decode_event(encode(event)).event for event in events] == events


class TestDocs:
    def test_the_table_of_attributes_names_all_that_are_read(self):
        text = (Path(__file__).resolve().parents[2] / "docs" / "otlp.md").read_text()
        for names in (
            otlp_spans._TOOL,
            otlp_spans._CALL_ID,
            otlp_spans._ARGS,
            otlp_spans._RESULT,
            otlp_spans._TASK,
            otlp_spans._COST,
        ):
            row = next(
                line for line in text.splitlines() if f"`{names[0]}`" in line and "|" in line
            )
            found = [name for name in re.findall(r"`([^`]+)`", row) if name in names]
            assert found == list(names)

    def test_the_table_of_limits_names_the_defaults(self):
        text = (Path(__file__).resolve().parents[2] / "docs" / "otlp.md").read_text()
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(LiveSpans).parameters.items()
        }
        held = f"{defaults['traces_max']:,}; {defaults['spans_max']:,}; "
        assert f"| {held}{defaults['bytes_max'] // 1_048_576} MiB |" in text
        assert f"| {defaults['document_spans_max']:,} |" in text
        assert f"| {defaults['remembered_max']:,} each |" in text
        assert f"| {defaults['silence_s'] / 3600:g} h |" in text
