"""``ontrack serve`` as its users meet it: a real process, real HTTP."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ontrack.topics.codecs import decode_event
from tests.pipeline.serving.served import Served, served, tools_file

HOOKS = "/v1/hooks/claude-code"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serve")
    with served(folder, "--tools", tools_file(folder)) as process:
        yield process


class Session:
    """A scripted Claude Code session: what its hooks would post."""

    def __init__(self, http: aiohttp.ClientSession, url: str, name: str) -> None:
        self._http, self._url, self._name = http, url, name
        self._calls = 0

    async def hook(self, event: str, **fields: Any) -> dict[str, Any]:
        body = {
            "session_id": self._name,
            "transcript_path": "/home/u/.claude/t.jsonl",
            "cwd": "/home/u/project",
            "permission_mode": "default",
            "hook_event_name": event,
        }
        async with self._http.post(self._url, json=body | fields) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def call(
        self, tool: str, given: dict[str, Any], response: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Ask before a call, and report it unless it was denied."""
        self._calls += 1
        call = {"tool_name": tool, "tool_input": given, "tool_use_id": f"toolu_{self._calls}"}
        before = await self.hook("PreToolUse", **call)
        own = before.get("hookSpecificOutput", {})
        if own.get("permissionDecision") == "deny":
            return before, None
        return before, await self.hook("PostToolUse", **call, tool_response=response)


async def test_a_scripted_session_of_claude_code(daemon: Served) -> None:
    async with aiohttp.ClientSession() as http:
        agent = Session(http, daemon.url + HOOKS, "session-1")
        await agent.hook("SessionStart", source="startup", model="claude-opus-4")

        said = [await agent.call("Bash", {"command": "pytest"}, "1 failed") for _ in range(3)]
        assert said[0] == said[1] == ({}, {})
        own = said[2][1]["hookSpecificOutput"]  # type: ignore[index]
        assert own["hookEventName"] == "PostToolUse"
        assert "third identical `Bash` with the same result" in own["additionalContext"]

        denied, _ = await agent.call("mcp__shop__refund", {"order": "ord-12345"})
        assert denied["hookSpecificOutput"] == {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": (
                "mcp__shop__refund needs args.order, but no step of this run has produced it; "
                "obtain it first"
            ),
        }
        await agent.call("mcp__shop__find_order", {"q": "Ada"}, {"order": "ord-12345"})
        assert await agent.call("mcp__shop__refund", {"order": "ord-12345"}, "paid") == ({}, {})
        await agent.hook("SessionEnd", reason="logout")

        async with http.get(f"{daemon.url}/v1/runs/session-1") as answer:
            told = await answer.json()
    assert (told["state"], told["steps"], told["blocked"]) == ("ended", 5, 1)
    assert told["agent"]["id"] == "claude-code"
    mine = [line for line in daemon.outputs() if line.get("run_id") == "session-1"]
    assert [line["seq"] for line in mine if line["type"] == "verdict"] == [0, 1, 2, 3, 4]
    assert mine[-1]["type"] == "scorecard"


async def test_an_unknown_session_works(daemon: Served) -> None:
    async with aiohttp.ClientSession() as http:
        agent = Session(http, daemon.url + HOOKS, "never-seen")
        assert await agent.hook("PostToolUse", tool_name="Read", tool_input={}) == {}
        assert await agent.hook("PreToolUse", tool_name="Read", tool_input={}) == {}
        async with http.get(f"{daemon.url}/v1/runs/never-seen") as answer:
            assert (await answer.json())["notes"] == {"not_asked": 1}


async def test_events_come_as_one_object_an_array_or_lines(daemon: Served) -> None:
    step = {"type": "step", "run_id": "posted", "tool": "look"}
    steps = [step | {"args": {"page": page}, "result": page} for page in range(5)]
    lines = b"\n".join(json.dumps(each).encode() for each in steps[3:])
    bodies = [json.dumps(steps[0], indent=1).encode(), json.dumps(steps[1:3]).encode(), lines]
    async with aiohttp.ClientSession() as http:
        seqs = []
        for body in bodies:
            async with http.post(daemon.url + "/v1/events", data=body) as answer:
                assert answer.status == 200
                told = await answer.json()
                assert told["accepted"] == len(told["outputs"])
                seqs += [output["seq"] for output in told["outputs"]]
    assert seqs == [0, 1, 2, 3, 4]


