"""Which runs are most worth looking at, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ontrack.operators.scoring_results import MISSING_STEP, OVER_COST, OVER_LATENCY, PathScore
from ontrack.pipeline.scoring.files import PASSING, ScoredRun

_GRAVITY = {"destructive": 3, "unknown": 2, "write": 1}
_NAMES_MAX = 3


@dataclass(frozen=True, slots=True)
class Worth:
    """One run and the reasons to look at it.

    Parameters
    ----------
    weight
        By what runs are ordered: the gravest unsafe call, whether the run passed, the calls to be
        saved as a share of the run, the number of reasons, the repeat ratio, the steps.
    """

    run_id: str
    task_id: str | None
    outcome: str
    path: str
    steps: int
    reasons: tuple[str, ...]
    weight: tuple[float, ...]

    def as_record(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "run_id": self.run_id,
            "task_id": self.task_id,
            "outcome": self.outcome,
            "steps": self.steps,
            "reasons": list(self.reasons),
        }


def worth_looking_at(run: ScoredRun, repeat_ratio_max: float) -> Worth | None:
    """Return why somebody should look at a run; None where there is no reason.

    A passing run comes before a failing one, whose path is unusual almost by definition; an
    unsafe call counts whatever the outcome.
    """
    score = run.score
    reasons = (
        *_unsafe(score),
        *_budget(score),
        *_repeats(score, repeat_ratio_max),
        *_missing(score),
        *_ceilings(score),
    )
    if not reasons:
        return None
    gravest = max((_GRAVITY.get(a.effect, 0) for a in score.unsafe_actions), default=0)
    wasted = (score.waste or 0) / max(1, score.steps)
    passed = run.outcome == PASSING
    weight = (gravest, passed, wasted, len(reasons), score.repeat_ratio, score.steps)
    return Worth(run.run_id, run.task_id, run.outcome, run.path, score.steps, reasons, weight)


def _unsafe(score: PathScore) -> list[str]:
    if not score.unsafe_count:
        return []
    worst = sorted(score.unsafe_actions, key=lambda a: (-_GRAVITY.get(a.effect, 0), a.seq))
    shown = [f"{a.tool} ({a.effect}) at step {a.seq}" for a in worst[:_NAMES_MAX]]
    more = score.unsafe_count - len(shown)
    return [f"not allowed: {', '.join(shown)}{f' and {more} more' if more > 0 else ''}"]


def _budget(score: PathScore) -> list[str]:
    if not score.over_budget_by or score.extras is None:
        return []
    counts = (
        (score.extras.redundant_repeat, "redundant repeat", "redundant repeats"),
        (score.extras.exploration, "exploration", "explorations"),
        (score.extras.recovery, "recovery", "recoveries"),
    )
    kinds = " + ".join(f"{n} {one if n == 1 else many}" for n, one, many in counts if n)
    return [
        f"{score.steps} steps against a budget of {score.step_budget} ({score.budget_text}); "
        f"{score.over_budget_by} extra = {kinds}"
    ]


def _repeats(score: PathScore, repeat_ratio_max: float) -> list[str]:
    if not score.look:
        return []
    return [
        f"repeat ratio {score.repeat_ratio:.2f} is above {repeat_ratio_max:g}: {score.steps} calls "
        f"of {score.distinct_tools} {'tool' if score.distinct_tools == 1 else 'tools'}"
    ]


def _missing(score: PathScore) -> list[str]:
    if MISSING_STEP not in score.defects:
        return []
    shown = ", ".join(score.missing_steps[:_NAMES_MAX])
    more = len(score.missing_steps) - _NAMES_MAX
    return [
        f"covers {score.reference_coverage:.0%} of {score.best_reference}; not reached: {shown}"
        + (f" and {more} more" if more > 0 else "")
    ]


def _ceilings(score: PathScore) -> list[str]:
    found = []
    if OVER_LATENCY in score.defects:
        found.append(f"took {score.latency_s:.1f} s, more than the task's ceiling")
    if OVER_COST in score.defects:
        found.append(f"cost ${score.cost_usd:.2f}, more than the task's ceiling")
    return found
