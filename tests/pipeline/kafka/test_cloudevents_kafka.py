"""Every record on every topic is a CloudEvent to a public library, in both modes, on a broker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent

from ontrack.pipeline.kafka.connection import client_arguments, topics_of
from ontrack.pipeline.kafka.sender import send_events, send_knowledge
from ontrack.pipeline.sdk.client import Monitor
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, references, simulate_run, task_ids
from ontrack.topics.codecs import encode
from ontrack.topics.events import Proposal, Step
from ontrack.topics.knowledge import Task
from ontrack.topics.schemas.records import record_schema
from tests.pipeline.fleet import WAIT_S, WorkerProcess, produce, wait_for


async def everything_on(settings: Settings, topic: str) -> list[ConsumerRecord]:
    """All messages of a topic, however many partitions it has."""
    consumer = AIOKafkaConsumer(topic, **client_arguments(settings), enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, n) for n in consumer.partitions_for_topic(topic) or ()]
        consumer.unsubscribe()
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        found: list[ConsumerRecord] = []
        while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
            for messages in (await consumer.getmany(timeout_ms=200)).values():
                found.extend(messages)
        return found
    finally:
        await consumer.stop()


async def notices_on(settings: Settings, wanted: set[bytes]) -> None:
    """Wait until the worker has written notices of these types."""
    async with asyncio.timeout(WAIT_S):
        while True:
            messages = await everything_on(settings, topics_of(settings).events.name)
            types = {dict(message.headers).get("ce_type", b"") for message in messages}
            if {b"ontrack.event." + name for name in wanted} <= types:
                return
            await asyncio.sleep(0.2)


def read_by_the_public_library(message: ConsumerRecord) -> BaseCloudEvent:
    headers = dict(message.headers)
    assert {"ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time", "content-type"} <= (
        headers.keys()
    )
    return from_binary_event(KafkaMessage(headers, message.key, message.value))


async def a_run_of_the_client(settings: Settings, port: int) -> None:
    """Events and a decision of the policy, by the client."""
    run = Monitor(
        run_id="by-client", gate_url=f"http://127.0.0.1:{port}", settings=settings, agent="a"
    )
    async with run:
        await run.check("search", {"q": "x"}, deadline_ms=0)
        await run.step("search", {"q": "x"}, result="nothing")


def test_a_public_library_reads_every_record(settings: Settings, worker: WorkerProcess) -> None:
    topics = topics_of(settings)
    task = Task(id="t-1", allowed=("search",))
    asyncio.run(send_knowledge(settings, references(), contracts(), [task]))
    worker.start()
    worker.wait_ready()
    looping = simulate_run(task_ids()[0], 1, "loop", run_id="looping").events
    # A step is missing, and one run has started another: the worker writes notices.
    gap = [Step(run_id="gap", seq=n, tool="search", parent_run_id="looping") for n in (0, 2)]
    asyncio.run(send_events(settings, [*looping, *gap], None))
    asyncio.run(produce(settings, topics.events.name, [(b"a", b"no json")]))
    asyncio.run(a_run_of_the_client(settings, worker.port))
    ask = encode(Proposal(run_id="asked", tool="search"))
    asyncio.run(produce(settings, topics.proposals.name, [(b"asked", ask)]))
    asyncio.run(wait_for(settings, topics.dead_letters.name, 1))
    asyncio.run(wait_for(settings, topics.decisions.name, 2))
    steps = sum(event.type == "step" for event in looping)
    asyncio.run(wait_for(settings, topics.verdicts.name, steps + len(gap) + 1))

    asyncio.run(notices_on(settings, {b"gap_closed", b"child_started", b"parent_halted"}))
    kinds: set[str] = set()
    foreign = {b"no json", ask}  # written by the test
    for spec in topics:
        if not spec.models:
            continue
        schema = record_schema(spec.name.removeprefix(settings.topic_prefix))
        messages = [
            message
            for message in asyncio.run(everything_on(settings, spec.name))
            if message.value not in foreign
        ]
        # The lines of the fleet come when a minute is over; test_fleet_kafka.py has them.
        assert messages or spec in (topics.proposals, topics.fleet, topics.switches), spec.name
        names = set()
        for message in messages:
            event = read_by_the_public_library(message)
            assert event.get_datacontenttype() == "application/json"
            assert event.get_data() == json.loads(message.value)
            jsonschema.Draft202012Validator(schema).validate(event.get_data())
            if spec is not topics.dead_letters:
                assert event.get_subject() == message.key.decode()
            names.add((event.get_source(), event.get_id()))
            kinds.add(event.get_type())
        assert len(names) == len({(m.partition, m.offset) for m in messages})
    assert kinds - {"ontrack.fleet"} == {
        *(f"ontrack.event.{name}" for name in ("run_started", "step", "run_ended")),
        *(f"ontrack.event.{name}" for name in ("gap_closed", "child_started", "parent_halted")),
        *(f"ontrack.{name}" for name in ("verdict", "intervention", "decision", "scorecard")),
        *(f"ontrack.{name}" for name in ("reference", "contract", "task", "dead_letter")),
    }


def structured(kind: str, data: dict[str, Any]) -> tuple[bytes, bytes]:
    attributes = {"type": kind, "source": "/acme", "datacontenttype": "application/json"}
    message = to_structured_event(CloudEvent({**attributes, "partitionkey": "s"}, data))
    assert message.key == "s"
    return b"s", bytes(message.value)


def test_events_and_proposals_in_structured_mode_are_judged(
    settings: Settings, worker: WorkerProcess
) -> None:
    topics = topics_of(settings)
    worker.start()
    worker.wait_ready()
    call = {"run_id": "s", "tool": "search", "args": {"q": "x"}}
    events = [
        structured("ontrack.event.run_started", {"run_id": "s"}),
        structured("ontrack.event.step", {**call, "seq": 0}),
        structured("ontrack.event.step", {"run_id": "s"}),
    ]
    asyncio.run(produce(settings, topics.events.name, events))
    (verdict,) = asyncio.run(wait_for(settings, topics.verdicts.name, 1))
    assert json.loads(verdict.value)["id"] == "s:0"
    (letter,) = asyncio.run(wait_for(settings, topics.dead_letters.name, 1))
    assert json.loads(letter.value)["error"]["text"] == "field `tool` is missing"
    asyncio.run(produce(settings, topics.proposals.name, [structured("ontrack.proposal", call)]))
    (decision,) = asyncio.run(wait_for(settings, topics.decisions.name, 1))
    assert json.loads(decision.value)["run_id"] == "s"
