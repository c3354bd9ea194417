"""The daemon's pages: hooks, events, gate, traces, runs, liveness, readiness, metrics."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final

import structlog
from aiohttp import web

from ontrack.pipeline.board import STATES
from ontrack.pipeline.folding.quarantine import fault
from ontrack.pipeline.gating.answers import NoAnswer
from ontrack.pipeline.gating.wire import (
    GATE_PATH,
    REDEEM_PATH,
    Reply,
    deadline_in,
    json_reply,
    read_redemption,
    refusal,
)
from ontrack.pipeline.serving.connections import ASKED, note_request
from ontrack.pipeline.serving.daemon import Daemon
from ontrack.pipeline.serving.desk import Wish
from ontrack.pipeline.serving.hooks import HOSTS
from ontrack.pipeline.serving.hooks.model import HookCall, Host
from ontrack.pipeline.serving.intake import BadBody, items_in
from ontrack.pipeline.serving.traces import uncompressed
from ontrack.pipeline.serving.watch_pages import WatchPages
from ontrack.pipeline.web import guard, read_body, response
from ontrack.topics import codecs
from ontrack.topics.errors import BrokerUnavailable, InvalidEvent, WrongShape
from ontrack.topics.jsontext import parse

_log = structlog.get_logger(__name__)

BODY_BYTES_MAX: Final = 16 * 1_048_576  # many events at once; each has a limit of its own
RUNS_SHOWN_MAX: Final = 500

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(daemon: Daemon) -> web.Application:
    """Build the daemon's application; the daemon starts and stops with it."""
    app = web.Application(
        client_max_size=max(BODY_BYTES_MAX, daemon.settings.message_bytes_max),
        middlewares=[note_request, guard(daemon.settings.web_token), _plainly],
    )
    app[ASKED] = set()
    pages, watch = _Pages(daemon), WatchPages(daemon)
    app.add_routes(
        [
            web.get("/healthz", pages.healthz),
            web.get("/readyz", pages.readyz),
            web.get("/metrics", pages.metrics),
            web.post("/v1/events", pages.events),
            web.post(GATE_PATH, pages.gate),
            web.post(REDEEM_PATH, pages.redeem),
            web.post("/v1/traces", pages.traces),
            web.post("/v1/hooks/{host}", pages.hook),
            web.get("/v1/runs", pages.runs),
            web.get("/v1/runs/{run_id}", pages.run),
            web.post("/v1/runs/{run_id}/resume", pages.resume),
            web.get("/v1/runs/{run_id}/events", watch.events),
            web.get("/v1/runs/{run_id}/picture", watch.picture),
            web.get("/v1/stream", watch.stream),
            web.get("/v1/knowledge", watch.knowledge),
        ]
    )
    app.on_shutdown.append(watch.close)
    app.cleanup_ctx.append(daemon.running)
    return app


