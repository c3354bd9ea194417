"""Runs of one outcome, added up: rates with intervals, and distributions by value.

Rates count runs and have Wilson's 95 % interval, which takes runs as independent. Distributions
are exact counts by value, with times and prices at three significant digits, so that they grow
with the values that occur and not with the runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from ontrack.operators.rates import wilson
from ontrack.operators.scoring_extras import ExtraKind
from ontrack.operators.scoring_results import (
    DEFECTS,
    MISSING_STEP,
    OVER_BUDGET,
    OVER_COST,
    OVER_LATENCY,
)
from ontrack.pipeline.scoring.files import ScoredRun

QUANTILES: Final = (0.5, 0.75, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of runs with its interval; None where nothing was measured."""

    hits: int
    n: int
    value: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(cls, hits: int, n: int) -> Rate:
        """Return the share of ``hits`` in ``n`` runs."""
        if n == 0:
            return cls(hits, 0, None, None, None)
        return cls(hits, n, hits / n, *wilson(hits, n))

    def as_record(self) -> dict[str, Any]:
        """Return plain data, rounded."""
        ends = {"value": self.value, "low": self.low, "high": self.high}
        rounded = {name: None if end is None else round(end, 6) for name, end in ends.items()}
        return {"runs": self.hits, "n": self.n, **rounded}


class Spread:
    """A distribution by value."""

    def __init__(self) -> None:
        self.counts: Counter[float] = Counter()

    def add(self, value: float | None) -> None:
        """Count a value; three significant digits stay."""
        if value is not None:
            self.counts[value if isinstance(value, int) else float(f"{value:.3g}")] += 1

    @property
    def n(self) -> int:
        """Values counted."""
        return self.counts.total()

    def quantile(self, share: float) -> float | None:
        """Return the smallest value with at least this share of all at or below it."""
        wanted, below = share * self.n, 0
        for value, count in sorted(self.counts.items()):
            below += count
            if below >= wanted - 1e-9:
                return value
        return None

    def above(self, limit: float) -> float | None:
        """Return the share of values above a limit."""
        if not self.n:
            return None
        return sum(count for value, count in self.counts.items() if value > limit) / self.n

    def as_record(self) -> dict[str, float | None]:
        """Return quantiles and the maximum."""
        found = {f"p{share * 100:.0f}": self.quantile(share) for share in QUANTILES}
        return found | {"max": max(self.counts, default=None)}


@dataclass
class Group:
    """Runs of one outcome."""

    runs: int = 0
    steps: Spread = field(default_factory=Spread)
    repeat_ratio: Spread = field(default_factory=Spread)
    coverage: Spread = field(default_factory=Spread)
    latency_s: Spread = field(default_factory=Spread)
    cost_usd: Spread = field(default_factory=Spread)
    with_reference: int = 0
    with_budget: int = 0
    with_allowance: int = 0
    with_latency_max: int = 0
    with_cost_max: int = 0
    look: int = 0
    covered_sum: float = 0.0
    covered_given_sum: float = 0.0
    extras: Counter[str] = field(default_factory=Counter)
    waste: int = 0
    unsafe_calls: int = 0
    destructive_runs: int = 0
    defects: Counter[str] = field(default_factory=Counter)

    def add(self, run: ScoredRun) -> None:
        """Take one run."""
        score = run.score
        self.runs += 1
        for spread in ("steps", "repeat_ratio", "latency_s", "cost_usd"):
            getattr(self, spread).add(getattr(score, spread))
        self.coverage.add(score.reference_coverage)
        covered = score.reference_coverage or 0.0
        self.covered_sum += covered
        self.covered_given_sum += covered if run.reference_source == "given" else 0.0
        self.with_reference += run.reference_source == "given"
        self.with_latency_max += None not in (score.latency_s, score.latency_s_max)
        self.with_cost_max += None not in (score.cost_usd, score.cost_usd_max)
        self.with_budget += score.step_budget is not None
        self.with_allowance += score.unsafe_checked
        self.look += score.look
        self.waste += score.waste or 0
        self.unsafe_calls += score.unsafe_count
        self.destructive_runs += any(a.response == "stop" for a in score.unsafe_actions)
        self.defects.update(score.defects)
        if score.extras is not None:
            for kind in ExtraKind:
                self.extras[kind.value] += getattr(score.extras, kind.value)

    @property
    def coverage_mean(self) -> float | None:
        """Mean coverage of the runs that have references."""
        return self.covered_sum / self.coverage.n if self.coverage.n else None

    @property
    def coverage_given_mean(self) -> float | None:
        """Mean coverage of the runs whose references were given."""
        return self.covered_given_sum / self.with_reference if self.with_reference else None

    def rate(self, what: str) -> Rate:
        """Return the rate of a defect, or of ``look``, among the runs it was measured on."""
        if what == "look":
            return Rate.of(self.look, self.runs)
        measured = {
            MISSING_STEP: self.with_reference,
            OVER_BUDGET: self.with_budget,
            OVER_LATENCY: self.with_latency_max,
            OVER_COST: self.with_cost_max,
        }
        return Rate.of(self.defects[what], measured.get(what, self.runs))

    def as_record(self) -> dict[str, Any]:
        """Return plain data."""
        spreads = ("steps", "repeat_ratio", "latency_s", "cost_usd")
        return {
            "runs": self.runs,
            **{name: getattr(self, name).as_record() for name in spreads},
            "reference_coverage_mean": self.coverage_mean,
            "look": self.rate("look").as_record(),
            **{name: self.rate(name).as_record() for name in DEFECTS},
            "extras": {kind.value: self.extras[kind.value] for kind in ExtraKind},
            "waste": self.waste,
            "unsafe_calls": self.unsafe_calls,
            "destructive_runs": self.destructive_runs,
        }
