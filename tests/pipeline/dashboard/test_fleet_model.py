"""The fleet model: rows, views, sums and minutes, against plain Python."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.dashboard.fleet.minutes import MINUTE_MS
from ontrack.pipeline.dashboard.fleet.model import (
    FleetModel,
    Group,
    Query,
    RunRow,
    SortKey,
    Unsaid,
    filled,
)
from ontrack.topics.verdicts import Intervention, Output, Scorecard, Verdict
from tests.pipeline.dashboard.said import (
    SEVERITIES,
    dead_letter,
    decision,
    intervention,
    scorecard,
    verdict,
)

HOSTILE = '<img src=x onerror="alert(1)">\u202e{{7*7}}\x00'


def ids(model: FleetModel, query: Query) -> list[str]:
    return [row.run_id for row in model.view(query).page().rows]


def test_a_run_that_goes_from_ok_to_loop_to_its_end_is_one_row() -> None:
    model = filled(
        [
            (verdict("r1", 0), 1000),
            (verdict("r1", 1, "LOOP", coverage=0.5, best_reference="ref"), 2000),
            (intervention("r1", 1), 2000),
            (decision("r1", 2), 2500),
            (scorecard("r1", "failure", 2, cost_usd=0.4), 3000),
        ]
    )
    row = model.row("r1")
    assert row == RunRow(
        run_id="r1",
        agent="ada",
        task_id="t1",
        tenant=None,
        state="ended",
        outcome="failure",
        steps=2,
        verdict="LOOP",
        severity=2,
        worst=2,
        tool="search",
        verdicts={"LOOP": 1, "OK": 1},
        interventions={"halt": 1},
        halted=True,
        would_halt=False,
        blocked=1,
        trail=(0, 2),
        coverage=0.5,
        rank_score=None,
        best_reference="ref",
        cost_usd=0.4,
        started_ms=1000,
        last_ms=3000,
    )
    assert json.loads(json.dumps(row.plain()))["verdicts"] == {"LOOP": 1, "OK": 1}
    assert model.totals().group == Group(None, 1, 0, 1, 1, 1, 0.4, 0.4, uncompared=1)
    assert [found["kind"] for found in model.recent()] == ["block", "halt"]
    assert model.recent(1)[0]["reason"] == "nothing made the order"


def test_an_output_that_comes_again_changes_nothing() -> None:
    said: list[tuple[Output, int]] = [
        (verdict("r1", 0), 1000),
        (intervention("r1", 0), 1000),
        (scorecard("r1"), 1500),
        (dead_letter(1), 1600),
    ]
    model, again = filled(said), filled(said + [(output, 9000) for output, _ in said])
    assert again.row("r1") == model.row("r1")
    assert again.version == model.version
    assert again.totals() == replace(model.totals(), repeated=4)
    assert again.minutes(9000) == model.minutes(9000)


def test_a_halted_run_that_was_let_go_on_is_open_again() -> None:
    said: list[tuple[Output, int]] = [
        (intervention("r1", 4), 1),
        (verdict("r1", 4, "LOOP"), 1),
        (verdict("r1", 5, flags=("after_halt",)), 2),
    ]
    assert filled(said).row("r1").state == "halted"  # type: ignore[union-attr]
    said.append((verdict("r1", 6), 3))
    model = filled(said)
    row = model.row("r1")
    assert row is not None
    assert (row.state, row.halted, row.interventions) == ("open", False, {"halt": 1})
    model.said(scorecard("r1", cost_usd=0.2), 4)
    assert model.totals().group == Group(None, runs=1, flagged=1, cost_usd=0.2)


def test_the_worst_open_run_comes_first_and_ended_ones_last() -> None:
    model = filled(
        [
            (verdict("off", 0, "OFF_TRACK"), 1),
            (intervention("halted", 0), 2),  # an alarm, though its last verdict is fine
            (verdict("halted", 0, flags=("after_halt",)), 2),
            (verdict("loop", 0, "LOOP"), MINUTE_MS),
            (verdict("warn", 0, "WARN"), 3),
            (verdict("mended", 0, "OFF_TRACK"), 4),
            (verdict("mended", 1), 4),
            (verdict("failed", 0, "OFF_TRACK"), 5 * MINUTE_MS),
            (scorecard("failed", "failure"), 5 * MINUTE_MS),
        ]
    )
    wanted = ["off", "loop", "halted", "warn", "mended", "failed"]
    assert ids(model, Query(sort="worst")) == wanted
    assert ids(model, Query(sort="worst", descending=False)) == wanted[::-1]


def test_runs_that_are_equally_bad_keep_their_places_within_a_minute() -> None:
    model = FleetModel()
    view = model.view(Query(sort="worst"))
    for seq in range(5):
        for number in (2, 0, 1):
            model.said(verdict(f"r{number}", seq), MINUTE_MS + 1_000 * seq + number)
            order = [row.run_id for row in view.page().rows]
            assert order == sorted(order, reverse=True)
    model.said(verdict("r0", 9), 2 * MINUTE_MS)
    assert [row.run_id for row in view.page().rows] == ["r0", "r2", "r1"]


def test_runs_of_which_nobody_said_the_agent_can_be_asked_for() -> None:
    model = filled([(verdict("a", 0), 1), (verdict("b", 0, agent=None), 2)])
    assert ids(model, Query(agent=Unsaid.UNSAID)) == ["b"]
    assert ids(model, Query(agent="ada", tenant=Unsaid.UNSAID)) == ["a"]
    assert ids(model, Query(task_id=Unsaid.UNSAID)) == []


def test_a_model_that_has_heard_nothing_is_an_empty_page() -> None:
    model = FleetModel()
    page = model.view(Query(text="x")).page(3)
    assert (page.rows, page.number, page.pages, page.matching, page.known) == ((), 0, 1, 0, 0)
    assert model.totals().group == Group(None)
    assert model.offenders("agent") == []
    assert model.minutes(0, 2).blocks == (0, 0)


def test_a_page_of_no_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        FleetModel().view(Query()).page(0, 0)


def test_runs_without_a_cost_come_last_in_both_directions() -> None:
    model = filled(
        [
            (verdict("open", 0), 1),
            (scorecard("cheap", cost_usd=0.1), 2),
            (scorecard("dear", cost_usd=0.9), 3),
        ]
    )
    assert ids(model, Query(sort="cost")) == ["dear", "cheap", "open"]
    assert ids(model, Query(sort="cost", descending=False)) == ["cheap", "dear", "open"]


def test_hostile_names_are_text_that_can_be_searched_for() -> None:
    model = filled([(verdict(HOSTILE, 0, agent=HOSTILE, task_id="ß", tool=HOSTILE), 5)])
    (row,) = model.view(Query(text="ONERROR")).page().rows
    assert (row.run_id, row.agent, row.tool) == (HOSTILE, HOSTILE, HOSTILE)
    assert ids(model, Query(text="SS")) == [HOSTILE]
    assert ids(model, Query(agent=HOSTILE)) == [HOSTILE]
    assert ids(model, Query(text="nobody")) == []
    assert json.loads(json.dumps(row.plain()))["run_id"] == HOSTILE


def test_offenders_are_those_with_most_flagged_runs_then_with_most_lost() -> None:
    said: list[tuple[Output, int]] = []
    for run, agent, name, cost in (
        ("a", "ada", "LOOP", 0.1),
        ("b", "bob", "LOOP", 0.9),
        ("c", "cy", "OFF_TRACK", 0.0),
        ("d", "cy", "LOOP", 0.0),
        ("e", "dee", "WARN", 5.0),
        ("f", None, "STALLED", 0.0),
    ):
        said.append((verdict(run, 0, name, agent=agent), 1))
        said.append((scorecard(run, "failure", agent=None, cost_usd=cost), 2))
    model = filled(said)
    found = [(group.name, group.flagged) for group in model.offenders("agent")]
    assert found == [("cy", 2), ("bob", 1), ("ada", 1), (None, 1)]
    assert model.names("agent") == ["ada", "bob", "cy", "dee"]
    assert model.names("agent", 1) == ["ada"]


def test_halted_runs_saved_what_they_are_shorter_than_failed_ones_of_their_group() -> None:
    halted = {"halt": 1}
    said: list[tuple[Output, int]] = [
        (scorecard("h1", "cancelled", 4, interventions=halted), 1),
        (scorecard("h2", "failure", 30, interventions=halted), 1),  # longer: saved nothing
        (scorecard("h3", "success", 1, interventions=halted), 1),  # let go on, and did it
        (scorecard("h4", "cancelled", 1, interventions=halted, task_id="other"), 1),
        *((scorecard(f"f{n}", "failure", 8 + n, cost_usd=1.0), 2) for n in range(4)),
    ]
    model = filled(said)
    total = model.totals().group
    assert total.saved_steps == 0.0  # four are too few to compare with
    assert (total.compared, total.uncompared) == (0, 3)
    model.said(scorecard("f4", "cancelled", 12, cost_usd=0.5), 3)
    total = model.totals().group
    # Failed runs took 8, 9, 10, 11 and 12 steps for 4.5 dollars: 10 on average, at 9 cents each.
    assert total.saved_steps == 6.0
    assert total.saved_usd == pytest.approx(6 * 0.09)
    assert (total.compared, total.uncompared) == (2, 1)
    assert [one.saved_steps for one in model._groups.of("agent")] == [6.0]
    saved = {one.name: one.saved_steps for one in model._groups.of("task")}
    assert saved == {"t1": 6.0, "other": 0.0}
    row = model.row("h1")
    assert row is not None
    assert (row.halted, row.interventions) == (True, {"halt": 1})


@given(st.data())
def test_savings_are_those_of_counting_the_known_runs_anew(data: st.DataObject) -> None:
    model = FleetModel(runs_max=12)
    for number in range(data.draw(st.integers(0, 40))):
        halted = data.draw(st.sampled_from([{}, {"halt": 1}]))
        outcome = data.draw(st.sampled_from(["success", "failure", "cancelled", "unknown"]))
        steps = data.draw(st.integers(0, 9))
        task = data.draw(st.sampled_from(["t1", "t1", "t2"]))
        card = scorecard(f"r{number}", outcome, steps, interventions=halted, task_id=task)
        model.said(card, number)
    saved, compared, uncompared = 0.0, 0, 0
    for task in ("t1", "t2"):
        mine = [row for row in model.rows() if row.task_id == task and row.outcome != "success"]
        lost = [r.steps for r in mine if not r.halted and r.outcome in ("failure", "cancelled")]
        halted_runs = [row for row in mine if row.halted]
        if len(lost) >= 5 and sum(lost):
            mean = sum(lost) / len(lost)
            saved += sum(max(0.0, mean - row.steps) for row in halted_runs)
            compared += len(halted_runs)
        else:
            uncompared += len(halted_runs)
    total = model.totals().group
    assert total.saved_steps == pytest.approx(saved, abs=0.003)
    assert (total.compared, total.uncompared) == (compared, uncompared)


def test_costs_that_no_sum_can_hold_leave_the_sums_whole() -> None:
    model = filled([(scorecard("r1", "failure", cost_usd=1e300), 1), (scorecard("r2"), 2)])
    assert model.totals().group.lost_usd == 1e12
    assert model.totals().group.cost_usd == 1e12 + 0.5


def test_minutes_count_what_was_said_and_empty_ones_are_zero() -> None:
    model = filled(
        [
            (verdict("r1", 0), 0),
            (verdict("r1", 1, "LOOP"), MINUTE_MS - 1),
            (intervention("r1", 1), 2 * MINUTE_MS),
            (decision("r1", 2), 2 * MINUTE_MS),
            (decision("r1", 3, "allow"), 2 * MINUTE_MS),
            (scorecard("r1"), 3 * MINUTE_MS),
        ]
    )
    found = model.minutes(3 * MINUTE_MS + 5, 4)
    assert found.starts_ms == (0, 60_000, 120_000, 180_000)
    assert found.verdicts == {"LOOP": (1, 0, 0, 0), "OK": (1, 0, 0, 0)}
    assert found.interventions == {"halt": (0, 0, 1, 0)}
    assert found.blocks == (0, 0, 1, 0)
    assert found.ended == {"success": (0, 0, 0, 1)}


def test_a_broker_with_a_wild_clock_does_not_make_the_minutes_grow() -> None:
    model = FleetModel(minutes_max=3)
    for seq, time_ms in enumerate((0, 2**62, -(2**62), MINUTE_MS, 2 * MINUTE_MS, 3 * MINUTE_MS)):
        model.said(verdict("r", seq), time_ms)
    # The far future takes one of the three places; the others hold the latest.
    assert model.minutes(3 * MINUTE_MS, 4).verdicts == {"OK": (0, 0, 1, 1)}


NAMES = st.sampled_from(["ada", "Bob", None])
TEXTS = st.sampled_from(["", "a", "R1", "t2", " bo ", "search", "<b>"])


@st.composite
def outputs(draw: st.DrawFn, runs: int = 6) -> list[tuple[Output, int]]:
    """Outputs of some runs in any order, with repetitions."""
    count = draw(st.integers(0, 40))
    said: list[tuple[Output, int]] = []
    for number in range(count):
        run_id = f"r{draw(st.integers(0, runs - 1))}"
        time_ms = draw(st.integers(0, 10 * MINUTE_MS))
        more: dict[str, Any] = {
            "task_id": draw(st.sampled_from(["t1", "t2", None])),
            "tenant": draw(st.sampled_from(["acme", None])),
        }
        kind = draw(st.sampled_from("vvvvids"))
        if kind == "v":
            name = draw(st.sampled_from(sorted(SEVERITIES)))
            covered = draw(st.sampled_from([None, 0.25, 0.5]))
            agent = draw(NAMES)
            flags = draw(st.sampled_from([(), ("after_halt",)]))
            made: Output = verdict(
                run_id, number, name, agent=agent, coverage=covered, flags=flags, **more
            )
        elif kind == "i":
            made = intervention(run_id, number, draw(st.sampled_from(["warn", "halt"])), **more)
        elif kind == "d":
            made = decision(run_id, number, draw(st.sampled_from(["allow", "block"])), **more)
        else:
            outcome = draw(st.sampled_from(["success", "failure", "unknown"]))
            cost = draw(st.sampled_from([None, 0.1, 0.7]))
            made = scorecard(run_id, outcome, 7, cost_usd=cost, **more)
        said.append((made, time_ms))
        if draw(st.booleans()):
            said.append((draw(st.sampled_from(said))[0], time_ms))
    return said


QUERIES = st.builds(
    Query,
    text=TEXTS,
    verdict=st.sampled_from([None, "LOOP", "OK"]),
    agent=st.sampled_from(["ada", "Bob", None, Unsaid.UNSAID]),
    task_id=st.sampled_from([None, "t1", Unsaid.UNSAID]),
    tenant=st.sampled_from([None, "acme", Unsaid.UNSAID]),
    state=st.sampled_from([None, "open", "halted", "ended"]),
    since_ms=st.sampled_from([None, 5 * MINUTE_MS]),
    sort=st.sampled_from(get_args(SortKey)),
    descending=st.booleans(),
)


def once(said: list[tuple[Output, int]]) -> list[tuple[Output, int]]:
    found: dict[str, tuple[Output, int]] = {}
    for output, time_ms in said:
        found.setdefault(output.id, (output, time_ms))
    return list(found.values())


def plain_rows(said: list[tuple[Output, int]]) -> dict[str, dict[str, Any]]:
    """What the table must show, from the whole history each time."""
    rows: dict[str, dict[str, Any]] = {}
    for run_id in {output.run_id for output, _ in said}:  # type: ignore[union-attr]
        mine = [(one, at) for one, at in once(said) if one.run_id == run_id]  # type: ignore[union-attr]
        verdicts = [one for one, _ in mine if isinstance(one, Verdict)]
        cards = [one for one, _ in mine if isinstance(one, Scorecard)]
        agents = [one.agent.name for one, _ in mine if getattr(one, "agent", None)]  # type: ignore[union-attr]
        tasks = [one.task_id for one, _ in mine if one.task_id]  # type: ignore[union-attr]
        tenants = [one.tenant for one, _ in mine if one.tenant]  # type: ignore[union-attr]
        last = verdicts[-1] if verdicts else None
        rows[run_id] = {
            "run_id": run_id,
            "agent": agents[-1] if agents else None,
            "task": tasks[-1] if tasks else None,
            "tenant": tenants[-1] if tenants else None,
            "state": "ended" if cards else "halted" if is_halted(mine) else "open",
            "verdicts": Counter(one.verdict.value for one in verdicts),
            "tool": last.tool if last else None,
            "steps": cards[-1].steps if cards else max((v.seq + 1 for v in verdicts), default=0),
            "severity": (
                last.severity if last else 0,
                max((one.severity for one in verdicts), default=0),
            ),
            "coverage": last.coverage if last else None,
            "cost": cards[-1].cost_usd if cards else None,
            "started": min(at for _, at in mine),
            "last": max(at for _, at in mine),
        }
        now = rows[run_id]
        alarm = 2 if now["state"] == "halted" else 0
        worst = -1 if cards else max(alarm, now["severity"][0])
        now["worst"] = worst, now["last"] // MINUTE_MS
    return rows


def is_halted(mine: list[tuple[Output, int]]) -> bool:
    """Whether no step after the last halt shows that it was let go on."""
    halts = [
        place
        for place, (one, _) in enumerate(mine)
        if isinstance(one, Intervention) and one.intervention.value == "halt"
    ]
    if not halts:
        return False
    halt = mine[halts[-1]][0]
    return not any(
        isinstance(one, Verdict) and one.seq > halt.seq and "after_halt" not in one.flags  # type: ignore[union-attr]
        for one, _ in mine[halts[-1] :]
    )


def asked_for(row: dict[str, Any], query: Query) -> bool:
    texts = [row[name] for name in ("run_id", "agent", "task", "tenant", "tool")]
    named = {"agent": query.agent, "task": query.task_id, "tenant": query.tenant}
    return (
        all(name in (None, row[part] or Unsaid.UNSAID) for part, name in named.items())
        and query.state in (None, row["state"])
        and (query.verdict is None or row["verdicts"][query.verdict] > 0)
        and (query.since_ms is None or row["last"] >= query.since_ms)
        and any(query.text.strip().lower() in text.lower() for text in texts if text is not None)
    )


def in_order(rows: list[dict[str, Any]], query: Query) -> list[str]:
    with_value = [row for row in rows if row[query.sort] is not None]
    without = [row for row in rows if row[query.sort] is None]
    with_value.sort(key=lambda row: (row[query.sort], row["run_id"]), reverse=query.descending)
    without.sort(key=lambda row: row["run_id"], reverse=query.descending)
    return [row["run_id"] for row in with_value + without]


def settled_steps(said: list[tuple[Output, int]]) -> bool:
    """Tell whether no verdict follows its run's scorecard: then both sides count steps alike."""
    ended: set[str] = set()
    for output, _ in once(said):
        if isinstance(output, Verdict) and output.run_id in ended:
            return False
        if isinstance(output, Scorecard):
            ended.add(output.run_id)
    return True


