"""OTLP over HTTP: the body of ``POST /v1/traces`` to a document, and the answer that is due.

Source: OpenTelemetry protocol, OTLP/HTTP: a request in protobuf or JSON is answered in the same
encoding; success with an ``ExportTraceServiceResponse``, failure with a ``google.rpc.Status``.
Spans that cannot be used are rejected by number, with the first reason; the others are taken.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from ontrack.pipeline.reading.inflate import ENCODINGS, inflated, is_compressed
from ontrack.pipeline.reading.otlp_protobuf import (
    read_document,
    response_json,
    response_protobuf,
    status_protobuf,
)
from ontrack.topics.adapters.otlp_spans import span_count
from ontrack.topics.errors import InvalidEvent, MessageTooLarge
from ontrack.topics.jsontext import parse, shown

Encoding = Literal["protobuf", "json"]

#: Of a request, inflated.
REQUEST_BYTES_MAX: Final = 16 * 1_048_576

_KINDS: Final[dict[str, Encoding]] = {
    "application/x-protobuf": "protobuf",
    "application/protobuf": "protobuf",
    "application/json": "json",
}
_CONTENT_TYPES: Final[dict[Encoding, str]] = {
    "protobuf": "application/x-protobuf",
    "json": "application/json",
}
# Codes of google.rpc.Status.
_INVALID_ARGUMENT, _RESOURCE_EXHAUSTED, _UNAVAILABLE = 3, 8, 14


class UnsupportedMedia(InvalidEvent):
    """The body is of a type, or compressed in a way, that is not read."""


class Answer(NamedTuple):
    """What to answer over HTTP."""

    status: int
    body: bytes
    content_type: str


@dataclass(slots=True)
class TraceRequest:
    """A request that could be read.

    Parameters
    ----------
    document : object
        OTLP in JSON, as parsed: for :meth:`LiveSpans.add`, with :meth:`reject` as ``on_bad``.
    encoding : {"protobuf", "json"}
        What it came in, and is answered in.
    rejected : int
        Spans that could not be used.
    reason : str or None
        What was wrong with the first of them.
    """

    document: object
    encoding: Encoding
    rejected: int = 0
    reason: str | None = None

    def reject(self, error: InvalidEvent) -> None:
        """Count a span that cannot be used."""
        self.rejected += 1
        self.reason = self.reason or str(error)


def read_request(
    raw: bytes,
    content_type: str | None,
    content_encoding: str | None,
    bytes_max: int = REQUEST_BYTES_MAX,
) -> TraceRequest:
    """Read a request's body.

    Parameters
    ----------
    content_type, content_encoding : str or None
        The headers, parameters included. A body that the server has inflated already is taken as
        it is, whatever the second one says: nothing that is compressed can be read otherwise.
    bytes_max : int
        Bytes the body may have, inflated.

    Raises
    ------
    UnsupportedMedia
        Neither protobuf nor JSON, or compressed in a way that is not known.
    MessageTooLarge
        More bytes.
    MalformedMessage, TooDeep, WrongShape
        The body is damaged, or something else.
    """
    encoding = _encoding_of(content_type)
    if encoding is None:
        raise UnsupportedMedia(
            f"Content-Type {shown(content_type)}: expected {' or '.join(_CONTENT_TYPES.values())}"
        )
    raw = uncompressed(raw, content_encoding, bytes_max)
    if len(raw) > bytes_max:
        raise MessageTooLarge(f"{len(raw)} bytes, the limit is {bytes_max}; send less at once")
    if encoding == "protobuf":
        return TraceRequest(read_document(raw, bytes_max), encoding)
    return TraceRequest(parse(raw).value, encoding)


def uncompressed(raw: bytes, content_encoding: str | None, bytes_max: int) -> bytes:
    """Inflate a body as its header says; one that is not compressed is taken as it is.

    Raises
    ------
    UnsupportedMedia
        Compressed in a way that is not known.
    MessageTooLarge, WrongShape
        As :func:`~ontrack.pipeline.reading.inflate.inflated`.
    """
    for name in _compressions(content_encoding):
        if is_compressed(raw, name):
            raw = inflated(raw, name, bytes_max)
    return raw


def answer(request: TraceRequest) -> Answer:
    """Answer a request whose spans were taken, but for those that were rejected.

    Where every span was rejected, the request is: to send it again would not help.
    """
    if request.rejected and request.rejected >= span_count(request.document):
        return _refusal(400, _INVALID_ARGUMENT, request.reason or "", request.encoding)
    make = response_json if request.encoding == "json" else response_protobuf
    body = make(request.rejected, request.reason)
    return Answer(200, body, _CONTENT_TYPES[request.encoding])


def refuse(error: InvalidEvent, content_type: str | None) -> Answer:
    """Answer a request of which nothing was taken: 415, 413 or 400, none of them to be retried."""
    status, code = 400, _INVALID_ARGUMENT
    if isinstance(error, UnsupportedMedia):
        status = 415
    elif isinstance(error, MessageTooLarge):
        status, code = 413, _RESOURCE_EXHAUSTED
    return _refusal(status, code, str(error), _encoding_of(content_type) or "json")


def unavailable(reason: str, content_type: str | None) -> Answer:
    """Answer that the spans cannot be taken now, and should be sent again."""
    return _refusal(503, _UNAVAILABLE, reason, _encoding_of(content_type) or "json")


def _refusal(status: int, code: int, reason: str, encoding: Encoding) -> Answer:
    if encoding == "json":
        body = json.dumps({"code": code, "message": reason}).encode()
    else:
        body = status_protobuf(code, reason)
    return Answer(status, body, _CONTENT_TYPES[encoding])


def _encoding_of(content_type: str | None) -> Encoding | None:
    name = (content_type or "").partition(";")[0].strip().lower()
    return _KINDS.get(name)


def _compressions(content_encoding: str | None) -> list[str]:
    """Return how a body is compressed, what was done last first.

    Raises
    ------
    UnsupportedMedia
        In a way that is not known.
    """
    named = [name.strip().lower() for name in (content_encoding or "").split(",")]
    found = [name for name in named if name not in ("", "identity")]
    for name in found:
        if name not in ENCODINGS or len(found) > 1:
            raise UnsupportedMedia(
                f"Content-Encoding {shown(content_encoding)}: expected one of "
                f"{', '.join(ENCODINGS)}, or none"
            )
    return found
