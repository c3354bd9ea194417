"""Demo: the dashboard on a monitor in this process, fed with the simulated workplace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count

from ontrack.pipeline.dashboard.feeds.embedded import EmbeddedFeed, play
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, demo_runs, load_stream, references
from ontrack.topics.events import Event

PAUSE_S = 0.15  # between two events
FAST_PAUSE_S = 0.01
RUNS_A_ROUND = 60
FAULT_RATE = 0.3


def demo_feed(settings: Settings, pause_s: float = PAUSE_S) -> EmbeddedFeed:
    """Return the feed of a monitor that watches the demo's runs, then others without end."""
    monitor = EmbeddedMonitor(settings, references(), contracts())
    return EmbeddedFeed(monitor, _events(pause_s), "a demo in this process")


async def _events(pause_s: float) -> AsyncIterator[Event]:
    async for event in play([run.events for run in demo_runs()], pause_s):
        yield event
    for seed in count(1):
        for event in load_stream(RUNS_A_ROUND, seed, FAULT_RATE):
            yield event
            await asyncio.sleep(pause_s)
