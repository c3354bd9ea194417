"""Membership: who is in the worker's consumer group, and whether a worker may join it."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

import structlog
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError, KafkaError

from ontrack.pipeline.kafka.assignor import NAME
from ontrack.pipeline.kafka.connection import start_admin
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import BrokerUnavailable

_log = structlog.get_logger(__name__)

PAUSE_S: Final = 2.0
_COORDINATOR_TRIES: Final = 20


class Group(NamedTuple):
    """A consumer group.

    Parameters
    ----------
    protocol
        How its members share partitions out; empty while they agree on it.
    members
        As the broker describes them.
    """

    protocol: str
    members: list[Any]


async def group_of(admin: AIOKafkaAdminClient, name: str) -> Group:
    """Return a group; a new cluster makes its book of groups first."""
    for attempt in range(_COORDINATOR_TRIES):
        try:
            answers: list[Any] = await admin.describe_consumer_groups([name])
            break
        except GroupCoordinatorNotAvailableError:
            if attempt == _COORDINATOR_TRIES - 1:
                raise
            await asyncio.sleep(0.25)
    # A group is (error, name, state, protocol type, protocol, members).
    rows = [row for answer in answers for row in answer.groups]
    protocols = [row[4] for row in rows if row[4]]
    return Group(protocols[0] if protocols else "", [member for row in rows for member in row[5]])


async def until_open_to_faust(settings: Settings) -> None:
    """Wait until no worker of the other runtime is in the group; says so meanwhile.

    Faust itself would log the broker's refusal once, and then neither join nor end. Where Kafka
    does not answer nobody is waited for: Faust waits for the broker by itself.
    """
    while True:
        try:
            admin = await start_admin(settings)
        except BrokerUnavailable:
            return
        try:
            group = await group_of(admin, settings.group)
        except KafkaError as error:
            _log.warning("group_not_looked_at", error=type(error).__name__)
            return
        finally:
            await admin.close()
        if not group.members or group.protocol != NAME:
            return
        tell_not_joined(settings)
        await asyncio.sleep(PAUSE_S)


def tell_not_joined(settings: Settings) -> None:
    """Say that workers of the other runtime are in the group."""
    detail = "the group's workers run on another runtime; this one begins when they end"
    _log.warning("group_not_joined", group=settings.group, detail=detail)
