"""Admission: a step's place in its run, by stated rules (numbers, gaps, duplicates, limits)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ontrack.operators.canonical import canonical_json
from ontrack.operators.seen import SeenSteps
from ontrack.topics.errors import ConflictingDuplicate, EventAfterEnd, RunTooLong
from ontrack.topics.events import Event, Proposal, Step

#: How many steps back a span that is delivered again is known as the same.
AGAIN_STEPS_MAX = 256


@dataclass(frozen=True, slots=True)
class Admission:
    """A step's place in its run, or that it is a duplicate to be dropped."""

    seq: int
    digest: bytes
    flags: tuple[str, ...]
    duplicate: bool = False


def admit(run_id: str, seen: SeenSteps, highest: int, steps_max: int, event: Step) -> Admission:
    """Give a step its place in the run.

    Arrival order where ``seq`` is missing. A gap and a late step are accepted and flagged; the
    same step again is a duplicate, and so is a span that is delivered again. Whether a gap is
    waited for was decided before.

    Parameters
    ----------
    seen
        Digest of each admitted step by sequence number.
    highest
        Highest sequence number admitted, -1 before the first.

    Raises
    ------
    ConflictingDuplicate
        The sequence number was used by a step with other content.
    RunTooLong
        The run has ``steps_max`` steps already.
    """
    seq = highest + 1 if event.seq is None else event.seq
    digest = content_digest(event)
    is_again = event.seq is None and _is_span_again(event, digest, seen, highest)
    if is_again or is_duplicate(event, digest, seen.get(seq)):
        return Admission(seq, digest, (), duplicate=True)
    if len(seen) >= steps_max:
        raise RunTooLong(
            f"run {run_id!r} has {steps_max} steps, the most a run may have; "
            "it was halted there; start a new run id for another piece of work"
        )
    flags: tuple[str, ...] = ()
    if seq > highest + 1:
        flags = ("gap",)
    elif seq < highest:
        flags = ("late",)
    return Admission(seq, digest, flags)


def content_digest(event: Step) -> bytes:
    """Return eight bytes for what a step says, whatever the key order and the times.

    Only of a span without a number does the beginning count.
    """
    error = None if event.error is None else [event.error.type, event.error.message]
    content = [event.action, event.tool, event.args, event.result, error, event.call_id]
    content += [event.parents, event.consumed, event.produced]
    if event.seq is None and event.trace is not None:
        # In place of a number: two equal calls are two spans, one span sent twice is one call. With
        # its beginning: a host may give every call the span of the agent around it.
        began = None if event.started_at is None else event.started_at.timestamp()
        content += [event.trace.trace_id, event.trace.span_id, began]
    return hashlib.blake2b(canonical_json(content), digest_size=8).digest()


def _is_span_again(event: Step, digest: bytes, seen: SeenSteps, highest: int) -> bool:
    """Tell whether a step without a number is a span that has been seen lately.

    One that does not say when it began is none: dropping equal calls that only share the span
    around them would hide a loop.
    """
    if event.trace is None or event.trace.span_id is None or event.started_at is None:
        return False
    return any(
        seen.get(seq) == digest for seq in range(highest, max(-1, highest - AGAIN_STEPS_MAX), -1)
    )


def is_duplicate(event: Step, digest: bytes, known: bytes | None) -> bool:
    """Tell whether a step is the one already known under its number.

    Raises
    ------
    ConflictingDuplicate
        Its number was used by a step with other content.
    """
    if known is None or known == digest:
        return known is not None
    raise ConflictingDuplicate(
        f"run {event.run_id!r} already has a step {event.seq} with other content; "
        "number the steps of a run from 0, each number once, or leave seq out"
    )


def refuse_after_end(event: Event | Proposal) -> EventAfterEnd:
    """Return the error for an event of a run that has ended."""
    return EventAfterEnd(
        f"run {event.run_id!r} has ended; a {event.type} after run_ended cannot be judged; "
        "start a new run id, or send run_ended last"
    )
