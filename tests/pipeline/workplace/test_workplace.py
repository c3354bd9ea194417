from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.pipeline.workplace import (
    BENIGN,
    FAULTS,
    SimulatedRun,
    contracts,
    demo_runs,
    load_stream,
    references,
    simulate_run,
    task_ids,
)
from ontrack.pipeline.workplace.simulate import DESKS
from ontrack.topics.errors import InvalidSettings, UnknownName
from ontrack.topics.events import RunEnded, RunStarted, Step
from ontrack.topics.knowledge import Effect, Provenance

CONTRACTS = {contract.name: contract for contract in contracts()}
PLANS = {task.task_id: task for desk in DESKS for task in desk.tasks}
SEEDS = range(25)
EVERY_TASK = pytest.mark.parametrize("task_id", task_ids())

runs = st.builds(
    simulate_run,
    st.sampled_from(task_ids()),
    st.integers(0, 10_000),
    st.sampled_from([None, *FAULTS, *BENIGN]),
    grade=st.sampled_from(["full", "partial", "none"]),
)


def ids_at(path: str, step: Step, side: str) -> list[str]:
    """Artifact ids at a contract's path: an own walk, independent of the operators' one."""
    if path.startswith("="):
        return [path[1:]]
    if path.startswith(("args.", "result.")):
        side, path = path.split(".", 1)
    found: list[Any] = [step.args if side == "args" else step.result]
    for part in path.split("."):
        name, many = part.removesuffix("[*]"), part.endswith("[*]")
        found = [item[name] for item in found if isinstance(item, dict) and name in item]
        if many:
            found = list(itertools.chain.from_iterable(found))
    return [item for item in found if item is not None]


def consumed(step: Step) -> list[str]:
    paths = CONTRACTS[step.tool].consumes if step.tool in CONTRACTS else ()
    return [found for path in paths for found in ids_at(path, step, "args")]


def produced(step: Step) -> list[str]:
    if step.error is not None or step.tool not in CONTRACTS:
        return []
    return [
        found for path in CONTRACTS[step.tool].produces for found in ids_at(path, step, "result")
    ]


def without_producer(run: SimulatedRun) -> list[tuple[int, str]]:
    """Consumed ids that no earlier step produced, with the step that asks for them."""
    known: set[str] = set()
    missing = []
    for seq, step in enumerate(run.steps):
        missing += [(seq, name) for name in consumed(step) if name not in known]
        known.update(produced(step))
    return missing


def same_call(one: Step, other: Step) -> bool:
    return (one.action, one.tool, one.args) == (other.action, other.tool, other.args)


def test_a_clean_run_tells_a_whole_story() -> None:
    run = simulate_run("refunds/damaged-item", seed=1)
    assert isinstance(run.events[0], RunStarted)
    assert isinstance(run.events[-1], RunEnded)
    assert (run.desk, run.fault, run.onset_seq) == ("refunds", None, None)
    assert (run.outcome, run.title) == ("success", "clean")
    tools = [step.tool for step in run.steps]
    assert tools[0] == "get_ticket"
    assert tools.index("check_policy") < tools.index("issue_refund")
    refund = next(step for step in run.steps if step.tool == "issue_refund")
    policy = next(step for step in run.steps if step.tool == "check_policy")
    assert refund.args["approval"] == policy.result["approval"]
    assert policy.seq in (refund.parents or ())


@settings(max_examples=30, deadline=None)
@given(run=runs)
def test_events_are_well_formed(run: SimulatedRun) -> None:
    assert [step.seq for step in run.steps] == list(range(len(run.steps)))
    assert {event.run_id for event in run.events} == {run.run_id}
    assert {event.task_id for event in run.events} == {run.task_id}
    times = [event.time for event in run.events]
    assert all(time is not None for time in times)
    assert times == sorted(times)  # type: ignore[type-var]
    for step in run.steps:
        assert step.action
        assert step.cost_usd
        assert step.tokens is not None
        assert step.tokens.input
        assert step.started_at is not None
        assert step.ended_at is not None
        assert step.started_at < step.ended_at
    assert "$" not in "".join(f"{step.args}{step.result}{step.action}" for step in run.steps)


