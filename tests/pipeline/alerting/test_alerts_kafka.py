"""`ontrack alerts` on a real broker: killed half-way, without sinks, with what nobody can read."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ontrack.pipeline.cli import cli
from ontrack.pipeline.kafka.connection import start_admin, topics_of
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from tests.broker import LocalBroker
from tests.pipeline.alerting.alerts_kit import (
    SECRET,
    Receiver,
    decision,
    fails_half_the_time,
    halt,
    warn,
)
from tests.pipeline.fleet import (
    point_cli_at,
    produce,
    provision,
    read_all,
    settings_for,
)

WAIT_S = 60.0


@pytest.fixture
def settings(broker: str, fresh_prefix: str) -> Settings:
    made = settings_for(broker, fresh_prefix)
    asyncio.run(provision(made))
    return made


class Alerts:
    """One `ontrack alerts`; start, kill and start again."""

    def __init__(
        self, settings: Settings, folder: Path, alerts: str, name: str = "alerts-1"
    ) -> None:
        self.settings, self.folder, self.name = settings, folder, name
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "ontrack.toml").write_text(alerts)

    def start(self, *arguments: str) -> None:
        environment = {n: v for n, v in os.environ.items() if not n.startswith("ONTRACK_")}
        environment |= {
            "ONTRACK_TOPIC_PREFIX": self.settings.topic_prefix,
            "ONTRACK_GROUP": self.settings.group,
            "ONTRACK_INSTANCE": self.name,  # a member that was killed comes back at once
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from ontrack.pipeline.cli import main; main()"]
            + ["alerts", f"--broker={self.settings.broker}", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / "said").open("ab"),
            stderr=(self.folder / "log").open("ab"),
            cwd=self.folder,
        )

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        code = 0
        if self.process is not None:
            self.process.send_signal(number)
            code = self.process.wait(timeout=WAIT_S)
        self.process = None
        return code

    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def until(self, what: Callable[[], Any], text: str = "it") -> Any:
        deadline = time.monotonic() + WAIT_S
        while not (found := what()):
            assert self.process is None or self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, f"{text} did not come:\n{self.log()}"
            time.sleep(0.1)
        return found

    def committed(self) -> int:
        """Sum of the group's committed offsets."""

        async def ask() -> int:
            admin = await start_admin(self.settings)
            try:
                found = await admin.list_consumer_group_offsets(f"{self.settings.group}-alerts")
            finally:
                await admin.close()
            return sum(max(0, stored.offset) for stored in found.values())

        return asyncio.run(ask())


@pytest.fixture
def alerts(settings: Settings, tmp_path: Path) -> Iterator[Callable[[str], Alerts]]:
    made: list[Alerts] = []

    def make(text: str) -> Alerts:
        made.append(Alerts(settings, tmp_path, text, f"alerts-{len(made)}"))
        return made[-1]

    yield make
    for each in made:
        each.kill()


def table(url: str, route: str = "", attempts_max: int = 30) -> str:
    return (
        f'[alerts.sinks.ops]\ntype = "webhook"\nurl = "{url}"\nsecret = "{SECRET}"\n'
        f"attempts_max = {attempts_max}\nretry_s = 0.01\nretry_s_max = 0.1\ntimeout_s = 2\n"
        '[alerts.default]\nsinks = ["ops"]\nrate_per_minute = 100000\n'
        f"{route or 'dedupe_s = 0'}\n"
    )


def publish(settings: Settings, *outputs: Any) -> None:
    topics = topics_of(settings)
    for topic, kind in ((topics.interventions, "intervention"), (topics.decisions, "decision")):
        items = [(o.run_id.encode(), codecs.encode(o)) for o in outputs if o.type == kind]
        asyncio.run(produce(settings, topic.name, items))


def told(receiver: Receiver) -> set[str]:
    """Ids of the alerts in requests that were answered with success."""
    return {alert["id"] for request in receiver.taken() for alert in request.json["data"]["alerts"]}


def test_killed_half_way_and_started_again_it_misses_nothing(
    settings: Settings, alerts: Callable[[str], Alerts]
) -> None:
    outputs = [warn(f"run-{n % 30}", n) for n in range(100)]
    outputs += [decision(f"run-{n}", n) for n in range(20)]
    expected = {output.id for output in outputs}
    with Receiver(fails_half_the_time(7)) as receiver:
        process = alerts(table(receiver.url))
        publish(settings, *outputs)
        process.start("--from-beginning")
        for part in (0.2, 0.5):
            process.until(lambda part=part: len(told(receiver)) >= part * len(expected))
            process.kill()
            process.start()
        process.until(lambda: told(receiver) >= expected, "all alerts")
        process.until(lambda: process.committed() >= len(outputs), "the commits")
        assert process.stop() == 0
        keys: dict[str, set[str]] = {}
        for request in receiver.requests:
            alert_id = request.json["data"]["alert"]["id"]
            keys.setdefault(alert_id, set()).add(request.headers["webhook-id"])
        assert all(len(found) == 1 for found in keys.values())
        # What was committed is not told again.
        before = len(receiver.requests)
        process.start()
        publish(settings, halt("last"))
        process.until(lambda: "last:0:halt" in told(receiver))
        assert len({r.json["data"]["alert"]["id"] for r in receiver.requests[before:]}) == 1


