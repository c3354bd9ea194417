"""The board: one place decides whether a run is open, halted or ended, and equal ids count once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.board import Board, RunView
from ontrack.pipeline.dashboard.fleet.model import FleetModel, filled
from ontrack.pipeline.dashboard.pages import fleet_cells
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.settings import Settings
from ontrack.topics.events import RunEnded, RunResumed, Step
from ontrack.topics.verdicts import AFTER_HALT, SHADOW, WOULD_HALT, Output
from tests.pipeline.dashboard.said import decision, intervention, scorecard, verdict

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SHADOWED = {"flags": (SHADOW,)}


def told(*outputs: Output) -> RunView:
    board = Board(10)
    for output in outputs:
        board.said(output)
    view = board.get("r")
    assert view is not None
    return view


def test_a_halted_run_is_open_again_once_it_was_let_go_on() -> None:
    board = Board(10)
    for output in (verdict("r", 0), intervention("r", 0)):
        board.said(output)
    view = board.get("r")
    assert view is not None
    assert view.summary()["state"] == "halted"
    board.heard(RunResumed(run_id="r"), NOW)
    assert view.summary()["state"] == "open"


def test_a_step_that_is_not_flagged_shows_that_somebody_else_let_it_go_on() -> None:
    halted = (intervention("r", 4), verdict("r", 4), verdict("r", 5, flags=(AFTER_HALT,)))
    assert told(*halted).state == "halted"
    assert told(*halted, verdict("r", 6)).state == "open"


def test_what_comes_twice_counts_once() -> None:
    once = [verdict("r", 0, "LOOP"), intervention("r", 0), decision("r", 1)]
    assert told(*once, *once).details() == told(*once).details()


def test_a_call_that_is_asked_about_again_may_have_another_answer() -> None:
    blocked = decision("r", 0)
    allowed = blocked.model_copy(update={"decision": "allow"})
    assert blocked.decision == "block"
    details = told(allowed, blocked, blocked).details()
    assert details["blocked"] == 1
    assert len(details["outputs"]) == 2


def test_a_run_in_shadow_is_open_and_would_have_been_halted() -> None:
    view = told(verdict("r", 0, **SHADOWED), verdict("r", 1, flags=(SHADOW, WOULD_HALT)))
    told_of = view.summary()
    assert (told_of["state"], told_of["shadow"], told_of["interventions"]) == ("open", True, {})
    assert told_of["would_have_halted"] is not None
    assert told(verdict("r", 0, **SHADOWED)).would_have_halted is None


def test_a_run_that_leaves_shadow_mode_is_what_its_verdicts_say() -> None:
    would = verdict("r", 0, flags=(SHADOW, WOULD_HALT))
    assert told(would, verdict("r", 1)).would_have_halted is None
    halted = [intervention("r", 0), verdict("r", 1, flags=(AFTER_HALT, SHADOW))]
    assert told(*halted).state == "open"
    assert told(*halted).would_have_halted == "three equal calls"
    assert told(*halted, verdict("r", 2, flags=(AFTER_HALT,))).state == "halted"


@pytest.mark.parametrize("is_heeded", [True, False])
def test_a_run_whose_hooks_only_watch_is_not_halted(is_heeded: bool) -> None:
    board = Board(10)
    board.heeded("r", is_heeded)  # before anything was said: of nobody
    board.said(intervention("r", 0))
    board.heeded("r", is_heeded)
    view = board.get("r")
    assert view is not None
    assert view.state == ("halted" if is_heeded else "open")
    assert (view.would_have_halted is None) == is_heeded


def looping(**settings: Any) -> tuple[list[Output], EmbeddedMonitor]:
    monitor = EmbeddedMonitor(Settings(encoder="hashing", **settings))
    said: list[Output] = []
    for seq in range(12):
        said += monitor.feed(Step(run_id="r", seq=seq, tool="Bash", args={"c": "x"}, result="y"))
    return said, monitor


def test_board_and_fleet_page_agree_after_a_resume_that_only_the_monitor_heard() -> None:
    said, monitor = looping()
    assert told(*said).state == "halted"
    monitor.feed(RunResumed(run_id="r"))
    for seq in (12, 13):
        said += monitor.feed(
            Step(run_id="r", seq=seq, tool="look", args={"n": seq}, result=f"{seq}")
        )
    row = filled((output, 1) for output in said).row("r")
    assert row is not None
    assert (told(*said).state, row.state, row.halted) == ("open", "open", False)


def test_of_a_monitor_in_shadow_mode_no_run_was_halted_and_the_pages_say_what_would_be() -> None:
    said, monitor = looping(intervene=False)
    model = filled((output, 1) for output in said)
    row = model.row("r")
    assert row is not None
    assert fleet_cells.cells(row)[1][3] == "open, would have halted"
    assert told(*said).summary()["state"] == "open"
    said += monitor.feed(RunEnded(run_id="r", outcome="failure"))
    for outputs in (said, said[-1:]):  # heard from the beginning, or the end alone
        view, model = told(*outputs), filled((output, 1) for output in outputs)
        row = model.row("r")
        assert row is not None
        assert (view.is_halted, row.halted, row.would_halt) == (False, False, True)
        assert "halt" not in row.interventions
        assert model.totals().group.halted == model.totals().group.uncompared == 0


FLAGS = st.sampled_from([(), (AFTER_HALT,), (SHADOW,), (SHADOW, WOULD_HALT), (SHADOW, AFTER_HALT)])


@given(st.lists(st.tuples(st.sampled_from("vvvhs"), FLAGS, st.booleans()), max_size=12))
def test_board_and_fleet_page_always_agree(moves: list[tuple[str, Any, bool]]) -> None:
    board, model = Board(10), FleetModel()
    for seq, (kind, flags, twice) in enumerate(moves):
        made: Output = verdict("r", seq, flags=flags)
        if kind != "v":
            made = intervention("r", seq) if kind == "h" else scorecard("r", steps=seq, flags=flags)
        for _ in range(1 + twice):
            board.said(made)
            model.said(made, seq)
    view, row = board.get("r"), model.row("r")
    if view is None or row is None:
        assert view is row
        return
    assert (view.state, view.is_halted) == (row.state, row.halted)
    assert (view.would_have_halted is not None) == row.would_halt
    assert not (row.halted and row.would_halt)
