"""The dashboard's server: pages over NiceGUI, behind the guard, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from jinja2 import BaseLoader, Environment, TemplateNotFound
from nicegui import app as pages
from nicegui import ui
from nicegui.client import Client, templates
from pydantic import SecretStr

from ontrack.pipeline.dashboard.auth import NONCE, Guard
from ontrack.pipeline.dashboard.feeds.feed import Feed
from ontrack.pipeline.dashboard.fleet.model import FleetModel
from ontrack.pipeline.dashboard.pages import fleet as fleet_page
from ontrack.pipeline.dashboard.pages import letters as letters_page
from ontrack.pipeline.dashboard.pages import references as references_page
from ontrack.pipeline.dashboard.pages import run as run_page
from ontrack.pipeline.dashboard.pages.desk import Desk
from ontrack.pipeline.web import check_exposure
from ontrack.topics.errors import InvalidSettings

ASSETS = Path(__file__).parent / "pages" / "assets"
_BACKLOG = 2048  # uvicorn's own
STOP_S_MAX = 3  # for browsers that look when the dashboard is told to stop
RECONNECT_S = 20.0  # a page that was away for less goes on where it was


async def serve(
    feed: Feed,
    host: str,
    port: int,
    token: SecretStr | None,
    ready: Callable[[str], None],
    model: FleetModel | None = None,
) -> None:
    """Serve the pages until SIGINT or SIGTERM; once in a process.

    Parameters
    ----------
    feed
        Not started yet.
    port
        0 takes a free one.
    token
        What people log in with; asked for as soon as it is there.
    ready
        Told the address once it listens.

    Raises
    ------
    InvalidSettings
        The address cannot be listened at, or would be open to the network without a token.
    """
    check_exposure("dashboard_host", host, token)
    model = model or FleetModel()
    desk = Desk(feed, model, token is not None)
    server = _Server(_config(Guard(make_app(desk), token), host, port))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)
    await feed.start(model.said)
    try:
        serving = asyncio.create_task(_listen(server, host, port))
        while not (server.started or serving.done()):
            await asyncio.sleep(0.01)
        if server.started:
            ready(_address(server))
        await serving
    finally:
        await feed.stop()


def make_app(desk: Desk) -> FastAPI:
    """Return the ASGI application without its guard. NiceGUI keeps one for each process."""
    outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    pages.add_static_files("/assets", ASSETS)
    templates.env.loader = _WithNonce(templates.env.loader)
    # Files of ours go into the page's head, not markup of anybody's.
    Client.shared_head_html = (
        '<link rel="stylesheet" href="/assets/dashboard.css">'
        '<script type="module" src="/assets/login.js"></script>'
    )
    _routes(desk)
    ui.run_with(
        outer,
        title="OnTrack",
        dark=None,
        language="en-US",
        tailwind=False,
        reconnect_timeout=RECONNECT_S,
        show_welcome_message=False,
        favicon=ASSETS / "favicon.svg",
    )
    return outer


def _routes(desk: Desk) -> None:
    @ui.page("/")
    def fleet() -> None:
        fleet_page.build(desk)

    @ui.page("/run")
    def run_by_query(id: str = "") -> None:  # noqa: A002 the address says ?id=
        run_page.build(desk, id)

    @ui.page("/run/{run_id:path}")
    def run(run_id: str) -> None:
        run_page.build(desk, run_id)

    @ui.page("/references")
    def references() -> None:
        references_page.build(desk)

    @ui.page("/letters")
    def letters() -> None:
        letters_page.build(desk)


class _WithNonce(BaseLoader):
    """Puts the request's nonce on the scripts of NiceGUI's page template.

    On the template itself, before anything is filled in: a script that came in with data would not
    get it, and would not run.
    """

    def __init__(self, inner: BaseLoader | None) -> None:
        assert inner is not None, "NiceGUI loads its page from a file"
        self._inner = inner

    def get_source(
        self, environment: Environment, template: str
    ) -> tuple[str, str | None, Callable[[], bool] | None]:
        """Return the template with nonces."""
        try:
            source, name, current = self._inner.get_source(environment, template)
        except TemplateNotFound as error:
            raise RuntimeError(f"this NiceGUI has no {template}; see constraints.txt") from error
        nonce = f'<script nonce="{{{{ request.scope.{NONCE} }}}}"'
        return source.replace("<script", nonce), name, current


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which would raise the signal again in the end."""

    def stop(self) -> None:
        """Answer no more requests, and return from serving."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to whoever runs the server."""
        yield


def _config(guard: Guard, host: str, port: int) -> uvicorn.Config:
    return uvicorn.Config(
        guard,
        host=host,
        port=port,
        log_level="warning",
        log_config=None,  # its messages go where ours go
        access_log=False,
        server_header=False,
        ws="wsproto",
        lifespan="on",
        timeout_graceful_shutdown=STOP_S_MAX,
    )


async def _listen(server: _Server, host: str, port: int) -> None:
    # Bound here: uvicorn would log what is wrong, and leave by SystemExit.
    loop = asyncio.get_running_loop()
    try:
        kind, *_, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
        bound = socket.create_server(address, family=kind, backlog=_BACKLOG)
    except OSError as error:
        raise InvalidSettings(
            f"cannot listen at {host}:{port} ({os.strerror(error.errno or 0)}); is another "
            "`ontrack dashboard` running? --port names another port"
        ) from error
    with bound:
        await server.serve([bound])


def _address(server: _Server) -> str:
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
