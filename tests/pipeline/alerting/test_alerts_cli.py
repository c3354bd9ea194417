"""The command without a broker: settings checked, lines told, nothing sent on a dry run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ontrack.pipeline.cli import cli
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidFile, InvalidSettings
from tests.pipeline.alerting.alerts_kit import SECRET, Receiver, Request, decision, halt, warn
from tests.pipeline.fleet import free_port

Ontrack = Callable[..., Result]


@pytest.fixture
def ontrack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ontrack:
    """The command line in a folder of its own, with this [alerts]."""
    for name in [name for name in os.environ if name.startswith("ONTRACK_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(alerts: str, *arguments: str, text: bytes | None = None) -> Result:
        Path("ontrack.toml").write_text(alerts)
        result = CliRunner().invoke(cli, ["alerts", *arguments], input=text)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


def hook(url: str, more: str = "") -> str:
    return (
        f'[alerts.sinks.ops]\ntype = "webhook"\nurl = "{url}"\nsecret = "{SECRET}"\n'
        f"attempts_max = 2\nretry_s = 0.01\n{more}"
    )


def lines(*outputs: object) -> bytes:
    return b"".join((o if isinstance(o, bytes) else codecs.encode(o)) + b"\n" for o in outputs)  # type: ignore[arg-type]


def test_interventions_and_blocked_calls_among_lines_are_told(ontrack: Ontrack) -> None:
    other = b'{"type":"summary","runs":2}'
    with Receiver() as receiver:
        told = lines(warn(), other, decision(answer="allow"), decision("run-2"), b"", halt("run-3"))
        result = ontrack(hook(receiver.url), "-", "--json", text=told)
    assert result.exit_code == 0
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["run_id"], line["state"]) for line in found] == [
        ("run-1", "delivered"),
        ("run-2", "delivered"),
        ("run-3", "delivered"),
    ]
    assert [r.json["data"]["alert"]["run_id"] for r in receiver.requests] == [
        "run-1",
        "run-2",
        "run-3",
    ]
    assert "3 delivered, 0 undelivered, 0 unreadable" in result.stderr


def test_what_waits_at_the_end_of_the_lines_is_told_then(ontrack: Ontrack, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_bytes(lines(*(warn(seq=seq) for seq in range(5))))
    with Receiver() as receiver:
        result = ontrack(hook(receiver.url), "out.jsonl")
    counts = [request.json["data"]["count"] for request in receiver.requests]
    assert counts == [1, 4]
    assert result.stdout.count("delivered") == 2


def test_lines_that_cannot_be_read_are_named_and_the_rest_is_told(ontrack: Ontrack) -> None:
    with Receiver() as receiver:
        bad = b'{"type":"intervention","id":"x"}'
        result = ontrack(hook(receiver.url), "-", text=lines(b"{", bad, warn()))
    assert result.exit_code == 1
    assert "-:1: not JSON" in result.stderr
    assert "-:2: field `run_id` is missing" in result.stderr
    assert len(receiver.requests) == 1


def test_what_no_sink_takes_is_printed_as_a_dead_letter_with_the_original(ontrack: Ontrack) -> None:
    with Receiver(lambda _: (500, {})) as receiver:
        result = ontrack(hook(receiver.url), "-", "--json", text=lines(warn()))
    assert result.exit_code == 1
    assert len(receiver.requests) == 2
    letter, line = map(json.loads, result.stdout.splitlines())
    assert letter["type"] == "dead_letter"
    assert letter["error"]["name"] == "AlertUndelivered"
    assert "in 2 attempts: it answered 500" in letter["error"]["text"]
    assert line["state"] == "undelivered"


def test_a_dry_run_needs_no_secret_and_sends_nothing(ontrack: Ontrack) -> None:
    with Receiver() as receiver:
        text = hook(receiver.url).replace(f'"{SECRET}"', '"env:NOT_SET"')
        result = ontrack(text, "-", "--dry-run", text=lines(warn()))
    assert receiver.requests == []
    assert result.stdout.splitlines()[:2] == [
        "would be sent default → ops: [warn] LOOP in run run-1 (coder)",
        "    the same call was made three times without news",
    ]


def test_check_makes_every_sink_and_exits_1_where_one_cannot_be_made(ontrack: Ontrack) -> None:
    fine = ontrack(hook("http://127.0.0.1:9/"), "--check")
    assert (fine.exit_code, fine.stdout) == (
        0,
        "ok   sink ops: webhook\nok   route default: to ops\n",
    )
    routes = '[[alerts.routes]]\nname = "mute"\nagent = ["x"]\nsinks = []\n'
    amiss = ontrack(hook("env:NOT_SET") + routes, "--check")
    assert amiss.exit_code == 1
    assert "FAIL sink ops: alerts.sinks.ops.url stands in the variable NOT_SET" in amiss.stdout
    assert "ok   route mute: to nobody" in amiss.stdout


def test_a_test_goes_through_its_route_once(ontrack: Ontrack) -> None:
    routes = '[[alerts.routes]]\nname = "pager"\nsinks = ["ops"]\n'
    with Receiver() as receiver:
        done = ontrack(hook(receiver.url) + routes, "--test", "pager")
    assert done.exit_code == 0
    assert "This is a test of ontrack alerts" in receiver.requests[0].json["data"]["text"]
    with Receiver(lambda _: (500, {})) as receiver:
        failed = ontrack(hook(receiver.url) + routes, "--test", "pager")
    assert failed.exit_code == 1
    assert len(receiver.requests) == 1
    with pytest.raises(InvalidSettings, match="no route 'pagr'; routes: pager, default"):
        ontrack(hook(receiver.url) + routes, "--test", "pagr")


def test_without_a_sink_it_says_how_to_set_one(ontrack: Ontrack) -> None:
    with pytest.raises(InvalidSettings, match=r"no sink is set(.|\n)*\[alerts.sinks.ops\]"):
        ontrack("", "-")


def test_doctor_shows_no_secret_of_sinks(ontrack: Ontrack) -> None:
    ontrack(hook("http://user:hush@127.0.0.1:9/"), "--check")
    shown = CliRunner().invoke(cli, ["doctor", "--no-broker"])
    assert "alerts=" in shown.stdout
    assert "hush" not in shown.stdout
    assert SECRET not in shown.stdout


def test_neither_kafka_nor_apprise_is_imported_for_lines_and_webhooks(tmp_path: Path) -> None:
    (tmp_path / "ontrack.toml").write_text(hook("http://127.0.0.1:9/"))
    code = (
        "import sys; from ontrack.pipeline.cli import cli\n"
        "cli.main(['alerts', '-', '--dry-run'], standalone_mode=False)\n"
        "print(sorted({'aiokafka', 'faust', 'apprise', 'numpy'} & set(sys.modules)))"
    )
    environment = {n: v for n, v in os.environ.items() if not n.startswith("ONTRACK_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=lines(warn()),
        capture_output=True,
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    assert done.stdout.decode().splitlines()[-1] == "[]"


def test_a_file_that_cannot_be_read_is_named_after_what_stood_before_it_was_told(
    ontrack: Ontrack, tmp_path: Path
) -> None:
    (tmp_path / "out.jsonl").write_bytes(lines(warn()))
    with Receiver() as receiver, pytest.raises(InvalidFile, match="gone.jsonl: no such file"):
        ontrack(hook(receiver.url), "out.jsonl", "gone.jsonl")
    assert len(receiver.requests) == 1


def test_metrics_are_served_where_asked_and_a_port_in_use_is_named(ontrack: Ontrack) -> None:
    port = free_port()
    pages: list[str] = []

    def ask(_request: Request) -> tuple[int, dict[str, str]]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            pages.append(page.read().decode())
        return 200, {}

    with Receiver(ask) as receiver:
        text = hook(receiver.url)
        two = lines(warn("a"), warn("b"))
        assert ontrack(text, "-", "--metrics-port", str(port), text=two).exit_code == 0
        assert 'ontrack_alerts_total{result="delivered",route="default",sink="ops"} 1.0' in pages[1]
        with socket.create_server(("127.0.0.1", 0)) as taken:
            used = str(taken.getsockname()[1])
            with pytest.raises(InvalidSettings, match=f"port {used} cannot be used"):
                ontrack(text, "-", "--metrics-port", used, text=b"")
