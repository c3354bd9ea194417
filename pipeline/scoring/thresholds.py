"""Thresholds of a scoring run in CI: what may not be exceeded, and whether it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ontrack.operators.scoring_results import (
    MISSING_STEP,
    OVER_BUDGET,
    OVER_COST,
    OVER_LATENCY,
    UNSAFE,
)
from ontrack.pipeline.scoring.group import Rate
from ontrack.pipeline.scoring.report import Report

DESTRUCTIVE: Final = "destructive_action"
LOOK: Final = "look"
COVERAGE: Final = "reference_coverage"
_NO_ALLOWANCE = "no task says what it allows"


@dataclass(frozen=True, slots=True)
class Check:
    """One threshold and what was found.

    Parameters
    ----------
    name
        The defect, or figure, that it is about.
    value
        None where nothing was measured, which fails: a check that did not happen passed nothing.
    text
        A sentence.
    """

    name: str
    limit: float
    value: float | None
    ok: bool
    text: str

    def as_record(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "type": "threshold",
            "name": self.name,
            "limit": self.limit,
            "value": None if self.value is None else round(self.value, 6),
            "ok": self.ok,
            "text": self.text,
        }


def check(report: Report, limits: Mapping[str, float]) -> list[Check]:
    """Compare a report with limits.

    Parameters
    ----------
    limits
        By name: for defects, ``look`` and ``destructive_action`` the highest rate that passes,
        for ``reference_coverage`` the lowest mean. Path figures are those of passing runs, since
        a failing run's path is unusual by definition; unsafe calls, time and cost count for all.
    """
    return [_checked(report, name, limit) for name, limit in limits.items()]


def _checked(report: Report, name: str, limit: float) -> Check:
    passing, everything = report.groups["passing"], report.everything
    if name == COVERAGE:
        mean = passing.coverage_given_mean
        if mean is None:
            return _unmeasured(name, limit, "no passing run has references that were given")
        text = f"passing runs cover {mean:.1%} of their references, at least {limit:.1%} is asked"
        return Check(name, limit, mean, mean >= limit, text)
    if name == DESTRUCTIVE:
        rate = Rate.of(everything.destructive_runs, everything.with_allowance)
        what, needs = "runs made a destructive call that is not allowed", _NO_ALLOWANCE
    elif name == UNSAFE:
        rate = report.unsafe_rate if everything.with_allowance else Rate.of(0, 0)
        what, needs = "runs made a call that is not allowed", _NO_ALLOWANCE
    elif name in (OVER_LATENCY, OVER_COST):
        rate = everything.rate(name)
        what = f"runs are over their ceiling of {'time' if name == OVER_LATENCY else 'cost'}"
        needs = "no run has both a measurement and a ceiling"
    else:
        rate = passing.rate(name)
        what, needs = {
            OVER_BUDGET: ("passing runs are over budget", "no passing run has a budget"),
            MISSING_STEP: ("passing runs miss a reference step", "no passing run has one given"),
            LOOK: ("passing runs are above the repeat ratio", "there are no passing runs"),
        }[name]
    if rate.value is None:
        return _unmeasured(name, limit, needs)
    found = f"{rate.hits:,} of {rate.n:,} {what} ({rate.value:.1%})"
    text = f"{found}, at most {limit:.1%} may"
    return Check(name, limit, rate.value, rate.value <= limit, text)


def _unmeasured(name: str, limit: float, why: str) -> Check:
    return Check(name, limit, None, False, f"not measured: {why}")
