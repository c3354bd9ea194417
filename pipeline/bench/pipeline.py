"""``bench pipeline``: one worker on one broker, beside a bare loop and the embedded driver."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from aiokafka.admin import NewTopic

from ontrack.pipeline.bench import latency, throughput
from ontrack.pipeline.bench.stage import own_settings, topics, worker
from ontrack.pipeline.bench.workload import asked_runs, endless, fleet
from ontrack.pipeline.kafka.connection import start_admin
from ontrack.pipeline.kafka.sender import send_knowledge
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, references

LOAD_SHARE = 0.5  # of the sustained rate: where latency is measured, and
AIMED_SHARE = 0.3  # of the embedded driver's rate: half of what a worker should sustain
ASKED_RUNS = 60


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Parameters
    ----------
    events
        In the backlog that worker, bare loop and embedded driver work through.
    latency_s
        How long events flow for their latency, in seconds.
    gate_rate
        Events a second while the gate is asked; at most half of what the worker sustains.
    questions
        To the gate, by each of its two ways.
    """

    events: int = 20_000
    latency_s: float = 8.0
    gate_rate: float = 200.0
    questions: int = 500


@dataclass(frozen=True, slots=True)
class Figure:
    """One row. ``ratio`` is this row's events a second divided by those of ``ratio_to``."""

    name: str
    size: str
    p50_us: float | None
    p95_us: float | None
    p99_us: float | None
    events_per_s: float
    ratio_to: str | None
    ratio: float | None
    samples: int
    cpu_us_per_event: float | None = None


async def measure(settings: Settings, plan: Plan, note: Callable[[str], None]) -> list[Figure]:
    """Measure everything in one go; topics, group and files are the bench's own, and removed.

    The worker is one of the ``runtime`` that the settings name.

    Parameters
    ----------
    note
        Takes a line about what is done next, for whoever waits.

    Raises
    ------
    BrokerUnavailable
        Kafka does not answer, or the worker fails.
    """
    with tempfile.TemporaryDirectory(prefix="ontrack-bench-") as name:
        folder = Path(name)
        own = own_settings(settings, folder)
        target = f"{own.topic_prefix}bare"
        async with topics(own, target):
            await _create(own, target)
            await send_knowledge(own, references(), contracts())
            return await _measure(own, plan, target, folder, note)


async def _measure(
    settings: Settings, plan: Plan, target: str, folder: Path, note: Callable[[str], None]
) -> list[Figure]:
    load = fleet(plan.events, seed=1)
    note(f"embedded: {plan.events:,} events in this process")
    before = throughput.embedded(settings, load)
    async with worker(settings, folder) as process:
        note("worker: the same events over Kafka")
        done = await throughput.sustained(settings, [process], load, before.verdicts)
        note("bare: a loop without a monitor on the same topic")
        bare_per_s = await throughput.bare(settings, target, before.verdict_bytes, folder)
        rate = max(1.0, done.events_per_s * LOAD_SHARE)
        aimed = AIMED_SHARE * 1e9 * len(before.times_ns) / sum(before.times_ns)
        flows = []
        for name, seed, per_s in (("end_to_end", 2, aimed), ("end_to_end_half", 5, rate)):
            note(f"{name}: {per_s:,.0f} events/s for {plan.latency_s:g} s")
            flow = fleet(max(20, int(per_s * plan.latency_s)), seed=seed)
            delays = await latency.end_to_end(settings, flow, per_s)
            flows.append(_figure(name, f"at {per_s:.0f} events/s", delays, per_s))
        # A worker that cannot keep up would be measured by its backlog, not by its gate.
        gate_rate = min(plan.gate_rate, rate)
        note(f"gate: {plan.questions} questions twice, at {gate_rate:.0f} events/s")
        asked = list(asked_runs(ASKED_RUNS, seed=3))
        await latency.settle(settings, asked)
        async with latency.flowing(settings, endless(seed=4), gate_rate):
            by_http = await latency.gate_http(process, asked, plan.questions)
            by_topics = await latency.gate_topics(settings, asked, plan.questions)
    note("embedded: once more, because the machine's pace drifts")
    after = throughput.embedded(settings, load)
    times = [ns / 1e9 for ns in before.times_ns + after.times_ns]
    embedded_per_s = len(times) / sum(times)
    size, gate_size = f"{plan.events} events", f"at {gate_rate:.0f} events/s"
    return [
        _figure("embedded", size, times, embedded_per_s),
        _throughput("worker", size, done.events_per_s, "embedded", embedded_per_s, plan, done),
        _throughput("bare", size, bare_per_s, "worker", done.events_per_s, plan),
        *flows,
        _figure("gate_http", gate_size, by_http, gate_rate),
        _figure("gate_topics", gate_size, by_topics, gate_rate),
    ]


async def _create(settings: Settings, name: str) -> None:
    admin = await start_admin(settings)
    try:
        await admin.create_topics([NewTopic(name, settings.partitions, settings.replication)])
    finally:
        await admin.close()


def _figure(name: str, size: str, seconds: Sequence[float], events_per_s: float) -> Figure:
    p50, p95, p99 = (1e6 * np.percentile(seconds, [50, 95, 99])).tolist()
    return Figure(name, size, p50, p95, p99, events_per_s, None, None, len(seconds))


def _throughput(
    name: str,
    size: str,
    events_per_s: float,
    ratio_to: str,
    other_per_s: float,
    plan: Plan,
    done: throughput.Sustained | None = None,
) -> Figure:
    cpu_us = None if done is None else done.cpu_us_per_event
    ratio = events_per_s / other_per_s
    return Figure(name, size, None, None, None, events_per_s, ratio_to, ratio, plan.events, cpu_us)
