"""Quarantine: what becomes of a record that cannot be used, and what may be said of a fault."""

from __future__ import annotations

import base64
import traceback

from ontrack.pipeline.record import Record
from ontrack.topics.errors import InvalidEvent
from ontrack.topics.verdicts import DeadLetter, DeadLetterError

DEAD_LETTER_BYTES_MAX = 4 * 1_048_576  # base64 and the rest must fit on the topic


def dead_letter(record: Record, error: Exception) -> DeadLetter:
    """Quarantine a record with its original bytes."""
    return DeadLetter(
        id=f"{record.topic}:{record.partition}:{record.offset}",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key_base64=_base64(record.key),
        value_base64=_base64(record.value[:DEAD_LETTER_BYTES_MAX]),
        value_bytes=len(record.value),
        headers=tuple((name, _base64(value)) for name, value in record.headers),
        error=DeadLetterError(name=type(error).__name__, text=_text(error)),
    )


def fault(error: Exception) -> dict[str, str]:
    """Return what may be logged of a fault of ours: its text could quote arguments."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    return {"error": type(error).__name__, "frames": frames}


def _text(error: Exception) -> str:
    if isinstance(error, InvalidEvent):
        return str(error)  # made for people, of places and sizes
    return (
        "a fault of the monitor, not of the message; its log says where (fold_failed, gate_failed)"
    )


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
