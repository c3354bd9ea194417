"""A seeded fault campaign on a real broker: whatever is killed, the verdicts are the same.

``python -m tests.simulation.campaign`` (``make faults``) runs every disturbance at full size and
prints a table; the seed reproduces it. The same functions serve a short form in the test suite.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import logging
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka import AIOKafkaProducer
from rich.console import Console
from rich.table import Table

from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.kafka.connection import client_arguments, topics_of
from ontrack.pipeline.kafka.provision import create_topics
from ontrack.pipeline.kafka.sender import send_knowledge
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, load_stream, references
from ontrack.topics import codecs
from tests.broker import TEST_SETTINGS, LocalBroker
from tests.pipeline.fleet import WorkerProcess, read_all

JUNK = (
    b"\xff\xfe\x00 not json",
    b"{",
    b'{"type":"step","tool":"t"}',
    b'{"type":"step","run_id":7,"tool":"t"}',
    b'{"type":"lunch","run_id":"x"}',
    b'["step"]',
)
Pair = tuple[bytes, bytes]


@dataclass(frozen=True)
class Size:
    """How much is streamed, how fast, and how often it is disturbed."""

    runs: int
    rate: float
    junk: int
    disturbances: int
    workers: int = 2
    wait_s: float = 180.0


FULL = Size(runs=2000, rate=400.0, junk=10_000, disturbances=20)
SHORT = Size(runs=60, rate=90.0, junk=200, disturbances=3)


@dataclass
class Stage:
    """What a disturbance can get its hands on."""

    broker: LocalBroker
    workers: list[WorkerProcess]
    random: random.Random
    size: Size
    done: list[str] = field(default_factory=list)

    async def kill_a_worker(self) -> None:
        worker = self.random.choice(self.workers)
        await asyncio.to_thread(worker.kill)
        await asyncio.sleep(self.random.uniform(0.0, 1.0))
        await asyncio.to_thread(worker.start)
        self.done.append(f"kill -9 {worker.name}")

    async def stop_a_worker(self) -> None:
        worker = self.random.choice(self.workers)
        await asyncio.to_thread(worker.stop)
        await asyncio.to_thread(worker.start)
        self.done.append(f"stop {worker.name}")

    async def pause_a_worker(self) -> None:
        """Longer than its session: the others take over, and it comes back not knowing."""
        process = self.random.choice(self.workers).process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(12.0)
        process.send_signal(signal.SIGCONT)
        self.done.append("pause 12 s")

    async def restart_the_broker(self) -> None:
        await asyncio.to_thread(self.broker.stop)
        await asyncio.to_thread(self.broker.start, TEST_SETTINGS)
        self.done.append("broker stopped and started")

    async def kill_the_broker(self) -> None:
        await asyncio.to_thread(self.broker.kill)
        await asyncio.to_thread(self.broker.start, TEST_SETTINGS)
        self.done.append("broker killed")

    async def add_and_remove_a_worker(self) -> None:
        """A third worker joins under load, and leaves without a word."""
        last = self.workers[-1]
        third = WorkerProcess(last.settings, last.directory, name=f"extra{len(self.done)}")
        await asyncio.to_thread(third.start)
        await asyncio.sleep(6.0)
        await asyncio.to_thread(third.kill)
        self.done.append("worker joined and was killed")


Disturbance = Callable[[Stage], Awaitable[None]]
SCENARIOS: dict[str, tuple[Disturbance | None, int]] = {
    # name: (what happens, how often as a share of size.disturbances: 1 = all, 0 = once)
    "undisturbed": (None, 0),
    "kill -9 of workers": (Stage.kill_a_worker, 1),
    "workers stopped": (Stage.stop_a_worker, 1),
    "a worker comes and goes": (Stage.add_and_remove_a_worker, 0),
    "worker paused past its session": (Stage.pause_a_worker, 0),
    "broker stopped and started": (Stage.restart_the_broker, 0),
    "broker killed": (Stage.kill_the_broker, 0),
}


@dataclass(frozen=True)
class Row:
    """What came of one scenario; all but the last three must be zero."""

    scenario: str
    events: int
    disturbances: int
    missing: int
    unexpected: int
    conflicting: int
    junk_unaccounted: int
    repeated: int
    seconds: float

    @property
    def ok(self) -> bool:
        return not (self.missing or self.unexpected or self.conflicting or self.junk_unaccounted)


def make_pairs(size: Size, seed: int) -> list[Pair]:
    """Runs as they interleave in a fleet, with malformed messages mixed in."""
    pairs = [
        (event.run_id.encode(), codecs.encode(event))
        for event in load_stream(size.runs, seed=seed, fault_rate=0.4)
    ]
    dice = random.Random(seed)
    for number in range(size.junk):
        place = dice.randrange(len(pairs) + 1)
        pairs.insert(place, (b"junk%d" % (number % 50), JUNK[number % len(JUNK)]))
    return pairs


def expected_outputs(settings: Settings, pairs: list[Pair]) -> dict[str, bytes]:
    """Outputs by id of an undisturbed fold in this process, dead letters aside."""
    monitor = EmbeddedMonitor(settings, references(), contracts())
    found: dict[str, bytes] = {}
    for _, value in pairs:
        for output in monitor.feed_bytes(value):
            if output.type != "dead_letter":
                found[output.id] = codecs.encode(output)
    return found


async def send(settings: Settings, pairs: list[Pair], rate: float) -> None:
    """Send at a rate; what fails while the broker is away is sent again, in order."""
    topic = topics_of(settings).events.name
    producer = AIOKafkaProducer(
        **client_arguments(settings),
        acks="all",
        enable_idempotence=True,
        request_timeout_ms=120_000,
    )
    await producer.start()
    began, futures = time.monotonic(), []
    try:
        for number, (key, value) in enumerate(pairs):
            futures.append(await producer.send(topic, value, key=key))
            ahead = began + number / rate - time.monotonic()
            if ahead > 0:
                await asyncio.sleep(ahead)
        await asyncio.gather(*futures)
    finally:
        await producer.stop()


async def run_scenario(name: str, seed: int, size: Size, directory: Path) -> Row:
    """Stream, disturb, wait, compare."""
    began = time.monotonic()
    disturb, share = SCENARIOS[name]
    pairs = make_pairs(size, seed)
    broker = LocalBroker(directory / "kafka")
    settings = Settings(
        broker=broker.start(), topic_prefix="f.", group="f", encoder="hashing", partitions=4
    )
    more = {"ONTRACK_CHECKPOINT_EVENTS": "300"}
    workers = [
        WorkerProcess(settings, directory, name=f"w{number}", more=more)
        for number in range(size.workers)
    ]
    stage = Stage(broker, workers, random.Random(seed), size)
    try:
        await create_topics(settings)
        await send_knowledge(settings, references(), contracts())
        for worker in workers:
            worker.start()
        for worker in workers:
            await asyncio.to_thread(worker.wait_ready)
        sending = asyncio.create_task(send(settings, pairs, size.rate))
        times = size.disturbances if share else 1
        span = len(pairs) / size.rate
        for _ in range(times if disturb is not None else 0):
            assert disturb is not None
            await asyncio.sleep(stage.random.uniform(0.3, 1.0) * span / (times + 1))
            await disturb(stage)
        await sending
        expected = expected_outputs(settings, pairs)
        return await _compare(name, began, stage, settings, expected, pairs)
    finally:
        for worker in workers:
            worker.kill()
        broker.stop()


async def _compare(
    name: str,
    began: float,
    stage: Stage,
    settings: Settings,
    expected: dict[str, bytes],
    pairs: list[Pair],
) -> Row:
    topics = topics_of(settings)
    junk = Counter(value for key, value in pairs if key.startswith(b"junk"))
    deadline = time.monotonic() + stage.size.wait_s
    while True:
        found: dict[str, set[bytes]] = {}
        count = 0
        for spec in (topics.verdicts, topics.interventions, topics.scorecards):
            for message in await read_all(settings, spec.name):
                found.setdefault(json.loads(message.value)["id"], set()).add(message.value)
                count += 1
        letters = {
            letter["id"]: base64.b64decode(letter["value_base64"])
            for letter in (
                json.loads(message.value)
                for message in await read_all(settings, topics.dead_letters.name)
            )
        }
        lost = Counter(junk)
        lost.subtract(letters.values())
        missing = expected.keys() - found.keys()
        if (not missing and not any(lost.values())) or time.monotonic() > deadline:
            break
        await asyncio.sleep(1.0)
    return Row(
        scenario=name,
        events=len(pairs),
        disturbances=len(stage.done),
        missing=len(missing),
        unexpected=len(found.keys() - expected.keys()),
        conflicting=sum(values != {expected.get(key)} for key, values in found.items()),
        junk_unaccounted=sum(map(abs, lost.values())),
        repeated=count - len(found),
        seconds=round(time.monotonic() - began, 1),
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign and print the table; exit 1 if anything was lost or contradicted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="small streams, for a quick look")
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="these scenarios alone")
    given = parser.parse_args(arguments)
    size = SHORT if given.short else FULL
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a broker that is away is the point
    table = Table(title=f"fault campaign, seed {given.seed}, {size.runs} runs a scenario")
    names = ("scenario", "events", "disturbances", "missing", "unexpected", "conflicting")
    for column in (*names, "junk unaccounted", "repeated", "seconds", ""):
        table.add_column(column, justify="left" if column in ("scenario", "") else "right")
    rows = []
    for name in given.only or SCENARIOS:
        with tempfile.TemporaryDirectory(prefix="ontrack-faults-") as folder:
            row = asyncio.run(run_scenario(name, given.seed, size, Path(folder)))
        rows.append(row)
        cells = [getattr(row, item) for item in row.__dataclass_fields__]
        table.add_row(*map(str, cells), "ok" if row.ok else "FAILED")
        Console(stderr=True).print(f"{name}: {'ok' if row.ok else 'FAILED'} ({row.seconds} s)")
    Console(width=150).print(table)
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
