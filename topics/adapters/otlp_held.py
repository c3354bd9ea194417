"""Spans of traces that may still go on, counted, and in the order in which they were heard of."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass, field

from ontrack.topics.adapters.otlp_spans import Key, Span
from ontrack.topics.adapters.traces import SPAN_BYTES

_ANY_TIME = float("-inf")


@dataclass(slots=True)
class Trace:
    """A trace that may still go on.

    Parameters
    ----------
    name : str
        Its id.
    settles_s, heard_s : float
        When its waiting is over; when something came of it last.
    spans : dict of Key to Span
        What came; calls that were handed out without their arguments and results.
    waiting : dict of Key to float
        Calls that were not handed out, with the time before which they cannot be.
    calls : dict of str to Key
        Calls that were handed out, by their own ids.
    conversations : set of str
        Those named in it; two say as much as more.
    root : Span or None
        The span that has none above it, once it has ended.
    ends_s : float or None
        When the trace is over, because its root has ended.
    held : int
        About how many bytes the spans take.
    """

    name: str
    settles_s: float
    heard_s: float
    spans: dict[Key, Span] = field(default_factory=dict)
    waiting: dict[Key, float] = field(default_factory=dict)
    calls: dict[str, Key] = field(default_factory=dict)
    conversations: set[str] = field(default_factory=set)
    root: Span | None = None
    ends_s: float | None = None
    held: int = 0


class Held:
    """Traces by name; the one last heard of is last.

    Parameters
    ----------
    settle_s : float
        How long something waits.

    Attributes
    ----------
    spans, bytes : int
        How many are held, of all traces.
    now_s : float
        The time; whoever calls moves it on, never back.
    """

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._traces: OrderedDict[str, Trace] = OrderedDict()
        self._alarms: deque[tuple[float, str]] = deque()  # in order, since time never goes back
        self._places: dict[int, int] = {}
        self.spans = self.bytes = 0
        self.now_s = _ANY_TIME

    def __len__(self) -> int:
        return len(self._traces)

    @property
    def places(self) -> Collection[int]:
        """The place of each document of which something waits."""
        return self._places.keys()

    @property
    def names(self) -> list[str]:
        """The traces, the one that was silent for the longest first."""
        return list(self._traces)

    @property
    def oldest(self) -> Trace | None:
        """The trace that was silent for the longest."""
        return next(iter(self._traces.values()), None)

    def of(self, name: str) -> Trace:
        """Return a trace that is held."""
        return self._traces[name]

    def rung(self) -> Trace | None:
        """Return a trace of which some waiting is over by now; one after the other, then None."""
        while self._alarms and self._alarms[0][0] <= self.now_s:
            trace = self._traces.get(self._alarms.popleft()[1])
            if trace is not None:
                return trace
        return None

    def take(self, span: Span, was_given: bool) -> bool:
        """Hold a span; tell whether it says anything new.

        Parameters
        ----------
        was_given : bool
            It was handed out before, and shall not wait for that.
        """
        key = span.key
        trace = self._traces.get(key.trace)
        before = trace.spans.get(key) if trace is not None else None
        if before is not None and (before.end is not None or span.end is None):
            return False  # exporters deliver at least once
        if trace is None:
            trace = Trace(key.trace, self._alarm(key.trace), self.now_s)
            self._traces[key.trace] = trace
        trace.heard_s = self.now_s
        self._traces.move_to_end(key.trace)
        if span.tool is not None and not was_given:
            self._wait(trace, span, before)
        else:
            span = stripped(span)
        self._hold(trace, span, before)
        if span.conversation is not None and len(trace.conversations) < 2:
            trace.conversations.add(span.conversation)
        if span.parent is None and span.end is not None:
            self._count(span.place, 1)
            if trace.root is not None:
                self._count(trace.root.place, -1)
            trace.root, trace.ends_s = span, self._alarm(key.trace)
        return True

    def wait_no_longer(self, trace: Trace, span: Span) -> None:
        """Keep of a call that is handed out what those below it need."""
        del trace.waiting[span.key]
        self._count(span.place, -1)
        self._hold(trace, stripped(span), span)

    def forget(self, trace: Trace) -> None:
        """Hold a trace no longer; nothing of it waits."""
        if trace.root is not None:
            self._count(trace.root.place, -1)
        del self._traces[trace.name]
        self.spans -= len(trace.spans)
        self.bytes -= trace.held

    def _wait(self, trace: Trace, span: Span, before: Span | None) -> None:
        self._count(span.place, 1)
        if before is not None:
            self._count(before.place, -1)
        # One that has not ended yet is replaced by itself when it has.
        until_s = _ANY_TIME if span.end is not None else self._alarm(trace.name)
        trace.waiting[span.key] = until_s

    def _alarm(self, name: str) -> float:
        at_s = self.now_s + self._settle_s
        self._alarms.append((at_s, name))
        return at_s

    def _hold(self, trace: Trace, span: Span, before: Span | None) -> None:
        change = span.size - (before.size if before is not None else 0)
        trace.spans[span.key] = span
        trace.held += change
        self.bytes += change
        self.spans += before is None

    def _count(self, place: int, change: int) -> None:
        count = self._places.get(place, 0) + change
        if count:
            self._places[place] = count
        else:
            self._places.pop(place, None)


def stripped(span: Span) -> Span:
    """Return what is needed of a span by those below it."""
    if span.tool is None:
        return span
    tool = {"tool": span.tool["tool"], "call_id": span.tool["call_id"]}
    return span._replace(tool=tool, error=None, size=SPAN_BYTES)
