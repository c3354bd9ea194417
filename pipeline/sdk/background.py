"""One event loop in a thread of its own, for agents that have none."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from ontrack.topics.errors import OnTrackError

T = TypeVar("T")


class ForkedRun(OnTrackError):
    """A run was begun before this process was forked off: its connections are the parent's."""


class Background:
    """An event loop that runs for as long as the process does."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        # A daemon: what was handed over is acknowledged when a method returns, so that the end of
        # the program loses nothing.
        self._thread = threading.Thread(target=self._run, name="ontrack-sdk", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def check(self) -> None:
        """Make sure that the loop can be waited for from here.

        Raises
        ------
        ForkedRun
            The process was forked since.
        RuntimeError
            This is the loop's own thread.
        """
        if os.getpid() != self.pid:
            raise ForkedRun(
                "this run was begun in the parent of this process, whose connections cannot be "
                "shared; begin a run of its own after the fork, with parent_run_id"
            )
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback of the monitor may not wait for the monitor")

    def wait(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine there and wait for its end. Errors as :meth:`check`."""
        try:
            self.check()
        except BaseException:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            # Also where a person interrupts the wait: nobody wants the answer any longer.
            future.cancel()
            raise


_lock = threading.Lock()
_of_this_process: list[Background] = []


def background() -> Background:
    """Return the loop of this process; a forked child gets one of its own."""
    with _lock:
        if not _of_this_process or _of_this_process[0].pid != os.getpid():
            _of_this_process[:] = [Background()]
        return _of_this_process[0]


def _with_a_lock_of_its_own() -> None:
    global _lock
    _lock = threading.Lock()  # the parent's may be held by a thread that is not here


os.register_at_fork(after_in_child=_with_a_lock_of_its_own)
