"""Shadow mode, switched for a part of the fleet while everything runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ontrack.operators import snapshot
from ontrack.pipeline.cli.shadow import command
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.modes import Modes
from ontrack.pipeline.kafka.sender import send_events
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.errors import BrokerUnavailable, WrongShape
from ontrack.topics.events import Agent, Event, ModeChanged, Proposal, RunStarted, Step
from ontrack.topics.knowledge import Switch, ToolContract
from ontrack.topics.verdicts import Intervention, Verdict
from tests.pipeline.fleet import (
    WAIT_S,
    WorkerProcess,
    free_port,
    point_cli_at,
    read_all,
    settings_for,
)

BOB = Switch(scope="agent", name="bob")
PAY = ToolContract(name="pay", effect="destructive", consumes=("args.order",))


def step(seq: int, agent: str = "bob", run_id: str = "r", **fields: Any) -> Step:
    given = {"tool": "make", "args": {"target": "all"}, "result": "boom"} | fields
    return Step(run_id=run_id, seq=seq, agent=agent, **given)  # type: ignore[arg-type]


class Log:
    """A fold with a log whose events have times."""

    def __init__(self) -> None:
        self.monitor = EmbeddedMonitor(Settings(encoder="hashing"), contracts=[PAY])
        self.fold: Fold = self.monitor.fold
        self.state: PartitionState = self.monitor.state
        self.offset = -1

    def add(self, event: Event, time_ms: int) -> list[Any]:
        self.offset += 1
        key = event.run_id.encode()
        record = Record(codecs.encode(event), key, "t", 0, self.offset, timestamp_ms=time_ms)
        return self.fold.apply(self.state, record)

    def loop(self, first: int, count: int, time_ms: int) -> list[str]:
        said = [self.add(step(number), time_ms) for number in range(first, first + count)]
        return [
            each.intervention for some in said for each in some if isinstance(each, Intervention)
        ]


def test_a_run_that_begins_under_a_switch_is_judged_and_told_nothing() -> None:
    log = Log()
    log.fold.library.add_switch(BOB.key, BOB, 100)
    assert log.loop(0, 10, time_ms=100) == []
    (verdict,) = log.add(step(10), 100)
    assert isinstance(verdict, Verdict)
    assert verdict.verdict == "LOOP"
    assert "shadow" in verdict.flags
    # Others, and those who began before it, hear of it as ever.
    assert [said.type for said in log.add(step(0, run_id="a", agent="ann"), 100)] == ["verdict"]
    early = Log()
    early.fold.library.add_switch(BOB.key, BOB, 100)
    assert early.loop(0, 10, time_ms=99) == ["warn", "halt"]


@pytest.mark.parametrize(
    ("switch", "first"),
    [(BOB, {"agent": "bob"}), (Switch(scope="tenant", name="acme"), {"tenant": "acme"})],
    ids=["agent", "tenant"],
)
def test_a_run_whose_task_is_named_later_stays_in_shadow_mode(
    switch: Switch, first: dict[str, Any]
) -> None:
    log = Log()
    log.fold.library.add_switch(switch.key, switch, 100)
    log.add(RunStarted(run_id="r", **first), 100)
    log.add(RunStarted(run_id="r", task_id="refund"), 101)
    assert log.state.runs["r"].shadow
    assert log.loop(0, 10, time_ms=102) == []


def test_an_open_run_changes_by_an_event_in_the_log_and_back() -> None:
    log = Log()
    assert log.loop(0, 4, 1) == ["warn"]
    assert log.add(ModeChanged(run_id="r", shadow=True), 2) == []
    assert log.loop(4, 10, 3) == []
    asked = Proposal(run_id="r", agent="bob", tool="pay", args={"order": "ord-12345"})  # type: ignore[arg-type]
    assert log.fold.propose(log.state, asked).decision == "unknown"
    log.add(ModeChanged(run_id="r", shadow=False), 4)
    # What was not said in shadow was not counted as said: the loop still halts the run.
    assert log.loop(14, 10, 5) == ["halt"]
    assert log.fold.propose(log.state, asked).decision == "block"


def test_the_mode_of_a_run_nobody_knows_changes_nothing() -> None:
    log = Log()
    assert log.add(ModeChanged(run_id="nobody", shadow=True), 1) == []
    assert not log.state.runs


def test_a_parents_halt_does_not_reach_a_child_in_shadow() -> None:
    monitor = EmbeddedMonitor(Settings(encoder="hashing"))
    monitor.fold.library.add_switch(BOB.key, BOB)
    monitor.feed(step(0, agent="bob", run_id="child", parent_run_id="parent"))
    said = [
        output
        for number in range(12)
        for output in monitor.feed(step(number, agent="ann", run_id="parent"))
    ]
    halted = {each.run_id for each in said if isinstance(each, Intervention)}
    assert halted == {"parent"}


def test_a_snapshot_keeps_the_mode() -> None:
    log = Log()
    log.fold.library.add_switch(BOB.key, BOB, 1)
    log.add(step(0), 2)
    known = log.state.runs["r"]
    assert snapshot.read(snapshot.dump(known, 0))[1].shadow


@pytest.mark.parametrize(
    ("switch", "covered"),
    [
        (Switch(scope="all"), {"a", "b", "c", "d", "e"}),
        (Switch(scope="agent", name="ann"), {"a"}),
        (Switch(scope="agent", name="eve"), {"c"}),
        (Switch(scope="agent", name="Eve of billing"), {"c", "d"}),
        (Switch(scope="task", name="refund"), {"b"}),
        (Switch(scope="tenant", name="acme"), {"c"}),
        (Switch(scope="agent", name="refund"), set()),
    ],
)
def test_a_switch_covers_its_part_of_the_fleet(switch: Switch, covered: set[str]) -> None:
    runs = {
        "a": (Agent(id="ann"), None, None),
        "b": (None, "refund", None),
        "c": (Agent(id="eve", name="Eve of billing"), None, "acme"),
        "d": (Agent(name="Eve of billing"), None, None),
        "e": (Agent(), None, None),
    }
    assert {name for name, run in runs.items() if switch.covers(*run)} == covered


async def test_open_runs_are_looked_at_when_a_switch_is_thrown_and_when_the_log_has_caught_up() -> (
    None
):
    log = Log()
    modes = Modes(log.fold.library)
    log.add(step(0), 1)

    async def end() -> int:
        return 5

    assert not await modes.is_due(1, end), "no switch was ever thrown"
    log.fold.library.add_switch(BOB.key, BOB, 2)
    assert await modes.is_due(1, end)
    (change,) = await modes.changes(log.state)
    assert (change.run_id, change.shadow) == ("r", True)
    assert not await modes.is_due(4, end)
    # Its first event is older than the switch and was folded after it was noticed.
    log.add(change, 3)
    log.add(step(0, run_id="late"), 1)
    assert await modes.is_due(5, end)
    assert [each.run_id for each in await modes.changes(log.state)] == ["late"]
    assert not await modes.is_due(6, end)


@pytest.mark.parametrize(
    "value", [b'{"scope":"agent"}', b'{"scope":"all","name":"x"}', b'{"scope":"planet"}', b"[]"]
)
def test_a_switch_that_says_nothing_clear_is_refused(value: bytes) -> None:
    with pytest.raises(WrongShape):
        codecs.decode_switch(value)


@pytest.mark.parametrize(
    "arguments", [[], ["--agent", "a", "--all"], ["--agent", "a", "--task", "b"]]
)
def test_one_part_of_the_fleet_must_be_named(arguments: list[str]) -> None:
    done = CliRunner().invoke(command, ["on", *arguments])
    assert done.exit_code == 2
    assert "one of --agent" in done.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--agent", ""], "--agent is empty"),
        (["--task", "x" * 513], "field `name` should have at most 512 characters"),
        (["--all", "--reason", "x" * 2001], "field `reason` should have at most 2000 characters"),
        (["--tenant", "\udcff"], "field `name` should be a valid string"),
    ],
    ids=["empty", "long name", "long reason", "no text"],
)
def test_a_switch_that_cannot_be_is_a_wrong_use(arguments: list[str], told: str) -> None:
    done = CliRunner().invoke(command, ["on", *arguments])
    assert done.exit_code == 2, done.exception
    assert told in done.output


def test_who_throws_a_switch_may_have_a_number_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def throw(_settings: Settings, _key: str, switch: Switch) -> None:
        thrown.append(switch)

    thrown: list[Switch] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ontrack.pipeline.kafka.switches.throw", throw)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 1_234_567)
    done = CliRunner().invoke(command, ["on", "--all"])
    assert done.exit_code == 0, done.exception
    assert [switch.by for switch in thrown] == ["uid 1234567"]


@pytest.mark.kafka
async def test_without_its_topic_a_switch_says_at_once_what_to_do(
    broker: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = settings_for(broker, f"nothing{free_port()}.")
    point_cli_at(settings, monkeypatch, tmp_path)
    for action in ("on", "off", "list"):
        parts = [] if action == "list" else ["--all"]
        with pytest.raises(BrokerUnavailable, match="run: ontrack topics create"):
            async with asyncio.timeout(15):
                await asyncio.to_thread(
                    CliRunner().invoke, command, [action, *parts], catch_exceptions=False
                )


@pytest.mark.kafka
async def test_a_wave_of_halts_is_ended_by_one_command_and_survives_a_kill(
    settings: Settings,
    worker: WorkerProcess,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    point_cli_at(settings, monkeypatch, tmp_path)
    topics = topics_of(settings)
    runs = [f"run-{number}" for number in range(6)]
    worker.start()
    await asyncio.to_thread(worker.wait_ready)

    def fleet(first: int, count: int) -> list[Event]:
        return [step(seq, run_id=run) for seq in range(first, first + count) for run in runs]

    async def said(topic: str) -> list[dict[str, Any]]:
        return [json.loads(each.value or b"{}") for each in await read_all(settings, topic)]

    async def until(topic: str, enough: Callable[[list[dict[str, Any]]], bool]) -> Any:
        async with asyncio.timeout(WAIT_S):
            while not enough(found := await said(topic)):
                await asyncio.sleep(0.3)
        return found

    def told(shadow: bool) -> Callable[[list[dict[str, Any]]], bool]:
        return lambda events: sum(each.get("shadow") is shadow for each in events) == len(runs)

    await send_events(settings, fleet(0, 2), None)
    on = await asyncio.to_thread(
        CliRunner().invoke, command, ["on", "--agent", "bob", "--reason", "false halts"]
    )
    assert on.exit_code == 0, on.output
    listed = await asyncio.to_thread(CliRunner().invoke, command, ["list", "--json"])
    assert json.loads(listed.output)["key"] == "agent:bob"

    await until(topics.events.name, told(True))
    await send_events(settings, fleet(2, 10), None)
    worker.kill()
    worker.start()
    await asyncio.to_thread(worker.wait_ready)
    await send_events(settings, fleet(12, 1), None)
    verdicts = await until(
        topics.verdicts.name, lambda found: len({each["id"] for each in found}) == 13 * 6
    )
    assert {v["verdict"] for v in verdicts if v["seq"] > 8} == {"LOOP"}
    assert await said(topics.interventions.name) == []

    off = await asyncio.to_thread(CliRunner().invoke, command, ["off", "--agent", "bob"])
    assert off.exit_code == 0, off.output
    await until(topics.events.name, told(False))
    await send_events(settings, fleet(13, 8), None)
    halts = await until(
        topics.interventions.name, lambda found: {each["run_id"] for each in found} == set(runs)
    )
    assert {each["intervention"] for each in halts} == {"halt"}
