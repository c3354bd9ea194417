"""Run a bench so that what it set up is taken away, however it is told to end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a bench's coroutine on a loop of its own.

    SIGTERM (what ``timeout`` sends) cancels it as Ctrl-C does; without that a worker that it
    started, its topics and its files would stay behind. The process then ends with 143.
    """
    told: list[int] = []

    async def main() -> Result:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def end() -> None:
            told.append(signal.SIGTERM)
            task.cancel()

        loop.add_signal_handler(signal.SIGTERM, end)
        try:
            return await work
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(main())
        except asyncio.CancelledError:
            if told:
                raise SystemExit(128 + signal.SIGTERM) from None
            raise
