"""Spans as they arrive from running programs, turned into events as soon as their run is known.

Spans end, and are exported, before those above them, from several processes, in any order and more
than once. A call is handed out at once where its run can be told for sure: all above it is there
and names a conversation, or its trace has settled. A trace settles ``settle_s`` after its first
span. What then names no conversation goes to the only conversation of its trace, or else to a run
named after the trace; that choice is kept for the rest of the trace.

All that arrives of a trace until it settles gives the same steps in the same runs, in whatever
order and documents it came. Attributes are mapped by :mod:`.otlp_spans` and :mod:`.otlp_above`, as
in recorded files. No clock, no I/O: time is an argument.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple, TypeVar

from ontrack.topics.adapters.otlp_above import (
    Above,
    above_of,
    below,
    ending_fields,
    is_recorded_twice,
    step_fields,
)
from ontrack.topics.adapters.otlp_held import Held, Trace
from ontrack.topics.adapters.otlp_spans import Key, Span, is_document, span_count, spans_of
from ontrack.topics.adapters.parts import built
from ontrack.topics.adapters.traces import bytes_of, time_of_nanoseconds
from ontrack.topics.codecs import DEFAULT_LIMITS, Limits, encode
from ontrack.topics.errors import InvalidEvent, MessageTooLarge, TooDeep, WrongShape
from ontrack.topics.events import Event, RunEnded, Step
from ontrack.topics.jsontext import deeper_than, described, shown, tame

OnBad = Callable[[InvalidEvent], None]

_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}")
_SPAN_ID: Final = re.compile(r"[0-9a-f]{16}")
#: Bytes of JSON that a byte of text may take, its event's other fields included.
_GROWTH_MAX: Final = 8

N = TypeVar("N")


class _Bound(NamedTuple):
    """What is kept of a trace for longer than its spans.

    Parameters
    ----------
    run_id : str
        The run of the calls that name no conversation.
    is_nameless : bool
        No conversation was known when it was chosen: one that is named later changes nothing.
    has_ended : bool
        Whether the end of the run was told.
    """

    run_id: str
    is_nameless: bool
    has_ended: bool = False


class _Ready(NamedTuple):
    """A call that can be handed out."""

    span: Span
    above: Above
    trace: Trace


class LiveSpans:
    """Turns documents of spans into steps and ends of runs.

    The first three limits let go of the trace that was silent for the longest: its waiting calls
    are handed out as if it had settled, and what comes of it later is no longer known to be below
    its spans.

    Parameters
    ----------
    settle_s : float
        How long a trace may take to name the run of a call, and how long after the end of a run
        its last calls may come. Calls wait for it at the beginning of a trace only.
    traces_max, spans_max, bytes_max : int
        Traces, spans, and bytes of spans that are held.
    document_spans_max : int
        Spans of one document; one that holds more is refused.
    remembered_max : int
        Spans handed out that are known by name, so that they are not handed out twice when an
        exporter sends again; and as many traces with their runs. The oldest is forgotten.
    silence_s : float
        A trace of which nothing came for so long is let go.
    limits : Limits
        Of one event.
    """

    def __init__(
        self,
        settle_s: float = 2.0,
        traces_max: int = 10_000,
        spans_max: int = 50_000,
        bytes_max: int = 67_108_864,
        document_spans_max: int = 50_000,
        remembered_max: int = 100_000,
        silence_s: float = 3600.0,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._held = Held(settle_s)
        self._silence_s = silence_s
        self._traces_max, self._spans_max, self._bytes_max = traces_max, spans_max, bytes_max
        self._document_spans_max = document_spans_max
        self._remembered_max, self._limits = remembered_max, limits
        self._given: OrderedDict[Key, None] = OrderedDict()
        self._bound: OrderedDict[str, _Bound] = OrderedDict()

    @property
    def traces_held(self) -> int:
        """Traces in memory."""
        return len(self._held)

    @property
    def spans_held(self) -> int:
        """Spans in memory."""
        return self._held.spans

    @property
    def bytes_held(self) -> int:
        """About how many bytes they take."""
        return self._held.bytes

    @property
    def waiting_places(self) -> Collection[int]:
        """The ``place`` of each document of which something still waits."""
        return self._held.places

    def add(
        self, document: object, now_s: float, place: int = 0, on_bad: OnBad | None = None
    ) -> list[Event]:
        """Take a document; return the events that are ready now.

        Parameters
        ----------
        document : object
            OTLP in JSON, as :func:`~ontrack.topics.jsontext.parse` gives it.
        now_s : float
            Seconds of a clock that never goes back.
        place : int
            The caller's number for the document, see :attr:`waiting_places`.
        on_bad : callable, optional
            Called with what is wrong with a span, which is then left out.

        Raises
        ------
        WrongShape, MessageTooLarge, TooDeep
            Naming the span (a span only without ``on_bad``); nothing was taken.
        """
        spans = self._read(document, place, on_bad)
        events = self.due(now_s)
        touched: dict[str, None] = {}
        for span in spans:
            if self._held.take(span, was_given=span.key in self._given):
                touched[span.key.trace] = None
        traces = map(self._held.of, touched)
        events += self._give(ready for trace in traces for ready in self._ready(trace))
        while self._is_over_a_limit() and (oldest := self._held.oldest) is not None:
            events += self._let_go(oldest)
        return events

    def due(self, now_s: float) -> list[Event]:
        """Return what has waited for long enough."""
        now_s = self._held.now_s = max(self._held.now_s, now_s)
        events: list[Event] = []
        while (trace := self._held.rung()) is not None:
            events += self._give(self._ready(trace))
            if trace.ends_s is not None and trace.ends_s <= now_s:
                events += self._let_go(trace)
        while (trace := self._held.oldest) is not None and trace.heard_s + self._silence_s <= now_s:
            events += self._let_go(trace)
        return events

    def rest(self) -> list[Event]:
        """Return all that waits, as if nothing else would come, and hold nothing any longer."""
        return [event for name in self._held.names for event in self._let_go(self._held.of(name))]

    def remember(self, trace_id: str, span_id: str, run_id: str, has_ended: bool = False) -> None:
        """Note that a span was handed out before, by an earlier process.

        Parameters
        ----------
        run_id : str
            The run it was of; one named after the trace stays the trace's.
        has_ended : bool
            It was handed out as the end of that run.
        """
        _put(self._given, Key(trace_id, span_id), None, self._remembered_max)
        if run_id == trace_id and (has_ended or trace_id not in self._bound):
            bound = _Bound(run_id, is_nameless=True, has_ended=has_ended)
            _put(self._bound, trace_id, bound, self._remembered_max)

    def _is_over_a_limit(self) -> bool:
        held = self._held
        return (
            len(held) > self._traces_max
            or held.spans > self._spans_max
            or held.bytes > self._bytes_max
        )

    def _read(self, document: object, place: int, on_bad: OnBad | None) -> list[Span]:
        if document == {}:
            return []  # how an empty request is written
        if not is_document(document):
            raise WrongShape(
                f"expected an OTLP document with `resourceSpans`, found {described(document)}"
            )
        count = span_count(document)
        if count > self._document_spans_max:
            raise MessageTooLarge(
                f"{count} spans at once, the limit is {self._document_spans_max}; send less"
            )
        spans = []
        for span in spans_of(document, place, on_bad):
            try:
                spans.append(_usable(span, self._limits))
            except InvalidEvent as error:
                named = type(error)(f"span {shown(span.key.span)}: {error}")
                if on_bad is None:
                    raise named from None
                on_bad(named)
        return spans

    def _ready(self, trace: Trace, everything: bool = False) -> list[_Ready]:
        """Return the waiting calls of a trace whose run is known, or all."""
        now_s = self._held.now_s
        known: dict[Key, Above] = {}
        is_settled = everything or trace.settles_s <= now_s
        found = []
        for key, not_before_s in trace.waiting.items():
            span, above = trace.spans[key], above_of(trace.spans, known, key)
            is_clear = above.is_rooted and (span.conversation or above.conversation) is not None
            if everything or (not_before_s <= now_s and (is_settled or is_clear)):
                found.append(_Ready(span, above, trace))
        return found

    def _give(self, ready: Iterable[_Ready]) -> list[Event]:
        """Hand out calls in the order in which they began."""
        calls = list(ready)
        if all(call.span.start is not None for call in calls):
            calls.sort(key=lambda call: (call.span.start or 0, call.above.depth))
        return [event for call in calls for event in self._step(call)]

    def _step(self, call: _Ready) -> list[Event]:
        span, trace = call.span, call.trace
        was_told = _is_told_below(span, trace)
        self._held.wait_no_longer(trace, span)
        _put(self._given, span.key, None, self._remembered_max)
        if was_told or is_recorded_twice(span, call.above):
            return []
        call_id = span.tool["call_id"] if span.tool is not None else None
        if call_id is not None:
            trace.calls[call_id] = span.key
        mine = below(call.above, span)
        run_id = self._run_of(trace, mine)
        fields = step_fields(span, mine.agent) | {
            "task_id": mine.task_id,
            "parent_run_id": mine.parent_run_id if mine.parent_run_id != run_id else None,
            "trace": _ref(span.key),
        }
        return [built(Step, run_id=run_id, **fields)]

    def _run_of(self, trace: Trace, mine: Above) -> str:
        bound = self._bound.get(trace.name)
        if mine.conversation is None:
            return (bound or self._bind(trace)).run_id
        if bound is not None and bound.is_nameless and mine.parent_run_id is None:
            return bound.run_id
        return mine.conversation

    def _bind(self, trace: Trace) -> _Bound:
        """Choose, for good, the run of those calls of a trace that name none."""
        is_only = len(trace.conversations) == 1
        run_id = min(trace.conversations) if is_only else trace.name
        bound = _Bound(run_id, is_nameless=not trace.conversations)
        _put(self._bound, trace.name, bound, self._remembered_max)
        return bound

    def _let_go(self, trace: Trace) -> list[Event]:
        """Hand out what waits of a trace, and its run's end if it is over; forget its spans."""
        events = self._give(self._ready(trace, everything=True))
        ended = self._end(trace)
        if ended is not None:
            events.append(ended)
        elif trace.conversations and trace.name not in self._bound:
            self._bind(trace)  # for what comes late and is below none that is held
        self._held.forget(trace)
        return events

    def _end(self, trace: Trace) -> RunEnded | None:
        """Return the end of the run that is this trace's alone, where the trace's root has ended.

        A conversation may go on in another trace. A trace without an agent or a call is no run.
        """
        root, bound = trace.root, self._bound.get(trace.name)
        if root is None:
            return None
        agents = [s for s in trace.spans.values() if s.is_agent and s.conversation is None]
        if bound is None and agents and not trace.conversations:
            bound = self._bind(trace)
        if bound is None or bound.run_id != trace.name or bound.has_ended:
            return None
        if not agents and not root.is_agentic:
            return None  # what has ended is a request, say; the run may go on
        _put(self._bound, trace.name, bound._replace(has_ended=True), self._remembered_max)
        known: dict[Key, Above] = {}
        # How the run ended is what its last outermost agent says.
        top = min(
            agents,
            key=lambda span: (above_of(trace.spans, known, span.key).depth, -(span.end or 0)),
            default=None,
        )
        ends = [span.end for span in trace.spans.values() if span.is_agentic and span.end]
        return built(
            RunEnded,
            run_id=trace.name,
            time=time_of_nanoseconds(max(ends, default=root.end)),
            agent=top.agent if top is not None else None,
            task_id=top.task_id if top is not None else None,
            trace=_ref(root.key),
            **ending_fields(top.error if top is not None else None),
        )


