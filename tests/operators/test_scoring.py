from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import scoring, scoring_extras
from ontrack.operators.scoring import ScoringState
from ontrack.operators.scoring_budget import Observed
from ontrack.operators.scoring_coverage import ReferencePath
from ontrack.operators.scoring_extras import ExtraKind, Extras, InternalError
from ontrack.operators.scoring_plan import ScoringParams, TaskPlan, compile_plan
from ontrack.operators.scoring_results import PathScore, PathSignal
from ontrack.operators.scoring_unsafe import seen_in
from ontrack.operators.sightings import SeenValues, SightingParams, see
from ontrack.topics.adapters.parts import NO_TOOL
from ontrack.topics.errors import InvalidInput
from ontrack.topics.events import RunEnded, RunStarted, Step
from ontrack.topics.knowledge import Task, ToolContract
from tests import strategies

PARAMS = ScoringParams()
SIGHTINGS = SightingParams()
ANA = [
    "read_thread",
    "list_availability",
    "list_availability",
    "calendar.create_event",
    "mail.reply",
]
CONTRACTS = {
    name: ToolContract(name=name, declared_effect=effect)
    for name, effect in {
        "read_thread": "read",
        "list_availability": "read",
        "calendar.create_event": "write",
        "calendar.delete_event": "destructive",
        "mail.reply": "write",
        "drive.write_file": "write",
    }.items()
}
TASK = Task(id="ana", references=[ANA], allowed=["calendar.create_event", "mail.reply"])
PLAN = compile_plan(PARAMS, TASK, CONTRACTS)
START = datetime(2026, 1, 1, tzinfo=UTC)


def calls(*tools: str, **fields) -> list[Step]:
    """One call a tool, each with arguments of its own."""
    return [
        Step(run_id="r", seq=at, tool=tool, args={"day": at}, **fields)
        for at, tool in enumerate(tools)
    ]


def unseen(value: object) -> bool:
    return False


def fold(
    steps: list[Step], plan: TaskPlan = PLAN, params: ScoringParams = PARAMS
) -> tuple[ScoringState, list[PathSignal]]:
    state, signals, values = scoring.start(plan), [], SeenValues()
    for at, event in enumerate(steps):
        contract = CONTRACTS.get(event.tool)
        state, signal = scoring.step(params, plan, state, at, event, contract, seen_in(values))
        signals.append(signal)
        values = see(SIGHTINGS, values, at, event.tool, event.result)
    return state, signals


def score(steps: list[Step], plan: TaskPlan = PLAN, params: ScoringParams = PARAMS) -> PathScore:
    return scoring.finish(params, plan, fold(steps, plan, params)[0])


def test_a_run_that_walks_the_reference_has_no_defect():
    found = score(calls(*ANA))
    assert (found.steps, found.step_budget, found.budget_rule) == (5, 8, "reference_plus")
    assert (found.reference_coverage, found.best_reference) == (1.0, "ana/0")
    assert (found.over_budget_by, found.extras, found.waste) == (0, Extras(), 0)
    assert (found.unsafe_checked, found.unsafe_actions, found.defects) == (True, (), ())


def test_run_204_passes_and_is_seen_all_the_same():
    # 41 calls against a median of six, and a file that nobody asked for on call 29.
    search = [tool for day in range(11) for tool in ("list_availability", "find_slot", "widen")]
    names = ["read_thread", *search, "calendar.create_event", "mail.reply"]
    names += ["list_availability"] * (40 - len(names))
    names.insert(28, "drive.write_file")
    plan = compile_plan(
        PARAMS,
        Task(id="ana", allowed=TASK.allowed, step_budget={"rule": "median_plus_sd", "value": 2}),
        CONTRACTS | dict.fromkeys(("find_slot", "widen"), CONTRACTS["read_thread"]),
        observed=Observed.of([5, 6, 6, 6, 6, 6, 8]),
    )
    known = CONTRACTS | {
        name: ToolContract(name=name, declared_effect="read") for name in ("find_slot", "widen")
    }
    state = scoring.start(plan)
    for at, event in enumerate(calls(*names)):
        state, _ = scoring.step(PARAMS, plan, state, at + 1, event, known.get(event.tool), unseen)
    found = scoring.finish(PARAMS, plan, state)
    assert (found.steps, found.passing_median, found.step_budget) == (41, 6.0, 7)
    assert (found.over_budget_by, found.extras.total) == (34, 34)
    assert [(each.seq, each.tool, each.effect) for each in found.unsafe_actions] == [
        (29, "drive.write_file", "write")
    ]
    assert found.look
    assert found.defects == ("over_step_budget", "unsafe_action")


