"""The gate over HTTP, without a network: who answers, how long it takes, and what is written."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ontrack.operators.canonical import call_sha256
from ontrack.operators.report import Stamp
from ontrack.operators.state import RunState
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.folding.runs import RunStore
from ontrack.pipeline.gating.answers import GateAnswer, GatePolicy
from ontrack.pipeline.gating.wire import DECIDED_BY_HEADER, FORWARDED_HEADER, Reply
from ontrack.pipeline.kafka.follower import KnowledgeFollower
from ontrack.pipeline.kafka.gateway import Gateway
from ontrack.pipeline.kafka.messages import ANSWERED_HEADER, SOURCE_HEADER, Message
from ontrack.pipeline.kafka.partitions import partition_of
from ontrack.pipeline.kafka.peers import PeerUnreachable
from ontrack.pipeline.kafka.worker import Worker
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.catalog import catalogue
from ontrack.topics.errors import BrokerUnavailable, InvalidSnapshot
from ontrack.topics.events import Event, ModeChanged, Proposal, RunEnded, RunStarted, Step
from ontrack.topics.knowledge import Switch, ToolContract

COUNT = 4
THERE = "http://there:1"
SECRET = "hunter2"
STAMP = Stamp("paper", "abc", "0")
PAY = ToolContract(name="pay", effect="destructive", consumes=("args.order",))
FIND = ToolContract(name="find", effect="read", produces=("result.order",))


@dataclass
class FakeOwner:
    ready: bool = True
    state: PartitionState = field(default_factory=PartitionState)
    answered: int = 41


@dataclass
class FakeDirectory:
    url: str = "http://here:1"
    count: int | None = COUNT
    urls: dict[int, str] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)

    def partition_of(self, run_id: str) -> int | None:
        return None if self.count is None else partition_of(run_id.encode(), self.count)

    def url_of(self, partition: int) -> str | None:
        return self.urls.get(partition)

    def is_lost(self, partition: int) -> bool:
        return partition in self.lost


@dataclass
class Posted:
    url: str
    body: bytes
    headers: Mapping[str, str]
    timeout_s: float


class Harness:
    """A gateway with all around it in memory; this worker has every partition at first."""

    def __init__(self, **settings: Any) -> None:
        self.settings = Settings(encoder="hashing", **settings)
        self.topics = catalogue(partitions=COUNT)
        self.fold = make_fold(self.settings)
        self.fold.library.fill(contracts=[PAY, FIND])
        self.owners: dict[int, FakeOwner] = {
            number: FakeOwner(state=self.fold.partition()) for number in range(COUNT)
        }
        self.directory = FakeDirectory()
        self.metrics = Metrics()
        self.published: list[Message] = []
        self.posted: list[Posted] = []
        self.refreshed = 0
        self.peer: Callable[[], Reply] = lambda: answered()
        self.fed = 0
        self.refresh_takes_s = 0.0
        self.refresh_fails: Exception | None = None
        self.gateway = Gateway(
            self.settings,
            self.topics,
            self.fold,
            self.owners,
            self.directory,
            self._refresh,
            self.published.append,
            self._post,
            self.metrics,
        )

    async def _refresh(self) -> None:
        self.refreshed += 1
        await asyncio.sleep(self.refresh_takes_s)
        if self.refresh_fails is not None:
            raise self.refresh_fails

    async def _post(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> Reply:
        self.posted.append(Posted(url, body, headers, timeout_s))
        await asyncio.sleep(0)
        return self.peer()

    def feed(self, *events: Event) -> None:
        for event in events:
            owner = self.owners[partition_of(event.run_id.encode(), COUNT)]
            self.fold.apply(owner.state, Record(codecs.encode(event), offset=self.fed))
            self.fed += 1

    async def ask(self, forwarded: str | None = None, **fields: Any) -> tuple[int, dict[str, Any]]:
        body = {"run_id": "r", "tool": "find", **fields}
        return parsed(await self.gateway.ask(json.dumps(body).encode(), forwarded))

    async def redeem(self, answer: dict[str, Any], **other: Any) -> tuple[int, dict[str, Any]]:
        body = {
            "decision_id": answer["id"],
            "run_id": answer["run_id"],
            "call_sha256": answer["call_sha256"],
            **other,
        }
        return parsed(await self.gateway.redeem(json.dumps(body).encode()))

    def leave(self, run_id: str = "r", url: str | None = THERE) -> int:
        """Let another worker have a run's partition."""
        number = partition_of(run_id.encode(), COUNT)
        del self.owners[number]
        if url is not None:
            self.directory.urls[number] = url
        return number

    def requests(self) -> dict[tuple[str, str], float]:
        return {
            (sample.labels["decision"], sample.labels["way"]): sample.value
            for family in text_string_to_metric_families(self.metrics.text().decode())
            for sample in family.samples
            if sample.name == "ontrack_gate_requests_total"
        }


