"""The daemon's way through Kafka where Kafka stands still; the rest needs a broker."""

from __future__ import annotations

import asyncio

import pytest

from ontrack.pipeline.kafka import serving
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.errors import BrokerUnavailable
from ontrack.topics.events import Event, Step


class Standing:
    """A broker that takes an event and never says so."""

    def __init__(self) -> None:
        self.sent: list[Event] = []

    async def send(self, event: Event) -> tuple[()]:
        self.sent.append(event)
        await asyncio.Event().wait()
        return ()


async def test_nobody_waits_for_a_broker_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SEND_S_MAX", 0.05)
    engine = serving.KafkaEngine(Settings(encoder="hashing"), None, lambda _output: None)
    channel = engine._channel = Standing()  # type: ignore[assignment]
    step = Step(run_id="r", tool="t")
    with pytest.raises(BrokerUnavailable, match="has not acknowledged"):
        async with asyncio.timeout(10):
            await engine.take(codecs.encode(step), step, "hook")
    assert channel.sent == [step]