async def test_of_several_events_the_good_ones_are_taken_and_the_bad_ones_are_kept(
    daemon: Served,
) -> None:
    items = [
        {"type": "step", "run_id": "mixed", "tool": "a"},
        {"type": "step", "run_id": "mixed"},
        {"type": "step", "run_id": "mixed", "tool": "b"},
    ]
    url = daemon.url + "/v1/events"
    async with aiohttp.ClientSession() as http, http.post(url, json=items) as answer:
        assert answer.status == 400
        told = await answer.json()
    assert (told["index"], told["accepted"], told["error"]) == (1, 2, "WrongShape")
    assert "tool" in told["text"]
    letters = [line for line in daemon.outputs() if line["type"] == "dead_letter"]
    assert any("http:/v1/events" in letter["id"] for letter in letters)
    async with aiohttp.ClientSession() as http, http.get(daemon.url + "/metrics") as answer:
        assert 'ontrack_dead_letters_total{error="WrongShape"}' in await answer.text()


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/v1/events", b"", 400, "empty"),
        ("/v1/events", b"[1,", 400, "array"),
        ("/v1/events", b"\xff\xfe", 400, "JSON"),
        ("/v1/gate", b"{}", 400, "run_id"),
        ("/v1/gate", b'{"run_id":"r","tool":"t","deadline_ms":"soon"}', 400, "deadline_ms"),
        ("/v1/gate/redeem", b"{}", 400, "decision_id"),
        (HOOKS, b"", 400, "JSON"),
        (HOOKS, b"[]", 400, "object"),
        (HOOKS, b"{}", 400, "hook_event_name"),
        (HOOKS + "?shadwo=1", b"{}", 400, "shadwo"),
        (HOOKS + "?shadow=yes", b"{}", 400, "shadow"),
        ("/v1/hooks/emacs", b"{}", 404, "claude-code"),
        ("/v1/nothing", b"{}", 404, "/v1/nothing"),
        ("/v1/runs", b"{}", 405, "/v1/runs"),
        ("/v1/runs/nobody/resume", b"", 404, "nobody"),
    ],
)
async def test_whatever_is_wrong_is_said_in_words(
    daemon: Served, path: str, body: bytes, status: int, word: str
) -> None:
    async with aiohttp.ClientSession() as http, http.post(daemon.url + path, data=body) as answer:
        assert answer.status == status
        told = await answer.json()
    assert word in told["text"]
    assert told["error"]


@pytest.mark.parametrize(
    ("query", "status", "word"),
    [
        ("limit=0", 200, None),
        ("state=ended&limit=3", 200, None),
        ("limit=-1", 400, "limit"),
        ("state=opne", 400, "open, halted, ended"),
        ("stat=open", 400, "state and limit"),
    ],
)
async def test_the_list_of_runs_refuses_what_means_nothing(
    daemon: Served, query: str, status: int, word: str | None
) -> None:
    url = f"{daemon.url}/v1/runs?{query}"
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        assert answer.status == status
        told = await answer.json()
    if word is not None:
        assert word in told["text"]
    elif query == "limit=0":
        assert told["runs"] == []
    else:
        assert {run["state"] for run in told["runs"]} <= {"ended"}


async def test_a_call_that_the_gate_allows_is_redeemed_once(daemon: Served) -> None:
    async with aiohttp.ClientSession() as http:
        step = {"type": "step", "run_id": "shop", "tool": "mcp__shop__find_order"}
        await http.post(daemon.url + "/v1/events", json=step | {"result": {"order": "ord-777"}})
        asked = {"run_id": "shop", "tool": "mcp__shop__refund", "args": {"order": "ord-777"}}
        async with http.post(daemon.url + "/v1/gate", json=asked) as answer:
            decision = await answer.json()
        assert decision["decision"] == "allow"
        wanted = {"decision_id": decision["id"], "run_id": "shop"}
        wanted["call_sha256"] = decision["call_sha256"]
        told = []
        for _ in range(2):
            async with http.post(daemon.url + "/v1/gate/redeem", json=wanted) as answer:
                told.append((answer.status, (await answer.json()).get("why")))
    assert told == [(200, None), (409, "used")]


async def test_a_thousand_sessions_at_once(daemon: Served) -> None:
    connector = aiohttp.TCPConnector(limit=200)
    async with aiohttp.ClientSession(connector=connector) as http:

        async def one(number: int) -> list[dict[str, Any]]:
            agent = Session(http, daemon.url + HOOKS, f"many-{number}")
            said = [await agent.call("Bash", {"command": "make"}, f"{number}") for _ in range(3)]
            return [after for _, after in said if after is not None]

        told = await asyncio.gather(*(one(number) for number in range(1000)))
        async with http.get(daemon.url + "/v1/runs?limit=2000") as answer:
            board = await answer.json()
    assert len(board["runs"]) == 500
    assert board["open"] >= 1000
    for first, second, third in told:
        assert first == second == {}
        assert "third identical" in third["hookSpecificOutput"]["additionalContext"]


async def test_a_body_over_the_limit_and_one_event_over_its_own(daemon: Served) -> None:
    async with aiohttp.ClientSession() as http:
        async with http.post(daemon.url + "/v1/events", data=b"x" * (17 << 20)) as answer:
            assert answer.status == 413
        step = {"type": "step", "run_id": "big", "tool": "t", "result": "x" * (2 << 20)}
        async with http.post(daemon.url + "/v1/events", json=step) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"] == "MessageTooLarge"


