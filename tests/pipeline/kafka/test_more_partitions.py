"""Adding partitions in place, as docs/operating.md tells to: nothing open, all topics, then on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from aiokafka.admin.new_partitions import NewPartitions

from ontrack.pipeline.kafka.connection import start_admin, topics_of
from ontrack.pipeline.kafka.doctor import fleet_checks
from ontrack.pipeline.kafka.provision import partition_counts
from ontrack.pipeline.kafka.sender import send_events, send_knowledge
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, demo_runs, references, simulate_faulty, task_ids
from ontrack.topics.events import Step
from tests.pipeline.fleet import WorkerProcess, by_id, wait_for

BEFORE, AFTER = 3, 7


async def widen(settings: Settings, names: list[str]) -> None:
    admin = await start_admin(settings)
    try:
        answer = await admin.create_partitions({name: NewPartitions(AFTER) for name in names})
        assert [error for error in answer.topic_errors if error[1]] == []
    finally:
        await admin.close()
    deadline = time.monotonic() + 30
    while True:
        counts = await partition_counts(settings)
        if all(counts[name] == AFTER for name in names):
            return
        assert time.monotonic() < deadline, "Kafka makes no partitions"
        await asyncio.sleep(0.1)


def failures(settings: Settings) -> dict[str, str]:
    found = asyncio.run(fleet_checks(settings, writes=False))
    return {check.name: check.detail for check in found if not check.ok}


def test_partitions_are_added_while_nothing_is_open(
    settings: Settings, worker: WorkerProcess, tmp_path: Path
) -> None:
    topics = topics_of(settings)
    asyncio.run(send_knowledge(settings, references(), contracts(), ()))
    first = [event for run in demo_runs() for event in run.events]
    asyncio.run(send_events(settings, first, None))
    worker.start()
    worker.wait_ready()
    steps = sum(isinstance(event, Step) for event in first)
    said = by_id(asyncio.run(wait_for(settings, topics.verdicts.name, steps)))
    worker.stop()

    wide = [spec.name for spec in topics if spec.partitions == BEFORE]
    assert topics.events.name in wide
    forgotten = topics.interventions.name
    asyncio.run(widen(settings, [name for name in wide if name != forgotten]))
    assert forgotten in failures(settings)["topics"]
    asyncio.run(widen(settings, [forgotten]))
    after = settings.model_copy(update={"partitions": AFTER})
    # The stopped worker is a member for ten seconds more. Who comes back within them is given the
    # partitions it had, and nobody the new ones: so doctor must have seen the group empty.
    deadline = time.monotonic() + 60
    while failures(after):
        assert set(failures(after)) <= {"workers"}
        assert time.monotonic() < deadline

    again = WorkerProcess(after, tmp_path)
    try:
        again.start()
        again.wait_ready()
        tasks = task_ids()
        runs = [simulate_faulty(tasks[n % len(tasks)], n, None, f"later-{n}") for n in range(12)]
        second = [event for run in runs for event in run.events]
        asyncio.run(send_events(after, second, None))
        steps += sum(isinstance(event, Step) for event in second)
        messages = asyncio.run(wait_for(after, topics.verdicts.name, steps))
    finally:
        again.stop()
    now = by_id(messages)
    assert {name: now[name] for name in said} == said
    assert len(now) == steps
    assert max(message.partition for message in messages) >= BEFORE
