"""The client: numbered steps, an answer within the deadline, an end whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from aiokafka.errors import MessageSizeTooLargeError

from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.gating.answers import NoAnswer
from ontrack.pipeline.kafka import remote
from ontrack.pipeline.sdk.client import Blocked, Monitor
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs, errors
from ontrack.topics.events import Event, RunEnded, RunStarted, Step
from ontrack.topics.knowledge import ToolContract
from ontrack.topics.verdicts import Scorecard, Verdict

ROOT = Path(__file__).resolve().parents[3]
ORDER = {"order": "ord-12345"}
FIND = ToolContract(name="find", effect="read", produces=("result.order",))
PAY = ToolContract(name="pay", effect="destructive", consumes=("args.order",))
SETTINGS = Settings(encoder="hashing")


class Recorded(EmbeddedMonitor):
    """An embedded monitor that keeps what it was fed."""

    def __init__(self) -> None:
        super().__init__(SETTINGS, contracts=[FIND, PAY])
        self.fed: list[Event] = []
        self.said: list[Any] = []

    def feed(self, event: Event) -> list[Any]:
        self.fed.append(event)
        outputs = super().feed(event)
        self.said += outputs
        return outputs


def watched(monitor: EmbeddedMonitor, run_id: str = "r", **more: Any) -> Monitor:
    return Monitor(embedded=monitor, run_id=run_id, settings=SETTINGS, **more)


# ------------------------------------------------------------------ embedded


async def test_a_run_begins_is_checked_step_by_step_and_ends() -> None:
    monitor = Recorded()
    async with watched(monitor, task_id="t", agent="clerk", tenant="shop") as run:
        with pytest.raises(Blocked, match="pay needs args.order") as caught:
            await run.check("pay", ORDER, action="pay back", raise_on_block=True)
        assert caught.value.answer.decision == "block"
        (verdict,) = await run.step("find", {"customer": "Ada"}, result=ORDER, action="look")
        assert isinstance(verdict, Verdict)
        assert (verdict.id, verdict.verdict) == ("r:0", "OK")
        answer = await run.check("pay", ORDER, raise_on_block=True)
        assert (answer.seq, answer.decision, answer.decided_by) == (1, "allow", "monitor")
        await run.step("pay", ORDER, error="declined", cost_usd=0.5)
    started, first, second, ended = monitor.fed
    assert isinstance(started, RunStarted)
    assert isinstance(first, Step)
    assert isinstance(second, Step)
    assert isinstance(ended, RunEnded)
    assert [first.seq, second.seq] == [0, 1]
    assert first.action == "look"
    assert second.error is not None
    assert (second.error.message, second.cost_usd) == ("declined", 0.5)
    assert {
        (e.run_id, e.task_id, e.tenant, e.agent.id if e.agent else None) for e in monitor.fed
    } == {("r", "t", "shop", "clerk")}
    card = monitor.said[-1]
    assert isinstance(card, Scorecard)
    assert (card.outcome, card.steps, card.errors) == ("success", 2, 1)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(ValueError("hunter2"), "failure"), (asyncio.CancelledError(), "cancelled")],
)
async def test_an_exception_ends_the_run_and_passes_through(
    error: BaseException, outcome: str
) -> None:
    monitor = Recorded()
    with pytest.raises(type(error)):
        async with watched(monitor):
            raise error
    card = monitor.said[-1]
    assert (card.outcome, card.reason) == (outcome, type(error).__name__)


async def test_the_first_end_counts() -> None:
    monitor = Recorded()

    async def ends_and_fails() -> None:
        async with watched(monitor) as run:
            await run.end("success", reward=0.75)
            assert await run.end("failure") == ()
            raise KeyError

    with pytest.raises(KeyError):
        await ends_and_fails()
    (card,) = monitor.said
    assert (card.outcome, card.reward) == ("success", 0.75)


async def test_after_the_end_the_gate_says_so() -> None:
    async with watched(Recorded()) as run:
        await run.end("success")
        with pytest.raises(errors.EventAfterEnd):
            await run.check("find")


async def test_without_time_the_policy_decides_by_the_contracts_at_hand() -> None:
    async with watched(Recorded(), deadline_ms=0) as run:
        read, paid, other = [await run.check(tool) for tool in ("find", "pay", "other")]
        assert [a.decision for a in (read, paid, other)] == ["allow", "block", "block"]
        assert {a.decided_by for a in (read, paid, other)} == {"policy"}
        with pytest.raises(Blocked, match="no time was given"):
            await run.check("pay", raise_on_block=True)
        assert (await run.check("pay", ORDER, deadline_ms=1000)).decided_by == "monitor"
    async with watched(Recorded(), "s", deadline_ms=0, fail_open=["destructive"]) as run:
        assert (await run.check("pay")).decision == "allow"
        assert (await run.check("find")).decision == "block"


async def test_what_the_policy_decides_in_place_of_an_embedded_monitor_is_an_output() -> None:
    async with watched(Recorded()) as run:
        paid = await run.check("pay", ORDER, deadline_ms=0)
        read = await run.check("find", deadline_ms=0)
        await run.check("find")  # the monitor's own
        *decisions, verdict = await run.step("find", result=ORDER)
        assert isinstance(verdict, Verdict)
        assert [(d.id, d.type) for d in decisions] == [(a.id, "decision") for a in (paid, read)]
        assert paid.id.endswith(":client:policy")
        (verdict,) = await run.step("pay", ORDER)  # each is returned once
        assert isinstance(verdict, Verdict)


async def test_an_embedded_decision_is_redeemed_once() -> None:
    async with watched(Recorded()) as run:
        answer = await run.check("find")
        assert await run.redeem(answer) is None
        assert await run.redeem(answer) == "used"
        passed = await run.check("find", deadline_ms=0)
        assert await run.redeem(passed) == "unknown"


async def test_a_restarted_agent_goes_on_with_its_numbers() -> None:
    monitor = Recorded()
    async with watched(monitor, first_seq=7) as run:
        assert run.next_seq == 7
        await run.step("find")
        assert run.next_seq == 8
    assert [event.seq for event in monitor.fed if isinstance(event, Step)] == [7]


@pytest.mark.parametrize("field", ["tokns", "seq", "run_id", "time"])
async def test_a_field_that_a_step_does_not_have_is_an_error(field: str) -> None:
    async with watched(Recorded()) as run:
        with pytest.raises(TypeError, match=field):
            await run.step("find", **{field: 1})
        assert run.next_seq == 0


# ------------------------------------------------------------------ over HTTP

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeProducer:
    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, bytes]] = []
        self.stopped = False
        self.problem: Exception | None = None
        self.headers: list[dict[str, bytes]] = []
        self.records_go_on = asyncio.Event()
        self.records_go_on.set()

    async def send_and_wait(self, topic: str, value: bytes, *, key: bytes, headers: Any) -> None:
        if topic == "ontrack.decisions":
            await self.records_go_on.wait()
        if self.problem is not None:
            raise self.problem
        self.sent.append((topic, key, value))
        self.headers.append(dict(headers))

    def records(self) -> list[tuple[bytes, dict[str, Any], dict[str, bytes]]]:
        """Key, value and headers of what went to the decisions topic."""
        return [
            (key, json.loads(value), headers)
            for (topic, key, value), headers in zip(self.sent, self.headers, strict=True)
            if topic == "ontrack.decisions"
        ]

    async def stop(self) -> None:
        self.stopped = True


class Gate:
    """A worker's gate whose answers the test writes."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.answer: Handler = self.allow
        self.effect = "read"

    async def allow(self, _request: web.Request) -> web.Response:
        wanted = self.asked[-1]
        return web.json_response(
            {
                "type": "decision",
                "id": "r:0:abc",
                "run_id": wanted["run_id"],
                "seq": wanted["seq"],
                "tool": wanted["tool"],
                "effect": self.effect,
                "decision": "allow",
                "call_sha256": "s",
                "authority": "intervene",
                "profile": "p",
                "settings": "s",
                "engine": "0",
                "decided_by": "monitor",
                "expires_in_s": 60,
                "stale": False,
                "a field of the future": 1,
            }
        )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        self.headers.append(request.headers)
        return await self.answer(request)


