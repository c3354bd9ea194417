"""What was folded is kept as it was folded: recording, memory, and the pictures made of them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from aiohttp.test_utils import TestClient, TestServer

from ontrack.pipeline.dashboard.feeds.embedded import EmbeddedFeed
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.serving.app import make_app
from ontrack.pipeline.serving.daemon import Daemon
from ontrack.pipeline.serving.engine import EmbeddedEngine
from ontrack.pipeline.serving.recording import Recording
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.events import Event, Step
from ontrack.topics.verdicts import DeadLetter, Output


def daemon(path: Path, settings: Settings, said: list[Output]) -> Daemon:
    return Daemon(
        settings,
        lambda _metrics, listener: EmbeddedEngine(EmbeddedMonitor(settings), 60.0, listener),
        [said.append],
        Recording(str(path)),
    )


async def take(found: Daemon, event: Event) -> list[Output]:
    return list(await found._take(codecs.encode(event), None, "test"))


async def test_a_step_that_lets_go_one_that_is_refused_is_recorded(tmp_path: Path) -> None:
    settings = Settings(encoder="hashing", operators={"steps_max": 3})
    path, said = tmp_path / "runs.jsonl", list[Output]()
    live = daemon(path, settings, said)
    steps = [Step(run_id="r", seq=seq, tool="look", result=str(seq)) for seq in (0, 2, 3, 1)]
    outputs = [output for step in steps for output in await take(live, step)]
    assert sum(isinstance(output, DeadLetter) for output in outputs) == 1
    assert [json.loads(line)["seq"] for line in path.open()] == [0, 2, 3, 1]
    assert live.monitor is not None
    before = live.monitor.state.runs["r"]

    again = daemon(tmp_path / "copy.jsonl", settings, [])
    for line in path.read_bytes().splitlines():
        await again._take(line, None, "recording")
    assert again.monitor is not None
    assert again.monitor.state.runs["r"].seen == before.seen


async def test_what_is_refused_itself_is_not_recorded(tmp_path: Path) -> None:
    settings = Settings(encoder="hashing", operators={"steps_max": 1})
    path = tmp_path / "runs.jsonl"
    live = daemon(path, settings, [])
    for seq in range(3):
        await take(live, Step(run_id="r", seq=seq, tool="look"))
    await live._take(b"no event", None, "test")
    assert [json.loads(line)["seq"] for line in path.open()] == [0]
    assert len(live.memory.events("r") or ()) == 1


async def test_the_picture_of_a_child_that_its_parent_halted_says_so() -> None:
    feed = EmbeddedFeed(EmbeddedMonitor(Settings(encoder="hashing")))
    await feed.start(lambda _output, _ms: None)
    for seq in range(12):
        await feed.take(Step(run_id="parent", seq=seq, tool="search", result="same"))
    await feed.take(Step(run_id="child", seq=0, parent_run_id="parent", tool="look"))
    kept = [json.loads(value)["type"] for value in feed.memory.events("child") or ()]
    assert kept == ["step", "parent_halted"]
    picture = await feed.picture("child")
    assert picture.state == "halted"
    assert picture.scorecard["interventions"] == {"halt": 1}


async def test_every_body_and_every_event_that_is_refused_has_a_dead_letter_of_its_own() -> None:
    said: list[Output] = []
    settings = Settings(encoder="hashing")
    found = Daemon(
        settings,
        lambda _metrics, listener: EmbeddedEngine(EmbeddedMonitor(settings), 60.0, listener),
        [said.append],
    )
    bodies = [b'{"a": 1}', b"[1", b"", b'{"b": 2}', b"[2", b'{"c": 3}']
    async with TestClient(TestServer(make_app(found))) as client:
        for body in bodies:
            assert (await client.post("/v1/events", data=body)).status == 400
    letters = [output for output in said if isinstance(output, DeadLetter)]
    assert [base64.b64decode(letter.value_base64 or "") for letter in letters] == bodies
    assert len({letter.id for letter in letters}) == len(bodies)
