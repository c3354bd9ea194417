"""Many events at once: whoever else asks the daemon is answered meanwhile."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.serving.daemon import Daemon
from ontrack.pipeline.serving.engine import EmbeddedEngine
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.events import Step

COUNT = 40


def _daemon() -> Daemon:
    settings = Settings(encoder="hashing")
    monitor = EmbeddedMonitor(settings)
    return Daemon(settings, lambda _metrics, listener: EmbeddedEngine(monitor, 60.0, listener))


async def _turns_during(work: Any) -> int:
    """How often another task of the loop got its turn while a coroutine ran."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await asyncio.sleep(0)
    turns = 0
    await work
    task.cancel()
    return turns


async def test_a_body_of_many_events_does_not_hold_up_the_loop() -> None:
    events = [codecs.encode(Step(run_id=f"r{n % 3}", tool="t")) for n in range(COUNT)]
    assert await _turns_during(_daemon().take_events(events)) >= COUNT


async def test_a_request_of_many_spans_does_not_hold_up_the_loop() -> None:
    span = {"traceId": "a" * 32, "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    values = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.conversation.id": "c",
    }
    attributes = [{"key": key, "value": {"stringValue": text}} for key, text in values.items()]
    spans = [
        span | {"spanId": f"{n:016x}", "name": "execute_tool", "attributes": attributes}
        for n in range(1, COUNT + 1)
    ]
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    daemon = _daemon()
    turns = await _turns_during(daemon.take_spans(body, "application/json", None))
    assert daemon.board.get("c") is not None
    assert turns >= COUNT
