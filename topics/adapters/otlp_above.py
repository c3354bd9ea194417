"""What a span has from those above it, for the recorded reader and the live one alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ontrack.topics.adapters.otlp_spans import Key, Span
from ontrack.topics.adapters.traces import time_of_nanoseconds


class Above(NamedTuple):
    """What spans hand down to those below them.

    Parameters
    ----------
    conversation, parent_run_id : str or None
        The nearest conversation, and the one that it is inside of.
    agent : dict or None
        The nearest agent.
    task_id : str or None
        The nearest task.
    tool : Span or None
        The nearest call of a tool.
    depth : int
        How many spans.
    is_whole : bool
        Whether all that belongs to the run is there, as far up as the agent's own span.
    is_rooted : bool
        Whether all is there, up to a span that has none above it.
    has_agent : bool
        Whether an agent's own span is among them.
    """

    conversation: str | None = None
    parent_run_id: str | None = None
    agent: dict[str, Any] | None = None
    task_id: str | None = None
    tool: Span | None = None
    depth: int = 0
    is_whole: bool = True
    is_rooted: bool = True
    has_agent: bool = False


def above_of(spans: Mapping[Key, Span], known: dict[Key, Above], key: Key) -> Above:
    """Return what is above a span; each span is looked at once, however deep the trace.

    Parameters
    ----------
    known : dict of Key to Above
        What was found before among the same spans; added to.
    """
    chain: list[Key] = []
    seen: set[Key] = set()
    at = key
    while at not in known:
        seen.add(at)
        parent = spans[at].parent
        if parent is None:
            known[at] = Above()
        elif parent not in spans or parent in seen:
            known[at] = Above(is_whole=False, is_rooted=False)
        else:
            chain.append(at)
            at = parent
    for lower in reversed(chain):
        upper = spans[lower].parent
        if upper is not None:
            known[lower] = below(known[upper], spans[upper])
    return known[key]


def below(above: Above, span: Span) -> Above:
    """Return what a span hands down."""
    moved = None not in (span.conversation, above.conversation) and (
        span.conversation != above.conversation
    )
    return Above(
        span.conversation or above.conversation,
        above.conversation if moved else above.parent_run_id,
        span.agent or above.agent,
        span.task_id or above.task_id,
        span if span.tool is not None else above.tool,
        above.depth + 1,
        # Where the agent's own span is there, what called it is no part of the run.
        above.is_whole or span.is_agent,
        above.is_rooted,
        above.has_agent or span.is_agent,
    )


def is_recorded_twice(span: Span, above: Above) -> bool:
    """Tell whether a span is a call that the span above it records as well.

    Two instrumentations have then recorded one call.
    """
    if span.tool is None or above.tool is None:
        return False
    mine, other = span.tool, above.tool.tool or {}
    return mine.get("call_id") is not None and (
        (mine["call_id"], mine["tool"]) == (other.get("call_id"), other.get("tool"))
    )


def step_fields(span: Span, agent: dict[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a step that a span of a call gives."""
    start = time_of_nanoseconds(span.start)
    return {
        "time": start,
        "started_at": start,
        "ended_at": time_of_nanoseconds(span.end),
        "agent": agent,
        "error": span.error,
        **(span.tool or {}),
    }


def ending_fields(error: dict[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a run's end that its outermost agent's span gives."""
    if error is None:
        return {"outcome": "unknown", "reason": None}
    return {"outcome": "failure", "reason": error.get("message") or error.get("type")}
