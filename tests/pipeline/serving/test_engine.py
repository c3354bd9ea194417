"""The monitor in the daemon's own process: order, gaps, idle runs, single use."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.board import OUTPUTS_KEPT_MAX, Board
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.gating.wire import Redemption
from ontrack.pipeline.sdk.embedded_channel import EmbeddedChannel
from ontrack.pipeline.serving.engine import EmbeddedEngine
from ontrack.pipeline.settings import Settings
from ontrack.topics.codecs import encode
from ontrack.topics.events import Event, Proposal, RunEnded, Step
from ontrack.topics.knowledge import ToolContract
from ontrack.topics.verdicts import Output, Scorecard, Verdict


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Desk:
    """An engine with everything it has said."""

    def __init__(self, **knowledge: Any) -> None:
        self.said: list[Output] = []
        self.clock = Clock()
        settings = Settings(encoder="hashing", run_idle_s=60.0, reorder_ms=1000)
        monitor = EmbeddedMonitor(settings, **knowledge)
        self.engine = EmbeddedEngine(monitor, 60.0, self.said.append, clock=self.clock)

    async def take(self, event: Event) -> tuple[Output, ...]:
        return await self.engine.take(encode(event), event, "test")

    async def take_all(self, events: Any) -> list[str]:
        return [output.id for event in events for output in await self.take(event)]  # type: ignore[union-attr]


def step(seq: int | None = None, run_id: str = "r", **fields: Any) -> Step:
    return Step(run_id=run_id, seq=seq, tool="t", args={"seq": seq}, result=seq, **fields)


async def test_a_step_whose_number_never_comes_is_not_waited_for_for_ever() -> None:
    desk = Desk()
    desk.clock.now_s = 10.0
    assert await desk.take_all([step(0), step(3)]) == ["r:0"]
    assert await desk.engine.overdue() == []
    desk.clock.now_s = 10.9
    assert await desk.take_all([step(2)]) == [], "a lower number gives no more time"
    assert await desk.engine.overdue() == []
    desk.clock.now_s = 11.0
    (gap,) = await desk.engine.overdue()
    assert await desk.take_all([gap]) == ["r:2", "r:3"]
    desk.clock.now_s = 20.0
    assert await desk.engine.overdue() == []


async def test_a_gap_that_was_filled_is_not_closed() -> None:
    desk = Desk()
    await desk.take_all([step(0), step(2)])
    desk.clock.now_s = 0.9
    assert await desk.take_all([step(1)]) == ["r:1", "r:2"]
    await desk.take_all([step(5)])
    desk.clock.now_s = 1.5
    assert await desk.engine.overdue() == [], "another gap has time of its own"
    desk.clock.now_s = 1.9
    assert [gap.seq for gap in await desk.engine.overdue()] == [5]


async def test_runs_that_are_silent_are_closed_as_cancelled_and_others_are_not() -> None:
    desk = Desk()
    await desk.take_all([step(0, "a"), step(0, "b"), step(0, "c")])
    desk.clock.now_s = 5.0
    await desk.take_all([step(1, "a"), RunEnded(run_id="c")])
    desk.clock.now_s = 61.0
    end = await desk.engine.idle()
    assert end is not None
    assert (end.run_id, end.outcome) == ("b", "cancelled")
    assert await desk.engine.idle() is None
    await desk.take(end)
    card = desk.said[-1]
    assert isinstance(card, Scorecard)
    assert card.reason == "idle: no event for 60 s"


async def test_what_an_engine_says_is_what_the_embedded_monitor_says() -> None:
    events = [step(number % 7, run_id=f"r{number % 3}") for number in range(40)]
    twin = EmbeddedMonitor(Settings(encoder="hashing"))
    desk = Desk()
    for event in events:
        assert list(await desk.take(event)) == twin.feed(event)


async def test_events_that_come_at_once_are_folded_one_at_a_time() -> None:
    desk = Desk()
    told = await asyncio.gather(*(desk.take(step(None)) for _ in range(50)))
    seqs = [output.seq for outputs in told for output in outputs if isinstance(output, Verdict)]
    assert seqs == list(range(50))


async def test_a_decision_is_used_once_and_for_its_own_call() -> None:
    desk = Desk(contracts=[ToolContract(name="pay", effect="destructive")])
    answer = await desk.engine.ask(Proposal(run_id="r", tool="pay"), 1.0)
    wanted = Redemption(decision_id=answer.id, run_id="r", call_sha256=answer.call_sha256)
    other = wanted.model_copy(update={"call_sha256": "0" * 64})
    assert await desk.engine.redeem(other) == "other_call"
    assert await desk.engine.redeem(wanted) is None
    assert await desk.engine.redeem(wanted) == "used"


async def test_a_question_may_be_as_long_as_an_event() -> None:
    settings = Settings(encoder="hashing", message_bytes_max=4_000_000)
    asked = Proposal(run_id="r", tool="write", args={"text": "x" * 1_500_000})
    engine = EmbeddedEngine(EmbeddedMonitor(settings), 60.0, lambda _output: None)
    channel = EmbeddedChannel(EmbeddedMonitor(settings), 60.0)
    answers = [await engine.ask(asked, 1.0), await channel.ask(asked, 1.0)]
    assert [answer.decision for answer in answers] == ["unknown", "unknown"]


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=80), st.integers(1, 4)
)
def test_the_board_remembers_the_latest_runs_and_forgets_ended_ones_first(
    moves: list[tuple[str, bool]], most: int
) -> None:
    board, monitor = Board(most), EmbeddedMonitor(Settings(encoder="hashing"))
    now: Any = None
    for run_id, is_end in moves:
        event = RunEnded(run_id=run_id) if is_end else step(None, run_id)
        board.heard(event, now)
        for output in monitor.feed(event):
            board.said(output)
        assert len(board) <= most
        assert board.open_runs <= len(board)
    views = list(board)
    assert len({view.run_id for view in views}) == len(views) == len(board)
    ended = [view.outcome is not None for view in views]
    assert ended == sorted(ended)


def test_of_one_run_the_latest_outputs_are_kept() -> None:
    board, monitor = Board(10), EmbeddedMonitor(Settings(encoder="hashing"))
    for number in range(OUTPUTS_KEPT_MAX + 5):
        for output in monitor.feed(step(number)):
            board.said(output)
    view = board.get("r")
    assert view is not None
    assert view.steps == OUTPUTS_KEPT_MAX + 5
    assert len(view.details()["outputs"]) == OUTPUTS_KEPT_MAX
