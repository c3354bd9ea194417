"""`ontrack doctor`: what it finds on a machine, a broker and a fleet, healthy and broken."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from ontrack.pipeline import checks
from ontrack.pipeline.checks import Check
from ontrack.pipeline.cli import cli
from ontrack.pipeline.kafka import doctor, doctor_pages
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.sender import send_events, send_knowledge
from ontrack.pipeline.kafka.switches import throw
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, demo_runs, references
from ontrack.topics.knowledge import Switch
from tests.broker import LocalBroker, create_topic
from tests.pipeline.fleet import (
    WorkerProcess,
    free_port,
    point_cli_at,
    produce,
    provision,
    read_all,
    settings_for,
)

ALL = ["broker", "topics", "clock", "retention", "replicas", "knowledge", "switches", "group"]


def looked_at(settings: Settings, *, writes: bool = True) -> dict[str, Check]:
    return {check.name: check for check in asyncio.run(doctor.fleet_checks(settings, writes))}


def failed(found: dict[str, Check]) -> set[str]:
    for check in found.values():
        assert bool(check.fix) is not check.ok, (
            f"a fix goes with a failure, and only there: {check}"
        )
    return {name for name, check in found.items() if not check.ok}


# ------------------------------------------------------------------ this machine


class TestMachine:
    def test_every_extra_is_named_with_its_version_or_as_missing(self) -> None:
        found = checks.extras(Settings(encoder="hashing"))
        assert found.ok
        assert {item.split(" ")[0] for item in found.detail.split(", ")} == set(checks.EXTRAS)

    @pytest.mark.parametrize(
        ("asked", "extra"),
        [
            ({"telemetry": True}, "otel"),
            ({"kernel": "numba"}, "fast"),
            ({"encoder": "minilm"}, "minilm"),
            ({"alerts": {"sinks": {"chat": {"type": "apprise", "url": "slack://a"}}}}, "alerts"),
        ],
    )
    def test_a_setting_that_needs_an_extra_which_is_not_there_fails(
        self, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], extra: str
    ) -> None:
        monkeypatch.setattr(checks, "_version", lambda package: None)
        found = checks.extras(Settings(**({"encoder": "hashing"} | asked)))
        assert not found.ok
        assert f"ontrack[{extra}]" in found.fix

    def test_the_extras_are_those_of_the_project(self) -> None:
        root = Path(__file__).resolve().parents[3]
        text = (root / "pyproject.toml").read_text(encoding="utf-8")
        assert [name for name in checks.EXTRAS if f"\n{name} = [" not in text] == []

    def test_a_full_disk_fails(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        usage = namedtuple("usage", "total used free")
        settings = Settings(data_dir=str(tmp_path / "not" / "there" / "yet"))
        assert checks.disk(settings).ok
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 5, 5))
        found = checks.disk(settings)
        assert not found.ok
        assert "0.0 GB free" in found.detail
        assert "ONTRACK_DATA_DIR" in found.fix

    def test_a_folder_below_a_file_fails(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        found = checks.disk(Settings(data_dir=str(tmp_path / "file" / "worker")))
        assert not found.ok
        assert "cannot be written to" in found.detail


# ------------------------------------------------------------------ a broker that is not well


def test_a_broker_that_listens_and_says_nothing_is_one_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "LOOK_S_MAX", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = looked_at(Settings(broker=f"127.0.0.1:{silent.getsockname()[1]}"))
    assert failed(found) == set(found) == {"broker"}
    assert "no answer within 1 s" in found["broker"].detail


def test_a_broker_that_was_killed_is_a_failed_check_and_exit_code_1(
    own_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = settings_for(own_broker.address, "ontrack.")
    asyncio.run(provision(settings))
    point_cli_at(settings, monkeypatch, tmp_path)
    well = CliRunner().invoke(cli, ["doctor", "--json"])
    assert well.exit_code == 0, well.output
    own_broker.kill()
    ill = CliRunner().invoke(cli, ["doctor", "--json"])
    assert ill.exit_code == 1
    lines = [json.loads(line) for line in ill.stdout.splitlines()]
    assert [line["name"] for line in lines if not line["ok"]] == ["broker"]
    assert settings.broker in lines[-1]["detail"]
    assert "make kafka" in lines[-1]["fix"]


# ------------------------------------------------------------------ topics and group


def test_a_fresh_broker_with_topics_is_well_and_nobody_works_there(settings: Settings) -> None:
    found = looked_at(settings)
    assert list(found) == ALL
    assert failed(found) == set()
    assert "no worker is in group" in found["group"].detail
    assert "events are kept 7 days" in found["retention"].detail
    assert "without references" in found["knowledge"].detail
    assert "the broker's, within" in found["clock"].detail


def test_topics_that_are_missing_are_named_and_what_they_hold_is_not_looked_at(
    broker: str, fresh_prefix: str
) -> None:
    found = looked_at(settings_for(broker, fresh_prefix))
    assert list(found) == ["broker", "topics", "clock"]
    assert failed(found) == {"topics"}
    assert f"{fresh_prefix}verdicts" in found["topics"].detail
    assert "ontrack topics create" in found["topics"].fix


@pytest.mark.parametrize(
    ("topic", "config", "says"),
    [
        ("verdicts", {"retention.ms": "1000"}, "retention.ms is 1000, not over 604800000"),
        ("tasks", {"cleanup.policy": "delete"}, "cleanup.policy is delete, not compact"),
        ("dead-letters", {"retention.ms": "-1"}, "max.message.bytes is"),
    ],
)
def test_a_topic_that_is_kept_otherwise_fails_and_is_named(
    broker: str, fresh_prefix: str, topic: str, config: dict[str, str], says: str
) -> None:
    settings = settings_for(broker, fresh_prefix)
    partitions = 1 if topic == "tasks" else settings.partitions
    more = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "4194304"}
    asyncio.run(
        create_topic(
            broker, f"{fresh_prefix}{topic}", partitions=partitions, settings=more | config
        )
    )
    asyncio.run(provision(settings))
    found = looked_at(settings)
    assert failed(found) == {"retention"}
    assert f"{fresh_prefix}{topic}: {says}" in found["retention"].detail


def test_events_may_be_kept_for_longer_only_with_the_outputs(
    broker: str, fresh_prefix: str
) -> None:
    settings = settings_for(broker, fresh_prefix)
    config = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "2097152"}
    config |= {"retention.ms": str(30 * 86_400_000), "cleanup.policy": "delete"}
    asyncio.run(create_topic(broker, f"{fresh_prefix}events", partitions=3, settings=config))
    asyncio.run(provision(settings))
    found = looked_at(settings)
    assert failed(found) == {"retention"}
    assert f"{fresh_prefix}scorecards: retention.ms" in found["retention"].detail
    # A run meets the references of its time, so their old versions are needed as long.
    assert f"{fresh_prefix}tasks: min.compaction.lag.ms" in found["retention"].detail
    assert f"{fresh_prefix}owners" not in found["retention"].detail


def test_events_that_wait_while_nobody_works_are_a_failure(settings: Settings) -> None:
    events = [event for run in demo_runs() for event in run.events]
    asyncio.run(send_events(settings, events, None))
    found = looked_at(settings)
    assert failed(found) == {"group"}
    assert f"{len(events)} events wait" in found["group"].detail
    assert "ontrack worker" in found["group"].fix


def test_what_is_in_shadow_mode_is_told_and_a_switch_that_cannot_be_read_fails(
    settings: Settings,
) -> None:
    assert looked_at(settings)["switches"].detail == "in shadow mode: nothing"
    switch = Switch(scope="agent", name="clerk")
    asyncio.run(throw(settings, switch.key, switch))
    found = looked_at(settings)
    assert failed(found) == set()
    assert f"in shadow mode: {switch.key} since 20" in found["switches"].detail
    asyncio.run(produce(settings, topics_of(settings).switches.name, [(b"odd", b"{")]))
    found = looked_at(settings)
    assert failed(found) == {"switches"}
    assert "cannot be read: odd" in found["switches"].detail


@pytest.mark.parametrize(("shift_s", "says"), [(90.0, "ahead of"), (-90.0, "behind")])
def test_a_clock_that_is_wrong_fails(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, shift_s: float, says: str
) -> None:
    monkeypatch.setattr(doctor, "time", SimpleNamespace(time=lambda: time.time() + shift_s))
    found = looked_at(settings)
    assert failed(found) == {"clock"}
    assert found["clock"].detail.split(" s ")[1].startswith(says)
    assert 85 < float(found["clock"].detail.split(" ")[0]) < 95


def test_the_topic_of_the_clock_is_gone_afterwards(settings: Settings) -> None:
    looked_at(settings)

    async def names() -> set[str]:
        admin = await doctor.start_admin(settings)
        try:
            return set(await admin.list_topics())
        finally:
            await admin.close()

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        left = {name for name in asyncio.run(names()) if name.startswith(settings.topic_prefix)}
        if left == {spec.name for spec in topics_of(settings)}:
            return
        time.sleep(0.2)  # Kafka deletes when it comes to it
    raise AssertionError(f"still there: {left}")


# ------------------------------------------------------------------ workers and gate


def test_a_healthy_fleet_passes_every_check(
    settings: Settings, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(send_knowledge(settings, references(), contracts(), ()))
    worker.start()
    worker.wait_ready()
    found = looked_at(settings)
    assert list(found) == [*ALL, "workers", "gate"]
    assert failed(found) == set()
    assert "1 worker in" in found["group"].detail
    assert f"http://127.0.0.1:{worker.port}" in found["workers"].detail
    assert "by the monitor" in found["gate"].detail
    said = asyncio.run(read_all(settings, topics_of(settings).decisions.name))
    assert [json.loads(message.value)["run_id"] for message in said] == [doctor_pages.RUN_ID]

    quiet = looked_at(settings, writes=False)
    assert list(quiet) == [name for name in found if name not in ("clock", "gate")]
    assert asyncio.run(read_all(settings, topics_of(settings).decisions.name)) == said

    async def fewer(_settings: Settings) -> dict[int, str]:
        return {0: f"http://127.0.0.1:{worker.port}"}

    with monkeypatch.context() as patched:
        patched.setattr(doctor_pages, "_owners", fewer)
        orphaned = asyncio.run(doctor_pages.worker_check(settings)).check
    assert not orphaned.ok
    assert "no worker has partitions 1, 2:" in orphaned.detail

    # It has died, but its claims stand: nobody else has taken its partitions.
    worker.kill()
    dead = asyncio.run(doctor_pages.worker_check(settings))
    assert not dead.check.ok
    assert "cannot be reached" in dead.check.detail
    assert dead.urls == []


def test_a_worker_that_takes_another_token_is_told_apart(
    settings: Settings, worker: WorkerProcess
) -> None:
    worker.start()
    worker.wait_ready()
    worker.stop()
    worker.more["ONTRACK_WEB_TOKEN"] = "theirs"
    worker.start()
    ours = settings.model_copy(update={"web_token": None})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = looked_at(ours, writes=False)
        if "web_token" in found.get("workers", Check("", True, "")).detail:
            break
        time.sleep(0.5)
    assert "does not take this web_token" in found["workers"].detail
    assert failed(found) == {"workers"}


def test_a_gate_that_answers_by_policy_fails() -> None:
    async def main() -> Check:
        from aiohttp import web

        async def answer(_request: web.Request) -> web.Response:
            return web.json_response({"decision": "block", "decided_by": "policy"})

        app = web.Application()
        app.router.add_post("/v1/gate", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            return await doctor_pages.gate_check(Settings(), f"http://127.0.0.1:{port}")
        finally:
            await runner.cleanup()

    found = asyncio.run(main())
    assert not found.ok
    assert "by the policy" in found.detail
    assert "runbook-the-gate-answers-by-policy" in found.fix
