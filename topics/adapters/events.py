"""OnTrack's own event lines: one event a line, the value of the events topic."""

from __future__ import annotations

from pydantic_core import to_json

from ontrack.topics.events import EVENT_TYPES

NAME = "events"


def recognise(head: object) -> bool:
    """Tell whether a parsed line is meant to be an event, valid or not."""
    if not isinstance(head, dict):
        return False
    return head.get("type") in EVENT_TYPES or (
        "run_id" in head and ("type" in head or "tool" in head)
    )


def as_line(item: object) -> bytes:
    """Write one item of a JSON array of events as the line it would have been."""
    return to_json(item, inf_nan_mode="constants")