def test_sixteen_calls_over_three_tools_have_a_repeat_ratio_of_four_fifths_and_ask_for_a_look():
    found = score(calls(*["a", "b", "c", *["a"] * 13]), TaskPlan())
    assert (found.repeat_ratio, found.distinct_tools, found.look) == (0.8125, 3, True)
    assert not score(calls(*"abcabcabca"), TaskPlan()).look  # exactly 0.7 is not above it


def test_eleven_extras_are_nine_redundant_repeats_and_two_explorations():
    plan = compile_plan(PARAMS, Task(id="t", step_budget=8), {})
    again = Step(run_id="r", tool="list_availability", args={"day": 0}, result=[])
    steps = [again, *calls(*"bcdefgh"), *[again] * 5, *calls("new"), *[again] * 4, *calls("other")]
    found = score(steps, plan)
    assert (found.steps, found.over_budget_by) == (19, 11)
    assert found.extras == Extras(recovery=0, redundant_repeat=9, exploration=2)
    assert found.waste == 11


def test_calls_over_budget_are_those_that_come_after_it_is_used_up():
    plan = compile_plan(PARAMS, Task(id="t", step_budget=2), {})
    _, signals = fold(calls("a", "b", "c", "d"), plan)
    assert [signal.extra for signal in signals] == [None, None, *[ExtraKind.EXPLORATION] * 2]
    assert [signal.over_budget_by for signal in signals] == [0, 0, 1, 2]


def test_an_earlier_call_within_the_budget_makes_a_later_one_a_repeat():
    plan = compile_plan(PARAMS, Task(id="t", step_budget=1), {})
    again = Step(run_id="r", tool="a")
    assert score([again, again], plan).extras == Extras(redundant_repeat=1)


def test_recovery_counts_as_waste_only_where_asked_for():
    plan = compile_plan(PARAMS, Task(id="t", step_budget=1), {})
    steps = [*calls("a", error="503"), *calls("a")]
    assert score(steps, plan).waste == 0
    assert score(steps, plan, ScoringParams(recovery_is_waste=True)).waste == 1


def test_parts_that_do_not_add_up_are_found_at_run_time():
    broken = ScoringState(steps=9, pointers=(5,), extras=Extras(exploration=3))
    with pytest.raises(InternalError):
        scoring.finish(PARAMS, PLAN, broken)
    with pytest.raises(InternalError):
        scoring.step(PARAMS, PLAN, broken, 9, calls("a")[0], None, unseen)


def test_missing_a_step_and_being_over_budget_are_separate_defects():
    assert score(calls(*ANA[:4])).defects == ("missing_reference_step",)
    assert score(calls(*ANA, *["read_thread"] * 4)).defects == ("over_step_budget",)
    assert score(calls(*["read_thread"] * 9)).defects == (
        "missing_reference_step",
        "over_step_budget",
    )


def test_an_empty_run_has_defined_figures():
    found = score([])
    assert (found.steps, found.repeat_ratio, found.over_budget_by) == (0, 0.0, 0)
    assert (found.reference_coverage, found.missing_steps) == (0.0, tuple(ANA))
    assert (found.latency_s, found.cost_usd, found.extras) == (None, None, Extras())
    assert found.defects == ("missing_reference_step",)


