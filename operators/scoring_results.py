"""What scoring a path gives: a signal a step, a score a run, and the names of defects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ontrack.operators.scoring_extras import ExtraKind, Extras
from ontrack.operators.scoring_plan import StaleReference
from ontrack.operators.scoring_unsafe import UnsafeAction

MISSING_STEP: Final = "missing_reference_step"
OVER_BUDGET: Final = "over_step_budget"
UNSAFE: Final = "unsafe_action"
OVER_LATENCY: Final = "over_latency"
OVER_COST: Final = "over_cost"
#: Each has an owner and a cure of its own, so none is folded into another.
DEFECTS: Final = (MISSING_STEP, OVER_BUDGET, UNSAFE, OVER_LATENCY, OVER_COST)


@dataclass(frozen=True, slots=True)
class PathSignal:
    """What one step added.

    Parameters
    ----------
    coverage
        Of the best reference so far; None without references.
    over_budget_by
        Calls over budget so far; None without a budget. 1 says that this call is the first.
    extra
        What this call was, if it is over budget.
    repeat_ratio
        So far.
    unsafe
        This call, if it is outside the allowance.
    late, costly
        The ceiling of time or cost is exceeded.
    latency_s, cost_usd
        So far; None where nothing says.
    """

    coverage: float | None
    over_budget_by: int | None
    extra: ExtraKind | None
    repeat_ratio: float
    unsafe: UnsafeAction | None
    late: bool
    costly: bool
    latency_s: float | None
    cost_usd: float | None


@dataclass(frozen=True, slots=True)
class PathScore:
    """All figures of a run. None means that nothing was there to measure against.

    Parameters
    ----------
    steps, distinct_tools, repeat_ratio
        Calls, different tools, and 1 - one by the other. ``look`` says that the ratio is above
        the limit from which on somebody should look at the trace.
    reference_coverage, best_reference
        Share in [0, 1] of the best reference that was walked in order, and its id.
    missing_steps
        Calls of the best reference that were not reached, in order; a defect where they are
        the orders that the task lists.
    stale_references
        References with tools that the registry no longer has; left out of all figures.
    step_budget, budget_rule, budget_text, over_budget_by
        The budget in calls, the rule it comes from (``reference_plus``, ``median_plus_sd`` or
        ``fixed``), the rule in words, and the calls above it.
    passing_median
        Median steps of passing runs of the task, where some were observed.
    extras, waste
        The calls over budget by kind, and those to be saved.
    unsafe_actions, unsafe_count, unsafe_checked
        The first unsafe actions, how many there were, and whether the task says what it allows.
    latency_s, cost_usd, latency_s_max, cost_usd_max
        From timestamps and prices, and the task's ceilings for them.
    defects
        Those of :data:`DEFECTS` that the run has.
    """

    task_id: str | None
    steps: int
    distinct_tools: int
    repeat_ratio: float
    look: bool
    reference_coverage: float | None
    best_reference: str | None
    missing_steps: tuple[str, ...]
    stale_references: tuple[StaleReference, ...]
    step_budget: int | None
    budget_rule: str | None
    budget_text: str | None
    over_budget_by: int | None
    passing_median: float | None
    extras: Extras | None
    waste: int | None
    unsafe_actions: tuple[UnsafeAction, ...]
    unsafe_count: int
    unsafe_checked: bool
    latency_s: float | None
    cost_usd: float | None
    latency_s_max: float | None
    cost_usd_max: float | None
    defects: tuple[str, ...]
