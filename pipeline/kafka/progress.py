"""How far the folding of a partition's log has come, told every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from ontrack.pipeline.metrics import Metrics

_log = structlog.get_logger(__name__)

TOLD_EVERY_S = 3.0


class Progress:
    """Tells log and metrics how far a recovery is.

    Parameters
    ----------
    first, last
        Offsets between which the log is folded.
    monotonic
        Seconds, from any origin.
    """

    def __init__(
        self,
        partition: int,
        first: int,
        last: int,
        metrics: Metrics,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._partition = partition
        self._first = first
        self._last = last
        self._metrics = metrics
        self._monotonic = monotonic
        self._began = self._told = monotonic()
        metrics.lag(partition, last - first)

    def tell(self, next_offset: int) -> None:
        """Note how far it is; a line in the log at most every ``TOLD_EVERY_S`` seconds."""
        self._metrics.lag(self._partition, self._last - next_offset)
        now = self._monotonic()
        if now - self._told < TOLD_EVERY_S or next_offset >= self._last:
            return
        self._told = now
        folded, events = next_offset - self._first, self._last - self._first
        _log.info(
            "partition_recovering",
            partition=self._partition,
            folded=folded,
            events=events,
            share=round(folded / events, 3),
            seconds_left=round((now - self._began) / max(1, folded) * (events - folded), 1),
        )
