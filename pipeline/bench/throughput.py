"""Events per second: embedded, a real worker, and a bare loop, on the very same events."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, perf_counter_ns

from aiokafka import AIOKafkaConsumer, TopicPartition

from ontrack.pipeline.bench.stage import WorkerProcess, cpu_s
from ontrack.pipeline.bench.workload import Message
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.kafka.connection import start_consumer, start_producer, topics_of
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, references
from ontrack.topics import codecs
from ontrack.topics.errors import BrokerUnavailable
from ontrack.topics.verdicts import Verdict

WARM_UP_SHARE = 0.1
POLL_S = 0.05
STANDSTILL_S_MAX = 60.0
IN_FLIGHT_MAX = 2000


@dataclass(frozen=True, slots=True)
class Embedded:
    """One pass of the embedded driver.

    Parameters
    ----------
    times_ns
        Of each event after the warm-up, from bytes to the bytes of its outputs.
    verdicts, verdict_bytes
        How many verdicts there were, and the mean size of one.
    """

    times_ns: list[int]
    verdicts: int
    verdict_bytes: int

    @property
    def events_per_s(self) -> float:
        """Events divided by the time they took together."""
        return 1e9 * len(self.times_ns) / sum(self.times_ns)


@dataclass(frozen=True, slots=True)
class Sustained:
    """What workers did with a backlog: events per second, and their own processor time."""

    events_per_s: float
    cpu_us_per_event: float | None


def embedded(settings: Settings, load: Sequence[Message]) -> Embedded:
    """Fold all events in this process; the first tenth warms caches up."""
    monitor = EmbeddedMonitor(settings, references(), contracts())
    times, verdicts, size = [], 0, 0
    for message in load:
        began = perf_counter_ns()
        outputs = monitor.feed_bytes(message.value)
        encoded = [codecs.encode(output) for output in outputs]
        times.append(perf_counter_ns() - began)
        for output, value in zip(outputs, encoded, strict=True):
            if isinstance(output, Verdict):
                verdicts, size = verdicts + 1, size + len(value)
    return Embedded(times[int(len(times) * WARM_UP_SHARE) :], verdicts, size // max(1, verdicts))


async def fill(settings: Settings, load: Sequence[Message]) -> None:
    """Send events as fast as the broker takes them; returns when all are acknowledged."""
    topic = topics_of(settings).events.name
    producer = await start_producer(settings)
    waiting = []
    try:
        for message in load:
            waiting.append(await producer.send(topic, message.value, key=message.key))
            if len(waiting) >= IN_FLIGHT_MAX:
                await asyncio.gather(*waiting)
                waiting.clear()
        await asyncio.gather(*waiting)
    finally:
        await producer.stop()


async def sustained(
    settings: Settings, workers: Sequence[WorkerProcess], load: Sequence[Message], verdicts: int
) -> Sustained:
    """Give ready workers a backlog and watch the verdicts' topic grow.

    The clock runs from when all events are on the topic and a tenth of the verdicts are there, to
    the last verdict: nothing but the workers and the broker is busy then.

    Raises
    ------
    BrokerUnavailable
        A worker ended, or they give no more verdicts although some are missing.
    """
    consumer = await start_consumer(settings)
    name = topics_of(settings).verdicts.name
    parts = [TopicPartition(name, number) for number in range(settings.partitions)]
    sending = asyncio.create_task(fill(settings, load))
    try:
        first: tuple[float, int, float | None] | None = None
        seen, moved = 0, perf_counter()
        while True:
            done = await _length(consumer, parts)
            now = perf_counter()
            if done > seen:
                seen, moved = done, now
            if first is None and sending.done() and done >= verdicts * WARM_UP_SHARE:
                first = (now, done, cpu_s(workers))
            if done >= verdicts:
                break
            if not all(one.alive for one in workers) or now - moved > STANDSTILL_S_MAX:
                logs = "\n".join(one.tail for one in workers)
                raise BrokerUnavailable(
                    f"the measured worker stopped at {done} of {verdicts} verdicts; "
                    f"its log ends:\n{logs}"
                )
            await asyncio.sleep(POLL_S)
        await sending
    finally:
        sending.cancel()
        await consumer.stop()
    if first is None or first[1] >= done:
        raise BrokerUnavailable(
            "the worker was done before the clock could start; measure more events"
        )
    events = len(load) * (done - first[1]) / verdicts
    spent_s = cpu_s(workers)
    used = None if spent_s is None or first[2] is None else 1e6 * (spent_s - first[2]) / events
    return Sustained(events / (now - first[0]), used)


async def bare(settings: Settings, target: str, answer_bytes: int, folder: Path) -> float:
    """Return what a bare loop makes of the events topic as it stands, in a process of its own.

    Raises
    ------
    BrokerUnavailable
        It failed; with the end of what it said.
    """
    topics = topics_of(settings)
    log = folder / "bare.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "ontrack.pipeline.bench.bare",
            settings.broker,
            topics.events.name,
            target,
            str(answer_bytes),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
        try:
            told, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
    if process.returncode != 0:
        raise BrokerUnavailable(f"the bare loop failed:\n{log.read_text(errors='replace')[-2000:]}")
    return float(json.loads(told)["events_per_s"])


async def _length(consumer: AIOKafkaConsumer, parts: Sequence[TopicPartition]) -> int:
    return sum((await consumer.end_offsets(parts)).values())


def occupied_s(workers: Sequence[WorkerProcess]) -> float | None:
    """Return how long their main threads ran or waited for a processor so far (Linux).

    To whoever waits for a worker on a busy machine both are the same.
    """
    ns = 0
    for worker in workers:
        try:
            ran, queued, _ = Path(f"/proc/{worker.pid}/schedstat").read_text().split()
        except (OSError, ValueError):
            return None
        ns += int(ran) + int(queued)
    return ns / 1e9
