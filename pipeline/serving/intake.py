"""What a body of events holds: one JSON object, an array of them, or one a line."""

from __future__ import annotations

import json

from ontrack.topics.errors import InvalidEvent

ITEMS_MAX = 20_000


class BadBody(InvalidEvent):
    """A body of which not even single events can be made out."""


def items_in(raw: bytes) -> list[bytes]:
    """Return the bytes of each event.

    Raises
    ------
    BadBody
        It is empty, an array that is no JSON, or holds too many events.
    """
    text = raw.strip()
    if not text:
        raise BadBody("the body is empty; send one event, an array of events, or one a line")
    if text[:1] == b"[":
        items = _of_array(text)
    else:
        lines = [line for line in text.splitlines() if line.strip()]
        # One object over several lines is no lines of objects.
        items = lines if _is_lines(lines) else [text]
    if len(items) > ITEMS_MAX:
        raise BadBody(f"{len(items)} events at once; send at most {ITEMS_MAX}")
    return items


def _of_array(text: bytes) -> list[bytes]:
    try:
        # Not the codec's parser: what it mends in an event, it must see there itself.
        found = json.loads(text)
        return [json.dumps(item).encode() for item in found]
    except (ValueError, RecursionError) as error:
        raise BadBody(f"an array of events that is no JSON ({type(error).__name__})") from None


def _is_lines(lines: list[bytes]) -> bool:
    return len(lines) > 1 and lines[0].rstrip().endswith(b"}") and lines[1].lstrip()[:1] == b"{"
