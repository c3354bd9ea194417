"""How long a killed worker takes until it is ready again: ``ontrack bench recovery``.

The log holds many open runs, folded and published by a first worker. That one is killed and started
again, once with its checkpoints and once after these were removed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from ontrack.pipeline.bench.stage import WorkerProcess, cpu_s, own_settings, topics
from ontrack.pipeline.kafka.connection import start_admin, topics_of
from ontrack.pipeline.kafka.provision import create_topics
from ontrack.pipeline.kafka.sender import send_events, send_knowledge
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts
from ontrack.pipeline.workplace.long_runs import long_references, open_runs

READY_S_MAX = 900.0
PROGRESS_LINES = ("partition_recovering", "checkpoint_restored", "partition_ready")


@dataclass(frozen=True, slots=True)
class Recovery:
    """One start of the worker.

    Parameters
    ----------
    way
        ``first start`` folds and publishes all; the others come after a ``kill -9``.
    seconds
        From the start of the process until ``/readyz`` answers 200.
    cpu_s
        Processor time of the worker until then, which a busy machine does not lengthen; None where
        the system does not tell.
    folded
        Events folded until then.
    open_runs
        Runs in memory then.
    refused
        Checkpoints that were there and not used.
    told
        Lines of progress in the log.
    silence_s
        Longest time between two such lines.
    """

    way: str
    seconds: float
    cpu_s: float | None
    folded: int
    open_runs: int
    refused: int
    told: int
    silence_s: float


async def measure(
    settings: Settings, runs: int, steps: int, tell: Callable[[str], object]
) -> list[Recovery]:
    """Fill a log of our own on the broker, kill workers, take the time; remove the topics.

    Raises
    ------
    BrokerUnavailable
        Kafka does not answer, or a worker did not get ready.
    """
    with tempfile.TemporaryDirectory(prefix="ontrack-bench-") as folder:
        # Their lines of progress are a part of what is measured.
        own = own_settings(settings, Path(folder)).model_copy(update={"log_level": "info"})
        async with topics(own):
            await send_knowledge(own, long_references(steps), contracts())
            sent = await send_events(own, open_runs(runs, steps), None)
            tell(f"{sent:,} events of {runs:,} open runs sent")
            worker = WorkerProcess(own, Path(folder))
            try:
                found = []
                for way in ("first start", "kill -9", "kill -9, no checkpoints"):
                    if way.endswith("no checkpoints"):
                        await _kill(worker)
                        await _remove_checkpoints(own)
                    elif way == "kill -9":
                        await _kill(worker)
                    found.append(await _start(worker, way, Path(folder)))
                    tell(f"{way}: ready after {found[-1].seconds} s")
                return found
            finally:
                await worker.stop()


async def _start(worker: WorkerProcess, way: str, folder: Path) -> Recovery:
    began = time.monotonic()
    await worker.start()
    await worker.until_ready(READY_S_MAX)
    seconds = time.monotonic() - began
    used_s = cpu_s([worker])
    counts = await _counts(worker)
    lines = [
        datetime.fromisoformat(line.split(" ", 1)[0])
        for line in (folder / "worker.log").read_text().splitlines()
        if any(f"] {name}" in line for name in PROGRESS_LINES)
    ]
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(lines)]
    return Recovery(
        way=way,
        seconds=round(seconds, 1),
        cpu_s=None if used_s is None else round(used_s, 1),
        folded=round(counts.get("ontrack_events_total", 0)),
        open_runs=round(counts.get("ontrack_open_runs", 0)),
        refused=round(counts.get("ontrack_snapshots_refused_total", 0)),
        told=len(lines),
        silence_s=round(max(gaps, default=0.0), 1),
    )


async def _counts(worker: WorkerProcess) -> dict[str, float]:
    """Return all metrics, summed over their labels."""
    async with (
        aiohttp.ClientSession(headers=worker.headers) as session,
        session.get(f"{worker.url}/metrics") as answer,
    ):
        text = await answer.text()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


async def _kill(worker: WorkerProcess) -> None:
    os.kill(worker.pid, signal.SIGKILL)
    while worker.alive:
        await asyncio.sleep(0.05)


async def _remove_checkpoints(settings: Settings) -> None:
    """Make their topic anew: what is compacted cannot be emptied."""
    name = topics_of(settings).snapshots.name
    admin = await start_admin(settings)
    try:
        await admin.delete_topics([name])
        while name in await admin.list_topics():
            await asyncio.sleep(0.1)
    finally:
        await admin.close()
    await create_topics(settings)
