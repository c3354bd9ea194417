"""``bench scale``: how far one, two, three workers go, and how long events wait for them.

Every number of workers gets topics of its own and the same backlog. Then one worker gets events at
random times, at some shares of what it sustained, beside what the queue M/G/1 says.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import numpy as np

from ontrack.pipeline.bench import latency, throughput
from ontrack.pipeline.bench.queueing import Service
from ontrack.pipeline.bench.stage import (
    POLL_S,
    START_S_MAX,
    WorkerProcess,
    own_settings,
    topics,
    worker_settings,
)
from ontrack.pipeline.bench.workload import Message, fleet
from ontrack.pipeline.kafka.sender import send_knowledge
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, references
from ontrack.topics.errors import BrokerUnavailable

PARTITIONS = 6  # one, two and three workers get equally many
IDLE_S = 2.0
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Parameters
    ----------
    events
        In each backlog.
    workers
        How many at a time, one row each.
    shares
        Of what one worker sustained: where the wait is measured.
    seconds
        How long events flow at each share.
    """

    events: int = 6000
    workers: tuple[int, ...] = (1, 2, 3)
    shares: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7)
    seconds: float = 15.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """What so many workers made of a backlog.

    Parameters
    ----------
    speedup
        Events a second divided by those of one worker (the first row).
    cpu_us_per_event
        Processor time of all workers together.
    """

    workers: int
    events_per_s: float
    speedup: float
    cpu_us_per_event: float | None


@dataclass(frozen=True, slots=True)
class Wait:
    """From an event to its verdict, at random arrivals to one worker, in milliseconds.

    Parameters
    ----------
    utilisation
        Share of its time in which the worker runs or waits for a processor, what it does without
        any event included.
    model_ms
        The mean that M/G/1 says, with the mean at the first share taken as given.
    """

    events_per_s: float
    utilisation: float | None
    mean_ms: float
    p50_ms: float
    p99_ms: float
    model_ms: float | None


@dataclass(frozen=True, slots=True)
class Scale:
    """All that one run found."""

    runtime: str
    backlogs: list[Backlog]
    service: Service
    waits: list[Wait]


async def measure(settings: Settings, plan: Plan, note: Callable[[str], None]) -> Scale:
    """Measure on topics of our own; remove them.

    Raises
    ------
    BrokerUnavailable
        Kafka does not answer, or a worker fails.
    """
    settings = settings.model_copy(update={"partitions": PARTITIONS})
    load = fleet(plan.events, seed=1)
    alone = throughput.embedded(settings, load)
    found: list[Backlog] = []
    waits: list[Wait] = []
    for count in plan.workers:
        note(f"{count} worker(s): {plan.events:,} events")
        async with _workers(settings, count) as (own, workers):
            done = await throughput.sustained(own, workers, load, alone.verdicts)
            first = found[0].events_per_s if found else done.events_per_s
            found.append(
                Backlog(count, done.events_per_s, done.events_per_s / first, done.cpu_us_per_event)
            )
            if count == 1:
                waits = await _waits(own, workers, plan, done.events_per_s, alone, note)
    mean_s = 1 / found[0].events_per_s
    service = Service.of([ns / 1e9 for ns in alone.times_ns], mean_s)
    return Scale(settings.runtime, found, service, waits)


async def _waits(
    settings: Settings,
    workers: Sequence[WorkerProcess],
    plan: Plan,
    sustained: float,
    alone: throughput.Embedded,
    note: Callable[[str], None],
) -> list[Wait]:
    shape = Service.of([ns / 1e9 for ns in alone.times_ns])
    idle, _ = await _share_of(workers, asyncio.sleep(IDLE_S))
    found: list[Wait] = []
    base_s: float | None = None
    for number, share in enumerate(plan.shares):
        rate = share * sustained
        note(f"one worker: {rate:,.0f} events/s at random for {plan.seconds:g} s")
        flow = fleet(max(50, int(rate * plan.seconds)), seed=100 + number)
        busy, times = await _share_of(
            workers, latency.end_to_end(settings, flow, rate, _at_random(flow, rate, number))
        )
        # Batches are small here, so an event costs more than with a backlog: what it cost now.
        now_s = 1 / sustained if busy is None or idle is None else (busy - idle) / rate
        waiting_s = Service(now_s, shape.variation).waiting_s(rate, idle or 0.0)
        mean_s = sum(times) / len(times)
        if base_s is None:
            base_s = mean_s - waiting_s - now_s
        p50, p99 = np.percentile(times, [50, 99]).tolist()
        model = 1000 * (base_s + now_s + waiting_s) if found else None
        found.append(Wait(rate, busy, 1000 * mean_s, 1000 * p50, 1000 * p99, model))
    return found


async def _share_of(
    workers: Sequence[WorkerProcess], meanwhile: Awaitable[Result]
) -> tuple[float | None, Result]:
    """Return the share of its time that a worker is occupied while something goes on."""
    began, before = time.perf_counter(), throughput.occupied_s(workers)
    result = await meanwhile
    after, lasted = throughput.occupied_s(workers), time.perf_counter() - began
    return (None if before is None or after is None else (after - before) / lasted), result


def _at_random(load: Sequence[Message], rate: float, seed: int) -> list[float]:
    """Return when each event is due: a Poisson process."""
    dice = random.Random(seed)
    return list(accumulate(dice.expovariate(rate) for _ in load))


@asynccontextmanager
async def _workers(
    settings: Settings, count: int
) -> AsyncIterator[tuple[Settings, list[WorkerProcess]]]:
    """Run so many workers that have all partitions among them."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ontrack-bench-")))
        own = own_settings(settings, folder)
        await stack.enter_async_context(topics(own))
        await send_knowledge(own, references(), contracts())
        workers = []
        for number in range(count):
            name = f"worker{number}"
            process = WorkerProcess(worker_settings(own, folder, name), folder, name)
            stack.push_async_callback(process.stop)
            await process.start()
            workers.append(process)
        await _until_owned(workers, own.partitions)
        yield own, workers


async def _until_owned(workers: Sequence[WorkerProcess], partitions: int) -> None:
    """Wait until every worker has its share, and all have all."""
    end = time.monotonic() + START_S_MAX
    while True:
        owned = [await worker.owned() for worker in workers]
        if sum(owned) == partitions and min(owned) > 0:
            return
        if time.monotonic() > end or not all(worker.alive for worker in workers):
            logs = "\n".join(worker.tail for worker in workers)
            raise BrokerUnavailable(f"the measured workers did not get ready:\n{logs}")
        await asyncio.sleep(POLL_S)
