"""Who is in the group: a Faust worker waits for those of the other runtime, and says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import GroupCoordinatorNotAvailableError, KafkaConnectionError
from structlog.testing import capture_logs

from ontrack.pipeline.kafka import membership
from ontrack.pipeline.kafka.assignor import NAME
from ontrack.pipeline.kafka.membership import Group, group_of, until_open_to_faust
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import BrokerUnavailable

SETTINGS = Settings(encoder="hashing")


class Admin:
    """Describes the group as the test says, one answer after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.closed = 0

    async def describe_consumer_groups(self, names: list[str]) -> list[Any]:
        assert names == [SETTINGS.group]
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        protocol, members = answer
        row = (0, names[0], "Stable", "consumer", protocol, members)
        return [SimpleNamespace(groups=[row])]

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(membership, "asyncio", SimpleNamespace(sleep=sleep))
    return found


def given(monkeypatch: pytest.MonkeyPatch, admin: Admin) -> None:
    async def start(_settings: Settings) -> Admin:
        return admin

    monkeypatch.setattr(membership, "start_admin", start)


async def test_a_group_is_described_once_its_coordinator_is_there(waited: list[float]) -> None:
    admin: Any = Admin(GroupCoordinatorNotAvailableError(), ("faust", ["a", "b"]))
    assert await group_of(admin, SETTINGS.group) == Group("faust", ["a", "b"])
    assert waited == [0.25]


async def test_faust_waits_until_the_workers_of_the_other_runtime_are_gone(
    monkeypatch: pytest.MonkeyPatch, waited: list[float]
) -> None:
    admin = Admin((NAME, ["w-1"]), (NAME, ["w-1"]), ("", []))
    given(monkeypatch, admin)
    with capture_logs() as logs:
        await until_open_to_faust(SETTINGS)
    assert [line["event"] for line in logs] == ["group_not_joined"] * 2
    assert len(waited) == 2
    assert admin.closed == 3


@pytest.mark.parametrize("answer", [("faust", ["w-1"]), ("", ["w-1"]), KafkaConnectionError()])
async def test_nobody_else_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, waited: list[float], answer: Any
) -> None:
    given(monkeypatch, Admin(answer))
    await until_open_to_faust(SETTINGS)
    assert waited == []


async def test_a_broker_that_is_away_is_left_to_faust(
    monkeypatch: pytest.MonkeyPatch, waited: list[float]
) -> None:
    async def away(_settings: Settings) -> Admin:
        raise BrokerUnavailable("gone")

    monkeypatch.setattr(membership, "start_admin", away)
    await until_open_to_faust(SETTINGS)
    assert waited == []
