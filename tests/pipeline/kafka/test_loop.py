"""The worker's shell on a bare loop: pages, chores, and an order in which it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ontrack.pipeline.kafka import loop as module
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import InvalidSettings
from tests.pipeline.fleet import free_port


class Stage:
    """A worker and a group that note what is done with them."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.failed: Callable[[BaseException], Any] | None = None
        self.group_fails: BaseException | None = None
        self.chores = 0

    def make_group(self, _settings: Settings) -> Any:
        stage = self

        class Group:
            recovered = None

            def ends(self) -> dict[int, int]:
                return {0: 7}

            async def run(self, _worker: Any) -> None:
                if stage.group_fails is not None:
                    raise stage.group_fails
                try:
                    await asyncio.Event().wait()
                finally:
                    stage.done.append("delivers no more")

            async def leave(self) -> None:
                stage.done.append("left")

        return Group()

    def make_worker(self, _settings: Settings, failed: Any, _recovered: Any) -> Any:
        stage = self
        stage.failed = failed

        class Worker:
            ready = True
            owners: dict[int, Any] = {}
            metrics = Metrics()

            def note_ends(self, ends: dict[int, int]) -> None:
                assert ends == {0: 7}
                stage.chores += 1

            async def stop(self) -> None:
                stage.done.append("stopped")

        return Worker()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage()
    monkeypatch.setattr(module, "Group", made.make_group)
    monkeypatch.setattr(module, "Worker", made.make_worker)
    monkeypatch.setattr(module, "leave_for_good", lambda _seconds: made.done.append("watched"))
    only_lag = module.chores

    def chores(settings: Settings, ends: Any) -> Any:
        (lag,) = [each for each in only_lag(settings, ends) if each.name == "note_lag"]
        return (lag._replace(every_s=0.01),)

    monkeypatch.setattr(module, "chores", chores)
    return made


def settings_at(port: int, folder: Path) -> Settings:
    return Settings(encoder="hashing", web_port=port, data_dir=str(folder))


async def test_a_signal_ends_it_the_group_is_left_last(stage: Stage, tmp_path: Path) -> None:
    port = free_port()
    serving = asyncio.create_task(module.serve(settings_at(port, tmp_path)))
    async with aiohttp.ClientSession() as session:
        for path, status in (("healthz", 200), ("readyz", 200), ("metrics", 200), ("x", 404)):
            for _ in range(100):
                try:
                    async with session.get(f"http://127.0.0.1:{port}/{path}") as answer:
                        assert answer.status == status
                        break
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(0.02)
            else:
                raise AssertionError("no page")
    await asyncio.sleep(0.1)
    assert stage.chores > 1
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(serving, 10) is None
    assert stage.done == ["watched", "delivers no more", "stopped", "left"]


async def test_a_lane_that_fails_ends_it_with_its_error(stage: Stage, tmp_path: Path) -> None:
    serving = asyncio.create_task(module.serve(settings_at(free_port(), tmp_path)))
    while stage.failed is None:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    error = RuntimeError("lane")
    await stage.failed(error)
    assert await asyncio.wait_for(serving, 10) is error
    assert stage.done[-2:] == ["stopped", "left"]


async def test_a_group_that_refuses_it_ends_it(stage: Stage, tmp_path: Path) -> None:
    stage.group_fails = RuntimeError("refused")
    found = await asyncio.wait_for(module.serve(settings_at(free_port(), tmp_path)), 10)
    assert found is stage.group_fails
    assert stage.done[-2:] == ["stopped", "left"]


async def test_a_port_that_is_taken_is_named(stage: Stage, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidSettings, match=f"web_port: nobody can listen on .*:{port}"):
            await module.serve(settings_at(port, tmp_path))
    assert stage.done == []
