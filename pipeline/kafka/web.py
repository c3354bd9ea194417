"""The worker's web pages: liveness, readiness, metrics and the gate, on its own port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import structlog
from aiohttp import web

from ontrack.pipeline import web as shared
from ontrack.pipeline.gating.wire import FORWARDED_HEADER, GATE_PATH, REDEEM_PATH, Reply
from ontrack.pipeline.kafka.worker import Worker
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.web import guard, read_body, response

_log = structlog.get_logger(__name__)

_ANY_HOST = frozenset({"", "0.0.0.0", "::", "*"})


def check_exposure(settings: Settings) -> None:
    """Refuse to show the pages to a network without a token.

    Raises
    ------
    InvalidSettings
        ``web_host`` is not the loopback interface, and there is no ``web_token``.
    """
    shared.check_exposure("web_host", settings.web_host, settings.web_token)
    if settings.web_host in _ANY_HOST and settings.web_advertised_url is None:
        _log.warning(
            "no_advertised_url",
            detail="other workers cannot reach this one at its web_host; set web_advertised_url",
        )


def web_options(settings: Settings) -> dict[str, Any]:
    """Return what aiohttp's application is made with: the limit of a body, and the guard."""
    return {
        "client_max_size": settings.message_bytes_max,
        "middlewares": [guard(settings.web_token)],
    }


class Page(NamedTuple):
    """A page of the worker."""

    path: str
    method: str
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]]


def pages(settings: Settings, worker: Callable[[], Worker]) -> tuple[Page, ...]:
    """Return all pages, for whatever serves them.

    Parameters
    ----------
    worker
        Returns the worker; makes it where there is none yet.
    """

    async def healthz(_request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def readyz(_request: web.Request) -> web.Response:
        current = worker()
        partitions = {number: owner.ready for number, owner in sorted(current.owners.items())}
        status = 200 if current.ready else 503
        return web.json_response({"ok": current.ready, "partitions": partitions}, status=status)

    async def metrics(_request: web.Request) -> web.Response:
        kind = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=worker().metrics.text(), headers=kind)

    async def ask(request: web.Request) -> web.Response:
        raw = await read_body(request, settings.message_bytes_max)
        if isinstance(raw, Reply):
            return response(raw)
        forwarded = request.headers.get(FORWARDED_HEADER)
        return response(await worker().gateway.ask(raw, forwarded))

    async def redeem(request: web.Request) -> web.Response:
        raw = await read_body(request, settings.message_bytes_max)
        if isinstance(raw, Reply):
            return response(raw)
        forwarded = FORWARDED_HEADER in request.headers
        return response(await worker().gateway.redeem(raw, forwarded))

    return (
        Page("/healthz", "GET", healthz),
        Page("/readyz", "GET", readyz),
        Page("/metrics", "GET", metrics),
        Page(GATE_PATH, "POST", ask),
        Page(REDEEM_PATH, "POST", redeem),
    )
