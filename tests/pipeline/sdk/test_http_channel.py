"""Events and questions through `ontrack serve`: its own process, and servers that fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ontrack.pipeline.sdk import http_channel, tool
from ontrack.pipeline.sdk.client import Blocked, Monitor
from ontrack.pipeline.sdk.http_channel import ServeUnavailable
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidSettings, MessageTooLarge, WrongShape
from ontrack.topics.verdicts import DeadLetter, Verdict
from tests.pipeline.sdk.recorded import ORDER, SETTINGS, Recorded
from tests.pipeline.serving.served import served, tools_file

FIND, PAY = "mcp__shop__find_order", "mcp__shop__refund"


async def test_a_run_through_the_real_daemon(tmp_path: Path) -> None:
    with served(tmp_path, "--tools", tools_file(tmp_path)) as server:
        async with Monitor(run_id="r", serve_url=server.url + "/", settings=SETTINGS) as run:
            with pytest.raises(Blocked, match="args.order"):
                await run.check(PAY, ORDER, raise_on_block=True)
            (verdict,) = await run.step(FIND, result=ORDER)
            assert isinstance(verdict, Verdict)
            answer = await run.check(PAY, ORDER)
            assert (answer.decision, answer.decided_by) == ("allow", "monitor")
            assert (await run.redeem(answer), await run.redeem(answer)) == (None, "used")
            early = await run.check(PAY, ORDER, deadline_ms=0)
            assert early.decided_by == "policy"
            decision, verdict = await run.step(PAY, ORDER, result="ok")
            assert (decision.type, verdict.type) == ("decision", "verdict")
        printed = server.outputs()
    card = printed[-1]
    assert (card["type"], card["outcome"], card["steps"]) == ("scorecard", "success", 2)


async def test_a_token_is_asked_for_and_given(tmp_path: Path) -> None:
    with served(tmp_path, ONTRACK_WEB_TOKEN="s3cret-of-this-test") as server:
        with pytest.raises(InvalidSettings, match="token"):
            async with Monitor(run_id="r", serve_url=server.url, settings=SETTINGS):
                pass
        more = {"serve_url": server.url, "token": "s3cret-of-this-test", "settings": SETTINGS}
        async with Monitor(run_id="r", **more) as run:
            assert len(await run.step("find")) == 1


class Daemon:
    """A server that folds events, and fails as the test wishes."""

    def __init__(self) -> None:
        self.monitor = Recorded()
        self.bodies: list[dict[str, Any]] = []
        self.connections: set[Any] = set()
        self.failures: list[str] = []

    async def events(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.bodies.append(json.loads(raw))
        self.connections.add(request.transport)
        failure = self.failures.pop(0) if self.failures else None
        if failure == "unheard":
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if failure == "busy":
            return web.json_response({"error": "BrokerUnavailable", "text": "gone"}, status=503)
        if failure == "odd":
            return web.json_response({"hello": "world"})
        if failure == "bad":
            told = {"error": "WrongShape", "text": "because"}
            return web.json_response(told, status=400)
        outputs = self.monitor.feed_bytes(raw)
        if failure == "unacknowledged":
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if failure == "slow":
            await asyncio.sleep(0.5)
        told_of = [json.loads(codecs.encode(output)) for output in outputs]
        letters = [output for output in told_of if output["type"] == "dead_letter"]
        if letters:
            problem = {"error": letters[0]["error"]["name"], "text": letters[0]["error"]["text"]}
            told = {**problem, "index": 0, "accepted": 0, "outputs": told_of}
            return web.json_response(told, status=400)
        return web.json_response({"accepted": 1, "outputs": told_of, "of the future": 1})


@pytest.fixture
async def daemon() -> AsyncIterator[tuple[Daemon, str]]:
    found = Daemon()
    app = web.Application(client_max_size=16 * 1_048_576)
    app.router.add_post("/v1/events", found.events)
    server = TestServer(app)
    await server.start_server()
    try:
        yield found, str(server.make_url(""))
    finally:
        await server.close()


def through(url: str, **more: Any) -> Monitor:
    return Monitor(run_id="r", serve_url=url, settings=SETTINGS, **more)


def cards(daemon: Daemon) -> list[dict[str, Any]]:
    """What an idle end would say of the runs: how many steps each has."""
    return [json.loads(codecs.encode(card)) for card in daemon.monitor.close()]


async def test_one_connection_carries_all_events(daemon: tuple[Daemon, str]) -> None:
    server, url = daemon
    async with through(url) as run:
        for _ in range(5):
            await run.step("find")
    assert len(server.connections) == 1
    kinds = [body["type"] for body in server.bodies]
    assert kinds == ["run_started", *["step"] * 5, "run_ended"]


@pytest.mark.parametrize("failure", ["unheard", "unacknowledged", "busy"])
async def test_an_event_that_was_not_acknowledged_is_sent_again_and_counts_once(
    daemon: tuple[Daemon, str], failure: str
) -> None:
    server, url = daemon
    async with through(url) as run:
        await run.step("find", result=ORDER)
        server.failures = [failure] * 3
        said = await run.step("find", result=ORDER)
        assert [output.type for output in said] == (
            [] if failure == "unacknowledged" else ["verdict"]
        )
        (verdict,) = await run.step("find")
        assert verdict.seq == 2
        server.failures = [failure] * 3
        ended = await run.end("success")
    assert [output.type for output in ended] == (
        [] if failure == "unacknowledged" else ["scorecard"]
    )
    assert [body["seq"] for body in server.bodies if body["type"] == "step"] == [0, 1, 1, 1, 1, 2]
    assert cards(server) == []  # it has ended


async def test_events_keep_their_order_though_several_tasks_report(
    daemon: tuple[Daemon, str],
) -> None:
    server, url = daemon
    async with through(url) as run:
        server.failures = ["busy", "slow"]
        said = await asyncio.gather(*(run.step("find", {"n": n}) for n in range(6)))
    assert [outputs[0].seq for outputs in said] == list(range(6))  # type: ignore[union-attr]


async def test_an_event_that_cannot_be_used_gives_its_dead_letter(
    daemon: tuple[Daemon, str],
) -> None:
    _, url = daemon
    async with through(url) as run:
        (letter,) = await run.step("find", result=json.loads("[" * 70 + "]" * 70))
        assert isinstance(letter, DeadLetter)
        assert letter.error.name == "TooDeep"
        (verdict,) = await run.step("find")
        assert verdict.seq == 0  # nobody waits for a number that was never seen


async def test_a_body_that_is_refused_is_the_callers_error(daemon: tuple[Daemon, str]) -> None:
    server, url = daemon
    async with through(url) as run:
        server.failures = ["bad"]
        with pytest.raises(WrongShape, match="because"):
            await run.step("find")


@pytest.mark.parametrize("failure", ["busy", "unacknowledged"])
async def test_an_event_that_was_given_up_comes_along_with_the_next(
    daemon: tuple[Daemon, str], failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_channel.HttpChannel.__init__, "__defaults__", (None, 0.3))
    server, url = daemon
    async with through(url) as run:
        server.failures = [failure] * 50
        with pytest.raises(ServeUnavailable):
            await run.step("find", {"n": 0})
        server.failures = []
        said = await run.step("find", {"n": 1})
        assert said[-1].seq == 1  # type: ignore[union-attr]
    verdicts = [output for output in server.monitor.said if output.type == "verdict"]
    assert sorted(verdict.seq for verdict in verdicts) == [0, 1]


async def test_events_that_wait_together_are_given_up_together(
    daemon: tuple[Daemon, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_channel.HttpChannel.__init__, "__defaults__", (None, 0.3))
    server, url = daemon
    async with through(url) as run:
        server.failures = ["busy"] * 200
        before = len(server.bodies)
        steps = (run.step("find", {"n": n}) for n in range(20))
        problems = await asyncio.gather(*steps, return_exceptions=True)
        assert {type(problem) for problem in problems} == {ServeUnavailable}
        assert len(server.bodies) - before < 30  # not each its own 0.3 s, one after the other
        server.failures = []
        run._channel._send_s = 30.0  # type: ignore[attr-defined]
    assert [step.seq for step in server.monitor.said if step.type == "verdict"] == list(range(20))


async def test_a_step_that_was_cancelled_before_its_turn_comes_along_with_the_next(
    daemon: tuple[Daemon, str],
) -> None:
    server, url = daemon
    async with through(url) as run:
        server.failures = ["slow"]
        first, second = (asyncio.create_task(run.step("find", {"n": n})) for n in range(2))
        await asyncio.sleep(0.1)
        second.cancel()
        await first
        await run.step("find", {"n": 2})
    assert [body["seq"] for body in server.bodies if body["type"] == "step"] == [0, 1, 2]


async def test_an_event_that_is_refused_takes_no_other_with_it(
    daemon: tuple[Daemon, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_channel.HttpChannel.__init__, "__defaults__", (None, 0.3))
    server, url = daemon
    async with through(url) as run:
        server.failures = ["busy"] * 100
        for n in range(2):
            with pytest.raises(ServeUnavailable):
                await run.step("find", {"n": n})
        server.failures = ["bad"]  # for what comes along first, and is no fault of this one
        await run.step("find", {"n": 2})
        await run.step("find", {"n": 3})
    taken = [said.seq for said in server.monitor.said if said.type == "verdict"]
    assert taken == [1, 2, 3]


async def test_an_older_event_that_cannot_be_read_costs_the_next_one_no_number(
    daemon: tuple[Daemon, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_channel.HttpChannel.__init__, "__defaults__", (None, 0.3))
    server, url = daemon
    async with through(url) as run:
        await run.step("find")
        server.failures = ["busy"] * 100
        with pytest.raises(ServeUnavailable):
            await run.step("find", result=json.loads("[" * 70 + "]" * 70))
        server.failures = []
        said = [*await run.step("find", {"n": 2}), *await run.step("find", {"n": 3})]
        assert run.next_seq == 4
        assert not [output for output in said if isinstance(output, DeadLetter)]
    seqs = [body["seq"] for body in server.bodies if body["type"] == "step"]
    assert seqs[-3:] == [1, 2, 3]


async def test_what_is_said_to_an_event_that_came_along_is_told_though_the_next_is_refused(
    daemon: tuple[Daemon, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_channel.HttpChannel.__init__, "__defaults__", (None, 0.3))
    server, url = daemon
    heard: list[Any] = []
    async with through(url, on_output=heard.append) as run:
        server.failures = ["busy"] * 100
        with pytest.raises(ServeUnavailable):
            await run.step("find", {"n": 0})
        server.failures = ["none", "bad"]  # the first one comes along, the second is refused
        with pytest.raises(WrongShape, match="because"):
            await run.step("find", {"n": 1})
        await run.step("find", {"n": 2})
    assert [said.seq for said in heard if said.type == "verdict"] == [0, 1]


async def test_a_message_that_a_server_refuses_for_its_size_says_so(
    daemon: tuple[Daemon, str],
) -> None:
    _, url = daemon
    allowing = SETTINGS.model_copy(update={"message_bytes_max": 20_000_000})
    async with Monitor(run_id="r", serve_url=url, settings=allowing) as run:
        with pytest.raises(MessageTooLarge, match="no body of this size"):
            await run.step("find", result="x" * 17_000_000)
        assert run.next_seq == 0


@pytest.mark.parametrize("failure", ["busy", "unheard", "odd"])
async def test_a_server_that_takes_nothing_is_given_up(
    daemon: tuple[Daemon, str], failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_channel.HttpChannel.__init__, "__defaults__", (None, 0.3))
    server, url = daemon
    async with through(url) as run:
        server.failures = [failure] * 50
        with pytest.raises(ServeUnavailable, match="ontrack serve"):
            await run.step("find")
        server.failures = []
    with pytest.raises(ServeUnavailable, match="is `ontrack serve` running there"):
        async with through("http://127.0.0.1:9"):
            pass


async def test_a_server_that_is_away_is_the_policys_case_and_the_tool_runs(
    daemon: tuple[Daemon, str],
) -> None:
    _, url = daemon  # it has no gate

    @tool(name="find")
    async def find(q: str) -> str:
        return q

    settings = Settings(encoder="hashing", gate_fail_open=("read", "unknown"))
    async with Monitor(run_id="r", serve_url=url, settings=settings) as run:
        assert await find("x") == "x"
        # What the policy had decided was said to the tool's own step.
        (verdict,) = await run.step("find")
    assert verdict.type == "verdict"
