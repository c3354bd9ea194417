"""What the scores of many runs come to, split by outcome, and the line of each run."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ontrack.operators.scoring_budget import OF_TASK
from ontrack.operators.scoring_extras import ExtraKind
from ontrack.operators.scoring_results import OVER_BUDGET, UNSAFE, PathScore
from ontrack.pipeline.scoring.files import OF_ALL, PASSING, ScoredRun
from ontrack.pipeline.scoring.group import QUANTILES, Group, Rate
from ontrack.pipeline.scoring.worst import Worth, worth_looking_at

#: Passing runs first: a long path that ends correctly is where a trade-off is made.
GROUPS: Final = ("passing", "failing", "other")
SHOWN_MAX: Final = 10
_NAMES_MAX = 512
OTHERS: Final = "(others)"


class FlagPoint(NamedTuple):
    """A budget at a quantile of passing runs, and the share of them that it would flag."""

    quantile: float
    steps: float
    flagged: float


class Report:
    """Scores added up, run by run."""

    def __init__(self, repeat_ratio_max: float = 0.7, tools_known: bool = True) -> None:
        self.repeat_ratio_max = repeat_ratio_max
        self._tools_known = tools_known
        self.groups = {name: Group() for name in GROUPS}
        self.everything = Group()
        self.budgets: Counter[str] = Counter()
        self.references: Counter[str] = Counter()
        self.stale: dict[str, tuple[str, ...]] = {}
        self.unsafe_tools: Counter[tuple[str, str]] = Counter()
        self._worth: list[tuple[tuple[Any, ...], Worth]] = []

    def add(self, run: ScoredRun) -> None:
        """Take one run."""
        score = run.score
        self.groups[group_of(run.outcome)].add(run)
        self.everything.add(run)
        self.budgets[_rule(score)] += 1
        self.references[run.reference_source or "none"] += 1
        for stale in score.stale_references:
            if len(self.stale) < _NAMES_MAX:
                self.stale[stale.reference_id] = stale.tools
        for action in score.unsafe_actions:
            key = (action.tool, action.effect)
            if key not in self.unsafe_tools and len(self.unsafe_tools) >= _NAMES_MAX:
                key = (OTHERS, action.effect)
            self.unsafe_tools[key] += 1
        self._consider(run)

    @property
    def worth(self) -> list[Worth]:
        """The runs most worth looking at, first things first."""
        return [worth for _, worth in sorted(self._worth, key=lambda item: item[0], reverse=True)]

    @property
    def unsafe_rate(self) -> Rate:
        """Runs with at least one unsafe call, of all runs: it counts runs, not calls."""
        return self.everything.rate(UNSAFE)

    @property
    def unsafe_rate_checked(self) -> Rate:
        """The same of the runs whose task says what it allows."""
        return Rate.of(self.unsafe_rate.hits, self.everything.with_allowance)

    @property
    def tools_unknown(self) -> bool:
        """Unsafe calls were looked for without knowing any tool."""
        return not self._tools_known and self.everything.with_allowance > 0

    def flag_curve(self) -> list[FlagPoint]:
        """Return what one budget for all would flag, were it at a quantile of passing runs."""
        steps = self.groups["passing"].steps
        return [
            FlagPoint(share, at, steps.above(at) or 0.0)
            for share in QUANTILES
            if (at := steps.quantile(share)) is not None
        ]

    def as_record(self) -> dict[str, Any]:
        """Return the ``summary`` line."""
        return {
            "type": "summary",
            "runs": self.everything.runs,
            "outcomes": {name: group.as_record() for name, group in self.groups.items()},
            "all": self.everything.as_record(),
            "unsafe_rate": self.unsafe_rate.as_record(),
            "unsafe_rate_checked": self.unsafe_rate_checked.as_record(),
            "unsafe_tools": [
                {"tool": tool, "effect": effect, "calls": calls}
                for (tool, effect), calls in self.unsafe_tools.most_common()
            ],
            "budgets": dict(self.budgets.most_common()),
            "references": dict(self.references.most_common()),
            "stale_references": {name: list(tools) for name, tools in self.stale.items()},
            "flag_rate": self.groups["passing"].rate(OVER_BUDGET).as_record(),
            "flag_curve": [point._asdict() for point in self.flag_curve()],
            "worth_looking_at": [worth.as_record() for worth in self.worth],
        }

    def _consider(self, run: ScoredRun) -> None:
        """Keep the run if it is among the most worth looking at."""
        worth = worth_looking_at(run, self.repeat_ratio_max)
        if worth is None:
            return
        # The last part makes the order total, and of equals keeps those met first.
        item = ((*worth.weight, -self.everything.runs), worth)
        if len(self._worth) < SHOWN_MAX:
            heapq.heappush(self._worth, item)
        else:
            heapq.heappushpop(self._worth, item)


def group_of(outcome: str) -> str:
    """Return the column of an outcome."""
    return {PASSING: "passing", "failure": "failing"}.get(outcome, "other")


def _rule(score: PathScore) -> str:
    """Return the budget's rule without figures that differ from task to task."""
    if score.budget_rule is None:
        return "none"
    if score.budget_rule == "median_plus_sd" and score.budget_text is not None:
        basis = score.budget_text.partition(" runs of ")[2]
        wide = basis if basis in (OF_TASK, OF_ALL) else "the same file"
        return f"median_plus_sd of passing runs of {wide}"
    return score.budget_rule


def as_line(run: ScoredRun) -> Mapping[str, Any]:
    """Return the ``scorecard`` line of a run."""
    score = run.score
    extras = score.extras
    return {
        "type": "scorecard",
        "run_id": run.run_id,
        "task_id": run.task_id,
        "outcome": run.outcome,
        "steps": score.steps,
        "reference_coverage": _rounded(score.reference_coverage),
        "best_reference": score.best_reference,
        "step_budget": score.step_budget,
        "over_budget_by": score.over_budget_by,
        "repeat_ratio": _rounded(score.repeat_ratio),
        "extras": None
        if extras is None
        else {kind.value: getattr(extras, kind.value) for kind in ExtraKind},
        "unsafe_actions": [
            {
                "seq": action.seq,
                "tool": action.tool,
                "effect": action.effect,
                "args_sha256": action.args_sha256,
                "reason": action.reason,
            }
            for action in score.unsafe_actions
        ],
        "cost_usd": _rounded(score.cost_usd),
        "latency_s": _rounded(score.latency_s),
        "unsafe_count": score.unsafe_count,
        "unsafe_checked": score.unsafe_checked,
        "waste": score.waste,
        "distinct_tools": score.distinct_tools,
        "look": score.look,
        "missing_steps": list(score.missing_steps),
        "budget_rule": score.budget_rule,
        "budget_text": score.budget_text,
        "passing_median": score.passing_median,
        "reference_source": run.reference_source,
        "stale_references": [
            {"reference_id": stale.reference_id, "tools": list(stale.tools)}
            for stale in score.stale_references
        ],
        "defects": list(score.defects),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
