"""Scoring the path of a run: the figures of a scorecard, one small step each, in order.

The outcome is constant in what a path costs; these figures are not. The same functions serve live
runs, event by event, and recorded ones: :func:`finish` may be called after any event, and gives
for a whole run what it gives for the last one.

State is bounded whatever a run does: a pointer a reference, hashes of at most ``tools_max`` tools
and ``calls_max`` calls, ``unsafe_max`` findings, and a dozen numbers. It holds plain values only
and is never changed in place. Which values stood in results is remembered by the caller, who keeps
those for others as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ontrack.operators import (
    scoring_coverage,
    scoring_extras,
    scoring_repeats,
    scoring_totals,
    scoring_unsafe,
)
from ontrack.operators.scoring_budget import OF_TASK
from ontrack.operators.scoring_extras import CallMemory, CanonicalCall, ExtraKind, Extras
from ontrack.operators.scoring_plan import ScoringParams, TaskPlan
from ontrack.operators.scoring_results import (
    DEFECTS,
    MISSING_STEP,
    OVER_BUDGET,
    OVER_COST,
    OVER_LATENCY,
    UNSAFE,
    PathScore,
    PathSignal,
)
from ontrack.operators.scoring_totals import Totals
from ontrack.operators.scoring_unsafe import Seen, UnsafeAction
from ontrack.topics.events import RunEnded, RunStarted, Step
from ontrack.topics.knowledge import ToolContract

__all__ = [
    "DEFECTS",
    "MISSING_STEP",
    "OVER_BUDGET",
    "OVER_COST",
    "OVER_LATENCY",
    "UNSAFE",
    "PathScore",
    "PathSignal",
    "ScoringState",
    "clock",
    "finish",
    "start",
    "step",
]


@dataclass(frozen=True, slots=True)
class ScoringState:
    """A run so far.

    Parameters
    ----------
    steps
        Calls.
    tools
        Hashes of the different tools called, 8 bytes each.
    pointers
        Calls matched of each reference of the plan.
    calls
        What calls were made with what result; stays empty without a budget.
    extras
        Calls over budget by kind.
    unsafe
        The first unsafe actions, destructive ones before others, and how many there were in all.
    totals
        Timestamps and cost.
    """

    steps: int = 0
    tools: bytes = b""
    pointers: tuple[int, ...] = ()
    calls: CallMemory = CallMemory()
    extras: Extras = Extras()
    unsafe: tuple[UnsafeAction, ...] = ()
    unsafe_count: int = 0
    totals: Totals = Totals()


def start(plan: TaskPlan) -> ScoringState:
    """Return the state of a run of this task before its first event."""
    return ScoringState(pointers=scoring_coverage.start(plan.paths))


def step(
    params: ScoringParams,
    plan: TaskPlan,
    state: ScoringState,
    seq: int,
    event: Step,
    contract: ToolContract | None,
    seen: Seen,
    call: CanonicalCall | None = None,
) -> tuple[ScoringState, PathSignal]:
    """Score one more call.

    Parameters
    ----------
    contract
        The tool's, None where nobody declared it.
    seen
        Tells whether a value stood in an earlier result; asked only where the task has an
        allowance. See :func:`ontrack.operators.scoring_unsafe.seen_in`.
    call
        The step without what is volatile, where the caller has written it down already.

    Raises
    ------
    InternalError
        The kinds of extras do not add up.
    """
    steps = state.steps + 1
    tools = scoring_repeats.step(state.tools, event.tool, params.tools_max)
    pointers = scoring_coverage.step(plan.paths, state.pointers, event.tool)
    calls, extras, extra = _extras(params, plan, state, steps, event, contract, call)
    unsafe = scoring_unsafe.step(plan.allowance, seq, event, contract, seen)
    findings = state.unsafe
    if unsafe is not None:
        findings = scoring_unsafe.kept(findings, unsafe, params.unsafe_max)
    grown = ScoringState(
        steps=steps,
        tools=tools,
        pointers=pointers,
        calls=calls,
        extras=extras,
        unsafe=findings,
        unsafe_count=state.unsafe_count + (unsafe is not None),
        totals=scoring_totals.step(state.totals, event),
    )
    return grown, _signal(plan, grown, extra, unsafe)


def clock(state: ScoringState, event: RunStarted | RunEnded) -> ScoringState:
    """Take the time of a run's start or end into its latency."""
    return replace(state, totals=scoring_totals.step(state.totals, event))


