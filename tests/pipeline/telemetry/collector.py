"""A real OTLP/HTTP receiver for the tests: it decodes what it gets, or behaves badly on purpose."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Manner = Literal["takes", "refuses", "rubbish", "silent"]
WAIT_S = 30.0
KINDS = {
    "/v1/logs": ExportLogsServiceRequest,
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
}


@dataclass
class Collector:
    """What has arrived; ``silent`` answers nobody before ``release`` is set."""

    manner: Manner = "takes"
    bodies: list[tuple[str, bytes]] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    endpoint: str = ""

    def requests(self, path: str) -> list[Any]:
        return [KINDS[path].FromString(body) for where, body in list(self.bodies) if where == path]

    def log_records(self) -> list[Any]:
        return [
            record
            for request in self.requests("/v1/logs")
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests("/v1/traces")
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def last_metrics(self) -> dict[str, Any]:
        request = self.requests("/v1/metrics")[-1]
        return {
            metric.name: metric
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def resource(self) -> dict[str, Any]:
        path = self.bodies[0][0]
        request = self.requests(path)[0]
        owner = getattr(request, {"/v1/logs": "resource_logs"}.get(path, "resource_metrics"))[0]
        return attributes(owner.resource.attributes)

    def wait_for(self, count: int) -> None:
        """Wait until so many log records have arrived."""
        ends = time.monotonic() + WAIT_S
        while len(self.log_records()) < count:
            assert time.monotonic() < ends, f"{len(self.log_records())} of {count} records arrived"
            time.sleep(0.05)


def attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def collector(manner: Manner = "takes") -> Iterator[Collector]:
    """Start a receiver on a free port."""
    state = Collector(manner)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if state.manner == "silent":
                state.release.wait(WAIT_S)
                return
            if state.manner == "rubbish":
                self.wfile.write(b"\x00\xffnot HTTP at all\r\n\r\n")
                return
            if state.manner == "takes":
                state.bodies.append((self.path, body))
            self.send_response(200 if state.manner == "takes" else 400)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep the tests' output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.release.set()
        server.shutdown()
        server.server_close()
