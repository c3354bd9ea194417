"""The follower of knowledge: one question to the broker serves all who have to know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from ontrack.pipeline.kafka import published
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.follower import KnowledgeFollower
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.knowledge import Reference, ReferenceStep, Task, ToolContract

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


@dataclass(frozen=True, slots=True)
class Message:
    topic: str
    key: bytes
    value: bytes | None
    timestamp: int = 1_000
    offset: int = 0


async def test_what_is_published_now_is_what_a_worker_took(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = topics_of(SETTINGS)
    look, other = ToolContract(name="look"), ToolContract(name="other")
    path = Reference(reference_id="r", task_id="t", steps=(ReferenceStep(tool="look"),))
    good = Task(id="t", goals=("look",))
    plain = {"id": "t", "allowed": ["note"], "predicates": {"drop": "args.page == 'A'"}}
    bad = Task.model_validate(plain)
    messages = [
        Message(topics.references.name, b"r", codecs.encode(path)),
        Message(topics.references.name, b"gone", codecs.encode(path)),
        Message(topics.references.name, b"gone", None),
        Message(topics.contracts.name, b"look", codecs.encode(look)),
        Message(topics.contracts.name, b"look", b"no contract"),
        Message(topics.contracts.name, b"not its name", codecs.encode(other)),
        Message(topics.tasks.name, b"t", codecs.encode(good)),
        Message(topics.tasks.name, b"t", codecs.encode(bad)),
    ]

    async def stand(_settings: Settings, topic: str) -> AsyncIterator[Message]:
        for message in messages:
            if message.topic == topic:
                yield message

    monkeypatch.setattr(published, "_messages", stand)
    found = await published.published_knowledge(SETTINGS)
    assert (found.references, found.contracts, found.tasks) == ([path], [look], [good])
    assert found.unreadable == 3

    rejected: list[None] = []
    library = make_fold(SETTINGS).library
    worker = KnowledgeFollower(SETTINGS, library, lambda: rejected.append(None))
    for message in messages:
        worker._take(message)
    assert tuple(map(list, library.current())) == ([path], [look], [good])
    assert len(rejected) == 3
