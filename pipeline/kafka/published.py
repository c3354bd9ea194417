"""What is published: references, contracts and tasks as they stand now, and finished runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from aiokafka import ConsumerRecord

from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.history import Where, opened
from ontrack.pipeline.mining import Successes
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidInput
from ontrack.topics.knowledge import Reference, Task, ToolContract
from ontrack.topics.verdicts import Scorecard

Item = TypeVar("Item")


@dataclass(slots=True)
class Published:
    """Knowledge as it stands on its topics; ``unreadable`` counts messages that were no such."""

    references: list[Reference] = field(default_factory=list)
    contracts: list[ToolContract] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    unreadable: int = 0


async def published_knowledge(settings: Settings) -> Published:
    """Read the last readable version of everything, less what was withdrawn.

    Raises
    ------
    BrokerUnavailable
        Kafka does not answer, or lacks a topic.
    """
    topics = topics_of(settings)
    found = Published()

    async def current(topic: str, decode: Callable[[bytes], Item]) -> list[Item]:
        by_key: dict[bytes, Item] = {}
        async for message in _messages(settings, topic):
            key = message.key or b""
            if not message.value:
                by_key.pop(key, None)
                continue
            try:
                by_key[key] = decode(message.value)
            except InvalidInput:
                found.unreadable += 1  # the worker logs it when it meets it
        return [by_key[key] for key in sorted(by_key)]

    found.references = await current(topics.references.name, codecs.decode_reference)
    contracts = await current(topics.contracts.name, codecs.decode_tools)
    found.contracts = [tool for tools in contracts for tool in tools]
    tasks = await current(topics.tasks.name, codecs.decode_tasks)
    found.tasks = [task for several in tasks for task in several]
    return found


async def published_runs(settings: Settings) -> Successes:
    """Read the events topic, with the outcomes of scorecards for runs whose end is not kept.

    Raises
    ------
    BrokerUnavailable
        Kafka does not answer, or lacks a topic.
    """
    topics = topics_of(settings)
    found = Successes(settings.redaction)
    async for message in _messages(settings, topics.events.name):
        try:
            event = codecs.decode_event(message.value or b"", settings.limits).event
        except InvalidInput:
            continue  # a dead letter of the worker's
        arrived = datetime.fromtimestamp(message.timestamp / 1000, UTC)
        place = f"{message.topic} {message.partition}:{message.offset}"
        found.take(event, place, arrived)
    async for message in _messages(settings, topics.scorecards.name):
        try:
            card = codecs.decode_output(message.value or b"")
        except InvalidInput:
            continue  # not ours
        if isinstance(card, Scorecard):
            found.judge(card.run_id, card.outcome)
    return found


async def _messages(settings: Settings, topic: str) -> AsyncIterator[ConsumerRecord]:
    async with opened(settings, topic) as history:
        async for batch in history.read(await history.spans(Where())):
            for message in batch:
                yield message