@web.middleware
async def _plainly(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer faults of all pages alike: what is wrong with a request, or that we are."""
    try:
        return await handler(request)
    except InvalidEvent as error:
        return response(refusal(error))
    except (BrokerUnavailable, NoAnswer) as error:
        return response(json_reply(503, {"error": type(error).__name__, "text": str(error)}))
    except web.HTTPException as error:
        text = f"{request.method} {request.path}: {error.reason}"
        reply = json_reply(error.status, {"error": type(error).__name__, "text": text})
        answer = response(reply)
        if "Allow" in error.headers:
            answer.headers["Allow"] = error.headers["Allow"]
        return answer
    except Exception as error:  # noqa: BLE001
        # One request must not end the daemon, nor tell its sender what others have sent.
        _log.error("request_failed", path=request.path, **fault(error))
        text = "a fault of the monitor; its log says where (request_failed)"
        return response(json_reply(500, {"error": "Fault", "text": text}))


class _Pages:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def healthz(self, _request: web.Request) -> web.Response:
        return response(json_reply(200, {"ok": True}))

    async def readyz(self, _request: web.Request) -> web.Response:
        ready = self._daemon.engine.ready
        return response(json_reply(200 if ready else 503, {"ok": ready}))

    async def metrics(self, _request: web.Request) -> web.Response:
        kind = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._daemon.metrics.text(), headers=kind)

    async def events(self, request: web.Request) -> web.Response:
        """Take events: one JSON object, an array of them, or one a line."""
        raw = await _body(request)
        if isinstance(raw, Reply):
            return response(raw)
        try:
            items = items_in(raw)
        except BadBody as error:
            # Another source than single events have: each is numbered, and letters go by number.
            self._daemon.refused(raw, "http:/v1/events (body)", error)
            return response(json_reply(400, {"error": "BadBody", "text": str(error)}))
        return response(await self._daemon.take_events(items))

    async def gate(self, request: web.Request) -> web.Response:
        raw = await _body(request)
        if isinstance(raw, Reply):
            return response(raw)
        try:
            proposal = codecs.decode_proposal(raw, self._daemon.settings.limits).event
            answer = await self._daemon.ask(proposal, deadline_in(raw))
        except InvalidEvent as error:
            self._daemon.refused(raw, f"http:{GATE_PATH}", error)
            raise
        return response(Reply(200, codecs.encode(answer)))

    async def redeem(self, request: web.Request) -> web.Response:
        raw = await _body(request)
        if isinstance(raw, Reply):
            return response(raw)
        why = await self._daemon.engine.redeem(read_redemption(raw))
        self._daemon.metrics.gate_redeemed.labels(why or "ok").inc()
        if why is None:
            return response(json_reply(200, {"ok": True}))
        return response(json_reply(409, {"ok": False, "why": why}))

    async def traces(self, request: web.Request) -> web.Response:
        """Take spans by OTLP/HTTP."""
        raw = await read_body(request, BODY_BYTES_MAX)
        if isinstance(raw, Reply):
            return response(raw)
        answer = await self._daemon.take_spans(
            raw, request.headers.get("Content-Type"), request.headers.get("Content-Encoding")
        )
        return web.Response(
            status=answer.status, body=answer.body, headers={"Content-Type": answer.content_type}
        )

    async def hook(self, request: web.Request) -> web.Response:
        """Answer a coding agent's hook."""
        name = request.match_info["host"]
        host = HOSTS.get(name)
        if host is None:
            text = f"no host {name[:80]!r}; known are {', '.join(sorted(HOSTS))}"
            return response(json_reply(404, {"error": "UnknownHost", "text": text}))
        wish = _wish(request)
        began = time.perf_counter()
        raw = await _body(request)
        if isinstance(raw, Reply):
            return response(raw)
        try:
            call = _read(host, raw)
            reply = await self._daemon.desk.reply(call, wish)
        except InvalidEvent as error:
            self._daemon.refused(raw, f"http:/v1/hooks/{name}", error)
            raise
        told = "halt" if reply.halt is not None else reply.decision
        self._daemon.metrics.hook_requests.labels(name, call.moment, told).inc()
        self._daemon.metrics.hook_seconds.labels(name).observe(time.perf_counter() - began)
        return response(json_reply(200, host.answer(call, reply)))

    async def runs(self, request: web.Request) -> web.Response:
        """List the runs that were heard of last; ``?state=open``, ``?limit=``.

        Raises
        ------
        WrongShape
            A parameter is misspelt, or has a value that means nothing.
        """
        unknown = sorted(request.query.keys() - {"state", "limit"})
        state = request.query.get("state")
        if unknown:
            raise WrongShape(f"no parameter {unknown[0][:40]!r}; there are state and limit")
        if state not in (None, *STATES):
            raise WrongShape(f"no state {str(state)[:40]!r}; a run is {', '.join(STATES)}")
        limit = _number(request.query.get("limit"), RUNS_SHOWN_MAX)
        summaries = (view.summary() for view in self._daemon.board)
        wanted = (each for each in summaries if state in (None, each["state"]))
        found = list(islice(wanted, limit))
        board = self._daemon.board
        return response(
            json_reply(200, {"runs": found, "open": board.open_runs, "known": len(board)})
        )

    async def run(self, request: web.Request) -> web.Response:
        run_id = request.match_info["run_id"]
        view = self._daemon.board.get(run_id)
        if view is None:
            return _no_run(run_id)
        return response(json_reply(200, view.details()))

    async def resume(self, request: web.Request) -> web.Response:
        """Let a halted session go on, at a person's wish."""
        run_id = request.match_info["run_id"]
        if not await self._daemon.desk.resume(run_id):
            return _no_run(run_id)
        return response(json_reply(200, {"ok": True}))


async def _body(request: web.Request) -> bytes | Reply:
    """Read a body, inflated. Raises :class:`InvalidEvent` where that cannot be done."""
    raw = await read_body(request, BODY_BYTES_MAX)
    if isinstance(raw, Reply):
        return raw
    return uncompressed(raw, request.headers.get("Content-Encoding"), BODY_BYTES_MAX)


def _read(host: Host, raw: bytes) -> HookCall:
    body = parse(raw).value
    if not isinstance(body, dict):
        raise WrongShape("a hook's body should be a JSON object")
    return host.read(body)


def _no_run(run_id: str) -> web.Response:
    text = f"no run {run_id[:80]!r} was heard of lately; see /v1/runs"
    return response(json_reply(404, {"error": "UnknownRun", "text": text}))


def _wish(request: web.Request) -> Wish:
    """Read what a hook's address asks for.

    Raises
    ------
    WrongShape
        An unknown parameter, or a value that it does not have: a misspelt ``shadow`` would deny.
    """
    known = {"shadow", "fail", "task_id", "tenant"}
    for name in request.query:
        if name not in known:
            raise WrongShape(
                f"parameter {name[:80]!r} of the address: known are {', '.join(sorted(known))}"
            )
    shadow = request.query.get("shadow", "0")
    fail = request.query.get("fail", "open")
    if shadow not in ("0", "1"):
        raise WrongShape("parameter 'shadow' of the address should be 0 or 1")
    if fail not in ("open", "closed"):
        raise WrongShape("parameter 'fail' of the address should be open or closed")
    return Wish(
        shadow == "1",
        fail == "closed",
        request.query.get("task_id") or None,
        request.query.get("tenant") or None,
    )


def _number(text: str | None, most: int) -> int:
    if text is None:
        return most
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise WrongShape("parameter 'limit' of the address should be a number from 0")
    return min(int(text), most)
