"""OTLP documents in JSON as the messages that exporters and collectors send."""

from __future__ import annotations

import base64
import copy
import struct
from typing import Any

from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_IDS = ("traceId", "spanId", "parentSpanId")


def as_protobuf(document: dict[str, Any]) -> bytes:
    """Encode by protobuf's own reader of JSON, which wants ids in base64."""
    request = ParseDict(_with_base64(copy.deepcopy(document)), ExportTraceServiceRequest())
    return bytes(request.SerializeToString())


def _with_base64(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_base64(item) for item in value]
    if isinstance(value, dict):
        return {
            name: base64.b64encode(bytes.fromhex(item)).decode()
            if name in _IDS
            else _with_base64(item)
            for name, item in value.items()
        }
    return value


def delimited(*messages: bytes) -> bytes:
    """As a collector's file exporter writes them."""
    return b"".join(struct.pack(">I", len(message)) + message for message in messages)