@pytest.fixture
async def gate() -> AsyncIterator[tuple[Gate, str]]:
    found = Gate()
    app = web.Application()
    app.router.add_post("/v1/gate", found.handle)
    app.router.add_post("/v1/gate/redeem", found.handle)
    server = TestServer(app)
    await server.start_server()
    try:
        yield found, str(server.make_url("")).rstrip("/")
    finally:
        await server.close()


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> FakeProducer:
    found = FakeProducer()

    async def start(_settings: Settings) -> FakeProducer:
        return found

    monkeypatch.setattr(remote, "start_producer", start)
    return found


def status(code: int, body: dict[str, Any] | None = None) -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response(body or {}, status=code)

    return answer


def over_http(url: str, **more: Any) -> Monitor:
    return Monitor(run_id="r", gate_url=url, settings=SETTINGS, deadline_ms=2000, **more)


async def test_events_go_to_kafka_and_questions_to_the_gate(
    gate: tuple[Gate, str], producer: FakeProducer
) -> None:
    server, url = gate
    async with over_http(url + "/", token="t0ken") as run:
        answer = await run.check("find", {"q": "ü"}, action="look", call_id="c")
        assert (answer.decision, answer.expires_in_s) == ("allow", 60)
        await run.step("find", {"q": "ü"}, result=1)
    (asked,) = server.asked
    assert (asked["run_id"], asked["seq"], asked["tool"]) == ("r", 0, "find")
    assert (asked["args"], asked["action"], asked["call_id"]) == ({"q": "ü"}, "look", "c")
    assert 0 < asked["deadline_ms"] < 2000  # the rest is for the way
    assert server.headers[0]["Authorization"] == "Bearer t0ken"
    assert {(topic, key) for topic, key, _ in producer.sent} == {("ontrack.events", b"r")}
    kinds = [codecs.decode_event(value).event.type for _, _, value in producer.sent]
    assert kinds == ["run_started", "step", "run_ended"]
    assert producer.stopped


