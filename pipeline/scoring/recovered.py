"""What became of injected faults, by kind: how many were recovered, how soon, at what cost.

Rates have Wilson's 95 % interval, which takes faults as independent: with many faults in one run it
is too narrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ontrack.operators.recovery import Recovery
from ontrack.pipeline.scoring.files import ScoredRun
from ontrack.pipeline.scoring.group import Rate, Spread

ALL: Final = "all"
_MEASURES = ("calls", "cost_usd", "seconds")
_KINDS_MAX = 64
_OTHERS = "(others)"


class Recovered:
    """Faults of one kind."""

    def __init__(self) -> None:
        self.injected = 0
        self.recovered = 0
        self.unmeasured: Counter[str] = Counter()
        self.spreads = {name: Spread() for name in _MEASURES}

    def add(self, found: Recovery) -> None:
        """Take one fault."""
        self.injected += 1
        if found.unmeasured is not None:
            self.unmeasured[found.unmeasured] += 1
        elif found.recovered:
            self.recovered += 1
            for name, spread in self.spreads.items():
                spread.add(getattr(found, name))

    @property
    def rate(self) -> Rate:
        """Recovered faults, of those of which it can be told."""
        return Rate.of(self.recovered, self.injected - self.unmeasured.total())

    def median(self, name: str) -> float | None:
        """Return the median of calls, cost_usd or seconds of the recovered faults."""
        return self.spreads[name].quantile(0.5)

    def as_record(self) -> dict[str, Any]:
        """Return plain data."""
        rate = self.rate
        ends = {"value": rate.value, "low": rate.low, "high": rate.high}
        return {
            "injected": self.injected,
            "measured": rate.n,
            "recovered": self.recovered,
            "rate": {name: None if end is None else round(end, 6) for name, end in ends.items()},
            **{f"{name}_median": self.median(name) for name in _MEASURES},
            "unmeasured": dict(self.unmeasured),
        }


class RecoveryReport:
    """Faults of many runs, by kind and together."""

    def __init__(self) -> None:
        self.kinds: dict[str, Recovered] = {}
        self.everything = Recovered()

    def add(self, run: ScoredRun) -> None:
        """Take the faults of one run."""
        for found in run.recoveries:
            is_new = found.kind not in self.kinds and len(self.kinds) >= _KINDS_MAX
            self.kinds.setdefault(_OTHERS if is_new else found.kind, Recovered()).add(found)
            self.everything.add(found)

    def as_record(self) -> dict[str, Any]:
        """Return what the ``summary`` line holds of it."""
        named = {name: self.kinds[name].as_record() for name in sorted(self.kinds)}
        return {**named, ALL: self.everything.as_record()}

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row a kind, and one for all where there are several."""
        rows = [_row(name, self.kinds[name]) for name in sorted(self.kinds)]
        return [*rows, _row(ALL, self.everything)] if len(rows) > 1 else rows

    def notes(self) -> list[str]:
        """Say what could not be measured, and why."""
        if not self.everything.injected:
            return ["no injected faults in these runs: see `ontrack simulate`"]
        reasons = {
            "not_seen": "were put into recorded runs: what follows them there did not see them, so "
            "nothing can be said of recovery",
            "no_outcome": "are in runs that neither say how they ended nor have given references",
        }
        counts = self.everything.unmeasured.most_common()
        return [f"{count:,} faults {reasons[why]}" for why, count in counts]


HEADINGS: Final = (
    "fault",
    "injected",
    "recovered",
    "rate (95 %)",
    "median calls",
    "median $",
    "median s",
)


def _row(name: str, found: Recovered) -> tuple[str, ...]:
    rate = found.rate
    share = "not measured"
    if rate.value is not None:
        share = f"{rate.value:.1%} ({rate.low:.1%} … {rate.high:.1%})"
    medians = (found.median(measure) for measure in _MEASURES)
    return (
        name,
        f"{found.injected:,}",
        f"{found.recovered:,}" if rate.n else "",
        share,
        *("" if value is None else f"{value:g}" for value in medians),
    )


def as_lines(run: ScoredRun) -> Iterator[Mapping[str, Any]]:
    """Return a ``recovery`` line for each fault of a run."""
    for found in run.recoveries:
        yield {
            "type": "recovery",
            "run_id": run.run_id,
            "task_id": run.task_id,
            "outcome": run.outcome,
            "seq": found.seq,
            "tool": found.tool,
            "kind": found.kind,
            "recovered": found.recovered,
            "unmeasured": found.unmeasured,
            "way": found.way,
            "calls": found.calls,
            "cost_usd": None if found.cost_usd is None else round(found.cost_usd, 6),
            "seconds": found.seconds,
        }