def test_a_run_of_one_call_has_defined_figures():
    found = score(calls("read_thread", time=START))
    assert (found.steps, found.repeat_ratio, found.look) == (1, 0.0, False)
    assert found.reference_coverage == 0.2
    assert found.latency_s is None  # one moment is no duration


def test_without_a_task_nothing_is_measured_against_anything():
    found = score(calls("a", "a"), TaskPlan())
    assert (found.reference_coverage, found.step_budget, found.extras) == (None, None, None)
    assert (found.waste, found.unsafe_checked, found.defects) == (None, False, ())
    assert found.repeat_ratio == 0.5


def test_a_stale_reference_is_reported_and_not_scored_as_a_regression():
    without = {name: item for name, item in CONTRACTS.items() if name != "mail.reply"}
    plan = compile_plan(PARAMS, Task(id="ana", references=[ANA]), without)
    found = score(calls("read_thread", "mail.send"), plan)
    assert [(item.reference_id, item.tools) for item in found.stale_references] == [
        ("ana/0", ("mail.reply",))
    ]
    assert (found.reference_coverage, found.step_budget, found.defects) == (None, None, ())


def test_a_fresh_reference_counts_beside_a_stale_one():
    task = Task(id="ana", references=[["read_thread", "gone"] * 9, ["read_thread", "mail.reply"]])
    found = score(calls("read_thread", "mail.reply"), compile_plan(PARAMS, task, CONTRACTS))
    assert (found.best_reference, found.reference_coverage, found.step_budget) == ("ana/1", 1.0, 5)
    assert [item.reference_id for item in found.stale_references] == ["ana/0"]


def test_without_any_contract_no_reference_is_stale():
    assert compile_plan(PARAMS, TASK, {}).stale == ()


def test_an_unknown_tool_is_reported_by_default():
    found = score(calls("read_thread", "made_up")).unsafe_actions
    assert [(each.seq, each.tool, each.effect, each.response) for each in found] == [
        (1, "made_up", "unknown", "ticket")
    ]


def test_a_destructive_call_stops_a_release_and_a_write_is_worth_a_ticket():
    found = score(calls("drive.write_file", "calendar.delete_event")).unsafe_actions
    assert [each.response for each in found] == ["ticket", "stop"]


def test_a_finding_holds_a_digest_and_never_the_arguments():
    secret = Step(run_id="r", tool="drive.write_file", args={"text": "the merger is off"})
    found = score([secret]).unsafe_actions[0]
    assert len(found.args_sha256) == 64
    assert "merger" not in repr(score([secret]))


def test_an_unsafe_call_that_failed_was_made_all_the_same():
    assert score(calls("drive.write_file", error="403")).unsafe_count == 1


def test_a_step_that_called_no_tool_is_no_unsafe_call():
    silent = [Step(run_id="r", tool=NO_TOOL)]
    assert (score(silent).steps, score(silent).unsafe_count) == (1, 0)


def test_a_task_that_says_nothing_of_effects_has_no_unsafe_calls_and_an_empty_list_has_all():
    silent = compile_plan(PARAMS, Task(id="t"), CONTRACTS)
    strict = compile_plan(PARAMS, Task(id="t", allowed=[]), CONTRACTS)
    assert score(calls("mail.reply"), silent).unsafe_count == 0
    assert not score(calls("mail.reply"), silent).unsafe_checked
    assert score(calls("mail.reply"), strict).unsafe_count == 1


def test_findings_are_bounded_and_all_of_them_counted():
    found = score(calls(*["drive.write_file"] * 9), params=ScoringParams(unsafe_max=4))
    assert (len(found.unsafe_actions), found.unsafe_count) == (4, 9)


