"""Run the daemon until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import structlog
from aiohttp import web

from ontrack.pipeline.serving.app import make_app
from ontrack.pipeline.serving.connections import close_silent
from ontrack.pipeline.serving.daemon import Daemon
from ontrack.pipeline.web import check_exposure
from ontrack.topics.errors import InvalidSettings

_log = structlog.get_logger(__name__)

STOP_S_MAX = 5.0  # for requests that are being answered when the daemon is told to stop


async def serve(daemon: Daemon, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Parameters
    ----------
    ready
        Told the daemon's address once it listens.

    Raises
    ------
    InvalidSettings
        The address cannot be listened at, or would be open to the network without a token.
    BrokerUnavailable
        Kafka was asked for and does not answer.
    """
    settings = daemon.settings
    check_exposure("serve_host", settings.serve_host, settings.web_token)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    # aiohttp knows no zstd without another package, and inflates far beyond our limits.
    runner = web.AppRunner(
        make_app(daemon), access_log=None, shutdown_timeout=STOP_S_MAX, auto_decompress=False
    )
    await runner.setup()
    closing = asyncio.create_task(close_silent(runner))
    try:
        site = web.TCPSite(runner, settings.serve_host, settings.serve_port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            raise InvalidSettings(
                f"cannot listen at {settings.serve_host}:{settings.serve_port}: {error.strerror}; "
                "is another `ontrack serve` running? --port names another port"
            ) from error
        host, port = runner.addresses[0][:2]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        await stopped.wait()
    finally:
        closing.cancel()
        await runner.cleanup()
