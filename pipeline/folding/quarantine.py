"""Quarantine: what becomes of a record that cannot be used, and what may be said of a fault."""

from __future__ import annotations

import base64
import json
import traceback

from ontrack.pipeline.folding.record import Record
from ontrack.topics.errors import AlertUndelivered, InvalidEvent
from ontrack.topics.verdicts import DeadLetter, DeadLetterError

DEAD_LETTER_BYTES_MAX = 4 * 1_048_576  # base64 and the rest must fit on the topic
KEY_BYTES_MAX = 65_536
HEADER_BYTES_MAX = 1_048_576  # of all headers, as JSON
CUT_HEADER = "ontrack_cut"  # stands for what of key and headers was not kept


def dead_letter(record: Record, error: Exception) -> DeadLetter:
    """Quarantine a record with its original bytes, as far as they fit on the topic."""
    key, headers = _fitting(record)
    return DeadLetter(
        id=f"{record.topic}:{record.partition}:{record.offset}",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key_base64=_base64(key),
        value_base64=_base64(record.value[:DEAD_LETTER_BYTES_MAX]),
        value_bytes=len(record.value),
        headers=headers,
        error=DeadLetterError(name=type(error).__name__, text=_text(error)),
    )


def _fitting(record: Record) -> tuple[bytes | None, tuple[tuple[str, str | None], ...]]:
    """Return key and headers, cut where they are larger than any that we or a host would send.

    A compressed batch may hold far more than the topic's limit says, and as JSON a header takes up
    to twelve times its bytes: a letter that the broker refuses would stop the partition for good.
    """
    key, room = record.key, HEADER_BYTES_MAX
    kept: list[tuple[str, str | None]] = []
    cut = []
    if key is not None and len(key) > KEY_BYTES_MAX:
        key, cut = key[:KEY_BYTES_MAX], [b"key"]
    for name, value in record.headers:
        # Twelve characters and more of JSON around each; a name of control characters grows most.
        room -= _json_bytes(name)
        room -= 4 * (len(value or b"") + 2) // 3
        if room < 0:
            cut.append(b"headers")
            break
        kept.append((name, _base64(value)))
    if cut:
        kept.append((CUT_HEADER, _base64(b",".join(cut))))
    return key, tuple(kept)


def _json_bytes(name: str) -> int:
    return 12 + len(json.dumps(name, ensure_ascii=False).encode("utf-8", "replace"))


def fault(error: Exception) -> dict[str, str]:
    """Return what may be logged of a fault of ours: its text could quote arguments."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    return {"error": type(error).__name__, "frames": frames}


def _text(error: Exception) -> str:
    if isinstance(error, InvalidEvent | AlertUndelivered):
        return str(error)  # made for people, of places and sizes
    return (
        "a fault of the monitor, not of the message; its log says where (fold_failed, gate_failed)"
    )


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
