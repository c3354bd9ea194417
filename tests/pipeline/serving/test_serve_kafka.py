"""``ontrack serve --broker``: hooks in front, a worker behind, Kafka between them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.sender import send_knowledge
from ontrack.pipeline.settings import Settings
from ontrack.topics.knowledge import ToolContract
from tests.pipeline.fleet import WAIT_S, WorkerProcess, provision, read_all, settings_for
from tests.pipeline.serving.served import TOOLS, Served, served
from tests.pipeline.serving.test_serve import HOOKS, Session

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(broker: str, fresh_prefix: str) -> Settings:
    made = settings_for(broker, fresh_prefix)
    asyncio.run(provision(made))
    asyncio.run(send_knowledge(made, contracts=[ToolContract(**tool) for tool in TOOLS]))
    return made


@pytest.fixture
def worker(settings: Settings, tmp_path: Path) -> Iterator[WorkerProcess]:
    process = WorkerProcess(settings, tmp_path)
    process.start()
    process.wait_ready()
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture
def daemon(settings: Settings, worker: WorkerProcess, tmp_path: Path) -> Iterator[Served]:
    folder = tmp_path / "serve"
    folder.mkdir()
    gate = f"http://127.0.0.1:{worker.port}"
    names = {
        "ONTRACK_TOPIC_PREFIX": settings.topic_prefix,
        "ONTRACK_GATE_DEADLINE_MS": "5000",
    }
    with served(folder, "--broker", settings.broker, "--gate-url", gate, **names) as process:
        yield process


async def until_ready(http: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            async with http.get(url + "/readyz") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.1)


async def test_a_session_is_judged_by_a_worker_and_hears_of_it_with_its_next_hook(
    daemon: Served, settings: Settings
) -> None:
    async with aiohttp.ClientSession() as http:
        await until_ready(http, daemon.url)
        agent = Session(http, daemon.url + HOOKS, "over-kafka")
        denied, _ = await agent.call("mcp__shop__refund", {"order": "ord-12345"})
        assert denied["hookSpecificOutput"]["permissionDecision"] == "deny"
        for _ in range(4):
            await agent.call("Bash", {"command": "make"}, "boom")
        told = await said_about(agent)
        assert "identical `Bash` with the same result" in told
        await agent.hook("SessionEnd", reason="logout")
        async with asyncio.timeout(WAIT_S):
            while True:
                async with http.get(f"{daemon.url}/v1/runs/over-kafka") as answer:
                    view = await answer.json()
                if view.get("state") == "ended":
                    break
                await asyncio.sleep(0.1)
    topics = topics_of(settings)
    events = await read_all(settings, topics.events.name)
    assert len([event for event in events if b'"type":"step"' in (event.value or b"")]) >= 4
    assert view["verdicts"]["WARN"] >= 1


async def said_about(agent: Session) -> str:
    """Go on with harmless calls until a hook brings what the worker has said."""
    async with asyncio.timeout(WAIT_S):
        for number in range(1000):
            before, after = await agent.call("Read", {"file_path": f"{number}"}, f"text {number}")
            for answer in (before, after or {}):
                own: dict[str, Any] = answer.get("hookSpecificOutput", {})
                if "additionalContext" in own:
                    return str(own["additionalContext"])
            await asyncio.sleep(0.05)
    raise AssertionError("nothing was said")


async def test_a_bad_event_is_answered_and_kept_on_the_dead_letters_topic(
    daemon: Served, settings: Settings
) -> None:
    async with aiohttp.ClientSession() as http:
        url = daemon.url + "/v1/events"
        async with http.post(url, data=b'{"type":"step","run_id":"x"}') as answer:
            assert answer.status == 400
            assert "tool" in (await answer.json())["text"]
    letters = await read_all(settings, topics_of(settings).dead_letters.name)
    assert len(letters) == 1
    assert b"http:/v1/events" in (letters[0].value or b"")


async def test_without_a_worker_the_address_says_whether_calls_pass(
    daemon: Served, worker: WorkerProcess
) -> None:
    worker.stop()
    async with aiohttp.ClientSession() as http:
        opened = Session(http, daemon.url + HOOKS, "open")
        closed = Session(http, daemon.url + HOOKS + "?fail=closed", "closed")
        assert await opened.hook("PreToolUse", tool_name="Bash", tool_input={}) == {}
        told = await closed.hook("PreToolUse", tool_name="Bash", tool_input={})
    assert told["hookSpecificOutput"]["permissionDecision"] == "deny"
    assert "gate_fail_open" in told["hookSpecificOutput"]["permissionDecisionReason"]
