"""The follower of knowledge: one question to the broker serves all who have to know."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ontrack.pipeline.kafka.follower import KnowledgeFollower
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.settings import Settings

SETTINGS = Settings(encoder="hashing")


class Asked(KnowledgeFollower):
    """Counts questions to the broker; an answer comes when it is let."""

    def __init__(self) -> None:
        super().__init__(SETTINGS, make_fold(SETTINGS).library)
        self.questions = 0
        self.answers = asyncio.Event()

    async def _read_to_end(self) -> None:
        self.questions += 1
        await self.answers.wait()


@pytest.fixture
async def follower() -> Any:
    return Asked()


async def test_a_question_covers_whatever_has_been_heard_before_it(follower: Asked) -> None:
    follower.answers.set()
    follower.heard(50)
    await follower.cover(10)
    assert follower.has_covered(50)
    assert not follower.has_covered(51)
    await asyncio.gather(*(follower.cover(time_ms) for time_ms in (20, 50, 30)))
    assert follower.questions == 1


async def test_what_is_heard_while_the_broker_is_asked_is_asked_for_again(follower: Asked) -> None:
    follower.heard(50)
    first = asyncio.create_task(follower.cover(10))
    await asyncio.sleep(0)
    follower.heard(60)  # knowledge of this time may stand behind the ends that are on their way
    follower.answers.set()
    await first
    assert not follower.has_covered(60)
    await follower.cover(60)
    assert follower.questions == 2