async def test_a_gate_that_keeps_silent_is_not_waited_for(
    gate: tuple[Gate, str], producer: FakeProducer
) -> None:
    server, url = gate
    goes_on = asyncio.Event()

    async def wait(request: web.Request) -> web.StreamResponse:
        await goes_on.wait()
        return await server.allow(request)

    async with over_http(url, contracts=[FIND]) as run:
        server.answer = wait
        answer = await run.check("find", deadline_ms=50)  # the gate answers after it, if at all
        assert (answer.decision, answer.decided_by) == ("allow", "policy")
        assert "did not answer in time" in answer.reasons[0].text
        assert (await run.check("pay", deadline_ms=50)).decision == "block"
        goes_on.set()


@pytest.mark.parametrize("code", [302, 404, 500, 503])
async def test_a_gate_that_fails_is_the_policys_case(
    gate: tuple[Gate, str], producer: FakeProducer, code: int
) -> None:
    server, url = gate
    server.answer = status(code)
    async with over_http(url) as run:
        answer = await run.check("pay")
        assert (answer.decision, answer.decided_by) == ("block", "policy")
        with pytest.raises(NoAnswer, match=str(code)):
            await run.redeem(answer)


async def test_an_answer_that_is_no_decision_is_the_policys_case(
    gate: tuple[Gate, str], producer: FakeProducer
) -> None:
    server, url = gate
    server.answer = status(200, {"decision": "perhaps"})
    async with over_http(url) as run:
        assert (await run.check("pay")).decided_by == "policy"


@pytest.mark.parametrize("other", [{"run_id": "s"}, {"tool": "pay"}, {"seq": 4}])
async def test_an_answer_about_another_call_is_the_policys_case(
    gate: tuple[Gate, str], producer: FakeProducer, other: dict[str, Any]
) -> None:
    server, url = gate

    async def crossed(_request: web.Request) -> web.StreamResponse:
        server.asked[-1] |= other
        return await server.allow(_request)

    server.answer = crossed
    async with over_http(url) as run:
        answer = await run.check("find")
        assert (answer.decision, answer.decided_by) == ("block", "policy")


