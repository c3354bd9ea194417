"""Latency and cost of a run: read off timestamps and prices, never off the number of steps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ontrack.topics.events import RunEnded, RunStarted, Step

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Totals:
    """What a run took so far.

    Parameters
    ----------
    first_us, last_us
        Its earliest and latest timestamp, microseconds since 1970; None before the first.
    stamps
        Timestamps seen, up to two: one alone says when, not how long.
    cost_usd
        None while no step said what it cost.
    """

    first_us: int | None = None
    last_us: int | None = None
    stamps: int = 0
    cost_usd: float | None = None

    @property
    def latency_s(self) -> float | None:
        """Seconds from the earliest to the latest timestamp; None with fewer than two."""
        if self.first_us is None or self.last_us is None or self.stamps < 2:
            return None
        return (self.last_us - self.first_us) / 1_000_000


def step(totals: Totals, event: Step | RunStarted | RunEnded) -> Totals:
    """Add one event: a step's ``started_at`` and ``ended_at``, else the event's ``time``."""
    cost = totals.cost_usd
    stamps = [event.time]
    if isinstance(event, Step):
        if event.started_at is not None or event.ended_at is not None:
            stamps = [event.started_at, event.ended_at]
        if event.cost_usd is not None:
            cost = (cost or 0.0) + event.cost_usd
    first, last, count = totals.first_us, totals.last_us, totals.stamps
    for stamp in stamps:
        if stamp is not None:
            at = (stamp - _EPOCH) // _MICROSECOND
            first = at if first is None else min(first, at)
            last = at if last is None else max(last, at)
            count = min(2, count + 1)
    return Totals(first, last, count, cost)
