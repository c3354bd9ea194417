"""Traces of the OpenAI Agents SDK, as its processors and its exporter write them.

One item a line, bare or as ``{event: trace_start|span_start|span_end|trace_end, data: item}``, or
several as ``{data: [item…]}``. An item is a ``trace`` or a ``trace.span``; a span of type
``function`` is a step. A trace is a run: where its end is recorded it is handed out at once, else
with the end of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from ontrack.topics.adapters.parts import (
    Origin,
    args_of,
    built,
    dig,
    id_of,
    list_of,
)
from ontrack.topics.adapters.traces import (
    HELD_BYTES_MAX,
    SPAN_BYTES,
    Run,
    Runs,
    all_events,
    assembled,
    bytes_of,
    time_of,
)
from ontrack.topics.errors import WrongShape
from ontrack.topics.events import Event, RunStarted, Step
from ontrack.topics.jsontext import described, shown

NAME = "openai-agents"

_TRACE, _SPAN = "trace", "trace.span"
#: How far up is looked for the agent and the call that a call belongs to.
_LEVELS_MAX = 200
_EVENTS = ("trace_start", "span_start", "span_end", "trace_end")


class _Span(NamedTuple):
    parent: str | None
    kind: str
    name: str
    begun: datetime | None
    ended: datetime | None
    failure: dict[str, Any] | None
    args: Any = None
    result: Any = None

    @property
    def size(self) -> int:
        return SPAN_BYTES + bytes_of(self.args, self.result)


def recognise(head: object) -> bool:
    """Tell whether a parsed line is an item of a trace, or a list of such items."""
    if not isinstance(head, dict):
        return False
    data = head.get("data")
    if head.get("event") in _EVENTS:
        return _is_item(data)
    return _is_item(head) or (isinstance(data, list) and bool(data) and _is_item(data[0]))


def runs() -> Runs:
    """Start reading a file."""
    return _Traces()


def events(record: object, origin: Origin) -> Iterator[Event]:
    """Yield the events of a single record. Raises :class:`WrongShape` where it is no such item."""
    return all_events(runs(), record, origin)


class _Trace:
    """What is known of one trace."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.spans: dict[str, _Span] = {}
        self.stated: dict[str, Any] = {}
        self.size = 0

    def add(self, span_id: str, span: _Span) -> None:
        before = self.spans.get(span_id)
        if before is not None and span.ended is None:
            return
        self.size += span.size - (before.size if before is not None else 0)
        # The place in the order of arrival is that of the start, where one was recorded.
        self.spans[span_id] = span


class _Traces:
    """The traces of a file that are not over yet."""

    def __init__(self) -> None:
        self._open: dict[str, _Trace] = {}
        self._given: set[str] = set()
        self._held = 0

    def add(self, record: object, origin: Origin, place: int) -> Iterator[Run]:
        taken = [_item(event, item) for event, item in _items(record)]
        done: list[Run] = []
        for event, trace_id, span_id, value in taken:
            if event == "trace_end" and trace_id not in self._open and trace_id in self._given:
                continue
            trace = self._open.pop(trace_id, None) or _Trace(place)
            # Last in the order of the dictionary is who was heard of last.
            self._open[trace_id] = trace
            before = trace.size
            if isinstance(value, _Span):
                trace.add(span_id, value)
            else:
                trace.stated |= value
            self._held += trace.size - before
            if event == "trace_end":
                done.append(self._give(trace_id, ended=True))
        while self._held > HELD_BYTES_MAX:
            done.append(self._give(next(iter(self._open)), ended=False))
        yield from done

    def rest(self) -> Iterator[Run]:
        while self._open:
            yield self._give(next(iter(self._open)), ended=False)

    def _give(self, trace_id: str, ended: bool) -> Run:
        trace = self._open.pop(trace_id)
        self._held -= trace.size
        again = trace_id in self._given
        self._given.add(trace_id)
        return _run(trace_id, trace, _missing(trace, ended, again))


def _items(record: object) -> Iterator[tuple[str | None, Any]]:
    if not recognise(record) or not isinstance(record, dict):
        raise WrongShape(f"expected an item of an Agents SDK trace, found {described(record)}")
    data = record.get("data")
    if record.get("event") in _EVENTS:
        yield record["event"], data
    elif _is_item(record):
        yield None, record
    else:
        for item in list_of(data):
            yield None, item


def _is_item(value: object) -> bool:
    return isinstance(value, dict) and value.get("object") in (_TRACE, _SPAN)