async def test_what_the_policy_decides_goes_to_the_decisions_topic(
    gate: tuple[Gate, str], producer: FakeProducer
) -> None:
    server, url = gate
    async with over_http(url, contracts=[FIND], task_id="t") as run:
        await run.check("find")  # the worker writes that one
        server.answer = status(500)
        passed = await run.check("find", {"password": "hunter2"})
        with pytest.raises(Blocked):
            await run.check("pay", raise_on_block=True)
    (key, record, headers), (_, blocked, _) = producer.records()
    assert key == b"r"
    assert (record["id"], record["decision"], record["effect"]) == (passed.id, "allow", "read")
    assert (record["profile"], record["task_id"]) == ("client", "t")
    assert record["call_sha256"] == passed.call_sha256
    assert (blocked["tool"], blocked["decision"]) == ("pay", "block")
    assert headers["ontrack_decided_by"] == b"policy"
    assert headers["ce_source"] == b"ontrack/client"
    assert "hunter2" not in json.dumps(record)
    assert codecs.decode_output(json.dumps(record).encode()).run_id == "r"


async def test_nobody_waits_for_the_record_of_a_policys_decision(
    producer: FakeProducer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote, "RECORDS_S_MAX", 0.01)
    monkeypatch.setattr(remote, "RECORDS_MAX", 2)
    producer.records_go_on.clear()
    async with over_http("http://127.0.0.1:9") as run:
        for _ in range(3):
            assert (await run.check("pay")).decided_by == "policy"
    assert producer.stopped
    assert producer.records() == []
    told = capsys.readouterr()
    assert "too many wait already" in told.out + told.err
    assert re.search(r"decisions_not_recorded\s+records=2", told.out + told.err)


async def test_a_record_that_kafka_refuses_is_told_in_the_log(
    producer: FakeProducer, capsys: pytest.CaptureFixture[str]
) -> None:
    from aiokafka.errors import KafkaConnectionError

    async with over_http("http://127.0.0.1:9") as run:
        producer.problem = KafkaConnectionError()
        answer = await run.check("pay")
        await asyncio.sleep(0.01)
        producer.problem = None
    told = capsys.readouterr()
    assert "decision_not_recorded" in told.out + told.err
    assert answer.id in told.out + told.err


async def test_a_worker_that_knows_no_contract_does_not_make_the_agent_forget_its_own(
    gate: tuple[Gate, str], producer: FakeProducer
) -> None:
    server, url = gate
    server.effect = "unknown"
    async with over_http(url, contracts=[PAY], fail_open=["unknown"]) as run:
        await run.check("pay")
        server.answer = status(500)
        assert (await run.check("pay")).decision == "block"


async def test_the_effect_of_a_tool_is_remembered_from_the_gates_answers(
    gate: tuple[Gate, str], producer: FakeProducer
) -> None:
    server, url = gate
    async with over_http(url) as run:
        await run.check("find")
        server.answer = status(500)
        assert (await run.check("find")).decision == "allow"
        assert (await run.check("pay")).decision == "block"


@pytest.mark.parametrize(
    ("code", "name", "kind"),
    [
        (409, "EventAfterEnd", errors.EventAfterEnd),
        (400, "WrongShape", errors.WrongShape),
        (413, "MessageTooLarge", errors.MessageTooLarge),
        (401, "Unauthorized", errors.InvalidSettings),
    ],
)
async def test_what_the_gate_refuses_is_the_callers_error(
    gate: tuple[Gate, str], producer: FakeProducer, code: int, name: str, kind: type[Exception]
) -> None:
    server, url = gate
    server.answer = status(code, {"error": name, "text": "because"})
    async with over_http(url) as run:
        with pytest.raises(kind):
            await run.check("find")


@pytest.mark.parametrize(
    ("code", "body", "says"),
    [
        (200, {"ok": True}, None),
        (409, {"ok": False, "why": "expired"}, "expired"),
        (409, {}, "unknown"),
        (409, {"why": None}, "unknown"),
        (409, {"ok": True}, "unknown"),
    ],
)
async def test_redeeming_gives_the_gates_word(
    gate: tuple[Gate, str], producer: FakeProducer, code: int, body: dict[str, Any], says: Any
) -> None:
    server, url = gate
    async with over_http(url) as run:
        answer = await run.check("find")
        server.answer = status(code, body)
        assert await run.redeem(answer) == says
    assert server.asked[-1] == {"decision_id": "r:0:abc", "run_id": "r", "call_sha256": "s"}


