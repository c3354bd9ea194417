"""The worker's web pages: liveness, readiness, metrics and the gate, on its own port."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import faust
import structlog
from faust.web import View

from ontrack.pipeline import web as shared
from ontrack.pipeline.gate_wire import FORWARDED_HEADER, GATE_PATH, REDEEM_PATH, Reply
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
            raw = await read_body(request, settings.message_bytes_max)
            if isinstance(raw, Reply):
                return response(raw)
            forwarded = request.headers.get(FORWARDED_HEADER)
            return response(await worker().gateway.ask(raw, forwarded))

    @app.page(REDEEM_PATH)
    class Redeem(View):
        """Uses a decision for its call."""

        async def post(self, request: Any, **_more: Any) -> Any:
            raw = await read_body(request, settings.message_bytes_max)
            if isinstance(raw, Reply):
                return response(raw)
            forwarded = FORWARDED_HEADER in request.headers
            return response(await worker().gateway.redeem(raw, forwarded))