def _usable(span: Span, limits: Limits) -> Span:
    """Return a span as it is held, with the treatments that any event gets.

    Raises
    ------
    InvalidEvent
        No event can be made of it.
    """
    for value, form, what in (
        (span.key.trace, _TRACE_ID, "`traceId`: expected 32"),
        (span.key.span, _SPAN_ID, "`spanId`: expected 16"),
    ):
        if form.fullmatch(value) is None:
            raise WrongShape(f"{what} hexadecimal digits, found {described(value)}")
    held = span._replace(links=(), size=span.size + bytes_of(span.error))
    if span.tool is None:
        return held
    args, result = span.tool["args"], span.tool["result"]
    if deeper_than(args, limits.depth) or deeper_than(result, limits.depth):
        raise TooDeep(f"its arguments or its result are nested deeper than {limits.depth} levels")
    flags: set[str] = set()
    args, result = tame(args, flags), tame(result, flags)
    if flags:
        held = held._replace(tool={**span.tool, "args": args, "result": result})
    if held.size > limits.message_bytes // _GROWTH_MAX:
        fields = step_fields(held, span.agent) | {"trace": _ref(span.key)}
        run_id = span.conversation or span.key.trace
        size = len(encode(built(Step, run_id=run_id, **fields)))
        if size > limits.message_bytes:
            raise MessageTooLarge(
                f"{size} bytes as an event, the limit is {limits.message_bytes}; shorten the "
                "result or raise the limit"
            )
    return held


def _is_told_below(span: Span, trace: Trace) -> bool:
    """Tell whether a call was handed out already, as recorded by a span below this one."""
    call_id = span.tool["call_id"] if span.tool is not None else None
    lower = trace.calls.get(call_id) if call_id is not None else None
    if lower is None:
        return False
    above = above_of(trace.spans, {}, lower)
    is_this = above.tool is not None and above.tool.key == span.key
    return is_this and is_recorded_twice(trace.spans[lower], above)


def _ref(key: Key) -> dict[str, Any]:
    return {"trace_id": key.trace, "span_id": key.span}


def _put(memory: OrderedDict[N, Any], name: N, value: Any, most: int) -> None:
    memory[name] = value
    memory.move_to_end(name)
    while len(memory) > most:
        memory.popitem(last=False)
