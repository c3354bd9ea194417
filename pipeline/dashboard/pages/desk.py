"""Desk: what all pages of one dashboard share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ontrack.pipeline.dashboard.feeds.feed import Feed
from ontrack.pipeline.dashboard.fleet.model import FleetModel


def now_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Desk:
    """Where the news come from, what they sum up to, and whether one had to log in."""

    feed: Feed
    model: FleetModel
    has_login: bool = False
    clock_ms: Callable[[], int] = now_ms