@settings(max_examples=40, deadline=None)
@given(
    task_id=st.sampled_from(task_ids()),
    seed=st.integers(0, 10_000),
    fault=st.sampled_from([None, *FAULTS, *BENIGN]),
)
def test_the_same_task_seed_and_fault_give_the_same_run(
    task_id: str, seed: int, fault: str | None
) -> None:
    assert simulate_run(task_id, seed, fault) == simulate_run(task_id, seed, fault)
    assert simulate_run(task_id, seed, fault) != simulate_run(task_id, seed + 1, fault)


def test_a_run_does_not_depend_on_the_process() -> None:
    code = (
        "import sys; from ontrack.pipeline.workplace import simulate_run; "
        "sys.stdout.write(str(simulate_run('bugfix/ship-hotfix', 5, 'stall').events))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "3"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == str(simulate_run("bugfix/ship-hotfix", 5, "stall").events)


@EVERY_TASK
def test_a_fault_leaves_what_came_before_it_alone(task_id: str) -> None:
    for seed, fault in itertools.product(SEEDS, (*FAULTS, *BENIGN)):
        clean, faulty = simulate_run(task_id, seed).steps, simulate_run(task_id, seed, fault)
        onset = faulty.onset_seq
        assert onset is not None
        for ours, theirs in zip(clean[:onset], faulty.steps[:onset], strict=True):
            assert same_call(ours, theirs)
            assert ours.result == theirs.result


@EVERY_TASK
def test_a_plan_is_a_graph_of_six_to_ten_steps_with_a_free_order(task_id: str) -> None:
    plan = PLANS[task_id]
    keys = [step.key for step in plan.steps]
    assert 6 <= len(keys) == len(set(keys)) <= 10
    assert len(plan.levels()) == len(keys)
    assert max(plan.levels().values()) >= 3
    assert all(len(step.says) >= 3 == len(set(step.says)) for step in plan.steps)
    orders = {tuple(step.tool for step in simulate_run(task_id, i).steps) for i in SEEDS}
    assert len(orders) >= 2


@EVERY_TASK
@pytest.mark.parametrize("fault", [None, *BENIGN])
def test_every_id_that_a_benign_run_uses_was_produced_before(
    task_id: str, fault: str | None
) -> None:
    for seed in SEEDS:
        run = simulate_run(task_id, seed, fault)
        assert without_producer(run) == []
        assert run.outcome == "success"
        assert {step.tool for step in run.steps} <= set(CONTRACTS)


@EVERY_TASK
def test_recorded_parents_come_before_and_hold_every_producer_among_their_ancestors(
    task_id: str,
) -> None:
    for seed in SEEDS:
        ancestors: list[set[int]] = []
        makers: dict[str, int] = {}
        for seq, step in enumerate(simulate_run(task_id, seed).steps):
            assert step.parents is not None
            assert all(parent < seq for parent in step.parents)
            mine = set(step.parents).union(*(ancestors[parent] for parent in step.parents))
            ancestors.append(mine)
            for name in consumed(step):
                assert makers[name] in mine
            makers |= dict.fromkeys(produced(step), seq)


@EVERY_TASK
def test_what_recorded_ids_say_agrees_with_the_contracts(task_id: str) -> None:
    for step in simulate_run(task_id, 3, grade="partial").steps:
        assert list(step.consumed or ()) == consumed(step)
        assert list(step.produced or ()) == produced(step)


def test_grades_differ_in_metadata_only() -> None:
    full, partial, none = (
        simulate_run("scheduling/move-meeting", 2, grade=grade).steps
        for grade in ("full", "partial", "none")
    )
    metadata = {"parents", "consumed", "produced"}
    for a, b, c in zip(full, partial, none, strict=True):
        assert a.model_dump(exclude=metadata) == b.model_dump(exclude=metadata)
        assert a.model_dump(exclude=metadata) == c.model_dump(exclude=metadata)
        assert (a.consumed, a.produced) == (b.consumed, b.produced)
        assert b.parents is None
        assert (c.parents, c.consumed, c.produced) == (None, None, None)
    assert any(step.parents for step in full)


@EVERY_TASK
def test_a_task_keeps_its_arguments_and_varies_its_words(task_id: str) -> None:
    words: dict[str, set[str | None]] = defaultdict(set)
    for step in itertools.chain.from_iterable(simulate_run(task_id, i).steps for i in SEEDS):
        words[step.tool].add(step.action)
    assert all(len(phrasings) >= 3 for phrasings in words.values())
    for plan in PLANS[task_id].steps:
        if "$" not in str(plan.args):
            for seed in SEEDS:
                calls = [(step.tool, step.args) for step in simulate_run(task_id, seed).steps]
                assert (plan.tool, plan.args) in calls


@EVERY_TASK
def test_a_loop_repeats_two_calls_at_least_four_times_with_the_same_results(task_id: str) -> None:
    for seed in SEEDS:
        run = simulate_run(task_id, seed, "loop")
        onset = run.onset_seq or 0
        first, second = run.steps[onset - 2 : onset]
        tail = run.steps[onset:]
        assert len(tail) >= 8
        assert len(tail) % 2 == 0
        assert not same_call(first, second)
        for index, step in enumerate(tail):
            original = (first, second)[index % 2]
            assert same_call(step, original)
            assert step.result == original.result
            assert not CONTRACTS[step.tool].poll
            assert CONTRACTS[step.tool].effect is not Effect.DESTRUCTIVE


@EVERY_TASK
def test_a_stall_makes_six_or_more_new_calls_with_one_unhelpful_answer(task_id: str) -> None:
    for seed in SEEDS:
        run = simulate_run(task_id, seed, "stall")
        tail = run.steps[run.onset_seq :]
        assert len(tail) >= 6
        assert len({step.tool for step in tail}) == 1
        assert len({str(step.args) for step in tail}) == len(tail)
        assert len({str(step.result) for step in tail}) == 1
        assert not any(produced(step) for step in tail)


@EVERY_TASK
def test_a_hallucination_is_a_streak_of_tools_that_no_contract_knows(task_id: str) -> None:
    own_words = {says for task in PLANS.values() for step in task.steps for says in step.says}
    for seed in SEEDS:
        run = simulate_run(task_id, seed, "hallucination")
        onset = run.onset_seq or 0
        assert onset >= 2
        foreign = [step.tool not in CONTRACTS for step in run.steps]
        assert 3 <= sum(foreign) <= 5
        assert foreign == [False] * onset + [True] * sum(foreign)
        assert not own_words.intersection(str(step.action) for step in run.steps[onset:])


@EVERY_TASK
def test_an_inversion_runs_a_step_two_levels_before_its_producers(task_id: str) -> None:
    for seed in SEEDS:
        run = simulate_run(task_id, seed, "inversion")
        clean = simulate_run(task_id, seed)
        assert run.onset_seq == 1
        first, early = run.steps[:2]
        assert {seq for seq, _ in without_producer(run)} >= {1}
        plan = {step.key: step for step in PLANS[task_id].steps}
        levels = PLANS[task_id].levels()
        steps = [step for step in plan.values() if step.tool == early.tool]
        assert max(levels[step.key] for step in steps) >= 2
        done = {step.key for step in plan.values() if step.tool == first.tool}
        open_now = {key for key, step in plan.items() if set(step.after) <= done}
        assert any(not set(step.after) & (done | open_now) for step in steps)
        assert Counter(s.tool for s in run.steps) == Counter(s.tool for s in clean.steps)


@EVERY_TASK
def test_an_irreversible_call_invents_all_the_ids_it_needs(task_id: str) -> None:
    for seed in SEEDS:
        run = simulate_run(task_id, seed, "irreversible")
        call = run.steps[-1]
        assert run.onset_seq == len(run.steps) - 1
        assert CONTRACTS[call.tool].effect is Effect.DESTRUCTIVE
        missing = without_producer(run)
        assert [name for _, name in missing] == consumed(call) != []
        assert {seq for seq, _ in missing} == {run.onset_seq}


@EVERY_TASK
def test_a_missing_artifact_is_the_only_id_without_a_producer(task_id: str) -> None:
    for seed in SEEDS:
        run = simulate_run(task_id, seed, "missing_artifact")
        missing = without_producer(run)
        assert missing
        assert len({name for _, name in missing}) == 1
        assert {seq for seq, _ in missing} == {run.onset_seq}
        assert run.steps[-1].result["status"] == "not_found"
        assert CONTRACTS[run.steps[-1].tool].effect is not Effect.DESTRUCTIVE


@EVERY_TASK
def test_a_retry_fails_once_and_repeats_the_call_with_success(task_id: str) -> None:
    for seed in SEEDS:
        run = simulate_run(task_id, seed, "retry")
        onset = run.onset_seq or 0
        failed, again = run.steps[onset : onset + 2]
        assert same_call(failed, again)
        assert failed.error is not None
        assert (failed.result, failed.produced) == (None, ())
        assert again.error is None
        assert [step.error is not None for step in run.steps].count(True) == 1


@EVERY_TASK
def test_an_exploration_is_two_reads_that_nobody_uses_afterwards(task_id: str) -> None:
    for seed in SEEDS:
        run = simulate_run(task_id, seed, "exploration")
        onset = run.onset_seq or 0
        branch, rest = run.steps[onset : onset + 2], run.steps[onset + 2 :]
        assert all(CONTRACTS[step.tool].effect is Effect.READ for step in branch)
        found = set(produced(branch[0]))
        assert found.intersection(consumed(branch[1]))
        assert not found.intersection(name for step in rest for name in consumed(step))
        assert len(run.steps) == len(simulate_run(task_id, seed).steps) + 2


@EVERY_TASK
def test_a_tool_error_ends_the_run(task_id: str) -> None:
    for seed in SEEDS:
        run = simulate_run(task_id, seed, "tool_error")
        assert run.onset_seq == len(run.steps) - 1
        assert run.steps[-1].error is not None
        end = run.events[-1]
        assert isinstance(end, RunEnded)
        assert (end.outcome, end.reward) == ("failure", 0.0)
        assert end.reason


@pytest.mark.parametrize("fault", FAULTS)
def test_runs_with_a_fault_fail(fault: str) -> None:
    assert simulate_run("bugfix/add-column", 0, fault).outcome == "failure"


def test_desks_have_tools_of_all_effects_and_one_that_polls() -> None:
    assert len(CONTRACTS) == len(contracts())
    for desk in DESKS:
        assert 8 <= len(desk.tools) <= 17
        assert {c.effect for c in desk.tools} == {Effect.READ, Effect.WRITE, Effect.DESTRUCTIVE}
        for contract in desk.tools:
            assert contract.input_schema is not None
            if contract.effect is Effect.DESTRUCTIVE:
                assert contract.consumes
                assert contract.annotations.destructive
    assert {name for name, contract in CONTRACTS.items() if contract.poll} >= {"build_status"}


@settings(max_examples=30, deadline=None)
@given(run=runs)
def test_arguments_are_those_that_the_contract_asks_for(run: SimulatedRun) -> None:
    for step in run.steps:
        if step.tool in CONTRACTS:
            schema = CONTRACTS[step.tool].input_schema or {}
            assert set(step.args) == set(schema["required"]) == set(schema["properties"])


def test_a_poll_may_ask_too_early_and_then_gives_nothing() -> None:
    runs = [simulate_run("bugfix/ship-hotfix", seed) for seed in SEEDS]
    asked = [[step for step in run.steps if step.tool == "build_status"] for run in runs]
    assert {len(steps) for steps in asked} == {1, 2}
    assert all(not produced(steps[0]) for steps in asked if len(steps) == 2)
    assert all(produced(steps[-1]) for steps in asked)


def test_references_are_gold_successes_of_every_task() -> None:
    made = references(per_task=3, seed=0)
    assert Counter(r.task_id for r in made) == dict.fromkeys(task_ids(), 3)
    assert {r.provenance for r in made} == {Provenance.GOLD}
    assert len({r.reference_id for r in made}) == len(made)
    assert made == references()
    assert made != references(seed=1)
    assert all(step.error is None for r in made for step in r.steps)
    assert all(step.parents is None for r in references(grade="none") for step in r.steps)
    assert not {r.run_id for r in made} & {run.run_id for run in demo_runs()}


def test_the_demo_shows_each_desk_clean_and_five_faults() -> None:
    shown = demo_runs()
    assert [run.fault for run in shown[:3]] == [None, None, None]
    assert {run.desk for run in shown[:3]} == {"scheduling", "bugfix", "refunds"}
    assert [run.fault for run in shown[3:]] == [
        "retry",
        "loop",
        "stall",
        "hallucination",
        "inversion",
        "irreversible",
    ]
    assert len({run.run_id for run in shown}) == len(shown)
    reordered = shown[1]
    orders = [
        [step.tool for step in r.steps] for r in references() if r.task_id == reordered.task_id
    ]
    mine = [step.tool for step in reordered.steps]
    assert mine not in orders
    assert sorted(mine) == sorted(orders[0])


def test_a_fleet_interleaves_runs_by_time_and_keeps_each_run_in_order() -> None:
    events = list(load_stream(60, seed=4, fault_rate=0.3))
    assert events == list(load_stream(60, seed=4, fault_rate=0.3))
    times = [event.time for event in events]
    assert times == sorted(times)  # type: ignore[type-var]
    by_run = defaultdict(list)
    for event in events:
        by_run[event.run_id].append(event)
    assert len(by_run) == 60
    for mine in by_run.values():
        assert isinstance(mine[0], RunStarted)
        assert isinstance(mine[-1], RunEnded)
        steps = [event for event in mine if isinstance(event, Step)]
        assert [step.seq for step in steps] == list(range(len(mine) - 2))
    switches = sum(a.run_id != b.run_id for a, b in itertools.pairwise(events))
    assert switches > len(events) / 2


def test_a_fleet_has_the_share_of_faults_asked_for() -> None:
    def failures(fault_rate: float) -> int:
        ended = (e for e in load_stream(200, 1, fault_rate) if isinstance(e, RunEnded))
        return sum(end.outcome == "failure" for end in ended)

    assert failures(0.0) == 0
    assert failures(1.0) == 200
    assert 40 <= failures(0.3) <= 80


def test_a_fleet_holds_only_the_runs_that_are_open() -> None:
    open_runs: set[str] = set()
    most = 0
    for event in itertools.islice(load_stream(10**9, seed=0, fault_rate=0.2), 4_000):
        if isinstance(event, RunEnded):
            open_runs.remove(event.run_id)
        else:
            open_runs.add(event.run_id)
        most = max(most, len(open_runs))
    assert 10 < most < 100


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownName, match=r"no task 'x/y'; expected one of scheduling/move-meeting"
    ):
        simulate_run("x/y", 0)
    with pytest.raises(UnknownName, match="no fault 'earthquake'.*loop"):
        simulate_run("refunds/lost-parcel", 0, "earthquake")
    with pytest.raises(UnknownName, match="no grade 'half'"):
        simulate_run("refunds/lost-parcel", 0, grade="half")  # type: ignore[arg-type]
    with pytest.raises(InvalidSettings, match="fault_rate"):
        load_stream(1, 0, 1.5)
