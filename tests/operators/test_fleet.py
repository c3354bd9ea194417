"""Fleet aggregates: counted once, in any order, and as plain Python would count them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import snapshot
from ontrack.operators.fleet import due, step
from ontrack.operators.fleet_state import FleetParams, FleetState, dump, load
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidSettings, InvalidSnapshot
from ontrack.topics.fleet import OTHERS, FleetAggregate, merge
from ontrack.topics.verdicts import Decision, Intervention, Output, Scorecard, Verdict
from tests.fleet_oracle import as_counted, by_plain_python

MINUTE = 60_000
NOON = 1_796_040_000_000  # a full minute in November 2026
PARAMS = FleetParams(silent_ms=30 * MINUTE)
STAMP = {"profile": "default", "settings": "s", "engine": "e"}
Timed = tuple[Output, int]


def verdict(run: str, seq: int, name: str = "OK", **more: Any) -> Verdict:
    return Verdict(
        id=f"{run}:{seq}",
        run_id=run,
        seq=seq,
        verdict=name,  # type: ignore[arg-type]
        severity=0,
        authority="inform",  # type: ignore[arg-type]
        **({"agent": {"id": "a"}} | more),
        **STAMP,
    )


def intervention(run: str, seq: int, name: str = "halt", **more: Any) -> Intervention:
    return Intervention(
        id=f"{run}:{seq}:{name}",
        run_id=run,
        seq=seq,
        intervention=name,  # type: ignore[arg-type]
        verdict="LOOP",  # type: ignore[arg-type]
        severity=3,
        reason="again and again",
        authority="intervene",  # type: ignore[arg-type]
        **({"agent": {"id": "a"}} | more),
        **STAMP,
    )


def decision(run: str, seq: int, answer: str = "block", **more: Any) -> Decision:
    return Decision(
        id=f"{run}:{seq}:{answer}",
        run_id=run,
        seq=seq,
        tool="drop",
        effect="destructive",
        decision=answer,  # type: ignore[arg-type]
        call_sha256="0" * 64,
        authority="intervene",  # type: ignore[arg-type]
        **({"agent": {"id": "a"}} | more),
        **STAMP,
    )


def scorecard(run: str, outcome: str = "success", steps: int = 3, **more: Any) -> Scorecard:
    defaults: dict[str, Any] = {"agent": {"id": "a"}, "verdicts": {}, "interventions": {}}
    return Scorecard(
        id=f"{run}:end",
        run_id=run,
        outcome=outcome,  # type: ignore[arg-type]
        steps=steps,
        errors=0,
        **(defaults | more),
        **STAMP,
    )


def folded(timed: Iterable[Timed], params: FleetParams = PARAMS) -> FleetState:
    state = FleetState()
    for output, time_ms in timed:
        state = step(params, state, output, time_ms)
    return state


def lines_at(
    state: FleetState, now_ms: int, params: FleetParams = PARAMS
) -> tuple[FleetState, list[FleetAggregate]]:
    """All lines that are due, however many calls it takes."""
    found: list[FleetAggregate] = []
    more = True
    while more:
        state, lines, more = due(params, state, now_ms, 0)
        found += lines
    return state, found


def final(timed: Sequence[Timed], params: FleetParams = PARAMS) -> dict[str, FleetAggregate]:
    """The final line of each minute, once everything is over."""
    _, lines = lines_at(folded(timed, params), NOON + 10_000 * MINUTE, params)
    assert all(line.final for line in lines)
    return {line.id: line for line in lines}


def test_a_run_of_two_minutes_is_counted_where_it_happened() -> None:
    state = folded(
        [
            (verdict("r", 0), NOON),
            (verdict("r", 1, "LOOP"), NOON + 20_000),
            (intervention("r", 1, "warn"), NOON + 20_001),
            (decision("r", 2), NOON + 61_000),
            (decision("r", 2, "allow"), NOON + 62_000),
            (
                scorecard(
                    "r",
                    "failure",
                    steps=2,
                    cost_usd=0.1,
                    unsafe_count=1,
                    step_budget=1,
                    over_budget_by=1,
                ),
                NOON + 63_000,
            ),
        ]
    )
    state, (first,) = lines_at(state, NOON + MINUTE)
    assert first.id == '2026-11-30T12:00:00Z|0|["a",null,null]'
    assert (first.started, first.open_runs, first.finished) == (1, 1, {})
    assert (first.verdicts, first.interventions) == ({"LOOP": 1, "OK": 1}, {"warn": 1})
    assert (first.revision, first.final) == (1, False)
    state, (second,) = lines_at(state, NOON + 2 * MINUTE)
    assert (second.started, second.open_runs, second.finished) == (0, 0, {"failure": 1})
    assert (second.blocks, second.steps, second.cost_usd) == (1, {"failure": 2}, {"failure": 0.1})
    assert (second.unsafe_runs, second.unsafe_checked) == (1, 1)
    assert (second.over_budget_runs, second.budgeted_runs) == (1, 1)
    _, last = lines_at(state, NOON + 20 * MINUTE)
    assert [(line.minute, line.revision, line.final) for line in last] == [
        (first.minute, 2, True),
        (second.minute, 2, True),
    ]


def test_a_late_output_opens_its_minute_again_and_one_that_is_too_late_is_only_counted() -> None:
    state = folded([(verdict("r", 0), NOON), (verdict("r", 1), NOON + 5 * MINUTE)])
    state, before = lines_at(state, NOON + 6 * MINUTE)
    state = step(PARAMS, state, verdict("r", 2, "STALLED"), NOON + 1)
    state, (again,) = lines_at(state, NOON + 6 * MINUTE)
    assert (again.id, again.revision) == (before[0].id, 2)
    assert again.verdicts == {"OK": 1, "STALLED": 1}
    state = step(PARAMS, state, verdict("r", 3), NOON + 12 * MINUTE)
    state = step(PARAMS, state, verdict("r", 4), NOON + 2)
    _, lines = lines_at(state, NOON + 13 * MINUTE)
    told = {line.minute.minute: line for line in lines}
    assert (told[0].final, told[0].verdicts) == (True, {"OK": 1, "STALLED": 1})
    assert (told[12].late, told[12].verdicts) == (1, {"OK": 1})


def test_a_run_whose_end_came_too_late_is_open_no_longer() -> None:
    state = folded([(verdict("r", 0), NOON), (verdict("s", 0), NOON + 12 * MINUTE)])
    state = step(PARAMS, state, scorecard("r"), NOON + 1)
    _, lines = lines_at(state, NOON + 13 * MINUTE)
    assert (lines[-1].open_runs, lines[-1].late, lines[-1].finished) == (1, 1, {})


def test_a_late_start_changes_what_the_minutes_behind_it_say_of_open_runs() -> None:
    state = folded([(verdict("r", 0), NOON), (verdict("r", 1), NOON + 2 * MINUTE)])
    state, before = lines_at(state, NOON + 3 * MINUTE)
    assert [line.open_runs for line in before] == [1, 1, 1]
    state = step(PARAMS, state, verdict("s", 0), NOON + MINUTE)
    _, again = lines_at(state, NOON + 3 * MINUTE)
    assert [(line.minute.minute, line.open_runs, line.revision) for line in again] == [
        (1, 2, 2),
        (2, 2, 2),
    ]


def test_what_is_repeated_of_a_run_that_ended_long_ago_counts_nowhere() -> None:
    timed: list[Timed] = [
        (verdict("r", 0), NOON),
        (intervention("r", 0), NOON),
        (decision("r", 1), NOON),
        (scorecard("r"), NOON + 1),
    ]
    state, before = lines_at(folded(timed), NOON + 60 * MINUTE)
    assert len(before) == 1
    for output, _ in timed:
        state = step(PARAMS, state, output, NOON + 60 * MINUTE)
    assert lines_at(state, NOON + 200 * MINUTE)[1] == []


def test_minutes_in_which_runs_are_only_open_have_lines_until_they_fall_silent() -> None:
    lines = list(final([(verdict("r", 0), NOON)]).values())
    assert [line.open_runs for line in lines] == [1] * 30 + [0]
    assert sum(line.started for line in lines) == 1
    assert all(not line.finished for line in lines)


def test_a_halted_run_saves_what_it_is_shorter_than_the_failures_of_its_group() -> None:
    timed: list[Timed] = [
        (scorecard(f"f{n}", "failure" if n % 2 else "cancelled", steps=10 + n), NOON + n)
        for n in range(5)
    ]
    halt = {"interventions": {"halt": 1}}
    timed += [
        (scorecard("h1", "cancelled", steps=4, **halt), NOON + MINUTE),
        (scorecard("h2", "failure", steps=40, **halt), NOON + MINUTE),
        (scorecard("h3", "success", steps=1, **halt), NOON + MINUTE),
        (scorecard("h4", "failure", steps=1, agent={"id": "b"}, **halt), NOON + MINUTE),
    ]
    saved = {line.id: line.saved_steps for line in final(timed).values()}
    assert list(saved.values()) == [0.0, 8.0, 0.0]  # 12 - 4; the other group has no failures
    few = final(timed[1:])
    assert [line.saved_steps for line in few.values()] == [0.0, 0.0, 0.0]


def test_partials_of_partitions_are_added_up() -> None:
    one = lines_at(folded([(verdict("r", 0), NOON), (verdict("r", 1), NOON)]), NOON + MINUTE)[1]
    card = scorecard("s", cost_usd=0.2)
    two = due(PARAMS, folded([(card, NOON)]), NOON + 20 * MINUTE, 1).lines
    (both,) = merge([*one, *two])
    assert (both.partition, both.id) == (None, '2026-11-30T12:00:00Z|all|["a",null,null]')
    assert (both.started, both.open_runs, both.verdicts) == (2, 1, {"OK": 2})
    assert (both.finished, both.cost_usd, both.final) == ({"success": 1}, {"success": 0.2}, False)
    assert merge([*one, *one, *two]) == [both]  # the last of an id counts, once


GROUPS = [
    {"agent": {"id": name}, "task_id": task, "tenant": None}
    for name in ("a", "b")
    for task in ("t", None)
]


@st.composite
def fleets(draw: st.DrawFn) -> list[Timed]:
    """Outputs of some runs, each once, by their time, within the lateness of one another."""
    timed: list[Timed] = []
    for number in range(draw(st.integers(1, 6))):
        run, group = f"r{number}", draw(st.sampled_from(GROUPS))
        time_ms = NOON + draw(st.integers(0, 3 * MINUTE))
        steps = draw(st.integers(0, 4))
        for seq in range(steps):
            name = draw(st.sampled_from(["OK", "LOOP", "WARN"]))
            timed.append((verdict(run, seq, name, **group), time_ms))
            if draw(st.booleans()):
                timed.append((intervention(run, seq, **group), time_ms))
            if draw(st.booleans()):
                timed.append((decision(run, seq, **group), time_ms))
            time_ms += draw(st.integers(0, MINUTE))
        if draw(st.booleans()):
            card = scorecard(
                run,
                draw(st.sampled_from(["success", "failure", "cancelled", "unknown"])),
                draw(st.integers(0, 12)),
                cost_usd=draw(st.sampled_from([None, 0.1, 0.2, 0.7])),
                unsafe_count=draw(st.sampled_from([None, 0, 2])),
                step_budget=draw(st.sampled_from([None, 5])),
                over_budget_by=draw(st.sampled_from([None, 0, 3])),
                interventions=draw(st.sampled_from([{}, {"warn": 1}, {"halt": 1}])),
                **group,
            )
            timed.append((card, time_ms))
    return sorted(timed, key=lambda item: item[1])


@given(fleets())
def test_the_final_lines_say_what_plain_python_counts(timed: list[Timed]) -> None:
    params = replace(PARAMS, baseline_runs_min=2)
    wanted = by_plain_python(timed, params)
    assert as_counted(final(timed, params).values()) == wanted


@given(st.data(), fleets())
def test_neither_order_nor_repetition_nor_looks_in_between_change_the_final_lines(
    data: st.DataObject, timed: list[Timed]
) -> None:
    mixed = data.draw(st.permutations(timed))
    state, told = FleetState(), {}
    for place, (output, time_ms) in enumerate(mixed):
        state = step(PARAMS, state, output, time_ms)
        again, first_ms = data.draw(st.sampled_from(mixed[: place + 1]))
        later = data.draw(st.integers(first_ms, NOON + 9 * MINUTE))
        state = step(PARAMS, state, again, later)
        if data.draw(st.booleans()):
            state, lines = lines_at(state, state.now_ms)
            told |= {line.id: line for line in lines}
        if data.draw(st.booleans()):
            state = load(snapshot.unseal(snapshot.seal(dump(state))))
    _, lines = lines_at(state, NOON + 10_000 * MINUTE)
    told |= {line.id: line for line in lines}
    assert telling(told) == telling(final(timed))


def telling(lines: dict[str, FleetAggregate]) -> dict[str, FleetAggregate]:
    """Lines that count something: a minute may have been told of before its run began earlier."""
    return {
        name: line.model_copy(update={"revision": 0})
        for name, line in lines.items()
        if any(as_counted([line]).values())
    }


@given(fleets(), st.data())
def test_partials_of_any_split_into_partitions_add_up_to_the_whole(
    timed: list[Timed], data: st.DataObject
) -> None:
    # What saved_steps compares with is known to each partition alone, so it does not.
    params = replace(PARAMS, baseline_runs_min=1000)
    part = {output.run_id: data.draw(st.integers(0, 2)) for output, _ in timed}
    lines: list[FleetAggregate] = []
    for number in range(3):
        mine = [item for item in timed if part[item[0].run_id] == number]
        lines += [
            line.model_copy(update={"id": f"{number}{line.id}", "partition": number})
            for line in final(mine, params).values()
        ]
    assert as_counted(merge(lines)) == as_counted(final(timed, params).values())


def test_a_state_with_a_name_that_no_line_can_hold_is_refused() -> None:
    parts = dump(folded([(verdict("r", 0, task_id="t"), NOON)]))
    assert load(parts).bases
    parts[2][0][1] = "t" * 513
    with pytest.raises(InvalidSnapshot, match="too long"):
        load(parts)


def test_the_same_state_gives_the_same_bytes_and_a_foreign_one_is_refused() -> None:
    state = folded(
        [(verdict("r", 7), NOON), (intervention("r", 1), NOON), (decision("q", 1), NOON)]
    )
    state, _ = lines_at(state, NOON + MINUTE)
    assert dump(load(dump(state))) == dump(state)
    for damaged in ((), ["fleet-0"], ["fleet-1", 1, 2, 3, 4, 5], dump(state)[:-1], None):
        with pytest.raises(InvalidSnapshot, match="made anew"):
            load(damaged)


def test_beyond_its_limits_the_state_stays_bounded_and_says_so() -> None:
    params = replace(
        PARAMS,
        groups_max=3,
        runs_max=5,
        ended_max=4,
        ids_per_run_max=2,
        ids_max=6,
        seq_max=8,
    )
    state, told = FleetState(), {}
    for number in range(200):
        run, at = f"r{number}", NOON + number * 20_000
        agent = {"agent": {"id": f"a{number}"}}
        for output in (
            verdict(run, 0, **agent),
            verdict(run, 10**12 + number, **agent),
            intervention(run, 0, **agent),
            decision(run, 1, **agent),
            scorecard(run, **agent),
        ):
            state = step(params, state, output, at)
        state, lines = lines_at(state, at, params)
        told |= {line.id: line for line in lines}
        assert len(state.runs) <= 5
        assert len(state.ended) <= 4
        assert len(state.ended) == len(state.ended_order)
        assert len(state.bases) <= 4
        assert state.ids <= 6
        assert all(len(run.ids) <= 2 and run.seqs < 2**8 for run in state.runs.values())
    _, lines = lines_at(state, NOON + 1000 * MINUTE, params)
    told |= {line.id: line for line in lines}
    assert state.untracked > 0
    assert any(line.group.agent == OTHERS for line in told.values())
    # Nothing is lost: all that was said is counted, in some group.
    assert sum(sum(line.verdicts.values()) for line in told.values()) == 400
    assert sum(sum(line.finished.values()) for line in told.values()) == 200


@pytest.mark.parametrize("time_ms", [-1, 0, 2**62])
def test_no_time_makes_it_fail_or_go_on_for_ever(time_ms: int) -> None:
    state = folded([(verdict("r", 0), time_ms)])
    state, _ = lines_at(state, NOON)
    state = step(PARAMS, state, verdict("s", 0), NOON)
    _, lines = lines_at(state, NOON + MINUTE)
    assert all(codecs.encode(line) for line in lines)


def test_costs_that_are_no_prices_are_left_out() -> None:
    timed: list[Timed] = [
        (scorecard(f"r{n}", cost_usd=cost), NOON)
        for n, cost in enumerate([0.1, 0.2, float("nan"), float("inf"), 1e300, None])
    ]
    (line,) = final(timed).values()
    assert line.cost_usd == {"success": 0.3}


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="minutes_max"):
        FleetParams(minutes_max=10)
    with pytest.raises(InvalidSettings, match="at least 1"):
        FleetParams(groups_max=0)
