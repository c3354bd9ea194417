"""A third worker joins, another one is killed: each partition's runs move with their state."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.provision import create_topics
from ontrack.pipeline.kafka.sender import send_events, send_knowledge
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, load_stream, references
from ontrack.topics import codecs
from ontrack.topics.events import Event, RunEnded
from tests.pipeline.fleet import WorkerProcess, by_id, read_all, wait_for
from tests.simulation.campaign import expected_outputs

PARTITIONS = 6
LINE = re.compile(r"\] (\w+) .*?partition=(\d+).*?runs=(\d+)")


def told(worker: WorkerProcess, name: str) -> dict[int, int]:
    """Open runs by partition, from the last line of that name in a worker's log."""
    found = (LINE.search(line) for line in worker.log.read_text().splitlines())
    return {int(hit[2]): int(hit[3]) for hit in found if hit is not None and hit[1] == name}


async def open_runs(settings: Settings) -> dict[int, int]:
    """Runs by partition that have begun and not ended, from the log."""
    runs: dict[int, set[str]] = defaultdict(set)
    for message in sorted(
        await read_all(settings, topics_of(settings).events.name), key=lambda item: item.offset
    ):
        event = codecs.decode_event(message.value).event
        if isinstance(event, RunEnded):
            runs[message.partition].discard(event.run_id)
        else:
            runs[message.partition].add(event.run_id)
    return {partition: len(some) for partition, some in runs.items()}


def steps_in(events: list[Event]) -> int:
    return sum(event.type == "step" for event in events)


async def until_all_are_owned(*workers: WorkerProcess) -> None:
    """Wait until these workers have all partitions among them, recovered."""
    deadline = time.monotonic() + 60
    while True:
        for worker in workers:
            await asyncio.to_thread(worker.wait_ready)
        owned = Counter[int]()
        for worker in workers:
            lines = [line for line in worker.log.read_text().splitlines() if "s_assigned" in line]
            owned.update(map(int, re.findall(r"\d+", lines[-1].split("partitions=")[1])))
        if owned == Counter(range(PARTITIONS)):
            return
        assert time.monotonic() < deadline, owned
        await asyncio.sleep(0.5)


@pytest.mark.kafka
@pytest.mark.parametrize("runtime", ["faust", "aiokafka"])
async def test_open_runs_move_with_their_state_to_who_joins_and_from_who_is_killed(
    runtime: str, broker: str, fresh_prefix: str, tmp_path: Path
) -> None:
    settings = Settings(
        broker=broker,
        topic_prefix=fresh_prefix,
        group=f"{fresh_prefix}group",
        encoder="hashing",
        partitions=PARTITIONS,
    )
    workers = [
        WorkerProcess(settings, tmp_path, f"w{number}", runtime=runtime) for number in range(3)
    ]
    first, second, third = workers
    events = list(load_stream(60, seed=3, fault_rate=0.4))
    half = len(events) // 2
    verdicts = topics_of(settings).verdicts.name
    await create_topics(settings)
    await send_knowledge(settings, references(), contracts())
    try:
        for worker in (first, second):
            await asyncio.to_thread(worker.start)
        await until_all_are_owned(first, second)
        await send_events(settings, events[:half], None)
        await wait_for(settings, verdicts, steps_in(events[:half]))
        expected = await open_runs(settings)
        assert sum(expected.values()) > PARTITIONS

        await asyncio.to_thread(third.start)
        await until_all_are_owned(first, second, third)
        moved = told(third, "checkpoint_restored")
        assert len(moved) == 2
        assert moved == told(third, "partition_ready")
        assert moved == {partition: expected[partition] for partition in moved}
        assert third.metric("ontrack_events_total") == 0  # their state, and not their log

        sending = asyncio.create_task(send_events(settings, events[half:], 120.0))
        await asyncio.sleep(1.0)
        await asyncio.to_thread(third.kill)
        await sending
        await until_all_are_owned(first, second)
        pairs = [(event.run_id.encode(), codecs.encode(event)) for event in events]
        outputs = expected_outputs(pairs)
        found = by_id(await wait_for(settings, verdicts, steps_in(events)))
        kinds = Counter(json.loads(value)["type"] for value in outputs.values())
        others = {
            "intervention": topics_of(settings).interventions.name,
            "scorecard": topics_of(settings).scorecards.name,
        }
        for kind, topic in others.items():
            found |= by_id(await wait_for(settings, topic, kinds[kind]))
        assert found == outputs
        assert all(worker.metric("ontrack_snapshots_refused_total") == 0 for worker in workers[:2])
    finally:
        for worker in workers:
            worker.kill()