def answered(status: int = 200, **other: Any) -> Reply:
    """What another worker says to the question of these tests."""
    proposal = Proposal(run_id="r", tool="find")
    made = GatePolicy.of(["read"]).decide(STAMP, proposal, "read", 0, "why")
    answer = GateAnswer.of(made, "monitor", 60.0).model_copy(update=other)
    return Reply(status, codecs.encode(answer))


def parsed(reply: Reply) -> tuple[int, dict[str, Any]]:
    return reply.status, json.loads(reply.body)


def look(seq: int | None = None, **more: Any) -> Step:
    return Step(run_id="r", seq=seq, tool="find", result={"order": "ord-12345"}, **more)


# ------------------------------------------------------------------ answered here


async def test_a_call_is_answered_from_the_run_as_it_stands() -> None:
    harness = Harness()
    harness.feed(RunStarted(run_id="r"))
    args = {"order": "ord-12345"}
    status, before = await harness.ask(tool="pay", args=args)
    assert (status, before["decision"], before["decided_by"]) == (200, "block", "monitor")
    assert before["reasons"][0]["signal"] == "prerequisites"
    assert before["expires_in_s"] is None
    harness.feed(look(0))
    _, after = await harness.ask(tool="pay", args=args)
    assert (after["decision"], after["seq"], after["evidence"]) == ("allow", 1, [0])
    assert after["expires_in_s"] == 60
    assert harness.requests() == {("block", "local"): 1, ("allow", "local"): 1}


async def test_a_run_nobody_knows_is_judged_as_it_would_start_by_the_knowledge_of_now() -> None:
    harness = Harness()
    _, answer = await harness.ask(run_id="new", tool="pay", args={"order": "ord-12345"})
    assert (answer["decision"], answer["seq"]) == ("block", 0)
    assert harness.refreshed == 1
    harness.feed(RunStarted(run_id="r"))
    await harness.ask()
    assert harness.refreshed == 1  # a run that is open keeps the knowledge of its first event


async def test_the_run_stays_as_it_is() -> None:
    harness = Harness()
    harness.feed(look(0))
    state = harness.owners[partition_of(b"r", COUNT)].state
    before = dict(state.runs)
    await harness.ask()
    await harness.ask(run_id="new")
    assert dict(state.runs) == before


async def test_a_run_that_has_ended_is_a_conflict() -> None:
    harness = Harness()
    harness.feed(RunEnded(run_id="r"))
    status, answer = await harness.ask()
    assert (status, answer["error"]) == (409, "EventAfterEnd")
    assert answer["text"]