async def test_a_connection_that_sends_half_a_request_keeps_nobody_else_waiting(
    daemon: Served,
) -> None:
    host, port = daemon.url.removeprefix("http://").split(":")
    slow = [await asyncio.open_connection(host, int(port)) for _ in range(50)]
    try:
        for _, writer in slow:
            writer.write(b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-")
        async with aiohttp.ClientSession() as http:
            agent = Session(http, daemon.url + HOOKS, "patient")
            assert await agent.call("Read", {"file_path": "a"}, "text") == ({}, {})
    finally:
        for _, writer in slow:
            writer.close()


def test_killed_and_started_again_it_goes_on_from_its_recording(tmp_path: Path) -> None:
    record = tmp_path / "events.jsonl"
    arguments = ("--record", str(record), "--tools", tools_file(tmp_path))

    async def calls(url: str, count: int) -> list[Any]:
        async with aiohttp.ClientSession() as http:
            agent = Session(http, url + HOOKS, "long")
            return [await agent.call("Bash", {"command": "make"}, "boom") for _ in range(count)]

    with served(tmp_path, *arguments) as first:
        assert asyncio.run(calls(first.url, 2)) == [({}, {})] * 2
        assert len(first.outputs()) == 4  # printed beside the answers: a kill may come before it
        first.stop(signal.SIGKILL)
    with record.open("ab") as file:
        file.write(b'{"type":"step","run_id":"lo')  # what a kill leaves behind
    with served(tmp_path, *arguments) as second:
        ((_, after),) = asyncio.run(calls(second.url, 1))
        assert "third identical" in after["hookSpecificOutput"]["additionalContext"]
        assert second.stop() == 0
    events = [decode_event(line).event for line in record.read_bytes().splitlines()]
    assert [event.type for event in events] == ["step"] * 3
    assert record.stat().st_mode & 0o077 == 0
    # What was said before the kill is not said again.
    verdicts = [line["id"] for line in second.outputs() if line["type"] == "verdict"]
    assert verdicts == ["long:0", "long:1", "long:2"]


def test_what_is_redacted_stands_neither_in_the_recording_nor_in_what_is_said(
    tmp_path: Path,
) -> None:
    record = tmp_path / "events.jsonl"
    with served(tmp_path, "--record", str(record), ONTRACK_REDACT="args.password") as process:

        async def post() -> None:
            async with aiohttp.ClientSession() as http:
                agent = Session(http, process.url + HOOKS, "r")
                await agent.call("Login", {"password": "hunter2-marker"}, "ok")
                step = {"type": "step", "run_id": "e", "tool": "Login"}
                step |= {"args": {"password": "hunter2-marker"}}  # type: ignore[dict-item]
                await http.post(process.url + "/v1/events", json=step)
                for path in ("/v1/runs/r", "/v1/runs/e", "/metrics"):
                    async with http.get(process.url + path) as answer:
                        assert "hunter2-marker" not in await answer.text()

        asyncio.run(post())
    assert record.read_text().count('"tool":"Login"') == 2
    for path in (record, process.out, process.log):
        assert "hunter2-marker" not in path.read_text()


def test_with_a_token_nothing_is_shown_without_it(tmp_path: Path) -> None:
    with served(tmp_path, ONTRACK_WEB_TOKEN="secret-token") as process:

        async def statuses(headers: dict[str, str]) -> list[int]:
            async with aiohttp.ClientSession(headers=headers) as http:
                found = []
                for path in ("/v1/runs", "/metrics", "/readyz", "/healthz"):
                    async with http.get(process.url + path) as answer:
                        found.append(answer.status)
                async with http.post(process.url + HOOKS, json={}) as answer:
                    found.append(answer.status)
                return found

        assert asyncio.run(statuses({})) == [401, 401, 401, 200, 401]
        right = {"Authorization": "Bearer secret-token"}
        assert asyncio.run(statuses(right)) == [200, 200, 200, 200, 400]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--host", "0.0.0.0"), "ONTRACK_WEB_TOKEN"),
        (("--gate-url", "http://localhost:1"), "--broker"),
        (("--references-from-successes",), "--references"),
        (("--broker", "127.0.0.1:1", "--shadow"), "workers judge"),
        (("--record", "/nowhere/at/all.jsonl"), "cannot be opened"),
        (("--tools", "/nowhere/at/all.yaml"), "all.yaml"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_listens(
    arguments: tuple[str, ...], word: str
) -> None:
    program = "from ontrack.pipeline.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "serve", "--port", "0", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert word in done.stderr


def test_a_port_that_is_taken_is_named(daemon: Served) -> None:
    port = daemon.url.rpartition(":")[2]
    program = "from ontrack.pipeline.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "serve", "--port", port],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert f"cannot listen at 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_daemon_without_a_broker_imports_no_kafka_library() -> None:
    program = (
        "import sys; from ontrack.pipeline.serving import app, daemon, engine, run; "
        "assert not {'faust', 'aiokafka'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
