"""What a coding agent's hooks are answered, session by session."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.board import Board
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.gating.answers import GateAnswer, GatePolicy, NoAnswer
from ontrack.pipeline.gating.asker import Asker
from ontrack.pipeline.serving.desk import Desk, Wish
from ontrack.pipeline.serving.engine import EmbeddedEngine
from ontrack.pipeline.serving.hooks.model import HookCall, HookReply
from ontrack.pipeline.serving.sessions import PENDING_MAX, Sessions
from ontrack.pipeline.serving.watchful import watchful
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.events import Agent, ErrorInfo, Event, Proposal, RunResumed, Step
from ontrack.topics.knowledge import ToolContract
from ontrack.topics.verdicts import Output

CONTRACTS = [
    ToolContract(name="find", effect="read", produces=("result.order",)),
    ToolContract(name="pay", effect="destructive", consumes=("args.order",)),
]
ORDER = {"order": "ord-12345"}


class Room:
    """A desk with a monitor behind it, and the events that it was given."""

    def __init__(self, sessions_max: int = 1000, **settings: Any) -> None:
        found = watchful(Settings(encoder="hashing", **settings))
        self.board = Board(sessions_max)
        self.events: list[Event] = []
        self.asked: list[Proposal] = []
        self.bypassed: list[str] = []
        self.clock = datetime(2026, 1, 1, tzinfo=UTC)
        self.engine = EmbeddedEngine(EmbeddedMonitor(found, contracts=CONTRACTS), 60.0, self._said)
        self.gate: Any = self.engine
        self.asker = Asker(self, GatePolicy.of(found.gate_fail_open), self.engine.contracts())
        self.desk = Desk(
            self._take,
            self._ask,
            found.redaction.plainly,
            self.board,
            sessions_max,
            self.bypassed.append,
            self._now,
        )

    async def _ask(self, proposal: Proposal) -> GateAnswer:
        return await self.asker.ask(proposal, 200.0)

    async def ask(self, proposal: Proposal, deadline_s: float) -> GateAnswer:
        self.asked.append(proposal)
        return await self.gate.ask(proposal, deadline_s)

    def record(self, decision: Any) -> None:
        self.engine.record(decision)

    async def _take(self, event: Event) -> tuple[Output, ...]:
        self.events.append(event)
        self.board.heard(event, self.clock)
        return await self.engine.take(codecs.encode(event), event, "hook")

    def _said(self, output: Output) -> None:
        self.board.said(output)
        self.desk.said(output)

    def _now(self) -> datetime:
        self.clock += timedelta(seconds=1)
        return self.clock

    async def hook(self, moment: Any, wish: Wish | None = None, **fields: Any) -> HookReply:
        given = {"run_id": "s", "agent": Agent(id="claude-code"), "tool": "Bash"} | fields
        return await self.desk.reply(HookCall(moment=moment, **given), wish or Wish())

    async def call(self, number: int, wish: Wish | None = None, **fields: Any) -> list[HookReply]:
        """Ask, and report the call unless it was denied."""
        fields = {"call_id": f"c{number}"} | fields
        result = fields.pop("result", "1 failed")
        replies = [await self.hook("before", wish, **fields)]
        if replies[0].decision != "deny":
            replies.append(await self.hook("after", wish, result=result, **fields))
        return replies


class Silent:
    async def ask(self, proposal: Proposal, deadline_s: float) -> GateAnswer:
        raise NoAnswer("the gate is away")


async def test_three_identical_calls_bring_context_back_and_only_once() -> None:
    room = Room()
    replies = [await room.call(number, args={"command": "pytest"}) for number in range(4)]
    assert replies[0] == replies[1] == [HookReply(), HookReply()]
    assert replies[2][0] == HookReply()
    assert "third identical" in (replies[2][1].context or "")
    assert replies[3] == [HookReply(), HookReply()]


async def test_an_irreversible_call_without_its_prerequisite_is_denied_and_later_let_through() -> (
    None
):
    room = Room()
    (early,) = await room.call(0, tool="pay", args=ORDER)
    assert early.decision == "deny"
    assert "needs args.order" in (early.reason or "")
    await room.call(1, tool="find", result=ORDER)
    assert [reply.decision for reply in await room.call(2, tool="pay", args=ORDER)] == [
        "none",
        "none",
    ]


async def test_a_call_that_is_asked_for_again_after_a_denial_is_told_so() -> None:
    room = Room()
    first, second = [(await room.call(n, tool="pay", args=ORDER))[0].reason for n in range(2)]
    assert "denied 2 times" in (second or "")
    assert "denied" not in (first or "")


async def test_in_shadow_nothing_is_said_and_everything_is_seen() -> None:
    room, wish = Room(), Wish(shadow=True)
    for number in range(6):
        assert await room.call(number, wish, args={"command": "pytest"}) == [HookReply()] * 2
    assert (await room.call(9, wish, tool="pay", args=ORDER))[0] == HookReply()
    view = room.board.get("s")
    assert view is not None
    assert (view.verdicts["WARN"], view.blocked) == (4, 1)
    # It did run: that nobody denied it is not a call past the hook.
    assert room.bypassed == []


@pytest.mark.parametrize(("wish", "decision"), [(Wish(), "none"), (Wish(closed=True), "deny")])
async def test_without_an_answer_the_address_says_whether_calls_pass(
    wish: Wish, decision: str
) -> None:
    room = Room()
    room.gate = Silent()
    assert (await room.hook("before", wish, args={"command": "ls"})).decision == decision
    # What only reads passes either way: the setting gate_fail_open says so.
    assert (await room.hook("before", wish, tool="find")).decision == "none"


async def test_a_subagent_is_a_run_of_its_own_with_its_parent() -> None:
    room = Room()
    await room.call(0)
    await room.call(1, run_id="s:a1", parent_run_id="s", agent=Agent(id="Explore"))
    view = room.board.get("s:a1")
    assert view is not None
    assert (view.parent_run_id, view.agent) == ("s", Agent(id="Explore"))


async def test_a_halted_session_stays_halted_until_a_person_goes_on() -> None:
    room = Room()
    halts: list[str | None] = []
    for number in range(30):
        replies = await room.call(number, args={"command": "pytest"})
        halts += [reply.halt for reply in replies]
    assert halts[-1] is not None
    assert halts[-1] == halts[-2]
    begin = next(index for index, halt in enumerate(halts) if halt)
    assert None not in halts[begin:]
    assert (await room.hook("other", event="Notification")).halt is None
    assert (await room.hook("before", call_id="x")).halt is not None
    await room.hook("other", event="UserPromptSubmit")
    assert (await room.hook("before", call_id="y")) == HookReply()


async def test_a_persons_word_by_another_way_lets_it_go_on_too() -> None:
    room = Room()
    for number in range(30):
        await room.call(number, args={"command": "pytest"})
    assert await room.desk.resume("s")
    assert (await room.hook("before", call_id="y")) == HookReply()
    assert not await room.desk.resume("nobody")


async def test_a_run_that_goes_on_keeps_what_it_has_and_is_halted_anew() -> None:
    room = Room()
    await room.call(0, tool="find", result=ORDER)
    for number in range(1, 30):
        await room.call(number, args={"command": "pytest"})
    view = room.board.get("s")
    assert view is not None
    assert view.summary()["state"] == "halted"
    assert (await room.hook("before", tool="pay", args=ORDER)).halt is not None
    await room.hook("other", event="UserPromptSubmit")
    assert view.summary()["state"] == "open"
    assert [reply.decision for reply in await room.call(40, tool="pay", args=ORDER)] == ["none"] * 2
    replies = [await room.call(number, args={"command": "pytest"}) for number in range(41, 60)]
    assert "third identical" in (replies[2][1].context or "")
    assert replies[-1][0].halt is not None
    assert view.interventions["halt"] == 2


async def test_a_halt_outlives_the_session_that_was_forgotten() -> None:
    room = Room()
    for number in range(30):
        await room.call(number, args={"command": "pytest"})
    room.desk.sessions = Sessions(10)  # as after a restart with --record
    assert (await room.hook("before", call_id="y")).halt is not None


async def test_a_session_that_was_let_go_on_elsewhere_is_not_halted_any_more() -> None:
    room = Room()
    for number in range(30):
        await room.call(number, args={"command": "pytest"})
    view = room.board.get("s")
    assert view is not None
    assert view.state == "halted"
    await room.engine.take(
        codecs.encode(RunResumed(run_id="s")), RunResumed(run_id="s"), "another door"
    )
    for number in (30, 31):
        step = Step(run_id="s", tool="Read", args={"file": f"{number}"}, result=f"text {number}")
        await room.engine.take(codecs.encode(step), step, "another door")
    assert view.state == "open"
    assert (await room.hook("before", call_id="x")).halt is None


async def test_a_session_whose_hooks_only_watch_is_never_halted() -> None:
    room = Room()
    for number in range(30):
        await room.call(number, Wish(shadow=True), args={"command": "pytest"})
    view = room.board.get("s")
    assert view is not None
    assert (view.state, view.would_have_halted is not None) == ("open", True)


async def test_a_run_without_a_session_can_be_let_go_on() -> None:
    room = Room()
    for number in range(30):
        step = Step(run_id="sdk", seq=number, tool="Bash", args={"command": "pytest"}, result="x")
        await room.engine.take(codecs.encode(step), step, "http")
    view = room.board.get("sdk")
    assert view is not None
    assert view.halted is not None
    assert await room.desk.resume("sdk")
    assert view.halted is None


async def test_a_parents_halt_reaches_its_subagent() -> None:
    room = Room()
    await room.hook("started", run_id="s:a", parent_run_id="s")
    for number in range(30):
        await room.call(number, args={"command": "pytest"})
    reply = await room.hook("before", run_id="s:a", parent_run_id="s", call_id="z")
    assert "'s'" in (reply.halt or "")


async def test_calls_that_pass_by_the_hook_are_noticed() -> None:
    room = Room()
    await room.hook("after", call_id="1", args={"command": "ls"}, result="")
    await room.hook("before", call_id="2", args={"command": "ls"})
    await room.hook("after", call_id="2", args={"command": "rm -rf /"}, result="")
    await room.hook("before", call_id="3", tool="pay", args=ORDER)
    await room.hook("after", call_id="3", tool="pay", args=ORDER, result="paid")
    assert room.bypassed == ["not_asked", "other_call", "ran_though_denied"]
    view = room.board.get("s")
    assert view is not None
    assert view.notes == dict.fromkeys(room.bypassed, 1)


async def test_a_session_that_goes_on_after_its_end_is_another_run() -> None:
    room = Room()
    for _ in range(3):
        await room.call(0)
        await room.hook("ended", reason="logout")
    ids = [event.run_id for event in room.events if event.type == "step"]
    assert ids == ["s", "s~2", "s~3"]
    assert all(room.board.get(run_id).outcome == "unknown" for run_id in ids)  # type: ignore[union-attr]


async def test_the_end_of_a_session_that_nobody_has_seen_is_no_run() -> None:
    room = Room()
    await room.hook("ended", run_id="never")
    assert room.events == []
    await room.call(0)
    await room.hook("ended")
    await room.hook("ended")
    assert [event.type for event in room.events] == ["step", "run_ended"]


async def test_a_session_that_had_ended_before_the_daemon_began_is_another_run() -> None:
    room = Room()
    await room.call(0)
    await room.hook("ended")
    room.desk.sessions = Sessions(10)  # as after a restart
    await room.call(1)
    assert room.events[-1].run_id == "s~2"
    # And where only the monitor remembers, as a worker does:
    room.desk.sessions, room.board = Sessions(10), Board(10)
    room.desk._board = room.board
    await room.call(1, run_id="t")
    await room.hook("ended", run_id="t")
    room.desk.sessions = Sessions(10)
    await room.call(2, run_id="t")
    assert room.events[-1].run_id == "t~2"


async def test_a_step_has_what_the_hooks_said_and_how_long_the_call_took() -> None:
    room = Room()
    await room.hook("before", call_id="1", args={"command": "ls"})
    await room.hook(
        "after", Wish(task_id="t", tenant="acme"), call_id="1", args={"command": "ls"}, error=None
    )
    await room.hook("after", call_id="2", error=ErrorInfo(message="boom"))
    first, second = room.events
    assert first.type == second.type == "step"
    assert (first.call_id, first.args, first.task_id, first.tenant) == (
        "1",
        {"command": "ls"},
        "t",
        "acme",
    )
    assert (first.ended_at - first.started_at) == timedelta(seconds=1)  # type: ignore[operator]
    assert second.error == ErrorInfo(message="boom")
    assert second.started_at is None


async def test_forgotten_sessions_go_on_as_the_same_run() -> None:
    room = Room(sessions_max=2)
    for name in ("a", "b", "c", "a"):
        await room.call(0, run_id=name)
    assert len(room.desk.sessions) == 2
    assert [event.run_id for event in room.events] == ["a", "b", "c", "a"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60), st.integers(1, 3))
def test_names_and_runs_of_sessions_always_belong_together(
    moves: list[tuple[str, bool]], most: int
) -> None:
    sessions = Sessions(most)
    ends: dict[str, int] = {}
    for name, is_end in moves:
        session = sessions.of(name, None)
        assert session.name == name
        assert sessions.of_run(session.run_id) is session
        assert len(sessions) <= most
        if most == 3:
            number = ends.get(name, 0) + 1
            assert session.run_id == (name if number == 1 else f"{name}~{number}")
        if is_end:
            sessions.end(session)
            ends[name] = ends.get(name, 0) + 1
            assert sessions.of_run(session.run_id) is None


async def test_questions_that_never_come_back_take_bounded_memory() -> None:
    room = Room()
    for number in range(PENDING_MAX + 50):
        await room.hook("before", call_id=f"c{number}")
    session = room.desk.sessions.of("s", None)
    assert len(session._pending) == PENDING_MAX


async def test_what_a_hook_cannot_hand_on_waits_for_one_that_can() -> None:
    room = Room()
    for number in range(3):
        replies = await room.call(number, args={"command": "pytest"}, hears=False)
        assert replies == [HookReply(), HookReply()]
    assert "third identical" in ((await room.hook("before", call_id="x")).context or "")


async def test_what_is_redacted_reaches_neither_gate_nor_monitor_and_is_no_bypass() -> None:
    room = Room(redact=("args.card", "result.ssn"))
    card = {"card": "4111 1111", "to": "Ada"}
    for number in range(2):
        await room.call(number, tool="find", args=card, result={"ssn": "078-05-1120"})
    assert room.bypassed == []
    seen = "".join(map(repr, [*room.asked, *room.events]))
    assert "Ada" in seen
    assert "4111" not in seen
    assert "078-05" not in seen
    # Another call than the one that was asked about is noticed all the same.
    await room.hook("before", tool="find", args=card, call_id="c7")
    await room.hook("after", tool="find", args={"card": "4222", "to": "Ada"}, call_id="c7")
    assert room.bypassed == ["other_call"]


async def test_a_worker_that_redacts_more_than_the_daemon_makes_no_bypass() -> None:
    room = Room(redact=("args.card",))
    room.desk._redact = Settings(encoder="hashing").redaction.plainly
    for number in range(2):
        await room.call(number, tool="find", args={"card": f"4111 {number}"}, result="ok")
    assert room.asked[0].args == {"card": "4111 0"}
    assert room.bypassed == []


async def test_a_halt_outlives_many_runs_that_came_another_way() -> None:
    room = Room(sessions_max=10)
    for number in range(8):
        replies = await room.call(number, args={"command": "pytest"})
    assert replies[-1].halt is not None
    for number in range(10):  # runs that came another way
        step = Step(run_id=f"sdk-{number}", tool="look")
        room.board.heard(step, room.clock)
    assert len(room.board) == 10
    assert (await room.hook("before", call_id="next")).halt is not None
    assert await room.desk.resume("s")
    assert any(isinstance(event, RunResumed) for event in room.events)
    assert (await room.hook("before", call_id="after", tool="find")).halt is None
