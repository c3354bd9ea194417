"""The path of a run, scored while it runs: on the scorecard, in verdicts, and at the gate."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ontrack.operators import snapshot
from ontrack.operators.scoring_plan import ScoringParams
from ontrack.pipeline.embedded import EmbeddedMonitor, proposal_of
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.making import encoder_of, make_fold
from ontrack.pipeline.reading.readers import read_tasks
from ontrack.pipeline.scoring import score_trajectory
from ontrack.pipeline.scoring.files import Against, score_files
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidAllowance, InvalidFile
from ontrack.topics.events import ErrorInfo, RunEnded, RunStarted, Step
from ontrack.topics.knowledge import Reference, ReferenceStep, Task, ToolContract
from ontrack.topics.verdicts import (
    Decision,
    Intervention,
    InterventionName,
    Scorecard,
    Verdict,
    VerdictName,
)

SETTINGS = Settings(encoder="hashing")
ENCODER = encoder_of(SETTINGS)
BEGAN = datetime(2026, 11, 30, tzinfo=UTC)
TOOLS = (
    ToolContract(name="look", effect="read"),
    ToolContract(name="note", effect="write", domain="notes"),
    ToolContract(name="drop", effect="destructive", domain="notes"),
)
TASK = Task(
    id="tidy",
    references=(({"tool": "look"}, {"tool": "note"}),),  # type: ignore[arg-type]
    step_budget=3,  # type: ignore[arg-type]
    allowed=({"tool": "note", "when": "args.page == task.page"},),  # type: ignore[arg-type]
    vars={"page": "A"},
    cost_usd_max=0.5,
    latency_s_max=60,
)


def call(tool: str, args: dict[str, Any] | None = None, **more: Any) -> Step:
    return Step(run_id="r", task_id="tidy", tool=tool, args=args or {}, **more)


def monitor(task: Task = TASK, settings: Settings = SETTINGS) -> EmbeddedMonitor:
    return EmbeddedMonitor(settings, contracts=TOOLS, tasks=[task])


def told(watching: EmbeddedMonitor, *steps: Step) -> list[Any]:
    return [output for step in steps for output in watching.feed(step)]


def card(watching: EmbeddedMonitor) -> Scorecard:
    (made,) = watching.feed(RunEnded(run_id="r", outcome="success"))
    assert isinstance(made, Scorecard)
    return made


def test_the_scorecard_of_a_run_within_its_rules_has_no_defects() -> None:
    watching = monitor()
    said = told(watching, call("look"), call("note", {"page": "A"}))
    assert [output.verdict for output in said] == [VerdictName.OK, VerdictName.OK]
    made = card(watching)
    assert (made.reference_coverage, made.covered_reference) == (1.0, "tidy/0")
    assert (made.step_budget, made.budget_rule, made.over_budget_by) == (3, "fixed", 0)
    assert (made.unsafe_actions, made.unsafe_count, made.defects) == ((), 0, ())


def test_a_run_over_its_declared_budget_is_warned_once_and_its_extras_add_up() -> None:
    watching = monitor()
    results = [{"n": number} for number in range(5)]
    said = told(watching, *(call("look", {"q": n}, result=r) for n, r in enumerate(results)))
    over = [output for output in said if isinstance(output, Verdict) and output.severity == 2]
    assert [output.seq for output in over] == [3, 4]
    (reason,) = over[0].reasons
    assert (reason.signal, reason.value, reason.threshold) == ("step_budget", 4.0, 3.0)
    acts = [output for output in said if isinstance(output, Intervention)]
    assert [(act.seq, act.intervention) for act in acts] == [(3, InterventionName.WARN)]
    made = card(watching)
    assert (made.over_budget_by, made.extras and made.extras.exploration) == (2, 2)
    assert made.defects == ("missing_reference_step", "over_step_budget")
    assert made.missing_steps == ("note",)


def test_a_budget_that_nobody_declared_is_on_the_scorecard_and_warns_nobody() -> None:
    watching = monitor(TASK.model_copy(update={"step_budget": None}))
    said = told(watching, *(call("look", {"q": n}, result={"n": n}) for n in range(7)))
    assert {output.verdict for output in said} == {VerdictName.OK}
    made = card(watching)
    assert (made.step_budget, made.budget_rule, made.over_budget_by) == (5, "reference_plus", 2)


def test_a_write_outside_of_the_allowance_is_blocked_before_and_warned_of_after() -> None:
    watching = monitor()
    stray = call("note", {"page": "SECRET-PAGE"})
    decision = watching.propose(proposal_of(stray))
    assert isinstance(decision, Decision)
    assert (decision.decision, decision.reasons[0].signal) == ("block", "allowance")
    assert "SECRET-PAGE" not in codecs.encode(decision).decode()
    act, verdict = told(watching, stray)
    assert (act.intervention, verdict.verdict) == (InterventionName.WARN, VerdictName.WARN)
    assert "SECRET-PAGE" not in codecs.encode(act).decode()
    (found,) = card(watching).unsafe_actions or ()
    assert (found.seq, found.tool, found.effect) == (0, "note", "write")
    assert len(found.args_sha256) == 64


def test_a_nul_in_an_argument_gets_no_call_past_gate_and_scorecard() -> None:
    watching = monitor()
    stray = call("note", {"page": "A\0B"})
    decision = watching.propose(proposal_of(stray))
    assert isinstance(decision, Decision)
    assert (decision.decision, decision.reasons[0].signal) == ("block", "allowance")
    told(watching, stray)
    assert card(watching).unsafe_count == 1


def test_an_allowed_write_passes_the_gate_and_the_scorecard() -> None:
    watching = monitor()
    allowed = call("note", {"page": "A"})
    decision = watching.propose(proposal_of(allowed))
    assert isinstance(decision, Decision)
    assert decision.decision != "block"
    (verdict,) = told(watching, allowed)
    assert verdict.verdict == VerdictName.OK
    assert card(watching).unsafe_count == 0


def test_a_destructive_call_outside_of_the_allowance_halts_the_run() -> None:
    watching = monitor()
    act, verdict = told(watching, call("drop", {"page": "A"}))
    assert (act.intervention, verdict.verdict) == (InterventionName.HALT, VerdictName.BLOCK)
    decision = watching.propose(proposal_of(call("note", {"page": "A"})))
    assert isinstance(decision, Decision)
    assert (decision.decision, decision.reasons[0].signal) == ("block", "halted")


def test_an_unknown_tool_is_outside_of_an_allowance_and_nothing_is_where_none_is_declared() -> None:
    watching = monitor()
    told(watching, call("mystery"))
    (found,) = card(watching).unsafe_actions or ()
    assert (found.tool, found.effect) == ("mystery", "unknown")
    free = monitor(TASK.model_copy(update={"allowed": None, "references": ()}))
    told(free, call("drop"))
    made = card(free)
    assert (made.unsafe_actions, made.unsafe_count) == (None, None)


def test_a_run_over_its_ceilings_of_time_and_cost_is_warned() -> None:
    watching = monitor()
    late = BEGAN + timedelta(seconds=61)
    watching.feed(RunStarted(run_id="r", task_id="tidy", time=BEGAN))
    act, verdict = told(watching, call("look", time=late, cost_usd=0.75))
    assert act.intervention == InterventionName.WARN
    assert [reason.signal for reason in verdict.reasons] == ["latency", "cost"]
    made = card(watching)
    assert (made.latency_s, made.cost_usd) == (61.0, 0.75)
    assert {"over_latency", "over_cost"} <= set(made.defects)


def test_in_shadow_mode_the_scorecard_is_full_and_nobody_is_stopped() -> None:
    watching = monitor(settings=SETTINGS.model_copy(update={"intervene": False}))
    (verdict,) = told(watching, call("drop"))
    assert verdict.verdict == VerdictName.BLOCK
    assert card(watching).unsafe_count == 1


def test_the_papers_profile_scores_no_paths() -> None:
    watching = monitor(settings=Settings(encoder="hashing", profile="paper"))
    told(watching, call("look"))
    made = card(watching)
    assert (made.step_budget, made.repeat_ratio, made.defects) == (None, None, ())


TOOL_NAMES = st.sampled_from(["look", "note", "drop", "mystery"])
STEPS = st.lists(
    st.builds(
        call,
        TOOL_NAMES,
        st.dictionaries(st.just("page"), st.sampled_from(["A", "B"])),
        result=st.sampled_from([None, {"n": 1}, {"n": 2}]),
        error=st.sampled_from([None, ErrorInfo(type="E", message="no")]),
        cost_usd=st.sampled_from([None, 0.25]),
    ),
    max_size=12,
)


@given(steps=STEPS)
def test_live_figures_are_those_of_the_offline_score(steps: Sequence[Step]) -> None:
    watching = monitor()
    run = [*steps, RunEnded(run_id="r", outcome="success")]
    numbered = [
        event.model_copy(update={"seq": place}) if isinstance(event, Step) else event
        for place, event in enumerate(run)
    ]
    for event in numbered[:-1]:
        watching.feed(event)
    made = card(watching) if steps else None
    if made is None:
        return
    score = score_trajectory(numbered, TASK, contracts=TOOLS)
    assert made.steps == score.steps
    assert made.over_budget_by == score.over_budget_by
    assert made.unsafe_count == score.unsafe_count
    assert made.repeat_ratio == pytest.approx(score.repeat_ratio, abs=1e-6)
    assert made.reference_coverage == pytest.approx(score.reference_coverage, abs=1e-6)
    assert made.defects == score.defects
    assert [(item.seq, item.args_sha256) for item in made.unsafe_actions or ()] == [
        (item.seq, item.args_sha256) for item in score.unsafe_actions
    ]


@pytest.mark.parametrize(
    "lengths", [(2, 141), (141,), tuple(range(20, 2, -1))], ids=["long", "alone", "many"]
)
def test_references_beyond_what_alignment_bears_count_live_as_offline(
    lengths: Sequence[int],
) -> None:
    orders = [["look"] * length for length in lengths]
    task = Task.model_validate(
        {
            "id": "tidy",
            "references": orders,
            "step_budget": {"rule": "reference_plus", "value": 0},
        }
    )
    watching, steps = monitor(task), [call("look", {"at": at}, seq=at) for at in range(5)]
    told(watching, *steps)
    made, score = card(watching), score_trajectory(steps, task, contracts=TOOLS)
    assert made.step_budget == score.step_budget == max(lengths)
    assert made.defects == score.defects
    assert made.reference_coverage == pytest.approx(score.reference_coverage, abs=1e-6)


def reference(name: str, run_id: str | None, *tools: str) -> Reference:
    steps = tuple(ReferenceStep(tool=tool) for tool in tools)
    return Reference(reference_id=name, task_id="tidy", run_id=run_id, steps=steps)


GIVEN = st.lists(
    st.builds(
        lambda name, run_id, tools: reference(f"{name}-{run_id}", run_id, *tools),
        st.sampled_from("abc"),
        st.sampled_from([None, "r", "other"]),
        st.lists(st.sampled_from(["look", "note"]), min_size=1, max_size=4),
    ),
    max_size=3,
    unique_by=lambda item: item.reference_id,
)


@settings(deadline=None)
@example(given_too=[reference("own", "r", "look")], tools=["look"], is_written=True)
@given(
    given_too=GIVEN,
    tools=st.lists(st.sampled_from(["look", "note"]), min_size=1, max_size=6),
    is_written=st.booleans(),
)
def test_references_of_every_kind_count_live_as_in_files(
    given_too: list[Reference], tools: list[str], is_written: bool
) -> None:
    task = Task(id="tidy", references=TASK.references if is_written else ())
    watching = EmbeddedMonitor(SETTINGS, given_too, TOOLS, [task], ENCODER)
    steps = [call(tool, {"at": at}, seq=at) for at, tool in enumerate(tools)]
    told(watching, *steps)
    made = card(watching)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.jsonl"
        events = [*steps, RunEnded(run_id="r", outcome="success")]
        path.write_bytes(b"\n".join(map(codecs.encode, events)))
        against = Against.of(ScoringParams(), [task], TOOLS, given_too, from_passing=False)
        (run,) = score_files([path], against)
    assert made.defects == run.score.defects
    assert made.covered_reference == run.score.best_reference
    assert made.reference_coverage == pytest.approx(run.score.reference_coverage, abs=1e-6)


@given(steps=STEPS, at=st.integers(0, 12))
def test_a_run_that_comes_back_from_its_snapshot_gets_the_same_scorecard(
    steps: Sequence[Step], at: int
) -> None:
    def folded(cut: int | None) -> list[bytes]:
        fold = make_fold(SETTINGS)
        fold.library.fill((), TOOLS, [TASK])
        state, said = fold.partition(), []
        events = [RunStarted(run_id="r", task_id="tidy"), *steps, RunEnded(run_id="r")]
        for offset, event in enumerate(events):
            if offset == cut and "r" in state.runs:
                state.runs["r"] = fold.thaw(snapshot.dump(state.runs["r"], offset))
            record = Record(codecs.encode(event), b"r", "ontrack.events", 0, offset, 1_000 + offset)
            said += [codecs.encode(output) for output in fold.apply(state, record)]
        return said

    assert folded(at) == folded(None)


def test_a_task_whose_condition_cannot_be_compiled_is_refused_where_it_is_loaded(
    tmp_path: Path,
) -> None:
    plain = {"id": "bad", "allowed": ["note"], "predicates": {"drop": "args.page == 'A'"}}
    with pytest.raises(InvalidAllowance, match='"drop"'):
        monitor(Task.model_validate(plain))
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps({"tasks": [plain]}))
    with pytest.raises(InvalidFile, match=r'tasks\.json.*"drop"'):
        read_tasks(file)
