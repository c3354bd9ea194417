"""Doctor: what the broker, the topics, the consumer group and the workers look like from here."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.errors import KafkaError

from ontrack.pipeline.checks import Check
from ontrack.pipeline.kafka.connection import (
    start_admin,
    start_consumer,
    start_producer,
    topics_of,
)
from ontrack.pipeline.kafka.doctor_pages import gate_check, worker_check
from ontrack.pipeline.kafka.doctor_topics import replicas_check, retention_check, topics_check
from ontrack.pipeline.kafka.membership import group_of
from ontrack.pipeline.kafka.provision import partition_counts
from ontrack.pipeline.kafka.published import published_knowledge
from ontrack.pipeline.kafka.switches import thrown
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import BrokerUnavailable, OnTrackError

LOOK_S_MAX: Final = 30.0
LAG_MAX: Final = 10_000  # a quarter of a minute of one worker's work
CLOCK_S_MAX: Final = 1.0


async def fleet_checks(settings: Settings, writes: bool) -> list[Check]:
    """Check everything beyond this machine; what cannot be told without the broker is left out.

    Parameters
    ----------
    writes
        Whether the clock may be compared, which makes a topic and deletes it again, and the gate
        be asked, which leaves a decision about a run ``ontrack-doctor``.
    """
    broker = await _look("broker", lambda: _broker(settings), _START_BROKER)
    if not broker.ok:
        return [broker]
    topics = await _look(
        "topics", lambda: topics_check(settings), "create them: ontrack topics create"
    )
    checks = [broker, topics]
    if writes:
        checks.append(await _look("clock", lambda: _clock(settings), _LOOK_AT_BROKER))
    if not topics.ok:
        return checks  # the rest is read from them
    checks += [
        await _look("retention", lambda: retention_check(settings), _LOOK_AT_BROKER),
        await _look("replicas", lambda: replicas_check(settings), _LOOK_AT_BROKER),
        await _look("knowledge", lambda: _knowledge(settings), _LOOK_AT_BROKER),
        await _look("switches", lambda: _switches(settings), _LOOK_AT_BROKER),
    ]
    members: list[Any] = []
    checks.append(await _look("group", lambda: _group(settings, members), _LOOK_AT_BROKER))
    if not members:
        return checks  # there are no pages to ask
    found = await worker_check(settings)
    checks.append(found.check)
    if writes and found.urls:
        checks.append(await gate_check(settings, found.urls[0]))
    return checks


_START_BROKER: Final = "start one: make kafka, or docker compose up kafka"
_LOOK_AT_BROKER: Final = "see the broker's log, and what the user of these settings may do"


async def _look(name: str, look: Callable[[], Awaitable[Check]], fix: str) -> Check:
    """Look at something in bounded time; what goes wrong is a failed check."""
    try:
        async with asyncio.timeout(LOOK_S_MAX):
            return await look()
    except OnTrackError as error:
        return Check(name, False, str(error), fix)
    except TimeoutError:
        return Check(name, False, f"no answer within {LOOK_S_MAX:.0f} s", fix)
    except KafkaError as error:
        return Check(name, False, f"{type(error).__name__}: {error}", fix)


async def _broker(settings: Settings) -> Check:
    admin = await start_admin(settings)
    try:
        count = len((await admin.describe_cluster())["brokers"])
    finally:
        await admin.close()
    brokers = "1 broker" if count == 1 else f"{count} brokers"
    return Check(
        "broker", True, f"{settings.broker} answers ({settings.security_protocol}), {brokers}"
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    ahead_s: float
    error_s: float


async def _clock(settings: Settings) -> Check:
    """Compare this machine's clock with the broker's, by the time that it gives to a message."""
    try:
        reading = await _read_clock(settings)
    except (BrokerUnavailable, KafkaError) as error:
        return Check("clock", True, f"not compared: {type(error).__name__} for a topic of its own")
    ahead = f"{abs(reading.ahead_s):.3f} s {'ahead of' if reading.ahead_s > 0 else 'behind'}"
    detail = f"{ahead} the broker's, within {reading.error_s:.3f} s"
    fine = abs(reading.ahead_s) - reading.error_s <= CLOCK_S_MAX
    fix = "" if fine else "keep both in step (NTP): times from event to verdict compare them"
    return Check("clock", fine, detail, fix)


async def _read_clock(settings: Settings) -> _Reading:
    """Let the broker stamp a message, on a topic that is there for this alone."""
    name = f"{settings.topic_prefix}doctor-{uuid.uuid4().hex[:12]}"
    admin = await start_admin(settings)
    try:
        config = {"message.timestamp.type": "LogAppendTime", "retention.ms": "3600000"}
        answer = await admin.create_topics([NewTopic(name, 1, 1, topic_configs=config)])
        if any(code for _, code, *_ in answer.topic_errors):
            raise BrokerUnavailable(f"{name} cannot be made")
        try:
            return await _stamped(settings, name)
        finally:
            await admin.delete_topics([name])
    finally:
        await admin.close()


async def _stamped(settings: Settings, topic: str) -> _Reading:
    producer = await start_producer(settings)
    try:
        await producer.send_and_wait(topic, b"first", partition=0)  # connections cost time
        best = _Reading(0.0, float("inf"))
        for _ in range(3):
            before = time.time()
            sent = await producer.send_and_wait(topic, b"?", partition=0)
            after = time.time()
            error = (after - before) / 2 + 0.001  # the broker counts in whole milliseconds
            if error < best.error_s:
                best = _Reading((before + after) / 2 - sent.timestamp / 1000, error)
        return best
    finally:
        await producer.stop()


async def _knowledge(settings: Settings) -> Check:
    found = await published_knowledge(settings)
    tasks = {reference.task_id for reference in found.references}
    detail = (
        f"{len(found.references):,} references for {len(tasks):,} tasks, "
        f"{len(found.contracts):,} contracts, {len(found.tasks):,} tasks"
    )
    if not found.references:
        detail += "; without references only loops, stalls and contracts are judged"
    if found.unreadable:
        detail += f"; {found.unreadable:,} messages are passed over, as they cannot be read"
    return Check("knowledge", True, detail)


async def _switches(settings: Settings) -> Check:
    """Tell what is in shadow mode: at 3 a.m. somebody else may have put it there."""
    found = await thrown(settings)
    told = [f"{each.key} since {each.since:%Y-%m-%dT%H:%M:%SZ}" for each in found if each.switch]
    unread = [each.key for each in found if each.switch is None]
    if unread:
        fix = "throw them anew: ontrack shadow on or off"
        return Check("switches", False, f"cannot be read: {', '.join(unread)}", fix)
    return Check("switches", True, f"in shadow mode: {', '.join(told) or 'nothing'}")


async def _group(settings: Settings, members: list[Any]) -> Check:
    """Look at the members of the consumer group, who are entered, and at what waits for them."""
    admin = await start_admin(settings)
    try:
        members += (await group_of(admin, settings.group)).members
        committed = await admin.list_consumer_group_offsets(settings.group)
    finally:
        await admin.close()
    lag = await _lag(settings, {tp: found.offset for tp, found in committed.items()})
    waiting = f"{lag:,} events behind what it has committed"
    if not members:
        detail = f"no worker is in group {settings.group!r}, {lag:,} events wait"
        fix = "start one: ontrack worker --instance NAME"
        return Check("group", not lag, detail, fix if lag else "")
    workers = "1 worker" if len(members) == 1 else f"{len(members)} workers"
    detail = f"{workers} in {settings.group!r}, {waiting}"
    fine = lag <= LAG_MAX
    fix = "" if fine else "see docs/operating.md#runbook-lag"
    return Check("group", fine, detail, fix)


async def _lag(settings: Settings, committed: Mapping[TopicPartition, int]) -> int:
    events = topics_of(settings).events.name
    count = (await partition_counts(settings))[events]
    consumer = await start_consumer(settings)
    try:
        tps = [TopicPartition(events, number) for number in range(count)]
        ends = await consumer.end_offsets(tps)
        kept = await consumer.beginning_offsets(tps)
    finally:
        await consumer.stop()
    return sum(max(0, ends[tp] - max(committed.get(tp, 0), kept[tp])) for tp in tps)
