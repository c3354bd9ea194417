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
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
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
from tests.broker import LocalBroker
from tests.pipeline.fleet import read_all
from tests.simulation.stage import (
    FULL,
    PARTITIONS,
    SCENARIOS,
    SHORT,
    Size,
    Stage,
    make_workers,
)

JUNK = (
    b"\xff\xfe\x00 not json",
    b"{",
    b'{"type":"step","tool":"t"}',
    b'{"type":"step","run_id":7,"tool":"t"}',
    b'{"type":"lunch","run_id":"x"}',
    b'["step"]',
    b'{"type":"step","run_id":"deep","tool":"t","args":{"a":%b}}' % (b"[" * 80 + b"]" * 80),
    b'{"type":"step","run_id":"nan","tool":"t","cost_usd":-Infinity}',
    b"",
)
Pair = tuple[bytes, bytes]


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


@lru_cache
def stream(size: Size, seed: int) -> tuple[list[Pair], dict[str, bytes]]:
    """Messages to send, and what must come of them; the same for every scenario."""
    pairs = make_pairs(size, seed)
    return pairs, expected_outputs(pairs)


def expected_outputs(pairs: list[Pair]) -> dict[str, bytes]:
    """Outputs by id of an undisturbed fold in this process, dead letters aside."""
    monitor = EmbeddedMonitor(Settings(encoder="hashing"), references(), contracts())
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


async def run_scenario(
    name: str, seed: int, size: Size, directory: Path, runtime: str = "faust"
) -> Row:
    """Stream, disturb, wait, compare."""
    began = time.monotonic()
    scenario = SCENARIOS[name]
    pairs, expected = await asyncio.to_thread(stream, size, seed)
    broker = LocalBroker(directory / "kafka")
    settings = Settings(
        broker=broker.start(),
        topic_prefix="f.",
        group="f",
        encoder="hashing",
        partitions=PARTITIONS,
    )
    workers = make_workers(settings, directory, runtime)
    stage = Stage(broker, workers, random.Random(seed), directory)
    if scenario.prepare is not None:
        scenario.prepare(stage)
    try:
        await create_topics(settings)
        await send_knowledge(settings, references(), contracts())
        for worker in workers:
            worker.start()
        for worker in workers:
            await asyncio.to_thread(worker.wait_ready)
        times = size.disturbances if scenario.often else 1
        span_s = max(times * scenario.span_s, len(pairs) / size.rate)
        sending = asyncio.create_task(send(settings, pairs, len(pairs) / span_s))
        if scenario.disturb is not None:
            # At times that the seed chooses, within those that the stream takes.
            for _ in range(times):
                calm = 0.1 if scenario.span_s else 1.0
                await asyncio.sleep(stage.random.uniform(0.3, 1.0) * calm * span_s / (times + 1))
                await scenario.disturb(stage)
        await sending
        Console(stderr=True).print("; ".join(stage.done) or "nothing was disturbed")
        return await _compare(name, began, stage, settings, expected, pairs, size.wait_s)
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
    wait_s: float,
) -> Row:
    topics = topics_of(settings)
    junk = Counter(value for key, value in pairs if key.startswith(b"junk"))
    deadline = time.monotonic() + wait_s
    before = -1
    while True:
        found: dict[str, set[bytes]] = {}
        count = 0
        for spec in (topics.verdicts, topics.interventions, topics.scorecards):
            for message in await read_all(settings, spec.name):
                found.setdefault(json.loads(message.value)["id"], set()).add(message.value)
                count += 1
        letters: dict[str, set[bytes]] = {}
        for message in await read_all(settings, topics.dead_letters.name):
            letters.setdefault(json.loads(message.value)["id"], set()).add(message.value)
        lost = Counter(junk)
        lost.subtract(
            base64.b64decode(json.loads(min(bodies))["value_base64"]) for bodies in letters.values()
        )
        missing = expected.keys() - found.keys()
        is_complete = not missing and not any(lost.values())
        is_quiet = count == before  # what is wrong to say may be said after all that is right
        before = count
        if (is_complete and is_quiet) or time.monotonic() > deadline:
            break
        await asyncio.sleep(2.0)
    return Row(
        scenario=name,
        events=len(pairs),
        disturbances=len(stage.done),
        missing=len(missing),
        unexpected=len(found.keys() - expected.keys()),
        conflicting=sum(values != {expected.get(key)} for key, values in found.items())
        + sum(len(bodies) > 1 for bodies in letters.values()),
        junk_unaccounted=sum(map(abs, lost.values())),
        repeated=count - len(found),
        seconds=round(time.monotonic() - began, 1),
    )


def _keep_logs(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for log in source.glob("*.log"):
        shutil.copy(log, target)


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign and print the table; exit 1 if anything was lost or contradicted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="small streams, for a quick look")
    parser.add_argument("--rate", type=float, help="messages a second; slower or faster streams")
    parser.add_argument("--runs", type=int, help="runs streamed in each scenario")
    parser.add_argument("--junk", type=int, help="malformed messages mixed in")
    parser.add_argument("--wait", type=float, help="seconds to wait for what is missing")
    parser.add_argument("--logs", type=Path, help="keep the workers' logs in this folder")
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="these scenarios alone")
    parser.add_argument("--runtime", choices=("faust", "aiokafka"), default="faust")
    given = parser.parse_args(arguments)
    size = SHORT if given.short else FULL
    size = replace(
        size,
        rate=given.rate or size.rate,
        runs=given.runs or size.runs,
        junk=size.junk if given.junk is None else given.junk,
        wait_s=given.wait or size.wait_s,
    )
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a broker that is away is the point
    table = Table(
        title=f"fault campaign on {given.runtime}, seed {given.seed}, {size.runs} runs a scenario"
    )
    names = ("scenario", "events", "disturbances", "missing", "unexpected", "conflicting")
    for column in (*names, "junk unaccounted", "repeated", "seconds", ""):
        table.add_column(column, justify="left" if column in ("scenario", "") else "right")
    sound = True
    for name in given.only or SCENARIOS:
        with tempfile.TemporaryDirectory(prefix="ontrack-faults-") as folder:
            try:
                row = asyncio.run(run_scenario(name, given.seed, size, Path(folder), given.runtime))
            except Exception as error:  # noqa: BLE001 (the other scenarios are run all the same)
                Console(stderr=True).print_exception()
                table.add_row(name, *[""] * 8, f"FAILED: {type(error).__name__}")
                sound = False
                continue
            finally:
                if given.logs is not None:
                    _keep_logs(Path(folder), given.logs / name.replace(" ", "-"))
        sound &= row.ok
        cells = [getattr(row, item) for item in row.__dataclass_fields__]
        table.add_row(*map(str, cells), "ok" if row.ok else "FAILED")
        Console(stderr=True).print(f"{name}: {'ok' if row.ok else 'FAILED'} ({row.seconds} s)")
    Console(width=150).print(table)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
