"""OTLP in protobuf: requests of spans as the documents that the adapter reads, and the answers.

The document is what the sender's JSON encoding would say: ids in hexadecimal, 64-bit integers as
decimal text, bytes in base64, ``NaN`` and the infinities as text. Fields that newer senders know
and we do not are passed over. The answers to an export go the other way.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, Final

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from ontrack.pipeline.reading.inflate import MESSAGE_BYTES_MAX
from ontrack.topics.errors import MessageTooLarge, WrongShape

#: Spans, attributes and values of one message. On the wire each may take two bytes, in memory a
#: hundred times as much.
NODES_MAX: Final = 500_000
#: Larger messages are looked through before protobuf's parser makes objects of them.
SCANNED_BYTES: Final = 1_048_576

# Numbers of the fields that hold messages, level by level: resource_spans; scope_spans; spans;
# attributes, events, links.
_LEVELS: Final = (frozenset({1}), frozenset({2}), frozenset({2}), frozenset({9, 11, 13}))
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def read_document(raw: bytes, bytes_max: int = MESSAGE_BYTES_MAX) -> dict[str, Any]:
    """Read an ``ExportTraceServiceRequest``, or a ``TracesData``: they are alike on the wire.

    Parameters
    ----------
    bytes_max : int
        Bytes it may have.

    Raises
    ------
    MessageTooLarge
        More bytes, or more than ``NODES_MAX`` values.
    WrongShape
        It is damaged, cut, nested too deep, or holds something else.
    """
    if len(raw) > bytes_max:
        raise MessageTooLarge(f"{len(raw)} bytes of OTLP, the limit is {bytes_max}; send less")
    if len(raw) > SCANNED_BYTES:
        _check_count(raw)
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(raw)
    except DecodeError:
        raise WrongShape(
            f"{len(raw)} bytes are no OTLP request in protobuf: damaged, cut short, or nested "
            "deeper than 100 levels"
        ) from None
    if raw and not request.resource_spans:
        raise WrongShape(f"{len(raw)} bytes of protobuf hold no `resource_spans`")
    return {"resourceSpans": _Reader().resources(request.resource_spans)}


def _check_count(raw: bytes) -> None:
    """Refuse a message of too many small ones; what is damaged is left to the parser.

    Raises
    ------
    MessageTooLarge
        More than ``NODES_MAX``.
    """
    left = NODES_MAX
    ranges = [(0, len(raw))]
    for fields in _LEVELS:
        inner = []
        for start, stop in ranges:
            for place in _messages_in(raw, start, stop, fields):
                inner.append(place)
                left -= 1
                if left < 0:
                    raise _too_many()
        ranges = inner


def _messages_in(
    raw: bytes, at: int, stop: int, fields: frozenset[int]
) -> Iterator[tuple[int, int]]:
    """Yield where the messages of some fields stand, as far as it can be read."""
    while at < stop:
        tag, at = _read_varint(raw, at)
        kind, size = tag & 7, 0
        if kind == _LENGTH:
            size, at = _read_varint(raw, at)
            if tag >> 3 in fields:
                yield at, min(at + size, stop)
        elif kind == _VARINT:
            _, at = _read_varint(raw, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            return
        at += size


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for byte in raw[at : at + 10]:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if byte < 0x80:
            return value, at
    return value, len(raw)  # cut short: there is nothing behind it


def _too_many() -> MessageTooLarge:
    return MessageTooLarge(f"more than {NODES_MAX} values in one message; send less at once")


class _Reader:
    """Turns messages into plain data, up to a number of them."""

    def __init__(self) -> None:
        self._left = NODES_MAX

    def resources(self, found: Iterable[ResourceSpans]) -> list[dict[str, Any]]:
        return [
            {
                "resource": {"attributes": self._pairs(each.resource.attributes)},
                "scopeSpans": [
                    {
                        "scope": {"name": scope.scope.name, "version": scope.scope.version},
                        "spans": [self._span(span) for span in scope.spans],
                    }
                    for scope in self._counted(each.scope_spans)
                ],
            }
            for each in self._counted(found)
        ]

    def _counted(self, items: Any) -> Any:
        """Return a list of messages, after checking that there may be as many."""
        self._left -= len(items)
        if self._left < 0:
            raise _too_many()
        return items

    def _span(self, span: Span) -> dict[str, Any]:
        self._left -= 1
        return {
            "traceId": _id(span.trace_id, 16),
            "spanId": _id(span.span_id, 8),
            "parentSpanId": _id(span.parent_span_id, 8),
            "name": span.name,
            "kind": span.kind,
            "startTimeUnixNano": str(span.start_time_unix_nano),
            "endTimeUnixNano": str(span.end_time_unix_nano),
            "attributes": self._pairs(span.attributes),
            "events": [
                {
                    "timeUnixNano": str(event.time_unix_nano),
                    "name": event.name,
                    "attributes": self._pairs(event.attributes),
                }
                for event in self._counted(span.events)
            ],
            "links": [
                {"traceId": _id(link.trace_id, 16), "spanId": _id(link.span_id, 8)}
                for link in self._counted(span.links)
            ],
            "status": {"code": span.status.code, "message": span.status.message},
        }

    def _pairs(self, pairs: Iterable[KeyValue]) -> list[dict[str, Any]]:
        return [{"key": p.key, "value": self._value(p.value)} for p in self._counted(pairs)]

    def _value(self, value: AnyValue) -> dict[str, Any] | None:
        match value.WhichOneof("value"):
            case "string_value":
                return {"stringValue": value.string_value}
            case "bool_value":
                return {"boolValue": value.bool_value}
            case "int_value":
                return {"intValue": str(value.int_value)}
            case "double_value":
                return {"doubleValue": _number(value.double_value)}
            case "bytes_value":
                return {"bytesValue": base64.b64encode(value.bytes_value).decode()}
            case "array_value":
                values = self._counted(value.array_value.values)
                return {"arrayValue": {"values": [self._value(item) for item in values]}}
            case "kvlist_value":
                return {"kvlistValue": {"values": self._pairs(value.kvlist_value.values)}}
        return None


def _id(value: bytes, size: int) -> str:
    """Return an id in hexadecimal; one of the wrong size, as in other signals, is none."""
    return value.hex() if len(value) == size else ""


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def response_protobuf(rejected: int = 0, reason: str | None = None) -> bytes:
    """Return an ``ExportTraceServiceResponse``; empty where nothing was rejected or to be said."""
    answer = ExportTraceServiceResponse()
    if rejected or reason:
        answer.partial_success.rejected_spans = rejected
        answer.partial_success.error_message = reason or ""
    return bytes(answer.SerializeToString())


def response_json(rejected: int = 0, reason: str | None = None) -> bytes:
    """Return the same in JSON, where 64-bit integers are text."""
    if not rejected and not reason:
        return b"{}"
    told = {"rejectedSpans": str(rejected), "errorMessage": reason or ""}
    return json.dumps({"partialSuccess": told}).encode()


def status_protobuf(code: int, message: str) -> bytes:
    """Return a ``google.rpc.Status``, written by hand: two fields need no further package."""
    text = message.encode("utf-8", "replace")
    return bytes([0x08]) + _varint(code) + bytes([0x12]) + _varint(len(text)) + text


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