@pytest.mark.parametrize(
    ("body", "status", "name"),
    [
        (b"", 400, "MalformedMessage"),
        (b"{", 400, "MalformedMessage"),
        (b"[]", 400, "WrongShape"),
        (b'{"tool": "t"}', 400, "WrongShape"),
        (b'{"run_id": "r", "tool": "t", "deadline_ms": "soon"}', 400, "WrongShape"),
        (b'{"run_id": "r", "tool": "t", "deadline_ms": -1}', 400, "WrongShape"),
        (b'{"run_id": "r", "tool": "t", "deadline_ms": true}', 400, "WrongShape"),
        (b'{"run_id": "r", "tool": "t", "deadline_ms": [1]}', 400, "WrongShape"),
        (b'{"type": "step", "run_id": "r", "tool": "t"}', 400, "UnknownEventType"),
        (
            b'{"run_id": "r", "tool": "t", "args": {"a": ' + b"[" * 80 + b"]" * 80 + b"}}",
            400,
            "TooDeep",
        ),
        (b'{"run_id": "' + b"x" * 1_048_576 + b'", "tool": "t"}', 413, "MessageTooLarge"),
    ],
)
async def test_a_bad_body_is_refused_by_name(body: bytes, status: int, name: str) -> None:
    harness = Harness()
    found, answer = parsed(await harness.gateway.ask(body))
    assert (found, answer["error"]) == (status, name)
    assert answer["text"]
    assert harness.published == []
    assert harness.requests() == {("refused", "local"): 1}


async def test_a_null_deadline_is_the_default_and_a_huge_one_is_cut() -> None:
    harness = Harness()
    assert (await harness.ask(deadline_ms=None))[1]["decided_by"] == "monitor"
    assert (await harness.ask(deadline_ms=1e300))[1]["decided_by"] == "monitor"


# ------------------------------------------------------------------ the step before


async def test_whoever_has_just_sent_a_step_is_judged_with_it() -> None:
    harness = Harness()
    harness.feed(RunStarted(run_id="r"))
    asking = asyncio.create_task(
        harness.ask(tool="pay", args={"order": "ord-12345"}, seq=1, deadline_ms=5000)
    )
    await asyncio.sleep(0.02)
    harness.feed(look(0))
    _, answer = await asking
    assert (answer["decision"], answer["stale"]) == ("allow", False)


async def test_a_run_kept_as_bytes_is_not_read_again_and_again() -> None:
    harness = Harness()
    harness.feed(RunStarted(run_id="r"))
    reads = 0

    class Cold(RunStore):
        def __getitem__(self, run_id: str) -> RunState:
            nonlocal reads
            reads += 1
            return super().__getitem__(run_id)

    state = harness.owners[partition_of(b"r", COUNT)].state
    cold = Cold()
    cold.update(state.runs)
    state.runs = cold
    assert (await harness.ask(seq=5, deadline_ms=60))[1]["stale"]
    assert reads == 1  # to answer, not in waiting


async def test_a_step_that_does_not_come_is_not_waited_for_for_long() -> None:
    harness = Harness()
    harness.feed(RunStarted(run_id="r"))
    _, answer = await harness.ask(seq=5, deadline_ms=20)
    assert (answer["decided_by"], answer["stale"]) == ("monitor", True)


# ------------------------------------------------------------------ the policy


async def test_without_any_time_the_policy_decides() -> None:
    harness = Harness()
    _, read = await harness.ask(deadline_ms=0)
    assert (read["decision"], read["decided_by"], read["effect"]) == ("allow", "policy", "read")
    _, paid = await harness.ask(tool="pay", deadline_ms=0)
    assert (paid["decision"], paid["effect"]) == ("block", "destructive")
    _, other = await harness.ask(tool="nobody knows", deadline_ms=0)
    assert (other["decision"], other["effect"]) == ("block", "unknown")
    assert {answer["reasons"][0]["signal"] for answer in (read, paid, other)} == {"policy"}
    assert {answer["expires_in_s"] for answer in (read, paid, other)} == {None}
    assert harness.requests() == {("allow", "policy"): 1, ("block", "policy"): 2}


async def test_the_policy_knows_new_contracts_though_no_run_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def failed(error: BaseException) -> None:
        raise error

    worker = Worker(Settings(encoder="hashing"), failed)

    async def refresh(_follower: KnowledgeFollower) -> None:
        worker.fold.library.fill(contracts=[FIND])

    monkeypatch.setattr(worker._follower, "_read_to_end", refresh.__get__(worker._follower))
    question = json.dumps({"run_id": "r", "tool": "find", "deadline_ms": 0}).encode()
    _, before = parsed(await worker.gateway.ask(question, None))
    assert (before["decision"], before["effect"]) == ("block", "unknown")
    await worker.check_watermarks()
    _, after = parsed(await worker.gateway.ask(question, None))
    assert (after["decision"], after["effect"]) == ("allow", "read")