@given(outputs(), QUERIES, st.integers(0, 3), st.integers(1, 4), st.integers(1, 7))
def test_a_view_shows_what_filtering_and_sorting_everything_anew_shows(
    said: list[tuple[Output, int]], query: Query, number: int, size: int, every: int
) -> None:
    if query.sort == "steps" and not settled_steps(said):
        query = replace(query, sort="last")
    model = FleetModel()
    always, now_and_then = model.view(query), model.view(query)
    for count, (output, time_ms) in enumerate(said):
        model.said(output, time_ms)
        always.page()
        if count % every == 0:
            now_and_then.page()
    rows = [row for row in plain_rows(said).values() if asked_for(row, query)]
    wanted = in_order(rows, query)
    pages = max(1, -(-len(wanted) // size))
    begin = min(number, pages - 1) * size
    for view in (always, now_and_then, model.view(query)):
        page = view.page(number, size)
        assert [row.run_id for row in page.rows] == wanted[begin : begin + size]
        assert (page.matching, page.pages) == (len(wanted), pages)
        assert page.number == min(number, pages - 1)


@given(outputs(runs=9), st.integers(1, 9))
def test_sums_are_those_of_the_known_runs_also_after_some_were_forgotten(
    said: list[tuple[Output, int]], runs_max: int
) -> None:
    model = FleetModel(runs_max=runs_max)
    view = model.view(Query(sort="run_id", descending=False))
    for output, time_ms in said:
        model.said(output, time_ms)
        view.page()
    rows = list(model.rows())
    assert len(rows) == len(model) <= runs_max
    assert ids(model, view.query) == [row.run_id for row in view.page().rows]
    assert [row.run_id for row in view.page().rows] == sorted(row.run_id for row in rows)
    for kind, name_of in (("agent", lambda row: row.agent), ("task", lambda row: row.task_id)):
        groups = {group.name: group for group in model._groups.of(kind)}  # type: ignore[arg-type]
        assert groups.keys() == {name_of(row) for row in rows}
        for name, group in groups.items():
            mine = [row for row in rows if name_of(row) == name]
            lost = [r for r in mine if r.failed or (r.state == "ended" and r.halted)]
            assert group.runs == len(mine)
            assert group.open_runs == sum(row.state != "ended" for row in mine)
            assert group.flagged == sum(row.worst >= 2 for row in mine)
            assert group.halted == sum(row.halted for row in mine)
            assert group.failed == sum(row.failed for row in mine)
            assert group.cost_usd == pytest.approx(sum(row.cost_usd or 0 for row in mine))
            assert group.lost_usd == pytest.approx(sum(row.cost_usd or 0 for row in lost))
    total = model.totals().group
    assert (total.runs, total.flagged) == (len(rows), sum(row.worst >= 2 for row in rows))


@given(outputs())
def test_minutes_are_those_of_counting_everything_anew(said: list[tuple[Output, int]]) -> None:
    model = filled(said)
    found = model.minutes(10 * MINUTE_MS, 11)
    for name in SEVERITIES:
        times = [
            at // MINUTE_MS
            for one, at in once(said)
            if isinstance(one, Verdict) and one.verdict.value == name
        ]
        wanted = tuple(times.count(minute) for minute in range(11))
        assert found.verdicts.get(name, (0,) * 11) == wanted


def test_an_update_among_2000_live_runs_makes_one_row_and_moves_one_row() -> None:
    model = FleetModel()
    for number in range(2000):
        model.said(verdict(f"run-{number}", 0, agent=f"agent-{number % 40}"), number)
    views = [model.view(Query(sort="last")), model.view(Query(verdict="LOOP"))]
    for view in views:
        view.page()
    chance = random.Random(1)
    for step in range(1, 101):
        built, examined = model.built, [view.examined for view in views]
        run_id = f"run-{chance.randrange(2000)}"
        model.said(verdict(run_id, step, "LOOP"), 10_000 + step)
        assert views[0].page(0, 1).rows[0].run_id == run_id
        views[1].page()
        assert model.built - built == 1
        assert [view.examined - before for view, before in zip(views, examined, strict=True)] == [
            1,
            1,
        ]
    assert views[0].page().matching == 2000
    loops = {row.run_id for row in model.rows() if "LOOP" in row.verdicts}
    assert views[1].page().matching == len(loops)


def test_a_view_that_has_slept_too_long_begins_anew() -> None:
    model = FleetModel(runs_max=2)
    model.said(verdict("a", 0), 0)
    view = model.view(Query(sort="run_id", descending=False))
    view.page()
    for number in range(20):
        model.said(verdict(f"r{number:02}", 0), number)
    assert model.changed_since(1) is None
    assert [row.run_id for row in view.page().rows] == ["r18", "r19"]
    assert model.changed_since(model.version) == []


def test_a_forgotten_run_that_speaks_again_begins_anew() -> None:
    model = FleetModel(runs_max=1)
    model.said(verdict("a", 0, "LOOP"), 0)
    model.said(verdict("b", 0), 1)
    model.said(verdict("a", 1), 2)
    row = model.row("a")
    assert row is not None
    assert (row.verdicts, row.worst, row.started_ms) == ({"OK": 1}, 0, 2)
    assert model.row("b") is None