def test_processes_that_come_and_go_share_the_partitions_and_miss_nothing(
    settings: Settings, alerts: Callable[[str], Alerts]
) -> None:
    batches = [[warn(f"run-{b}-{n}") for n in range(30)] for b in range(3)]
    expected = {output.id for batch in batches for output in batch}
    with Receiver(fails_half_the_time(3)) as receiver:
        first, second = (alerts(table(receiver.url)) for _ in range(2))
        first.start("--from-beginning")
        publish(settings, *batches[0])
        first.until(receiver.taken, "the first alert")
        second.start("--from-beginning")
        publish(settings, *batches[1])
        second.until(lambda: len(told(receiver)) > 40, "some alerts")
        first.kill()
        publish(settings, *batches[2])
        second.until(lambda: told(receiver) >= expected, "all alerts")
        second.until(lambda: second.committed() == 90, "the commits")
        assert second.stop() == 0


def test_what_waits_in_a_window_is_counted_once_and_told_after_a_kill(
    settings: Settings, alerts: Callable[[str], Alerts]
) -> None:
    with Receiver() as receiver:
        process = alerts(table(receiver.url, "dedupe_s = 8"))
        process.start("--from-beginning")
        publish(settings, *(warn("run-1", seq) for seq in range(5)))
        process.until(receiver.taken, "the first alert")
        # Committed is what was told, and not what waits.
        process.until(lambda: process.committed() == 1, "the commit")
        process.kill()
        process.start()
        process.until(lambda: len(receiver.taken()) > 1, "the rest")
        bodies = [request.json["data"] for request in receiver.taken()]
    assert [(body["cause"], body["count"]) for body in bodies] == [("alert", 1), ("more", 4)]
    assert {a["seq"] for body in bodies for a in body["alerts"]} == set(range(5))


def test_what_no_sink_takes_is_a_dead_letter_that_can_be_sent_again(
    settings: Settings,
    alerts: Callable[[str], Alerts],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = True

    def behave(_request: Any) -> tuple[int, dict[str, str]]:
        return (500 if broken else 200), {}

    topics = topics_of(settings)
    with Receiver(behave) as receiver:
        process = alerts(table(receiver.url, attempts_max=2))
        process.start("--from-beginning")
        publish(settings, warn())

        def letters() -> list[Any]:
            return asyncio.run(read_all(settings, topics.dead_letters.name))

        (letter,) = process.until(letters, "the dead letter")
        kept = json.loads(letter.value)
        assert kept["error"]["name"] == "AlertUndelivered"
        assert kept["id"].endswith(":default/ops")
        process.until(lambda: process.committed() == 1, "the commit")
        broken = False
        run = folder_without_alerts(settings, tmp_path, monkeypatch)
        listed = run("list")
        assert "AlertUndelivered: sink 'ops' of route 'default' did not take it" in listed
        assert "1 sent again, 0 refused" in run("replay", "--error", "AlertUndelivered")
        process.until(lambda: told(receiver) == {"run-1:0:warn"}, "the alert")
        assert process.stop() == 0


def folder_without_alerts(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    point_cli_at(settings, monkeypatch, folder)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(cli, ["dead-letters", *arguments])
        return result.stdout + result.stderr

    return run


def test_what_is_no_intervention_is_quarantined_and_ends_nothing(
    settings: Settings,
    alerts: Callable[[str], Alerts],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics = topics_of(settings)
    bad = [b"{", b"\xff", b"", b'{"type":"intervention"}', b"[" * 100_000, b"9" * 600_000]
    scorecard = b'{"type":"verdict"}'
    with Receiver() as receiver:
        process = alerts(table(receiver.url))
        process.start("--from-beginning")
        items = [(b"k", value) for value in [*bad, scorecard]] + [(b"k", None)]
        asyncio.run(produce(settings, topics.interventions.name, items))
        publish(settings, halt("last"))
        process.until(lambda: told(receiver) == {"last:0:halt"}, "the alert")

        def all_letters() -> bool:
            return len(asyncio.run(read_all(settings, topics.dead_letters.name))) == len(items)

        process.until(all_letters, "the dead letters")
        process.until(lambda: process.committed() == len(items) + 1, "the commit")
        assert process.stop() == 0
    # It is nobody's alert: to put it on the topic of interventions again would help nobody.
    said = folder_without_alerts(settings, tmp_path, monkeypatch)("replay", "--all")
    assert f"0 sent again, {len(items)} refused" in said


def test_a_first_start_tells_only_of_what_comes_and_a_trial_leaves_no_trace(
    settings: Settings, alerts: Callable[[str], Alerts]
) -> None:
    with Receiver() as receiver:
        publish(settings, warn("old"))
        process = alerts(table(receiver.url))
        process.start("--dry-run", "--from-beginning")
        process.until(lambda: "would be sent" in process.said(), "what would be sent")
        assert process.stop() == 0
        assert process.committed() == 0
        assert receiver.requests == []
        process.start()
        process.until(lambda: process.committed() == 1, "the place to begin")
        publish(settings, halt("new"))
        process.until(lambda: told(receiver) == {"new:0:halt"}, "the alert")


def test_a_broker_that_goes_away_is_waited_for(
    own_broker: LocalBroker, fresh_prefix: str, tmp_path: Path
) -> None:
    settings = settings_for(own_broker.address, fresh_prefix)
    asyncio.run(provision(settings))
    with Receiver() as receiver:
        process = Alerts(settings, tmp_path, table(receiver.url))
        try:
            process.start("--from-beginning")
            publish(settings, warn("before"))
            process.until(lambda: told(receiver) == {"before:0:warn"}, "the first alert")
            own_broker.kill()
            time.sleep(2)
            own_broker.start()
            publish(settings, warn("after"))
            process.until(lambda: "after:0:warn" in told(receiver), "the second alert")
            assert process.stop() == 0
        finally:
            process.kill()