async def test_what_may_pass_is_a_setting() -> None:
    harness = Harness(gate_fail_open="write,unknown", gate_deadline_ms=0)
    assert (await harness.ask(tool="nobody knows"))[1]["decision"] == "allow"
    assert (await harness.ask())[1]["decision"] == "block"


async def test_while_the_state_is_rebuilt_the_policy_decides() -> None:
    harness = Harness()
    harness.owners[partition_of(b"r", COUNT)].ready = False
    _, answer = await harness.ask(tool="pay")
    assert (answer["decision"], answer["decided_by"]) == ("block", "policy")
    assert "rebuilt" in answer["reasons"][0]["text"]


@pytest.mark.parametrize(
    "switch",
    [
        Switch(scope="all"),
        Switch(scope="agent", name="bob"),
        Switch(scope="task", name="refund"),
        Switch(scope="tenant", name="acme"),
    ],
    ids=lambda switch: switch.scope,
)
async def test_the_policy_stops_nothing_of_what_is_in_shadow_mode(switch: Switch) -> None:
    harness = Harness()
    harness.fold.library.add_switch(switch.key, switch)
    theirs = {"agent": "bob", "task_id": "refund", "tenant": "acme"}
    _, answer = await harness.ask(tool="pay", deadline_ms=0, **theirs)
    assert (answer["decision"], answer["decided_by"]) == ("unknown", "policy")
    others = {"agent": "ann", "task_id": "other", "tenant": "other"}
    _, answer = await harness.ask(tool="pay", deadline_ms=0, **others)
    assert answer["decision"] == ("unknown" if switch.scope == "all" else "block")


async def test_the_policy_stops_nothing_of_a_run_that_is_known_to_be_in_shadow_mode() -> None:
    harness = Harness()
    harness.feed(look(0))
    harness.feed(ModeChanged(run_id="r", shadow=True))
    _, answer = await harness.ask(tool="pay", deadline_ms=0)
    assert (answer["decision"], answer["decided_by"]) == ("unknown", "policy")


async def test_a_worker_that_does_not_know_its_place_lets_the_policy_decide() -> None:
    harness = Harness()
    harness.directory.count = None
    _, answer = await harness.ask()
    assert answer["decided_by"] == "policy"
    assert harness.published == []  # nobody knows where the record would belong


async def test_knowledge_that_does_not_come_in_time_is_the_policys_case() -> None:
    harness = Harness()
    harness.refresh_takes_s = 0.2
    _, answer = await harness.ask(run_id="new", deadline_ms=10)
    assert answer["decided_by"] == "policy"
    await asyncio.sleep(0.25)
    assert harness.refreshed == 1  # it was not cut off


async def test_without_a_broker_the_knowledge_at_hand_counts() -> None:
    harness = Harness()
    harness.refresh_fails = BrokerUnavailable("away")
    _, answer = await harness.ask(run_id="new", tool="pay", args={"order": "o"})
    assert (answer["decision"], answer["decided_by"]) == ("block", "monitor")


async def test_many_first_questions_share_the_reading_of_knowledge() -> None:
    harness = Harness()
    harness.refresh_takes_s = 0.02
    many = [harness.ask(run_id=f"new-{n}", deadline_ms=5000) for n in range(50)]
    answers = await asyncio.gather(*many)
    assert {answer["decided_by"] for _, answer in answers} == {"monitor"}
    assert harness.refreshed <= 2