@pytest.mark.parametrize("body", [{}, {"ok": False}, {"ok": "yes"}, {"hello": "world"}])
async def test_only_the_gates_own_word_redeems(
    gate: tuple[Gate, str], producer: FakeProducer, body: dict[str, Any]
) -> None:
    server, url = gate
    async with over_http(url) as run:
        answer = await run.check("find")

        async def other_program(_request: web.Request) -> web.StreamResponse:
            return web.json_response(body)

        server.answer = other_program
        with pytest.raises(NoAnswer):
            await run.redeem(answer)


async def test_nobody_at_the_gates_address_is_the_policys_case(producer: FakeProducer) -> None:
    async with over_http("http://127.0.0.1:9", contracts=[FIND]) as run:
        assert (await run.check("find")).decision == "allow"
        assert (await run.check("pay")).decision == "block"
        with pytest.raises(NoAnswer):
            await run.redeem(await run.check("find"))


async def test_what_ended_a_run_is_seen_even_if_its_end_cannot_be_sent(
    producer: FakeProducer,
) -> None:
    from aiokafka.errors import KafkaConnectionError

    async def loses_kafka(then: Exception | None) -> None:
        producer.problem = None
        async with over_http("http://127.0.0.1:9"):
            producer.problem = KafkaConnectionError()
            if then is not None:
                raise then

    with pytest.raises(ZeroDivisionError):
        await loses_kafka(ZeroDivisionError())
    assert producer.stopped
    with pytest.raises(errors.BrokerUnavailable):
        await loses_kafka(None)


# ------------------------------------------------------------------ what the documents show


def python_blocks(document: str) -> list[tuple[str, str]]:
    """Python examples with what they print, where the document says so."""
    text = (ROOT / document).read_text()
    pattern = re.compile(r"```python\n(.*?)```\n(?:\s*prints\s*```\n(.*?)```)?", re.DOTALL)
    return [(code, printed or "") for code, printed in pattern.findall(text)]


def test_the_examples_of_the_readme_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = re.search(r"<<'END'\n(.*?)END\n", (ROOT / "README.md").read_text(), re.DOTALL)
    assert runs is not None
    (tmp_path / "runs.jsonl").write_text(runs.group(1))
    assert json.loads(runs.group(1).splitlines()[0])["tool"]
    blocks = python_blocks("README.md")
    assert len(blocks) == 2
    for code, printed in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, "README.md", "exec"), {"__name__": "example"})
        assert out.getvalue() == printed


# ------------------------------------------------------------------ what is too large


class Refusing:
    """A producer of a broker that takes no large messages."""

    async def send_and_wait(self, _topic: str, value: bytes, **_more: Any) -> None:
        if len(value) > 1_000:
            raise MessageSizeTooLargeError("1,000 at most")

    async def stop(self) -> None:
        """Nothing to do."""


async def test_a_step_that_is_too_large_is_refused_before_it_gets_a_number() -> None:
    embedded = EmbeddedMonitor(SETTINGS)
    async with Monitor(embedded=embedded, run_id="r") as run:
        with pytest.raises(errors.MessageTooLarge, match=r"takes 2,0\d\d,\d+ bytes, of 1,048,576"):
            await run.step("find", result="x" * 2_000_000)
        (verdict,) = await run.step("find")
    assert isinstance(verdict, Verdict)
    assert verdict.seq == 0


async def test_a_step_that_kafka_refuses_for_its_size_gives_its_number_back() -> None:
    run = Monitor(broker="127.0.0.1:1", run_id="r", settings=SETTINGS)
    channel: Any = run._channel
    channel._producer = Refusing()
    with pytest.raises(errors.MessageTooLarge, match=r"max\.message\.bytes"):
        await run.step("find", result="x" * 5_000)
    assert run.next_seq == 0
    await run.step("find")
    assert run.next_seq == 1


async def test_a_field_that_belongs_to_the_run_is_named() -> None:
    async with Monitor(embedded=EmbeddedMonitor(SETTINGS), run_id="r") as run:
        for name in ("parent_run_id", "task_id", "agent", "run_id", "seq", "colour"):
            with pytest.raises(TypeError, match=f"step\\(\\) has no field {name}"):
                await run.step("find", **{name: "x"})
