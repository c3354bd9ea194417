"""The gate over HTTP on real workers: alone, then two, then none."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.partitions import partition_of
from ontrack.pipeline.kafka.sender import send_events, send_knowledge
from ontrack.pipeline.sdk.client import Blocked, Monitor
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import EventAfterEnd, InvalidSettings
from ontrack.topics.events import RunEnded, Step
from ontrack.topics.knowledge import ToolContract
from tests.pipeline.fleet import (
    WAIT_S,
    WorkerProcess,
    read_all,
    wait_for,
)

ROOT = Path(__file__).resolve().parents[3]
SECRET = "hunter2-password"
TOKEN = "a token of this test"
ORDER = {"order": "ord-12345"}
CONTRACTS = [
    ToolContract(name="find", effect="read", produces=("result.order",)),
    ToolContract(name="pay", effect="destructive", consumes=("args.order",)),
]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """The same, with the contracts published."""
    asyncio.run(send_knowledge(settings, contracts=CONTRACTS))
    return settings


@pytest.fixture
def workers(settings: Settings, tmp_path: Path) -> Iterator[list[WorkerProcess]]:
    found = [WorkerProcess(settings, tmp_path, name=f"w{number}") for number in range(2)]
    try:
        yield found
    finally:
        for worker in found:
            worker.stop()


def post(
    port: int, path: str, body: dict[str, Any] | bytes, token: str | None = None
) -> tuple[int, dict[str, Any]]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", raw, method="POST")
    request.add_header("Content-Type", "application/json")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def get(port: int, path: str, token: str | None = None) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def ask(port: int, **fields: Any) -> tuple[int, dict[str, Any]]:
    return post(port, "/v1/gate", {"deadline_ms": 5000, **fields})


def redeem(port: int, answer: dict[str, Any], **other: Any) -> tuple[int, dict[str, Any]]:
    wanted = {
        "decision_id": answer["id"],
        "run_id": answer["run_id"],
        "call_sha256": answer["call_sha256"],
    }
    return post(port, "/v1/gate/redeem", {**wanted, **other})


def found_order(run_id: str) -> Step:
    return Step(run_id=run_id, seq=0, tool="find", result=ORDER)


def ways(worker: WorkerProcess) -> dict[tuple[str, str], float]:
    """Gate requests of a worker by decision and way."""
    with urllib.request.urlopen(f"http://127.0.0.1:{worker.port}/metrics", timeout=5) as page:
        lines = page.read().decode().splitlines()
    found = {}
    for line in lines:
        if line.startswith("ontrack_gate_requests_total{"):
            labels, value = line.removeprefix("ontrack_gate_requests_total").rsplit(" ", 1)
            pairs = dict(part.split("=") for part in labels.strip("{}").split(","))
            found[pairs["decision"].strip('"'), pairs["way"].strip('"')] = float(value)
    return found


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def run_ids_by_partition(count: int) -> dict[int, str]:
    """One run id for each partition."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < count:
        found.setdefault(partition_of(f"run-{number}".encode(), count), f"run-{number}")
        number += 1
    return found