async def test_a_run_that_cannot_be_read_is_the_policys_case() -> None:
    harness = Harness()
    harness.feed(RunStarted(run_id="r"))

    class Damaged(RunStore):
        def __getitem__(self, _run_id: str) -> RunState:
            raise InvalidSnapshot("damaged")

    state = harness.owners[partition_of(b"r", COUNT)].state
    damaged = Damaged()
    for run_id, run in state.runs.items():
        damaged[run_id] = run
    state.runs = damaged
    status, answer = await harness.ask(tool="pay")
    assert (status, answer["decision"], answer["decided_by"]) == (200, "block", "policy")


@pytest.mark.parametrize(("held_up_s", "by"), [(0.0, "monitor"), (0.06, "policy")])
async def test_an_answer_that_would_come_too_late_is_the_policys(held_up_s: float, by: str) -> None:
    harness = Harness()
    harness.feed(RunStarted(run_id="r"))
    asking = asyncio.create_task(harness.ask(seq=1, deadline_ms=50))
    await asyncio.sleep(0.005)  # it waits for the step before
    time.sleep(held_up_s)  # folding holds up the event loop
    harness.feed(look(0))
    _, answer = await asking
    assert answer["decided_by"] == by
    monitors = {**answer, "id": answer["id"].removesuffix(":policy")}
    assert (await harness.redeem(monitors))[0] == (200 if by == "monitor" else 409)


