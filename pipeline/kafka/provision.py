"""Create topics, and check that they are what the worker needs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError, for_code

from ontrack.pipeline.kafka.connection import start_admin, topics_of
from ontrack.pipeline.settings import Settings
from ontrack.topics.catalog import TopicSpec
from ontrack.topics.errors import BrokerUnavailable

LEADER_TRIES = 100
LEADER_PAUSE_S = 0.1
_TIMESTAMPS = "message.timestamp.type"


@dataclass(frozen=True, slots=True)
class Created:
    """One topic and what became of it."""

    spec: TopicSpec
    existed: bool


async def create_topics(settings: Settings) -> list[Created]:
    """Create every topic of the catalogue; those that exist are left as they are.

    Raises
    ------
    BrokerUnavailable
        Kafka does not answer, or refuses a topic.
    """
    admin = await start_admin(settings)
    try:
        specs = list(topics_of(settings))
        response = await admin.create_topics(
            [
                NewTopic(spec.name, spec.partitions, spec.replication, topic_configs=spec.settings)
                for spec in specs
            ]
        )
    finally:
        await admin.close()
    by_name = {spec.name: spec for spec in specs}
    created = []
    for name, code, *rest in response.topic_errors:
        problem = for_code(code)
        existed = problem is TopicAlreadyExistsError
        if code and not existed:
            detail = next((text for text in rest if text), "")
            raise BrokerUnavailable(
                f"Kafka at {settings.broker} refused topic {name!r}: {problem.__name__} {detail}"
            )
        created.append(Created(by_name[name], existed))
    await _until_led(settings, list(by_name))
    return created


async def _until_led(settings: Settings, names: list[str]) -> None:
    """Wait until every partition has a leader: a topic can be used only then."""
    admin = await start_admin(settings)
    try:
        for _ in range(LEADER_TRIES):
            described = await admin.describe_topics(names)
            led = [
                partition["leader"] >= 0 for topic in described for partition in topic["partitions"]
            ]
            if len(described) == len(names) and led and all(led):
                return
            await asyncio.sleep(LEADER_PAUSE_S)
    finally:
        await admin.close()
    raise BrokerUnavailable(
        f"Kafka at {settings.broker} has made the topics, but not all their partitions have a "
        "leader yet; look at the broker's log and try again"
    )


async def partition_counts(settings: Settings) -> dict[str, int]:
    """Return the number of partitions of each of our topics that exists."""
    admin = await start_admin(settings)
    try:
        names = [spec.name for spec in topics_of(settings)]
        existing = set(await admin.list_topics())
        described = await admin.describe_topics([name for name in names if name in existing])
    finally:
        await admin.close()
    return {topic["topic"]: len(topic["partitions"]) for topic in described}


async def counts_of(settings: Settings, *names: str) -> dict[str, int]:
    """Return the number of partitions of each topic, these among them.

    Raises
    ------
    BrokerUnavailable
        Kafka does not answer, or lacks one of them.
    """
    counts = await partition_counts(settings)
    missing = [name for name in names if name not in counts]
    if missing:
        raise BrokerUnavailable(
            f"Kafka at {settings.broker} has no topic {', '.join(missing)}; "
            "run: ontrack topics create"
        )
    return counts


async def check_topics(settings: Settings) -> int:
    """Check that the topics exist and fit together; return the partitions of the events topic.

    Raises
    ------
    BrokerUnavailable
        Naming the topics that are missing, or that have another number of partitions.
    """
    topics = topics_of(settings)
    counts = await counts_of(settings, *(spec.name for spec in topics))
    wanted = counts[topics.events.name]
    outputs = (
        topics.proposals,
        topics.decisions,
        topics.verdicts,
        topics.interventions,
        topics.scorecards,
        topics.dead_letters,
        topics.fleet,
        topics.fleet_states,
        topics.snapshots,
    )
    odd = [
        f"{spec.name} has {counts[spec.name]}" for spec in outputs if counts[spec.name] != wanted
    ]
    if odd:
        raise BrokerUnavailable(
            f"{topics.events.name} has {wanted} partitions, but {', '.join(odd)}: outputs go to "
            "the partition of their source event, so the numbers must be equal"
        )
    await _check_clocks(settings)
    return wanted


async def _check_clocks(settings: Settings) -> None:
    """Check that events and knowledge carry the broker's time: a run meets what came before it."""
    topics = topics_of(settings)
    knowledge = (topics.references, topics.contracts, topics.tasks, topics.switches)
    timed = (topics.events, topics.proposals, *knowledge)
    resources = [
        ConfigResource(ConfigResourceType.TOPIC, spec.name, {_TIMESTAMPS: None}) for spec in timed
    ]
    admin = await start_admin(settings)
    try:
        answers = await admin.describe_configs(resources)
    finally:
        await admin.close()
    wrong = []
    for answer in answers:
        for _, _, _, name, entries in answer.resources:
            values = {entry[0]: entry[1] for entry in entries}
            if values.get(_TIMESTAMPS) != "LogAppendTime":
                wrong.append(name)
    if wrong:
        raise BrokerUnavailable(
            f"{', '.join(wrong)}: {_TIMESTAMPS} must be LogAppendTime, because a run is compared "
            "with what was published before its first event, by the broker's clock; set it with "
            "kafka-configs, or let ontrack topics create make the topics"
        )