def _item(event: str | None, item: Any) -> tuple[str | None, str, str, _Span | dict[str, Any]]:
    """Check one item: its event, trace id, span id, and what it says."""
    if not _is_item(item):
        raise WrongShape(f"expected a trace or a span, found {described(item)}")
    is_span = item["object"] == _SPAN
    trace_id = id_of(item.get("trace_id" if is_span else "id"))
    if trace_id is None or (event is not None and event.startswith("span") != is_span):
        raise WrongShape(
            f"an item of `object` {item['object']!r}: expected the id of its trace and an event of "
            f"its kind, found {described(item.get('trace_id', item.get('id')))}"
        )
    built(RunStarted, run_id=trace_id, task_id=id_of(dig(item.get("metadata"), "task_id")))
    if not is_span:
        stated = {"workflow": item.get("workflow_name"), "metadata": item.get("metadata")}
        return event, trace_id, "", stated
    span_id = id_of(item.get("id"))
    if span_id is None:
        raise WrongShape(f"a span of trace {shown(trace_id)}: field `id` is missing")
    return event, trace_id, span_id, _span(span_id, item)


def _span(span_id: str, item: dict[str, Any]) -> _Span:
    data = item.get("span_data")
    kind = dig(data, "type")
    if not isinstance(data, dict) or not isinstance(kind, str):
        raise WrongShape(
            f"span {shown(span_id)}: expected `span_data` with a `type`, found {described(data)}"
        )
    name = data.get("name") if isinstance(data.get("name"), str) else ""
    span = _Span(
        id_of(item.get("parent_id")),
        kind,
        name or "",
        time_of(item.get("started_at")),
        time_of(item.get("ended_at")),
        _failure(item.get("error")),
    )
    if kind != "function":
        built(RunStarted, run_id="-", agent={"id": span.name, "name": span.name})
        return span
    span = span._replace(args=data.get("input"), result=data.get("output"))
    # Checked here, so that whatever is wrong is said of the record that holds it.
    built(Step, run_id="-", **_step(span, None, None, None))
    return span


def _failure(error: object) -> dict[str, Any] | None:
    """Return an error; the SDK says in ``data`` what the tool really raised."""
    if not error:
        return None
    said = dig(error, "data", "error")
    message = said if isinstance(said, str) and said else dig(error, "message")
    if not isinstance(message, str):
        message = error if isinstance(error, str) else None
    kind = dig(error, "data", "type")
    return {"type": kind if isinstance(kind, str) else None, "message": message}


def _missing(trace: _Trace, ended: bool, again: bool) -> str | None:
    if again:
        return "an earlier part was handed out before"
    if any(span.kind == "function" and span.ended is None for span in trace.spans.values()):
        return "a tool call has no end"
    if ended:
        return None
    tops = [span for span in trace.spans.values() if span.parent not in trace.spans]
    if any(span.parent is not None for span in tops):
        return "spans above the calls are missing"
    return "the trace has no end" if any(span.ended is None for span in tops) else None


def _run(trace_id: str, trace: _Trace, missing: str | None) -> Run:
    calls = [key for key, span in trace.spans.items() if span.kind == "function"]
    begun = {key: time for key in calls if (time := trace.spans[key].begun) is not None}
    if len(begun) == len(calls):
        calls.sort(key=begun.__getitem__)
    numbers = {key: number for number, key in enumerate(calls)}
    steps = []
    for number, key in enumerate(calls):
        agent, outer = _above(trace.spans, key)
        parent = numbers.get(outer, number) if outer is not None else number
        steps.append(_step(trace.spans[key], key, agent, (parent,) if parent < number else None))
    tops = [span for span in trace.spans.values() if span.parent is None]
    failed = next((span for span in tops if span.failure and span.kind != "function"), None)
    agents = [span.name for span in trace.spans.values() if span.kind == "agent" and span.name]
    metadata = trace.stated.get("metadata")
    return assembled(
        trace_id,
        steps,
        place=trace.place,
        started={
            "agent": {"id": agents[0], "name": agents[0]} if agents else None,
            "task_id": id_of(dig(metadata, "task_id")),
            "time": min((s.begun for s in trace.spans.values() if s.begun), default=None),
        },
        ended_at=max((s.ended for s in trace.spans.values() if s.ended), default=None),
        outcome="failure" if failed else "unknown",
        reason=failed.failure["message"] if failed and failed.failure else None,
        missing=missing,
    )


def _above(spans: dict[str, _Span], key: str) -> tuple[str | None, str | None]:
    """Return the agent that a call belongs to, and the call that it was made for."""
    agent: str | None = None
    outer: str | None = None
    above = spans[key].parent
    for _ in range(_LEVELS_MAX):
        span = spans.get(above) if above is not None else None
        if span is None or (agent is not None and outer is not None):
            break
        if span.kind == "agent" and agent is None:
            agent = span.name or None
        if span.kind == "function" and outer is None and above != key:
            outer = above
        above = span.parent
    return agent, outer


def _step(
    span: _Span, key: str | None, agent: str | None, parents: tuple[int, ...] | None
) -> dict[str, Any]:
    return {
        "time": span.begun,
        "started_at": span.begun,
        "ended_at": span.ended,
        "agent": {"id": agent, "name": agent} if agent else None,
        "tool": span.name or None,
        "args": args_of(span.args),
        "result": span.result,
        "error": span.failure,
        "call_id": key,
        "parents": parents,
    }
