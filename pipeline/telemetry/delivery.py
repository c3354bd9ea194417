"""Bounded delivery: what is waiting, what arrived, what was dropped, and one log line for trouble.

The SDK's processors drop silently when their queue is full, and its exporters write a line for
every failed batch. Here is counted what goes in and comes out, and an outage is told once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import structlog

from ontrack.pipeline.metrics import Metrics

_log = structlog.get_logger(__name__)

PROBLEM_CHARACTERS_MAX = 300


class Complaints:
    """Tells once that a collector does not take what is sent, and once that it does again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failing: set[str] = set()

    def failed(self, signal: str, problem: str) -> None:
        """Note a failure; only the first of an outage is logged."""
        with self._lock:
            is_first = not self._failing
            self._failing.add(signal)
        if is_first:
            _log.warning("telemetry_not_delivered", signal=signal, problem=problem)

    def succeeded(self, signal: str) -> None:
        """Note a success."""
        with self._lock:
            was_failing = bool(self._failing)
            self._failing.discard(signal)
            is_over = was_failing and not self._failing
        if is_over:
            _log.info("telemetry_delivered_again", signal=signal)


class Delivery:
    """The accounts of one signal (``logs``, ``traces`` or ``metrics``).

    Parameters
    ----------
    queue_max
        Records that may wait.
    """

    def __init__(
        self, signal: str, queue_max: int, metrics: Metrics, complaints: Complaints
    ) -> None:
        self.signal = signal
        self._queue_max = queue_max
        self._metrics = metrics
        self._complaints = complaints
        self._lock = threading.Lock()
        self._waiting = 0
        self._flying = 0
        self._ended = False

    def enter(self) -> bool:
        """Take a place in the queue; False, and counted, where there is none."""
        with self._lock:
            has_room = self._waiting < self._queue_max and not self._ended
            self._waiting += has_room
        if not has_room:
            self.dropped(1, "stopped" if self._ended else "queue_full")
        return has_room

    def leave(self) -> None:
        """Give a place back that was taken for nothing."""
        with self._lock:
            self._waiting -= 1

    def hand_over(self, count: int, export: Callable[[], bool], queued: bool = True) -> bool:
        """Export records and count what came of it; never raises.

        Parameters
        ----------
        queued
            They have taken places in the queue, which are free again from now on.
        """
        with self._lock:
            self._waiting -= count if queued else 0
            self._flying = count
        _heard.text = ""
        try:
            arrived, problem = export(), ""
        except Exception as error:  # noqa: BLE001
            # A collector may answer anything, and the answer must not end the thread that sends.
            arrived, problem = False, type(error).__name__
        with self._lock:
            self._flying = 0
            if self._ended:
                return arrived  # counted already, as given up
        if arrived:
            self._metrics.telemetry_exported.labels(self.signal).inc(count)
            self._complaints.succeeded(self.signal)
        else:
            self.dropped(count, "not_delivered")
            self._complaints.failed(self.signal, _heard.text or problem or "no reason given")
        return arrived

    def dropped(self, count: int, reason: str) -> None:
        """Count records that will not arrive."""
        self._metrics.telemetry_dropped.labels(self.signal, reason).inc(count)

    def end(self) -> None:
        """Give up what has not arrived by now."""
        with self._lock:
            left = 0 if self._ended else self._waiting + self._flying
            self._ended = True
        if left:
            self.dropped(left, "stopped")


class _Heard(threading.local):
    text = ""


_heard = _Heard()


class _Listener(logging.Handler):
    """Keeps the first thing that an exporter complains of, for our one line about it."""

    def emit(self, record: logging.LogRecord) -> None:
        if not _heard.text:
            _heard.text = record.getMessage()[:PROBLEM_CHARACTERS_MAX]


def listen_to_exporters() -> None:
    """Keep the exporters' own lines out of the log of this process; calling it twice is fine."""
    logger = logging.getLogger("opentelemetry.exporter.otlp")
    logger.propagate = False
    if not any(isinstance(handler, _Listener) for handler in logger.handlers):
        logger.addHandler(_Listener())
