"""Files of OTLP in protobuf, as a collector's file exporter writes them, told from text.

The protobuf library is loaded by who reads such a file, and by nobody else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from ontrack.pipeline.reading.inflate import MESSAGE_BYTES_MAX, inflated
from ontrack.topics.errors import InvalidEvent, MessageTooLarge, WrongShape

_FIRST_FIELD = 0x0A  # resource_spans, and the resource in it: field 1, with a length before it
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_PREFIX_BYTES = 4


def is_stream(head: bytes) -> bool:
    """Tell from a file's first bytes whether it holds OTLP in protobuf.

    Either messages with their length before each, which a collector writes (compressed ones are
    each compressed for themselves, JSON as well), or one message. No text begins so: a length below
    16 MiB begins with a zero byte, and a message holds control characters.
    """
    size, start = int.from_bytes(head[:_PREFIX_BYTES]), head[_PREFIX_BYTES:]
    if 0 < size <= MESSAGE_BYTES_MAX and start.startswith((bytes([_FIRST_FIELD]), _ZSTANDARD)):
        return True
    is_text = all(byte >= 0x20 or byte in b"\t\n\r\f" for byte in head)
    return head[:1] == bytes([_FIRST_FIELD]) and not is_text


def is_damaged(record: bytes) -> bool:
    """Tell whether a record is what :func:`messages` could not read: no JSON begins so."""
    return record.startswith(_ZSTANDARD) or record[:1] not in b"\t" and record[:1] < b" "


def read_record(raw: bytes) -> dict[str, Any]:
    """Read a message of a file; errors as of ``otlp_protobuf.read_document``."""
    from ontrack.pipeline.reading.otlp_protobuf import read_document

    return read_document(_inflated(raw))


def messages(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the records of such a file as lines of JSON; a damaged one as the bytes it is.

    Raises
    ------
    WrongShape
        It is cut in the middle of a message; those before it were yielded.
    MessageTooLarge
        A message is larger than ``MESSAGE_BYTES_MAX``.
    """
    for number, raw in enumerate(_pieces(stream), 1):
        try:
            plain = _inflated(raw)
            yield plain if plain[:1] == b"{" else _line(raw)
        except MessageTooLarge as error:
            raise MessageTooLarge(f"message {number}: {error}") from None
        except InvalidEvent:
            yield raw


def _line(raw: bytes) -> bytes:
    return json.dumps(read_record(raw), ensure_ascii=False, separators=(",", ":")).encode()


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    prefix = stream.read(_PREFIX_BYTES)
    if prefix[:1] == bytes([_FIRST_FIELD]):
        yield _all_of(stream, prefix)
        return
    number = 1
    while prefix:
        size = int.from_bytes(prefix)
        if size > MESSAGE_BYTES_MAX:
            raise WrongShape(
                f"message {number} would have {size} bytes, the limit is {MESSAGE_BYTES_MAX}; "
                "the file is damaged"
            )
        raw = stream.read(size) if len(prefix) == _PREFIX_BYTES else b""
        if len(prefix) < _PREFIX_BYTES or len(raw) < size:
            raise WrongShape(f"the file is cut short in message {number}")
        yield raw
        prefix, number = stream.read(_PREFIX_BYTES), number + 1


def _all_of(stream: BinaryIO, begun: bytes) -> bytes:
    raw = begun + stream.read(MESSAGE_BYTES_MAX + 1)
    if len(raw) > MESSAGE_BYTES_MAX:
        raise MessageTooLarge(f"one message of more than {MESSAGE_BYTES_MAX} bytes")
    return raw


def _inflated(raw: bytes) -> bytes:
    if not raw.startswith(_ZSTANDARD):
        return raw
    return inflated(raw, "zstd")
