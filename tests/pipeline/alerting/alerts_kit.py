"""What the alerting tests share: alerts, settings, and a receiver over HTTP that misbehaves."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ontrack.pipeline.alerting.alert import Alert, alert_of
from ontrack.pipeline.alerting.settings import AlertSettings
from ontrack.pipeline.folding.record import Record
from ontrack.topics import codecs
from ontrack.topics.events import Agent
from ontrack.topics.verdicts import (
    Authority,
    Decision,
    Intervention,
    InterventionName,
    Reason,
    VerdictName,
)

NIGHT_S = 1_764_550_800.0  # 2025-12-01 01:00 UTC, a Monday
NOON_S = NIGHT_S + 11 * 3600
SECRET = "whsec_" + "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


def intervention(run: str = "run-1", seq: int = 0, **changes: Any) -> Intervention:
    given: dict[str, Any] = {
        "id": f"{run}:{seq}:replan",
        "run_id": run,
        "seq": seq,
        "task_id": "task-1",
        "agent": Agent(id="coder"),
        "tenant": "acme",
        "intervention": InterventionName.REPLAN,
        "verdict": VerdictName.LOOP,
        "severity": 3,
        "reason": "the same call was made three times without news",
        "evidence": (1, 2),
        "authority": Authority.INTERVENE,
        "profile": "default",
        "settings": "0" * 12,
        "engine": "1",
    }
    return Intervention(**(given | changes))


def halt(run: str = "run-1", seq: int = 0, **changes: Any) -> Intervention:
    given = {"id": f"{run}:{seq}:halt", "intervention": InterventionName.HALT, "severity": 3}
    return intervention(run, seq, **(given | changes))


def warn(run: str = "run-1", seq: int = 0, **changes: Any) -> Intervention:
    given = {"id": f"{run}:{seq}:warn", "intervention": InterventionName.WARN, "severity": 2}
    return intervention(run, seq, **(given | changes))


def decision(run: str = "run-1", seq: int = 0, answer: str = "block", **changes: Any) -> Decision:
    given: dict[str, Any] = {
        "id": f"{run}:{seq}:0123456789ab",
        "run_id": run,
        "seq": seq,
        "tool": "git_push",
        "effect": "destructive",
        "decision": answer,
        "reasons": (Reason(signal="gate", text="its tests never ran"),),
        "call_sha256": "0" * 64,
        "authority": Authority.INTERVENE,
        "profile": "default",
        "settings": "0" * 12,
        "engine": "1",
    }
    return Decision(**(given | changes))


def record_at(offset: int, output: Any = None, at_s: float = NOON_S, partition: int = 0) -> Record:
    value = b"{}" if output is None else codecs.encode(output)
    return Record(value, b"k", "ontrack.interventions", partition, offset, round(at_s * 1000))


def alert(
    output: Intervention | Decision | None = None, offset: int = 0, at_s: float = NOON_S
) -> Alert:
    told = intervention() if output is None else output
    found = alert_of(told, record_at(offset, told, at_s), at_s)
    assert found is not None
    return found


def settings_with(*routes: dict[str, Any], **more: Any) -> AlertSettings:
    """Settings with a webhook that is never called, and these routes."""
    hook = {"type": "webhook", "url": "http://127.0.0.1:9/"}
    sinks = {"ops": hook, "dev": hook}
    return AlertSettings.model_validate({"sinks": sinks, "routes": routes} | more)


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: bytes
    answered: int | None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


#: What a receiver does with a request: a status, or "close", or "hang"; with headers.
Behaviour = Callable[[Request], tuple[int | str, dict[str, str]]]


def fine(_request: Request) -> tuple[int | str, dict[str, str]]:
    return 204, {}


def fails_half_the_time(seed: int) -> Behaviour:
    """Seeded: about half of the requests fail, by status, closed connection or, once, silence.

    Silence costs the sender its whole timeout, and a timeout that a busy machine does not reach by
    itself is long: hence once.
    """
    rng, lock = random.Random(seed), threading.Lock()
    failures: list[tuple[int | str, dict[str, str]]] = [
        (500, {}),
        (503, {"retry-after": "0"}),
        (429, {}),
        ("close", {}),
        ("hang", {}),
    ]

    def behave(_request: Request) -> tuple[int | str, dict[str, str]]:
        with lock:
            if rng.random() < 0.5:
                return 200, {}
            failure = rng.choice(failures)
            if failure[0] == "hang":
                failures.remove(failure)
            return failure

    return behave


@dataclass
class Receiver:
    """A real HTTP server on a free port of this machine."""

    behave: Behaviour = fine
    requests: list[Request] = field(default_factory=list)
    port: int = 0

    def __enter__(self) -> Receiver:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.path, headers, body, None)
                answer, extra = receiver.behave(request)
                request.answered = answer if isinstance(answer, int) else None
                receiver.requests.append(request)
                if answer == "hang":
                    self.rfile.read(1)  # until the sender has had enough
                if not isinstance(answer, int):
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response(answer)
                for name, value in extra.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """A client that went away is what the tests are about."""

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def taken(self) -> list[Request]:
        """Requests that were answered with success."""
        return [r for r in self.requests if r.answered is not None and r.answered < 300]
