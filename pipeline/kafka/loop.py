"""The worker's shell on bare aiokafka: one loop, one thread, the same worker as on Faust."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import structlog
from aiohttp import web

from ontrack.pipeline.kafka.group import Group
from ontrack.pipeline.kafka.shell import STOP_S_MAX, Chore, chores, leave_for_good, prepare
from ontrack.pipeline.kafka.web import pages, web_options
from ontrack.pipeline.kafka.worker import Worker
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import InvalidSettings, OnTrackError

_log = structlog.get_logger(__name__)

ANSWERS_S_MAX = 1.0  # how long answers under way are waited for at the end


def run_worker(settings: Settings) -> None:
    """Run the worker until a signal ends it; exits the process.

    Raises
    ------
    OnTrackError
        The settings are not valid, or the broker refuses the worker for good.
    """
    prepare(settings)
    error = asyncio.run(serve(settings))
    if isinstance(error, OnTrackError):
        raise error
    sys.exit(0 if error is None else 1)


async def serve(settings: Settings) -> BaseException | None:
    """Work until SIGTERM, SIGINT or a failure, which is returned."""
    over: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def end(error: BaseException | None = None) -> None:
        if not over.done():
            over.set_result(error)

    async def failed(error: BaseException) -> None:
        end(error)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    group = Group(settings)
    worker = Worker(settings, failed, group.recovered)
    server = await _serve_pages(settings, worker)
    works: list[Coroutine[Any, Any, None]] = [
        group.run(worker),
        *(_repeat(chore, worker) for chore in chores(settings, group.ends)),
    ]
    tasks = [asyncio.create_task(_watched(work, end)) for work in works]
    error = await over
    leave_for_good(STOP_S_MAX)
    _log.info("worker_stopping", by="a failure" if error else "a signal")
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await worker.stop()
    await group.leave()
    await server.cleanup()
    return error


async def _watched(work: Coroutine[Any, Any, None], end: Any) -> None:
    """Let a failure end the worker: half of one is worse than none."""
    try:
        await work
    except Exception as error:  # noqa: BLE001
        _log.exception("worker_failed")
        end(error)


async def _repeat(chore: Chore, worker: Worker) -> None:
    while True:
        await asyncio.sleep(chore.every_s)
        await chore.do(worker)


async def _serve_pages(settings: Settings, worker: Worker) -> web.AppRunner:
    app = web.Application(**web_options(settings))
    for page in pages(settings, lambda: worker):
        app.router.add_route(page.method, page.path, page.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=ANSWERS_S_MAX)
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.web_host, settings.web_port).start()
    except OSError as error:
        await runner.cleanup()
        raise InvalidSettings(
            f"web_port: nobody can listen on {settings.web_host}:{settings.web_port} "
            f"({error.strerror or error}); name another one with --web-port"
        ) from error
    return runner
