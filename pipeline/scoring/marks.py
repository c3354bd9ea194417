"""The mark of an injected fault: a field of the event's line that only scoring reads.

::

    {"type": "step", ..., "injected_fault": {"kind": "timeout", "seen_by_agent": true}}

It travels with its call through files and topics and cannot get out of step with it. Events ignore
fields they do not know, so a monitor cannot use it: it reads the same event with and without.
"""

from __future__ import annotations

from typing import Annotated, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from ontrack.operators.recovery import Fault, MadeCall
from ontrack.pipeline.reading.event_reader import SourceEvent
from ontrack.pipeline.reading.runs import in_order
from ontrack.topics.codecs import encode
from ontrack.topics.errors import InvalidFile
from ontrack.topics.events import Step
from ontrack.topics.jsontext import parse

FIELD: Final = "injected_fault"
_FIELD_BYTES = f'"{FIELD}"'.encode()


class _Mark(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: Annotated[str, Field(min_length=1, max_length=64)]
    seen_by_agent: Annotated[bool, Strict()]


def marked(step: Step, fault: Fault) -> bytes:
    """Return a step's line with the mark of the fault that was put into it."""
    mark = orjson.dumps({FIELD: {"kind": fault.kind, "seen_by_agent": fault.seen_by_agent}})
    return encode(step)[:-1] + b"," + mark[1:]


def fault_of(found: SourceEvent) -> Fault | None:
    """Return the fault that a line is marked with.

    Raises
    ------
    InvalidFile
        There is a mark, and not of this form.
    """
    if _FIELD_BYTES not in found.raw:
        return None
    record, _ = parse(found.raw)
    given = record.get(FIELD) if isinstance(record, dict) else None
    if given is None:  # the word stands in an argument or a result
        return None
    try:
        mark = _Mark.model_validate(given)
    except ValidationError:
        raise InvalidFile(
            found.path,
            found.line,
            f"{FIELD} has another form than expected; write "
            f'{{"{FIELD}": {{"kind": "timeout", "seen_by_agent": true}}}}',
        ) from None
    return Fault(mark.kind, mark.seen_by_agent)


class MarkedCalls:
    """The calls of one run with their marks."""

    def __init__(self) -> None:
        self._calls: list[tuple[Step, Fault | None]] = []

    def take(self, found: SourceEvent) -> None:
        """Keep a step."""
        if isinstance(found.event, Step):
            self._calls.append((found.event, fault_of(found)))

    def in_order(self) -> list[MadeCall]:
        """Return the calls by number, each once; unnumbered runs as they came."""
        calls = in_order(self._calls, lambda call: call[0].seq)
        numbered = all(step.seq is not None for step, _ in calls)
        return [
            MadeCall((step.seq or 0) if numbered else place, step, fault)
            for place, (step, fault) in enumerate(calls)
        ]
