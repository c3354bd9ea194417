"""The worker's web pages: liveness, readiness, metrics and the gate, on its own port."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any

import faust
import structlog
from aiohttp import web
from faust.web import View

from ontrack.pipeline.kafka.wire import (
    FORWARDED_HEADER,
    GATE_PATH,
    REDEEM_PATH,
    Reply,
    json_reply,
    refusal,
)
from ontrack.pipeline.kafka.worker import Worker
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import InvalidSettings, MessageTooLarge

_log = structlog.get_logger(__name__)

BODY_S_MAX = 10.0  # whoever sends slower than that holds a connection for nothing
OPEN_PATHS = frozenset({"/healthz", "/healthz/"})
_ANY_HOST = frozenset({"", "0.0.0.0", "::", "*"})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def is_loopback(host: str) -> bool:
    """Tell whether an address can be reached from this machine only; a name cannot promise it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(settings: Settings) -> None:
    """Refuse to show the pages to a network without a token.

    Raises
    ------
    InvalidSettings
        ``web_host`` is not the loopback interface, and there is no ``web_token``.
    """
    if is_loopback(settings.web_host):
        return
    if settings.web_token is None:
        raise InvalidSettings(
            f"web_host is {settings.web_host!r}, which others can reach, but there is no "
            "web_token; set ONTRACK_WEB_TOKEN, or bind to 127.0.0.1"
        )
    if settings.web_host in _ANY_HOST and settings.web_advertised_url is None:
        _log.warning(
            "no_advertised_url",
            detail="other workers cannot reach this one at its web_host; set web_advertised_url",
        )


def web_options(settings: Settings) -> dict[str, Any]:
    """Return what aiohttp's application is made with: the limit of a body, and the guard."""
    return {"client_max_size": settings.message_bytes_max, "middlewares": [guard(settings)]}


def guard(settings: Settings) -> Any:
    """Return the middleware that asks for the bearer token, on every page but ``/healthz``.

    Where no token is set nobody is asked: then only this machine reaches the pages.
    """
    secret = settings.web_token
    wanted = None if secret is None else secret.get_secret_value().encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if wanted is not None and request.path not in OPEN_PATHS:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            given = token.strip().encode("utf-8", "surrogateescape")
            if not (hmac.compare_digest(given, wanted) and scheme.lower() == "bearer"):
                return web.json_response(
                    {"error": "Unauthorized", "text": "send the header Authorization: Bearer …"},
                    status=401,
                    headers={"WWW-Authenticate": "Bearer"},
                )
        return await handler(request)

    return check


def add_pages(app: faust.App, settings: Settings, worker: Callable[[], Worker]) -> None:
    """Add all pages to the app's web server.

    Parameters
    ----------
    worker
        Returns the worker; makes it where there is none yet.
    """

    @app.page("/healthz")
    async def healthz(web: Any, _request: Any) -> Any:
        return web.json({"ok": True})

    @app.page("/readyz")
    async def readyz(web: Any, _request: Any) -> Any:
        current = worker()
        partitions = {number: owner.ready for number, owner in sorted(current.owners.items())}
        status = 200 if current.ready else 503
        return web.json({"ok": current.ready, "partitions": partitions}, status=status)

    @app.page("/metrics")
    async def metrics(web: Any, _request: Any) -> Any:
        kind = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.bytes(worker().metrics.text(), headers=kind)

    @app.page(GATE_PATH)
    class Gate(View):
        """Asks whether a call may run."""

        async def post(self, request: Any, **_more: Any) -> Any:
            raw = await _body(request, settings)
            if isinstance(raw, Reply):
                return _response(raw)
            forwarded = request.headers.get(FORWARDED_HEADER)
            return _response(await worker().gateway.ask(raw, forwarded))

    @app.page(REDEEM_PATH)
    class Redeem(View):
        """Uses a decision for its call."""

        async def post(self, request: Any, **_more: Any) -> Any:
            raw = await _body(request, settings)
            if isinstance(raw, Reply):
                return _response(raw)
            forwarded = FORWARDED_HEADER in request.headers
            return _response(await worker().gateway.redeem(raw, forwarded))


async def _body(request: web.Request, settings: Settings) -> bytes | Reply:
    """Read a body; one over the limit, or one that does not come, gives the answer to that."""
    try:
        async with asyncio.timeout(BODY_S_MAX):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        limit = settings.message_bytes_max
        return refusal(MessageTooLarge(f"the body is over the limit of {limit} bytes"))
    except TimeoutError:
        text = f"the body did not come within {BODY_S_MAX} s"
        return json_reply(408, {"error": "RequestTimeout", "text": text})


def _response(reply: Reply) -> web.Response:
    return web.Response(body=reply.body, status=reply.status, content_type="application/json")