def test_one_worker_answers_from_memory_and_two_pass_questions_on(
    settings: Settings, workers: list[WorkerProcess]
) -> None:
    one, two = workers
    decisions = topics_of(settings).decisions.name
    one.start()
    one.wait_ready()

    # A run nobody has heard of is judged by the published contracts.
    status, early = ask(one.port, run_id="new", tool="pay", args=ORDER)
    assert (status, early["decision"], early["decided_by"]) == (200, "block", "monitor")
    assert early["reasons"][0]["signal"] == "prerequisites"
    assert early["expires_in_s"] is None

    # What a run has produced, it may use; asked right after the sending.
    asyncio.run(send_events(settings, [found_order("a")], None))
    status, answer = ask(one.port, run_id="a", seq=1, tool="pay", args=ORDER)
    assert (status, answer["decision"], answer["stale"]) == (200, "allow", False)
    assert (answer["effect"], answer["evidence"], answer["expires_in_s"]) == (
        "destructive",
        [0],
        60,
    )

    # The decision is for that call, once.
    assert redeem(one.port, answer, call_sha256="0" * 64)[1]["why"] == "other_call"
    assert redeem(one.port, answer) == (200, {"ok": True})
    assert redeem(one.port, answer) == (409, {"ok": False, "why": "used"})
    assert redeem(one.port, answer, decision_id="x")[1]["why"] == "unknown"

    # What is refused, and what the policy decides.
    assert post(one.port, "/v1/gate", b"{not json")[1]["error"] == "MalformedMessage"
    status, refused = ask(one.port, run_id="a", tool="find", args={"x": SECRET * 100_000})
    assert (status, refused["error"]) == (413, "MessageTooLarge")
    status, late = ask(one.port, run_id="a", tool="pay", args={"x": SECRET}, deadline_ms=0)
    assert (status, late["decision"], late["decided_by"]) == (200, "block", "policy")
    assert ask(one.port, run_id="a", tool="find", deadline_ms=0)[1]["decision"] == "allow"
    assert get(one.port, "/v1/gate") == 405

    # After its end there is nothing to ask.
    asyncio.run(send_events(settings, [RunEnded(run_id="a", outcome="success")], None))
    asyncio.run(wait_for(settings, topics_of(settings).scorecards.name, 1))
    status, over = ask(one.port, run_id="a", tool="find")
    assert (status, over["error"]) == (409, "EventAfterEnd")

    # Every answer stands on the topic, as it was given.
    records = asyncio.run(wait_for(settings, decisions, 4))
    told = {json.loads(record.value)["id"]: record for record in records}
    assert set(told) == {early["id"], answer["id"], late["id"]} | {
        name for name in told if name.endswith(":policy")
    }
    body = json.loads(told[answer["id"]].value)
    assert body == {name: answer[name] for name in body}
    assert {record.partition for record in records if record.key == b"a"} == {
        partition_of(b"a", settings.partitions)
    }
    assert not any(name == "ontrack_source" for r in records for name, _ in r.headers)

    # A second worker takes over a part; whoever is asked passes on what is not its own.
    two.start()
    two.wait_ready()
    one.wait_ready()
    by_partition = run_ids_by_partition(settings.partitions)
    until(
        lambda: all(
            ask(worker.port, run_id=run_id, tool="find")[1]["decided_by"] == "monitor"
            for worker in workers
            for run_id in by_partition.values()
        ),
        "not every partition is answered for at both workers",
    )
    before = {worker.name: ways(worker) for worker in workers}
    asyncio.run(send_events(settings, [found_order(name) for name in by_partition.values()], None))
    for run_id in by_partition.values():
        answers = [
            ask(worker.port, run_id=run_id, seq=1, tool="pay", args=ORDER)[1] for worker in workers
        ]
        assert answers[0] == answers[1]
        assert (answers[0]["decision"], answers[0]["decided_by"]) == ("allow", "monitor")
        # Whoever asked one worker may redeem at the other; once.
        results = [redeem(worker.port, answers[0])[0] for worker in (two, one)]
        assert results == [200, 409]
    gained: dict[str, float] = {"local": 0, "forwarded": 0, "policy": 0}
    for worker in workers:
        for (decision, way), value in ways(worker).items():
            gained[way] += value - before[worker.name].get((decision, way), 0)
    count = settings.partitions
    assert gained == {"local": 2 * count, "forwarded": count, "policy": 0}

    for worker in workers:
        assert SECRET not in worker.log.read_text(errors="replace")


async def test_the_client_works_with_a_worker_and_goes_on_without_one(
    settings: Settings, workers: list[WorkerProcess]
) -> None:
    worker = workers[0]
    worker.start()
    await asyncio.to_thread(worker.wait_ready)
    url = f"http://127.0.0.1:{worker.port}"
    slow = {"gate_url": url, "settings": settings, "deadline_ms": 5000}
    async with Monitor(run_id="good", agent="clerk", **slow) as run:  # type: ignore[arg-type]
        with pytest.raises(Blocked, match="obtain it first") as caught:
            await run.check("pay", ORDER, raise_on_block=True)
        assert caught.value.answer.decided_by == "monitor"
        assert (await run.check("find", {"customer": "Ada"})).allowed
        assert await run.step("find", {"customer": "Ada"}, result=ORDER) == ()
        answer = await run.check("pay", ORDER, raise_on_block=True)
        assert (answer.seq, answer.decision, answer.stale) == (1, "allow", False)
        assert await run.redeem(answer) is None
        assert await run.redeem(answer) == "used"
        await run.step("pay", ORDER, result={"paid": True})
        await run.end("success", reward=1.0)
        await asyncio.to_thread(
            lambda: asyncio.run(wait_for(settings, topics_of(settings).scorecards.name, 1))
        )
        with pytest.raises(EventAfterEnd):
            await run.check("find")

    async def fails() -> None:
        async with Monitor(run_id="bad", gate_url=url, settings=settings):
            raise ZeroDivisionError

    await asyncio.to_thread(worker.kill)
    known = [ToolContract(name="find", effect="read")]
    async with Monitor(run_id="alone", gate_url=url, settings=settings, contracts=known) as run:
        passed = await run.check("find")
        assert (passed.decision, passed.decided_by) == ("allow", "policy")
        blocked = await run.check("pay", ORDER)
        assert (blocked.decision, blocked.decided_by) == ("block", "policy")
    records = {
        json.loads(record.value)["id"]: record
        for record in await read_all(settings, topics_of(settings).decisions.name)
        if record.key == b"alone"
    }
    assert set(records) == {passed.id, blocked.id}
    assert records[passed.id].partition == partition_of(b"alone", settings.partitions)
    for record in records.values():
        assert dict(record.headers)["ontrack_decided_by"] == b"policy"
    with pytest.raises(ZeroDivisionError):
        await fails()
    worker.start()
    await asyncio.to_thread(worker.wait_ready)
    cards = await wait_for(settings, topics_of(settings).scorecards.name, 3)
    ends = {card["run_id"]: card for card in (json.loads(message.value) for message in cards)}
    assert {name: card["outcome"] for name, card in ends.items()} == {
        "good": "success",
        "bad": "failure",
        "alone": "success",
    }
    assert (ends["good"]["steps"], ends["good"]["reward"]) == (2, 1.0)
    assert ends["bad"]["reason"] == "ZeroDivisionError"
    verdicts = await read_all(settings, topics_of(settings).verdicts.name)
    assert {json.loads(message.value)["id"] for message in verdicts} == {"good:0", "good:1"}


