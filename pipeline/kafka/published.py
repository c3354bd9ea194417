"""What is published: references, contracts and tasks as they stand now, and finished runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

from aiokafka import ConsumerRecord

from ontrack.pipeline.folding.shelves import Shelves
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.follower import enter
from ontrack.pipeline.kafka.history import Where, opened
from ontrack.pipeline.mining import Successes
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidInput
from ontrack.topics.knowledge import Reference, Task, ToolContract
from ontrack.topics.verdicts import Scorecard


@dataclass(frozen=True, slots=True)
class Published:
    """Knowledge as it stands on its topics; ``unreadable`` counts messages that nobody can use."""

    references: list[Reference]
    contracts: list[ToolContract]
    tasks: list[Task]
    unreadable: int


async def published_knowledge(settings: Settings) -> Published:
    """Read the last version of everything that a worker can use, less what was withdrawn.

    Raises
    ------
    BrokerUnavailable
        Kafka does not answer, or lacks a topic.
    """
    topics = topics_of(settings)
    shelves, unreadable = Shelves(), 0
    for topic in (topics.references.name, topics.contracts.name, topics.tasks.name):
        async for message in _messages(settings, topic):
            try:
                enter(topics, message, shelves)
            except InvalidInput:
                unreadable += 1  # the worker logs it when it meets it
    references, contracts, tasks = shelves.current()
    return Published(
        sorted(references, key=lambda item: item.reference_id),
        sorted(contracts, key=lambda item: item.name),
        sorted(tasks, key=lambda item: item.id),
        unreadable,
    )


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