def test_a_destructive_call_does_not_drown_in_the_number_of_others():
    names = ["drive.write_file"] * 9 + ["calendar.delete_event"] * 2 + ["drive.write_file"]
    found = score(calls(*names), params=ScoringParams(unsafe_max=4))
    assert [(each.seq, each.response) for each in found.unsafe_actions] == [
        (0, "ticket"),
        (1, "ticket"),
        (9, "stop"),
        (10, "stop"),
    ]
    only = score(calls(*["calendar.delete_event"] * 6), params=ScoringParams(unsafe_max=4))
    assert [each.seq for each in only.unsafe_actions] == [0, 1, 2, 3]


def test_findings_that_a_snapshot_kept_as_plain_tuples_are_findings_again():
    state, _ = fold(calls("drive.write_file"))
    plain = replace(state, unsafe=tuple(tuple(found) for found in state.unsafe))
    assert scoring.finish(PARAMS, PLAN, plain).unsafe_actions[0].response == "ticket"


def test_latency_is_read_off_timestamps_and_never_off_steps():
    slow = [
        Step(
            run_id="r",
            tool="enrich",
            started_at=START + timedelta(seconds=4 * at),
            ended_at=START + timedelta(seconds=4 * at + 3),
        )
        for at in range(6)
    ]
    fast = [
        Step(run_id="r", tool="look", time=START + timedelta(milliseconds=10 * at))
        for at in range(40)
    ]
    plan = compile_plan(PARAMS, Task(id="t", latency_s_max=10), {})
    assert (score(slow, plan).latency_s, score(slow, plan).defects) == (23.0, ("over_latency",))
    assert (score(fast, plan).latency_s, score(fast, plan).defects) == (0.39, ())
    assert score(calls(*"abc"), plan).latency_s is None


def test_start_and_end_of_a_run_belong_to_its_latency():
    state = scoring.clock(scoring.start(PLAN), RunStarted(run_id="r", time=START))
    state, _ = scoring.step(PARAMS, PLAN, state, 0, calls("read_thread")[0], None, unseen)
    state = scoring.clock(state, RunEnded(run_id="r", time=START + timedelta(seconds=9)))
    assert scoring.finish(PARAMS, PLAN, state).latency_s == 9.0


def test_cost_is_added_up_and_held_against_its_ceiling():
    plan = compile_plan(PARAMS, Task(id="t", cost_usd_max=0.24), {})
    dear = calls(*"ab", cost_usd=0.9)
    assert (score(dear, plan).cost_usd, score(dear, plan).defects) == (1.8, ("over_cost",))
    assert score(calls("a", cost_usd=0.24), plan).defects == ()


def test_a_run_is_never_compared_with_a_path_that_only_it_has_shown():
    paths = (ReferencePath("own", ("a",), ("r",)), ReferencePath("both", ("b",), ("r", "s")))
    assert compile_plan(PARAMS, None, {}, paths, run_id="r").paths == paths[1:]
    assert compile_plan(PARAMS, None, {}, paths, run_id="s").paths == paths
    assert compile_plan(PARAMS, None, {}, paths).paths == paths


def test_a_written_order_is_a_duty_also_for_the_run_that_a_given_reference_was_taken_from():
    task = Task(id="t", references=[["a", "b"]])
    given = (ReferencePath("own", ("a",), ("r",)),)
    own = compile_plan(PARAMS, task, {}, given, run_id="r")
    other = compile_plan(PARAMS, task, {}, given, run_id="s")
    assert (own.written, other.written) == (True, False)
    assert score(calls("a"), own).defects == ("missing_reference_step",)
    assert score(calls("a"), other).defects == ()


def test_a_value_of_an_earlier_result_is_known_to_the_allowance_and_a_later_one_is_not():
    task = Task(id="t", allowed=[{"tool": "mail.reply", "when": "seen(args.to)"}])
    plan = compile_plan(PARAMS, task, CONTRACTS)
    thread = Step(run_id="r", tool="read_thread", result={"from": "ana@example.com"})
    reply = Step(run_id="r", tool="mail.reply", args={"to": "ana@example.com"})
    assert score([thread, reply], plan).unsafe_count == 0
    assert score([reply, thread], plan).unsafe_count == 1