async def test_the_example_in_the_manual_runs(
    settings: Settings, workers: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    text = (ROOT / "docs" / "operating.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    worker = workers[0]
    worker.start()
    await asyncio.to_thread(worker.wait_ready)
    for written, real in (
        ("127.0.0.1:9092", settings.broker),
        ("http://127.0.0.1:6066", f"http://127.0.0.1:{worker.port}"),
    ):
        assert written in code
        code = code.replace(written, real)
    monkeypatch.setenv("ONTRACK_TOPIC_PREFIX", settings.topic_prefix)
    monkeypatch.setenv("ONTRACK_GATE_DEADLINE_MS", "5000")
    program = compile(code, "operating.md", "exec")
    await asyncio.to_thread(exec, program, {"__name__": "example"})
    assert capsys.readouterr().out == "unknown monitor\n"  # no contract names these tools
    card = await wait_for(settings, topics_of(settings).scorecards.name, 1)
    told = json.loads(card[0].value)
    assert (told["run_id"], told["outcome"], told["steps"]) == ("live-7", "success", 2)


async def test_beyond_the_loopback_interface_the_token_is_asked_for(
    settings: Settings, workers: list[WorkerProcess]
) -> None:
    bare, worker = workers
    bare.more = {"ONTRACK_WEB_HOST": "0.0.0.0"}
    bare.start()
    assert bare.process is not None
    assert await asyncio.to_thread(bare.process.wait, WAIT_S) == 2
    assert "ONTRACK_WEB_TOKEN" in bare.tail()

    worker.more = {
        "ONTRACK_WEB_HOST": "0.0.0.0",
        "ONTRACK_WEB_TOKEN": TOKEN,
        "ONTRACK_WEB_ADVERTISED_URL": f"http://127.0.0.1:{worker.port}",
    }
    worker.start()

    def look(path: str, token: str | None = None) -> int:
        try:
            return get(worker.port, path, token)
        except OSError:
            return 0

    await asyncio.to_thread(until, lambda: look("/readyz", TOKEN) == 200, "not ready")
    for path in ("/readyz", "/metrics"):
        assert [look(path), look(path, "wrong"), look(path, TOKEN)] == [401, 401, 200]
    assert look("/healthz") == 200
    body = {"run_id": "r", "tool": "find", "deadline_ms": 5000}
    assert post(worker.port, "/v1/gate", body)[0] == 401
    assert post(worker.port, "/v1/gate/redeem", {})[0] == 401
    assert post(worker.port, "/v1/gate", body, TOKEN)[1]["decision"] == "allow"
    url = f"http://127.0.0.1:{worker.port}"
    async with Monitor(run_id="r", gate_url=url, settings=settings, deadline_ms=5000) as run:
        with pytest.raises(InvalidSettings, match="ONTRACK_WEB_TOKEN"):
            await run.check("find")
    async with Monitor(
        run_id="s", gate_url=url, settings=settings, token=TOKEN, deadline_ms=5000
    ) as run:
        assert (await run.check("find")).decided_by == "monitor"
    assert TOKEN not in worker.log.read_text(errors="replace")
