"""OpenTelemetry traces in OTLP's JSON: ``resourceSpans`` documents, one a file or one a line.

A step is a span of a tool's execution: ``gen_ai.operation.name = execute_tool``, OpenInference's
``openinference.span.kind = TOOL``, or the older forms in :mod:`.otlp_spans`. A run is the
conversation (``gen_ai.conversation.id``, ``session.id``) that the span or one above it names, else
the trace. Spans may come in any order and in any number of documents; a run is put in the order in
which its calls began. A conversation inside another one is a run of its own with a
``parent_run_id``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ontrack.topics.adapters.otlp_above import (
    Above,
    above_of,
    below,
    ending_fields,
    is_recorded_twice,
    step_fields,
)
from ontrack.topics.adapters.otlp_spans import Key, Span, is_document, spans_of
from ontrack.topics.adapters.parts import Origin
from ontrack.topics.adapters.traces import (
    HELD_BYTES_MAX,
    Run,
    Runs,
    all_events,
    assembled,
    time_of_nanoseconds,
)
from ontrack.topics.errors import WrongShape
from ontrack.topics.events import Event
from ontrack.topics.jsontext import described

NAME = "otlp"

_OTHER_SIGNALS = frozenset({"resourceMetrics", "resourceLogs", "resourceProfiles"})


def recognise(head: object) -> bool:
    """Tell whether a parsed record is an OTLP document of traces."""
    return is_document(head)


def runs() -> Runs:
    """Start reading a file."""
    return _Traces()


def events(record: object, origin: Origin) -> Iterator[Event]:
    """Yield the events of a single document. Raises :class:`WrongShape` where it is none."""
    return all_events(runs(), record, origin)


class _Traces:
    """Spans of the traces that may still go on.

    Nothing in OTLP says that a trace is over, so runs are handed out at the end of the file, or
    where ``HELD_BYTES_MAX`` is reached: then those go first that were silent for the longest.
    """

    def __init__(self) -> None:
        self._traces: dict[str, dict[str, Span]] = {}
        self._sizes: dict[str, int] = {}
        self._given: set[str] = set()
        self._held = 0

    def add(self, record: object, origin: Origin, place: int) -> Iterator[Run]:
        if not recognise(record):
            if isinstance(record, dict) and not _OTHER_SIGNALS.isdisjoint(record):
                return  # a collector writes metrics and logs into the same file
            raise WrongShape(
                f"expected an OTLP document with `resourceSpans`, found {described(record)}"
            )
        for span in list(spans_of(record, place)):
            self._take(span)
        if self._held > HELD_BYTES_MAX:
            silent = []
            for trace in list(self._traces):
                if self._held <= HELD_BYTES_MAX // 2:
                    break
                silent.append(self._release(trace))
            yield from self._runs(silent)

    def rest(self) -> Iterator[Run]:
        yield from self._runs([self._release(trace) for trace in list(self._traces)])

    def _take(self, span: Span) -> None:
        trace = span.key.trace
        # Last in the order of the dictionary is what was heard of last.
        spans = self._traces[trace] = self._traces.pop(trace, {})
        before = spans.get(span.key.span)
        if before is not None and (before.end is not None or span.end is None):
            return  # exporters deliver at least once
        change = span.size - (before.size if before is not None else 0)
        spans[span.key.span] = span
        self._sizes[trace] = self._sizes.get(trace, 0) + change
        self._held += change

    def _release(self, trace: str) -> dict[str, Span]:
        self._held -= self._sizes.pop(trace)
        return self._traces.pop(trace)

    def _runs(self, traces: Iterable[dict[str, Span]]) -> Iterator[Run]:
        spans = {span.key: span for trace in traces for span in trace.values()}
        members: dict[str, list[_Member]] = {}
        for member in _members(spans):
            members.setdefault(member.run_id, []).append(member)
        for run_id in _parents_first(members):
            group = members[run_id]
            again = run_id in self._given
            self._given.add(run_id)
            yield _run(run_id, group, again)


class _Member(NamedTuple):
    """A span and what it has from those above it."""

    span: Span
    run_id: str
    parent_run_id: str | None
    agent: dict[str, Any] | None
    task_id: str | None
    outer: Key | None
    depth: int
    is_whole: bool


def _parents_first(members: dict[str, list[_Member]]) -> list[str]:
    """Return the run ids in the order in which they came, but none before its parent's."""
    ordered: dict[str, None] = {}
    for run_id in members:
        chain: dict[str, None] = {}
        at: str | None = run_id
        while at in members and at not in ordered and at not in chain:
            chain[at] = None
            at = _parent_of(members[at])
        ordered.update(dict.fromkeys(reversed(chain)))
    return list(ordered)