def test_a_predicate_on_a_tool_that_is_not_allowed_is_an_error_when_it_is_loaded():
    task = Task(id="t", allowed=["mail.reply"], predicates={"drive.write_file": "args.path == 'a'"})
    with pytest.raises(InvalidInput, match=r"drive\.write_file"):
        compile_plan(PARAMS, task, CONTRACTS)


@pytest.mark.parametrize(
    "wrong", [{"margin": -1}, {"observed_min": 1}, {"repeat_ratio_max": 1.5}, {"unsafe_max": 0}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match="must lie between"):
        ScoringParams(**wrong)


@st.composite
def scored_runs(draw):
    run = draw(strategies.runs(steps_max=14, gaps=False, duplicates=False, late=False))
    path = draw(st.lists(st.sampled_from(strategies.TOOLS), min_size=1, max_size=4))
    task = Task(
        id="t",
        references=[path],
        step_budget=draw(st.none() | st.integers(0, 8)),
        allowed=draw(st.none() | st.just([]) | st.just(["edit_file"])),
    )
    return list(run.steps), compile_plan(PARAMS, task, {})


@given(scored_runs())
def test_figures_lie_in_their_ranges_and_extras_partition_the_calls_over_budget(drawn):
    steps, plan = drawn
    found = score(steps, plan)
    assert 0 <= found.reference_coverage <= 1
    assert 0 <= found.repeat_ratio < 1
    assert found.over_budget_by == max(0, found.steps - found.step_budget)
    assert found.extras.total == found.over_budget_by
    assert 0 <= found.waste <= found.over_budget_by


@given(scored_runs())
def test_figures_after_each_event_are_those_of_the_run_scored_from_scratch_so_far(drawn):
    steps, plan = drawn
    state, kinds = scoring.start(plan), []
    for at, event in enumerate(steps):
        state, signal = scoring.step(PARAMS, plan, state, at, event, None, unseen)
        kinds.append(signal.extra)
        live = scoring.finish(PARAMS, plan, state)
        assert live == score(steps[: at + 1], plan)
        assert signal.repeat_ratio == live.repeat_ratio
        assert signal.coverage == live.reference_coverage
        assert signal.over_budget_by == live.over_budget_by
    assert (
        sum(kind is not None for kind in kinds)
        == scoring.finish(PARAMS, plan, state).over_budget_by
    )


@given(scored_runs(), st.integers(0, 14))
def test_a_run_resumes_from_a_stored_state_at_any_event(drawn, at):
    steps, plan = drawn
    state, _ = fold(steps[:at], plan)
    before = pickle.dumps(state)
    resumed = pickle.loads(before)
    for seq, event in enumerate(steps[at:], at):
        resumed, _ = scoring.step(PARAMS, plan, resumed, seq, event, None, unseen)
    assert scoring.finish(PARAMS, plan, resumed) == score(steps, plan)
    assert pickle.dumps(state) == before


@given(scored_runs())
def test_a_call_written_down_by_the_caller_gives_the_same(drawn):
    steps, plan = drawn
    state = scoring.start(plan)
    for at, event in enumerate(steps):
        written = scoring_extras.canonical(event, None, PARAMS.text_bytes_max)
        state, _ = scoring.step(PARAMS, plan, state, at, event, None, unseen, written)
    assert scoring.finish(PARAMS, plan, state) == score(steps, plan)


def test_the_state_of_an_endless_run_is_bounded():
    params = ScoringParams(calls_max=8, tools_max=8, unsafe_max=8)
    state = scoring.start(PLAN)
    for at in range(500):
        event = Step(run_id="r", tool=f"tool-{at}", args={"at": at}, result=f"id-{at}")
        state, _ = scoring.step(params, PLAN, state, at, event, None, unseen)
        assert len(state.calls.pairs) <= 8 * 16
        assert len(state.tools) <= 8 * 8
        assert len(state.unsafe) <= 8
    assert scoring.finish(params, PLAN, state).unsafe_count == 500
