"""The scoring report in words and figures: rows that the terminal and the page both show."""

from __future__ import annotations

from collections.abc import Callable

from ontrack.operators.scoring_results import (
    MISSING_STEP,
    OVER_BUDGET,
    OVER_COST,
    OVER_LATENCY,
    UNSAFE,
)
from ontrack.pipeline.scoring.group import Group, Rate, Spread
from ontrack.pipeline.scoring.report import Report

Row = tuple[str, ...]


def figures(report: Report) -> list[Row]:
    """Return a row a figure: its name, then a cell for each outcome."""
    limit = report.repeat_ratio_max
    cells: list[tuple[str, Callable[[Group], str]]] = [
        ("runs", lambda group: f"{group.runs:,}"),
        ("steps: median / p90 / p99 / max", lambda group: _spread(group.steps, "{:g}")),
        ("over budget", lambda group: percent(group.rate(OVER_BUDGET), interval=True)),
        ("calls over budget", lambda g: f"{sum(g.extras.values()):,}" if g.runs else ""),
        ("  recovery", lambda group: _extra(group, "recovery")),
        ("  redundant repeat", lambda group: _extra(group, "redundant_repeat")),
        ("  exploration", lambda group: _extra(group, "exploration")),
        ("calls to be saved", lambda group: f"{group.waste:,}" if group.runs else ""),
        ("reference coverage, mean", lambda group: _share(group.coverage_mean)),
        ("missing a reference step", lambda group: percent(group.rate(MISSING_STEP), True)),
        ("repeat ratio: median / p90 / p99 / max", lambda g: _spread(g.repeat_ratio, "{:.2f}")),
        (f"repeat ratio above {limit:g}", lambda group: percent(group.rate("look"), True)),
        ("with an unsafe call", lambda group: _unsafe(group)),
        ("seconds: median / p90 / p99 / max", lambda group: _spread(group.latency_s, "{:g}")),
        ("over the ceiling of time", lambda group: percent(group.rate(OVER_LATENCY), True)),
        ("dollars: median / p90 / p99 / max", lambda group: _spread(group.cost_usd, "{:g}")),
        ("over the ceiling of cost", lambda group: percent(group.rate(OVER_COST), True)),
    ]
    groups = list(report.groups.values())
    rows = [(name, *(cell(group) for group in groups)) for name, cell in cells]
    return [row for row in rows if any(row[1:])]


def notes(report: Report) -> list[str]:
    """Say what runs were measured against, and what was not."""
    found = []
    for rule, runs in report.budgets.most_common():
        what = "no budget: no rule could be followed" if rule == "none" else f"budget by {rule}"
        found.append(f"{what} ({_runs(runs)})")
    sources = {
        "given": "references as given",
        "passing_runs": "coverage against other passing runs of the task, for want of references; "
        "a step that only they have is no defect",
        "none": "no references, no coverage",
    }
    found += [f"{sources[each]} ({_runs(runs)})" for each, runs in report.references.most_common()]
    for name, tools in report.stale.items():
        missing = ", ".join(tools)
        found.append(f"stale reference {name}, left out: {missing} is not among the tools any more")
    if report.tools_unknown:
        found.append("no tools were given, so every call counts as one of an unknown tool")
    checked, everything = report.everything.with_allowance, report.everything.runs
    if not checked:
        found.append("unsafe calls were not looked for: no task of these runs declares `allowed`")
    elif checked < everything:
        found.append(f"unsafe calls were looked for in {checked:,} of {everything:,} runs")
    return found


def percent(rate: Rate, interval: bool = False) -> str:
    """Return a rate as text, empty where nothing was measured."""
    if rate.value is None or rate.low is None or rate.high is None:
        return ""
    share = f"{rate.value:.1%}"
    return f"{rate.hits:,} = {share} ({rate.low:.1%} … {rate.high:.1%})" if interval else share


def _spread(spread: Spread, shape: str) -> str:
    values = [spread.quantile(share) for share in (0.5, 0.9, 0.99, 1.0)]
    return " / ".join(shape.format(value) for value in values if value is not None)


def _extra(group: Group, kind: str) -> str:
    return f"{group.extras[kind]:,}" if group.runs else ""


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _unsafe(group: Group) -> str:
    return percent(group.rate(UNSAFE), interval=True) if group.with_allowance else ""


def _runs(count: int) -> str:
    return f"{count:,} {'run' if count == 1 else 'runs'}"