def finish(params: ScoringParams, plan: TaskPlan, state: ScoringState) -> PathScore:
    """Return the figures of a run as it stands; the state is left as it is.

    Raises
    ------
    InternalError
        The kinds of extras do not add up.
    """
    coverage = scoring_coverage.best(plan.paths, state.pointers)
    distinct = scoring_repeats.distinct(state.tools)
    ratio = scoring_repeats.ratio(distinct, state.steps)
    budget, over, extras = plan.budget, None, None
    if budget is not None:
        over = budget.over(state.steps)
        extras = scoring_extras.checked(state.extras, over)
    return PathScore(
        task_id=plan.task_id,
        steps=state.steps,
        distinct_tools=distinct,
        repeat_ratio=ratio,
        look=ratio > params.repeat_ratio_max,
        reference_coverage=None if coverage is None else coverage.share,
        best_reference=None if coverage is None else coverage.reference_id,
        missing_steps=() if coverage is None else coverage.missing,
        stale_references=plan.stale,
        step_budget=None if budget is None else budget.steps,
        budget_rule=None if budget is None else budget.rule,
        budget_text=None if budget is None else budget.text,
        over_budget_by=over,
        passing_median=_passing_median(plan),
        extras=extras,
        waste=None if extras is None else extras.waste(params.recovery_is_waste),
        # Snapshots keep plain tuples.
        unsafe_actions=tuple(UnsafeAction(*finding) for finding in state.unsafe),
        unsafe_count=state.unsafe_count,
        unsafe_checked=plan.allowance is not None,
        latency_s=state.totals.latency_s,
        cost_usd=state.totals.cost_usd,
        latency_s_max=plan.latency_s_max,
        cost_usd_max=plan.cost_usd_max,
        defects=_defects(plan, state, coverage, over),
    )


def _passing_median(plan: TaskPlan) -> float | None:
    observed = plan.observed
    return observed.median if observed is not None and observed.basis == OF_TASK else None


def _extras(
    params: ScoringParams,
    plan: TaskPlan,
    state: ScoringState,
    steps: int,
    event: Step,
    contract: ToolContract | None,
    call: CanonicalCall | None,
) -> tuple[CallMemory, Extras, ExtraKind | None]:
    """Remember the call, and count it by kind where it is over budget."""
    if plan.budget is None:
        return state.calls, state.extras, None
    written = call or scoring_extras.canonical(event, contract, params.text_bytes_max)
    calls, kind = scoring_extras.step(state.calls, event, written, params.calls_max)
    over = plan.budget.over(steps)
    if not over:
        return calls, state.extras, None
    return calls, scoring_extras.checked(scoring_extras.counted(state.extras, kind), over), kind


def _signal(
    plan: TaskPlan, state: ScoringState, extra: ExtraKind | None, unsafe: UnsafeAction | None
) -> PathSignal:
    coverage = scoring_coverage.best(plan.paths, state.pointers)
    distinct = scoring_repeats.distinct(state.tools)
    late, costly = _over_ceilings(plan, state.totals)
    return PathSignal(
        coverage=None if coverage is None else coverage.share,
        over_budget_by=None if plan.budget is None else plan.budget.over(state.steps),
        extra=extra,
        repeat_ratio=scoring_repeats.ratio(distinct, state.steps),
        unsafe=unsafe,
        late=late,
        costly=costly,
        latency_s=state.totals.latency_s,
        cost_usd=state.totals.cost_usd,
    )


def _over_ceilings(plan: TaskPlan, totals: Totals) -> tuple[bool, bool]:
    latency_s, cost_usd = totals.latency_s, totals.cost_usd
    return (
        plan.latency_s_max is not None and latency_s is not None and latency_s > plan.latency_s_max,
        plan.cost_usd_max is not None and cost_usd is not None and cost_usd > plan.cost_usd_max,
    )


def _defects(
    plan: TaskPlan,
    state: ScoringState,
    coverage: scoring_coverage.Coverage | None,
    over: int | None,
) -> tuple[str, ...]:
    late, costly = _over_ceilings(plan, state.totals)
    found = {
        MISSING_STEP: plan.written and coverage is not None and bool(coverage.missing),
        OVER_BUDGET: bool(over),
        UNSAFE: state.unsafe_count > 0,
        OVER_LATENCY: late,
        OVER_COST: costly,
    }
    return tuple(name for name in DEFECTS if found[name])
