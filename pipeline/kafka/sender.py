"""Sender: recorded runs and knowledge onto their topics."""

from __future__ import annotations

import asyncio
import hashlib
import time as clock
from collections.abc import Iterable

from aiokafka.errors import KafkaError
from pydantic import BaseModel

from ontrack.pipeline.kafka.connection import start_producer, topics_of, unreachable
from ontrack.pipeline.kafka.messages import cloud_headers, event_message
from ontrack.pipeline.kafka.provision import counts_of
from ontrack.pipeline.reading.event_reader import SourceEvent
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.events import Event
from ontrack.topics.knowledge import Reference, Task, ToolContract

_SOURCE = "ontrack/send"
IN_FLIGHT_MAX = 2000


async def send_events(
    settings: Settings, events: Iterable[Event | SourceEvent], rate: float | None
) -> int:
    """Publish events, keyed by run id, in order; returns when all are acknowledged.

    Parameters
    ----------
    events
        Events, or what a file holds: its lines are sent as they are, unless ``redact`` is set.
    rate
        Events a second, or None for as fast as the broker takes them.

    Raises
    ------
    BrokerUnavailable
        Kafka does not answer, or has no topic of events.
    """
    topics = topics_of(settings)
    redaction = settings.redaction
    await counts_of(settings, topics.events.name)  # a producer would wait for a topic for 40 s
    producer = await start_producer(settings)
    count, began = 0, clock.monotonic()
    waiting: list[asyncio.Future[object]] = []
    try:
        for item in events:
            event = item.event if isinstance(item, SourceEvent) else item
            value = item.raw if isinstance(item, SourceEvent) else None
            if redaction:
                # Never the line itself: it may say things twice, or in fields that no rule knows.
                event, value = redaction.plainly(event), None
            event_id = f"{event.run_id}:{event.type}:{_number(event, count)}"
            message = event_message(topics, event, event_id, source=_SOURCE, value=value)
            future = await producer.send(
                message.topic, message.value, key=message.key, headers=message.headers
            )
            count += 1
            waiting.append(future)
            if len(waiting) >= IN_FLIGHT_MAX:
                await asyncio.gather(*waiting)
                waiting.clear()
            if rate is not None:
                ahead = began + count / rate - clock.monotonic()
                if ahead > 0:
                    await asyncio.sleep(ahead)
        await asyncio.gather(*waiting)
    except KafkaError as error:
        raise unreachable(settings, error) from error
    finally:
        await producer.stop()
    return count


async def send_knowledge(
    settings: Settings,
    references: Iterable[Reference] = (),
    contracts: Iterable[ToolContract] = (),
    tasks: Iterable[Task] = (),
) -> int:
    """Publish references, contracts and tasks; returns when all are acknowledged."""
    topics = topics_of(settings)
    redaction = settings.redaction
    items: list[tuple[str, str, BaseModel]] = [
        *((topics.contracts.name, tool.name, tool) for tool in contracts),
        *((topics.tasks.name, task.id, redaction.task(task)) for task in tasks),
        *(
            (topics.references.name, item.reference_id, redaction.reference(item))
            for item in references
        ),
    ]
    if not items:
        return 0
    await counts_of(settings, *sorted({topic for topic, _, _ in items}))
    producer = await start_producer(settings)
    try:
        futures = []
        for topic, key, item in items:
            value = codecs.encode(item)
            # Another version is another message; the same one sent again is not.
            event_id = f"{key}:{hashlib.sha256(value).hexdigest()[:16]}"
            headers = cloud_headers(item, event_id, _SOURCE, key)
            futures.append(await producer.send(topic, value, key=key.encode(), headers=headers))
        await asyncio.gather(*futures)
    except KafkaError as error:
        raise unreachable(settings, error) from error
    finally:
        await producer.stop()
    return len(items)


async def withdraw_references(settings: Settings, reference_ids: Iterable[str]) -> int:
    """Withdraw references: runs that begin from now on do not meet them; returns how many."""
    topic = topics_of(settings).references.name
    await counts_of(settings, topic)
    producer = await start_producer(settings)
    try:
        futures = [await producer.send(topic, None, key=name.encode()) for name in reference_ids]
        await asyncio.gather(*futures)
    except KafkaError as error:
        raise unreachable(settings, error) from error
    finally:
        await producer.stop()
    return len(futures)


def _number(event: Event, sent: int) -> str:
    """Return what makes the id of a message unique: its place in the run, else in this sending."""
    return str(event.seq) if event.seq is not None else f"sent-{sent}"