async def test_a_fault_of_ours_is_the_policys_case(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(harness.fold, "propose", broken)
    status, answer = await harness.ask()
    assert (status, answer["decided_by"]) == (200, "policy")


# ------------------------------------------------------------------ passed on


async def test_a_question_goes_to_the_owner_with_the_time_that_is_left() -> None:
    harness = Harness()
    harness.leave()
    harness.peer = lambda: answered(decision="block")
    status, answer = await harness.ask(deadline_ms=500, args={"password": SECRET})
    assert (status, answer["decision"]) == (200, "block")
    (post,) = harness.posted
    assert post.url == f"{THERE}/v1/gate"
    assert json.loads(post.body)["args"] == {"password": SECRET}
    assert 0 < float(post.headers[FORWARDED_HEADER]) <= 500
    assert 0 < post.timeout_s <= 0.5
    assert harness.published == []  # the owner writes it
    assert harness.requests() == {("block", "forwarded"): 1}


@pytest.mark.parametrize("status", [400, 409, 413])
async def test_what_the_owner_refuses_is_refused(status: int) -> None:
    harness = Harness()
    harness.leave()
    harness.peer = lambda: Reply(status, b'{"error": "EventAfterEnd"}')
    assert (await harness.ask())[0] == status
    assert harness.requests() == {("refused", "forwarded"): 1}


@pytest.mark.parametrize(
    "nonsense",
    [
        *(Reply(status, b"oops") for status in (200, 302, 400, 401, 404, 409, 413, 500)),
        Reply(200, b"{}"),
        Reply(200, b"[]"),
        Reply(200, b"[" * 100_000),
        Reply(200, b'{"decision": "allow"}'),
        Reply(409, b"[" * 100_000),
        Reply(409, b'{"error": 7}'),
        answered(500, tool="pay"),
        answered(tool="find"),  # an answer, to another question
        answered(tool="pay", run_id="s"),
    ],
)
async def test_an_owner_that_answers_nonsense_has_not_answered(nonsense: Reply) -> None:
    harness = Harness()
    harness.leave()
    harness.peer = lambda: nonsense
    status, answer = await harness.ask(tool="pay")
    assert (status, answer["decision"], answer["decided_by"]) == (200, "block", "policy")


async def test_an_owner_out_of_reach_is_the_policys_case() -> None:
    harness = Harness()
    number = harness.leave()

    def gone() -> Reply:
        raise PeerUnreachable("TimeoutError")

    harness.peer = gone
    _, answer = await harness.ask(tool="pay")
    assert (answer["decision"], answer["decided_by"]) == ("block", "policy")
    (record,) = harness.published
    assert (record.topic, record.partition, record.key) == ("ontrack.decisions", number, b"r")
    assert ANSWERED_HEADER not in dict(record.headers)  # we do not know where the owner stands


async def test_a_question_is_passed_on_once() -> None:
    harness = Harness()
    harness.leave()
    _, answer = await harness.ask(forwarded="150")
    assert answer["decided_by"] == "policy"
    assert harness.posted == []


async def test_a_forwarded_question_has_the_time_that_its_header_says() -> None:
    harness = Harness()
    assert (await harness.ask(forwarded="0", deadline_ms=5000))[1]["decided_by"] == "policy"
    assert (await harness.ask(forwarded="500", deadline_ms=0))[1]["decided_by"] == "monitor"
    assert (await harness.ask(forwarded="soon"))[0] == 400


async def test_nobody_to_ask_is_the_policys_case() -> None:
    harness = Harness()
    harness.leave(url=None)
    assert (await harness.ask())[1]["decided_by"] == "policy"


async def test_a_partition_that_was_lost_is_asked_about_elsewhere() -> None:
    harness = Harness()
    number = partition_of(b"r", COUNT)
    harness.directory.lost.add(number)
    harness.directory.urls[number] = THERE
    await harness.ask()
    assert [post.url for post in harness.posted] == [f"{THERE}/v1/gate"]


# ------------------------------------------------------------------ the record


async def test_each_answer_is_recorded_without_a_source_but_with_what_has_been_answered() -> None:
    harness = Harness()
    await harness.ask(args={"password": SECRET})
    await harness.ask(deadline_ms=0)
    number = partition_of(b"r", COUNT)
    for record, by in zip(harness.published, ("monitor", "policy"), strict=True):
        headers = dict(record.headers)
        assert SOURCE_HEADER not in headers
        assert headers[ANSWERED_HEADER] == f"ontrack.proposals:{number}:41".encode()
        said = json.loads(record.value or b"")
        assert said["type"] == "decision"
        assert "decided_by" not in said
        assert said["id"].endswith(":policy") is (by == "policy")
        assert headers[DECIDED_BY_HEADER] == by.encode()
        assert SECRET not in str(record)


async def test_no_argument_comes_into_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    harness = Harness()
    args = {"password": SECRET}
    await harness.ask(args=args)
    await harness.ask(args=args, deadline_ms=0)
    await harness.ask(args=args, deadline_ms=SECRET)

    def broken(*_: Any) -> None:
        raise ValueError(SECRET)

    monkeypatch.setattr(harness.fold, "propose", broken)
    await harness.ask(args=args)
    harness.leave()
    harness.peer = lambda: Reply(500, SECRET.encode())
    await harness.ask(args=args)
    seen = capsys.readouterr()
    assert "gate_failed" in seen.out + seen.err + caplog.text
    assert SECRET not in seen.out + seen.err + caplog.text


async def test_what_is_redacted_is_not_in_the_policys_record_either() -> None:
    harness = Harness(redact="args.pin", gate_deadline_ms=0)
    _, one = await harness.ask(tool="pay", args={"pin": 1234})
    assert one["decided_by"] == "policy"
    assert one["call_sha256"] != call_sha256("pay", {"pin": 1234})  # found by trying all pins
    _, two = await harness.ask(tool="pay", args={"pin": 1234}, deadline_ms=5000)
    assert two["call_sha256"] == one["call_sha256"]


# ------------------------------------------------------------------ redeem


async def test_a_decision_is_redeemed_once_and_for_its_call() -> None:
    harness = Harness()
    _, answer = await harness.ask()
    wrong = await harness.redeem(answer, call_sha256="0" * 64)
    assert wrong == (409, {"ok": False, "why": "other_call"})
    assert await harness.redeem(answer) == (200, {"ok": True})
    assert await harness.redeem(answer) == (409, {"ok": False, "why": "used"})
    assert (await harness.redeem(answer, decision_id="x"))[1]["why"] == "unknown"


async def test_a_block_and_a_policys_answer_cannot_be_redeemed() -> None:
    harness = Harness()
    _, blocked = await harness.ask(tool="pay", args={"order": "ord-12345"})
    _, passed = await harness.ask(deadline_ms=0)
    assert (await harness.redeem(blocked))[1] == {"ok": False, "why": "unknown"}
    assert (await harness.redeem(passed))[1] == {"ok": False, "why": "unknown"}


async def test_a_decision_expires_with_its_setting() -> None:
    harness = Harness(gate_decision_ttl_s=0.01)
    _, answer = await harness.ask()
    assert answer["expires_in_s"] == 0.01
    await asyncio.sleep(0.02)
    assert (await harness.redeem(answer))[1]["why"] == "expired"


async def test_a_redemption_goes_to_the_owner_once() -> None:
    harness = Harness()
    harness.leave()
    harness.peer = lambda: Reply(200, b'{"ok": true}')
    answer = {"id": "d", "run_id": "r", "call_sha256": "s"}
    assert await harness.redeem(answer) == (200, {"ok": True})
    (post,) = harness.posted
    assert post.url == f"{THERE}/v1/gate/redeem"
    assert FORWARDED_HEADER in post.headers
    body = json.dumps({"decision_id": "d", "run_id": "r", "call_sha256": "s"}).encode()
    reply = await harness.gateway.redeem(body, forwarded=True)
    assert parsed(reply) == (409, {"ok": False, "why": "unknown"})
    assert len(harness.posted) == 1


@pytest.mark.parametrize("says", ["used", "unknown"])
async def test_the_owners_no_is_passed_back(says: str) -> None:
    harness = Harness()
    harness.leave()
    harness.peer = lambda: Reply(409, json.dumps({"ok": False, "why": says}).encode())
    answer = {"id": "d", "run_id": "r", "call_sha256": "s"}
    assert await harness.redeem(answer) == (409, {"ok": False, "why": says})


@pytest.mark.parametrize(
    "nonsense",
    [
        Reply(200, b"welcome"),
        Reply(200, b"{}"),
        Reply(200, b'{"ok": 1}'),
        Reply(200, b'{"ok": false}'),
        Reply(409, b'{"ok": true}'),
        Reply(401, b'{"error": "Unauthorized"}'),
        Reply(302, b'{"ok": true}'),
        Reply(500, b""),
    ],
)
async def test_only_the_owners_own_word_redeems(nonsense: Reply) -> None:
    harness = Harness()
    harness.leave()
    harness.peer = lambda: nonsense
    answer = {"id": "d", "run_id": "r", "call_sha256": "s"}
    assert await harness.redeem(answer) == (503, {"ok": False, "why": "unreachable"})


async def test_what_was_decided_elsewhere_is_redeemed_there_once_the_partition_is_lost() -> None:
    harness = Harness()
    _, mine = await harness.ask()
    number = partition_of(b"r", COUNT)
    harness.directory.lost.add(number)
    harness.directory.urls[number] = THERE
    harness.peer = lambda: Reply(200, b'{"ok": true}')
    assert await harness.redeem({**mine, "id": "theirs"}) == (200, {"ok": True})
    assert [post.url for post in harness.posted] == [f"{THERE}/v1/gate/redeem"]


async def test_redeeming_elsewhere_does_not_depend_on_the_gates_deadline() -> None:
    harness = Harness(gate_deadline_ms=0)
    harness.leave()
    harness.peer = lambda: Reply(200, b'{"ok": true}')
    answer = {"id": "d", "run_id": "r", "call_sha256": "s"}
    assert (await harness.redeem(answer))[0] == 200
    assert harness.posted[0].timeout_s >= 1


async def test_without_the_owner_nothing_is_redeemed() -> None:
    harness = Harness()
    harness.leave(url=None)
    answer = {"id": "d", "run_id": "r", "call_sha256": "s"}
    assert await harness.redeem(answer) == (503, {"ok": False, "why": "unreachable"})


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"decision_id": 1}'])
async def test_a_redemption_that_cannot_be_read_is_refused(body: bytes) -> None:
    status, answer = parsed(await Harness().gateway.redeem(body))
    assert (status, answer["error"]) == (400, "WrongShape")