def _parent_of(group: list[_Member]) -> str | None:
    return next((member.parent_run_id for member in group if member.parent_run_id), None)


def _members(spans: dict[Key, Span]) -> list[_Member]:
    """Return the spans that belong to runs, in the order in which they came."""
    known: dict[Key, Above] = {}
    only = _only_conversations(spans.values())
    members = []
    for key, span in spans.items():
        if not span.is_agentic:
            continue
        above = above_of(spans, known, key)
        if is_recorded_twice(span, above):
            continue
        mine = below(above, span)
        run_id = mine.conversation or only.get(key.trace) or key.trace
        parent = mine.parent_run_id if mine.parent_run_id != run_id else None
        members.append(
            _Member(
                span,
                run_id,
                parent,
                mine.agent,
                mine.task_id,
                above.tool.key if above.tool is not None else None,
                above.depth,
                mine.is_whole,
            )
        )
    return members


def _only_conversations(spans: Iterable[Span]) -> dict[str, str]:
    """Return the conversation of each trace that has exactly one."""
    found: dict[str, set[str]] = {}
    for span in spans:
        if span.conversation is not None:
            found.setdefault(span.key.trace, set()).add(span.conversation)
    return {trace: min(names) for trace, names in found.items() if len(names) == 1}


def _run(run_id: str, group: list[_Member], again: bool) -> Run:
    calls = [member for member in group if member.span.tool is not None]
    if all(member.span.start is not None for member in calls):
        calls.sort(key=lambda member: (member.span.start or 0, member.depth))
    numbers = {member.span.key: number for number, member in enumerate(calls)}
    steps = [_step(member, number, numbers) for number, member in enumerate(calls)]
    # How the run ended is what its last outermost agent says.
    agents = [member for member in group if member.span.is_agent]
    top = min(agents, key=lambda member: (member.depth, -(member.span.end or 0)), default=None)
    error = top.span.error if top is not None else None
    begun = [member.span.start for member in group if member.span.start is not None]
    ended = [member.span.end for member in group if member.span.end is not None]
    missing = None
    if again:
        missing = "an earlier part was handed out before"
    elif not all(member.is_whole for member in group):
        missing = "spans above the calls are missing"
    return assembled(
        run_id,
        steps,
        place=min(member.span.place for member in group),
        started={
            "time": time_of_nanoseconds(min(begun, default=None)),
            "agent": next((member.agent for member in group if member.agent), None),
            "task_id": next((member.task_id for member in group if member.task_id), None),
            "parent_run_id": _parent_of(group),
        },
        ended_at=time_of_nanoseconds(max(ended, default=None)),
        **ending_fields(error),
        missing=missing,
    )


def _step(member: _Member, number: int, numbers: dict[Key, int]) -> dict[str, Any]:
    """Return a step's fields; its parents are the calls it is linked to or made within."""
    span = member.span
    named = [*span.links, *([member.outer] if member.outer is not None else [])]
    parents = sorted({numbers[key] for key in named if numbers.get(key, number) < number})
    return {**step_fields(span, member.agent), "parents": tuple(parents) or None}
