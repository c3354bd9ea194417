"""Printing beside the event loop: whoever reads what we print must not hold up the hooks."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Final

import structlog

from ontrack.topics.verdicts import Output

_log = structlog.get_logger(__name__)

WAITING_MAX: Final = 10_000
CLOSE_S_MAX: Final = 2.0


class Printing:
    """Shows outputs in a thread of its own.

    A reader that stands still costs outputs, not answers: what finds no room is dropped, counted
    and logged once. One that has gone ends the printing, and nothing else.

    Parameters
    ----------
    show
        Prints one output; may wait, and may fail as writing does.
    waiting_max
        Outputs that wait.
    """

    def __init__(self, show: Callable[[Output], None], waiting_max: int = WAITING_MAX) -> None:
        self._show = show
        self._waiting: queue.Queue[Output | None] = queue.Queue(waiting_max)
        self._is_over = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._work, name="ontrack-printing", daemon=True)
        self._thread.start()

    def tell(self, output: Output) -> None:
        """Print an output soon; returns at once."""
        if self._is_over:
            return
        try:
            self._waiting.put_nowait(output)
        except queue.Full:
            if not self.dropped:
                _log.warning("outputs_not_printed", why="whoever reads them stands still")
            self.dropped += 1

    def close(self, timeout_s: float = CLOSE_S_MAX) -> bool:
        """Print what waits; False where the reader does not take it in time."""
        try:
            self._waiting.put(None, timeout=timeout_s)
        except queue.Full:
            return False
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (output := self._waiting.get()) is not None:
            if self._is_over:
                continue
            try:
                self._show(output)
            except (OSError, ValueError) as error:
                self._is_over = True
                _log.warning("outputs_not_printed", why=type(error).__name__)


def let_go_of_stdout() -> None:
    """Keep the end of the program from waiting for a reader that stands still."""
    # The old one stays locked by the thread that writes: whoever flushes it waits for ever.
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
