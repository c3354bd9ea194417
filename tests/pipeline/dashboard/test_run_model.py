"""The run model: a run folded again says what was published, and shows how it came to that."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.dashboard.run.model import RunFold, RunPicture, picture_of
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, demo_runs, references
from ontrack.topics import codecs
from ontrack.topics.events import (
    ErrorInfo,
    Event,
    GapClosed,
    ParentHalted,
    RunEnded,
    RunResumed,
    RunStarted,
    Step,
)
from ontrack.topics.knowledge import Reference, ReferenceStep, Task
from ontrack.topics.verdicts import Output
from tests import strategies

SETTINGS = Settings(encoder="hashing")
TASK = "t"
NAMES = ("search", "read", "edit", "test", "commit")
HOSTILE = '</script><img src=x onerror="alert(1)">'


def reference(name: str = "gold", tools: tuple[str, ...] = NAMES) -> Reference:
    steps = tuple(
        ReferenceStep(
            tool=tool, action=f"do {tool}", seq=n, parents=(n - 1,) if n else (), args={"n": n}
        )
        for n, tool in enumerate(tools)
    )
    return Reference(reference_id=name, task_id=TASK, steps=steps)


def step(seq: int | None, tool: str, **fields: Any) -> Step:
    more = {"args": {"n": seq}, "result": f"did {tool} {seq}", "action": f"do {tool}"}
    return Step(run_id="r", seq=seq, task_id=TASK, tool=tool, **(more | fields))


def path(*tools: str) -> list[Step]:
    return [step(n, tool, parents=(n - 1,) if n else ()) for n, tool in enumerate(tools or NAMES)]


def fold_of(*known: Reference, settings: Settings = SETTINGS) -> Fold:
    fold = make_fold(settings)
    fold.library.fill(known)
    return fold


def records(*events: Event) -> list[Record]:
    return [Record(codecs.encode(event)) for event in events]


def look(*events: Event, known: tuple[Reference, ...] = (reference(),)) -> RunPicture:
    return picture_of(fold_of(*known), "r", records(*events))


def said(outputs: list[Output]) -> list[bytes]:
    return [codecs.encode(output) for output in outputs]


def test_a_run_along_its_reference_shows_its_way_through_it() -> None:
    picture = look(*path()[:3])
    assert (picture.state, picture.final, picture.outcome) == ("open", False, None)
    assert [one.tool for one in picture.timeline] == ["search", "read", "edit"]
    assert [one.verdict for one in picture.timeline] == ["OK"] * 3
    assert [(edge.source, edge.target) for edge in picture.edges] == [(0, 1), (1, 2)]
    assert [node.depth for node in picture.nodes] == [0, 1, 2]
    coupling = picture.coupling
    assert coupling is not None
    assert (coupling.reference_id, coupling.provenance) == ("gold", "mined")
    assert coupling.rows == (0, 1, 2)
    assert [column.tool for column in coupling.columns] == list(NAMES)
    assert [column.parents for column in coupling.columns] == [(), (0,), (1,), (2,), (3,)]
    for row, shares in enumerate(coupling.shares):
        assert max(shares) == shares[row] > 0.5
        assert coupling.costs[row][row] == min(coupling.costs[row])
    assert [row.count("satisfied") for row in coupling.frontier] == [1, 2, 3]
    assert coupling.frontier[2] == ("satisfied", "satisfied", "satisfied", "active", "ahead")
    assert picture.series.coverage[0] < picture.series.coverage[2]  # type: ignore[operator]
    assert picture.series.best_reference == ("gold",) * 3
    assert picture.scorecard["steps"] == 3
    assert picture.notes == ()


def test_an_edge_that_is_found_late_is_marked_and_the_others_are_not() -> None:
    steps = path("search", "read", "edit", "test")
    # Step 1 is given up and comes after all: step 2, long judged, turns out to build on it.
    picture = look(steps[0], steps[2], GapClosed(run_id="r", seq=2), steps[1], steps[3])
    assert [one.seq for one in picture.timeline] == [0, 2, 1, 3]
    found = {(edge.source, edge.target): edge for edge in picture.edges}
    assert found.keys() == {(0, 1), (1, 2), (2, 3)}
    assert [pair for pair, edge in found.items() if edge.retroactive] == [(1, 2)]
    assert [found[pair].found_at for pair in ((0, 1), (1, 2), (2, 3))] == [1, 1, 3]
    late = {one.seq: (one.parents, one.late_parents) for one in picture.timeline}
    assert late == {0: ((), ()), 1: ((0,), ()), 2: ((1,), (1,)), 3: ((2,), ())}
    assert "retroactive_edge" in picture.timeline[2].flags
    assert {node.seq: node.depth for node in picture.nodes} == {0: 0, 1: 1, 2: 2, 3: 3}
    assert picture.coupling is not None
    assert picture.coupling.rows == (0, 2, 1, 3)


def test_steps_that_waited_and_came_at_once_are_looked_at_one_by_one() -> None:
    steps = path()
    in_order, jumbled = RunFold(fold_of(reference()), "r"), RunFold(fold_of(reference()), "r")
    in_order.feed(records(*steps))
    assert jumbled.feed(records(steps[0], steps[3], steps[2])) != []
    jumbled.feed(records(steps[1], steps[4]))
    assert jumbled.picture() == in_order.picture()


def test_the_scorecard_of_an_open_run_is_the_one_it_would_get_now() -> None:
    folded = RunFold(fold_of(reference()), "r")
    folded.feed(records(*path()))
    so_far = folded.picture()
    (card,) = folded.feed(records(RunEnded(run_id="r", outcome="success")))
    picture = folded.picture()
    assert (picture.state, picture.final, picture.outcome) == ("ended", True, "success")
    assert picture.scorecard == json.loads(codecs.encode(card))
    assert so_far.scorecard | {"outcome": "success"} == picture.scorecard
    assert picture.timeline == so_far.timeline


def test_a_run_without_references_has_a_graph_and_no_coupling() -> None:
    picture = look(*path(), known=())
    assert picture.coupling is None
    assert len(picture.nodes) == 5
    assert picture.series.coverage == (None,) * 5


def test_times_costs_and_errors_stand_in_the_timeline_without_their_values() -> None:
    begun = datetime(2026, 3, 1, tzinfo=UTC)
    timed = step(
        0,
        "search",
        started_at=begun,
        ended_at=begun + timedelta(seconds=2.5),
        cost_usd=0.25,
        error=ErrorInfo(type="Timeout", message="for card 4111-1111"),
    )
    (one,) = look(timed).timeline
    assert (one.time, one.duration_s, one.cost_usd) == (begun.isoformat(), 2.5, 0.25)
    assert one.error == "Timeout"
    shown = fold_of(settings=Settings(encoder="hashing", show_arguments=True))
    (one,) = picture_of(shown, "r", records(timed)).timeline
    assert one.error == "Timeout: for card 4111-1111"


def test_what_is_redacted_reaches_no_picture() -> None:
    hidden = Settings(encoder="hashing", redact=("action", "error.message"), show_arguments=True)
    told = step(0, "search", action="pay with 4111", error=ErrorInfo(message="no 4111"))
    picture = picture_of(fold_of(reference(), settings=hidden), "r", records(told))
    assert "4111" not in json.dumps(picture.plain())


def test_a_run_that_begins_in_the_middle_says_so() -> None:
    (note,) = look(step(4, "test"), step(5, "commit")).notes
    assert "number 4" in note
    assert "from the middle" in note


def test_events_that_cannot_be_used_are_counted_in_a_note() -> None:
    other = step(0, "search", result="something else")
    assert look(*path(), other).notes == (
        "1 of its events could not be used: see the dead letters",
    )


def test_events_of_other_runs_are_passed_over() -> None:
    stranger = Step(run_id="x", tool="search")
    assert look(*path(), stranger) == look(*path())
    with pytest.raises(LookupError, match="'r'"):
        look(stranger)


def test_a_run_that_has_only_begun_has_an_empty_timeline() -> None:
    picture = look(RunStarted(run_id="r", task_id=TASK, tenant="acme"))
    assert (picture.timeline, picture.nodes, picture.coupling) == ((), (), None)
    assert (picture.task_id, picture.tenant, picture.state) == (TASK, "acme", "open")


def test_a_run_that_its_parent_halted_is_halted() -> None:
    picture = look(*path(), ParentHalted(run_id="r", parent_run_id="p"))
    assert picture.state == "halted"
    assert picture.timeline[-1].interventions[0]["intervention"] == "halt"


def test_a_halted_run_that_was_let_go_on_is_open_again() -> None:
    halt = ParentHalted(run_id="r", parent_run_id="p")
    picture = look(*path()[:3], halt, RunResumed(run_id="r"), *path()[3:])
    assert picture.state == "open"
    assert picture.timeline[2].interventions[0]["intervention"] == "halt"
    assert "after_halt" not in picture.timeline[3].flags


def test_hostile_names_are_plain_text_in_the_picture() -> None:
    events = [
        Step(run_id="r", task_id=TASK, tool=HOSTILE, action=HOSTILE, args={HOSTILE: HOSTILE})
        for _ in range(8)
    ]
    plain = look(*events, known=(reference(HOSTILE, (HOSTILE, "b")),)).plain()
    assert json.loads(json.dumps(plain))["timeline"][0]["tool"] == HOSTILE
    assert plain["timeline"][0]["action"] == HOSTILE
    assert plain["coupling"]["reference_id"] == HOSTILE
    assert any(one["verdict"] != "OK" for one in plain["timeline"])


def test_every_demo_run_folded_again_says_what_was_published_byte_for_byte() -> None:
    monitor = EmbeddedMonitor(SETTINGS, references(), contracts())
    fold = monitor.twin()
    for run in demo_runs():
        published = [output for event in run.events for output in monitor.feed(event)]
        folded = RunFold(fold, run.events[0].run_id)
        assert said(folded.feed(records(*run.events))) == said(published)
        picture = folded.picture()
        assert picture.final
        assert picture.coupling is not None
        assert len(picture.coupling.frontier) == len(picture.nodes) == len(picture.timeline)
        best = picture.scorecard["best_reference"]
        assert picture.coupling.reference_id == best


def test_the_oldest_steps_of_a_long_run_share_rows_that_say_so() -> None:
    small = {"active_max": 4, "chunk": 2, "merged_max": 2}
    settings = Settings(encoder="hashing", operators={"prefix": small})
    fold = fold_of(reference(), settings=settings)
    picture = picture_of(fold, "r", records(*path(*NAMES, *NAMES)))
    coupling = picture.coupling
    assert coupling is not None
    assert coupling.labels == ("0–1 (2)", "2–3 (2)", "4", "5", "6", "7", "8", "9")
    assert coupling.rows == (1, 3, 4, 5, 6, 7, 8, 9)
    assert len(coupling.shares) == len(coupling.costs) == len(coupling.frontier) == 8
    assert coupling.frontier[0].count("satisfied") == 2
    assert len(picture.nodes) == len(picture.timeline) == 10
    assert [(edge.source, edge.target) for edge in picture.edges] == [(n, n + 1) for n in range(9)]
    assert picture.notes == ()


KNOWN = st.sampled_from([(), (reference(),), (reference("a"), reference("b", ("edit", "test")))])


@given(strategies.runs(), KNOWN, st.integers(0, 12), st.booleans())
def test_any_run_folded_again_says_the_same_and_its_graph_is_the_states(
    happened: strategies.Run, known: tuple[Reference, ...], cut: int, ended: bool
) -> None:
    events: list[Event] = [one.model_copy(update={"task_id": TASK}) for one in happened.arrivals]
    if ended:
        events.append(RunEnded(run_id="r"))
    fold, twin = fold_of(*known), fold_of(*known)
    partition = fold.partition()
    published: list[Output] = []
    known_edges: dict[tuple[int, int], bool] = {}
    for record in records(*events):
        before = partition.runs.get("r")
        judged = set() if before is None else set(before.prefix.seqs)
        published += fold.apply(partition, record)  # type: ignore[arg-type]
        after = partition.runs.get("r")
        if after is None:
            break
        arrived = list(after.prefix.seqs)
        for node, parents in enumerate(after.prefix.parents):
            for source in parents:
                edge = arrived[source], arrived[node]
                # Exact where one record brings one step; where it lets several go, the order of
                # arrival says which of both ends came later.
                known_edges.setdefault(edge, source > node or arrived[node] in judged)
    folded = RunFold(twin, "r")
    again = folded.feed(records(*events[:cut]))
    if again and cut < len(events):
        folded.picture()  # looking at it changes nothing
    again += folded.feed(records(*events[cut:]))
    assert said(again) == said(published)
    picture = folded.picture()
    if not any(isinstance(event, RunEnded) for event in events):
        found = {(edge.source, edge.target): edge.retroactive for edge in picture.edges}
        assert found == known_edges
    assert [one.seq for one in picture.timeline] == [node.seq for node in picture.nodes]
    if picture.coupling is not None:
        rows, columns = len(picture.coupling.rows), len(picture.coupling.columns)
        assert rows == len(picture.nodes) == len(picture.coupling.frontier)
        for lines in (picture.coupling.shares, picture.coupling.costs, picture.coupling.frontier):
            assert [len(line) for line in lines] == [columns] * rows
    assert json.loads(json.dumps(picture.plain()))["run_id"] == "r"


def test_a_task_that_is_named_late_gives_the_coupling_of_that_task() -> None:
    fold = fold_of(reference())
    fold.library.fill(tasks=[Task(id=TASK)])
    begun = RunStarted(run_id="r")
    named = RunStarted(run_id="r", task_id=TASK)
    picture = picture_of(fold, "r", records(begun, named, *path()))
    assert picture.coupling is not None
    assert len(picture.coupling.frontier) == 5
