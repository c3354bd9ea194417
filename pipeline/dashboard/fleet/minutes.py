"""Fleet minutes: what was said, by minute, for sparklines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from ontrack.topics.verdicts import Decision, Intervention, Output, Scorecard, Verdict

MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Minutes:
    """Counts by minute, oldest first; every list is as long as ``starts_ms``.

    By name of verdict and of intervention, and by outcome; names without a count are left out.
    """

    starts_ms: tuple[int, ...] = ()
    verdicts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    interventions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    ended: dict[str, tuple[int, ...]] = field(default_factory=dict)
    blocks: tuple[int, ...] = ()


class MinuteCounts:
    """Counters of the latest minutes.

    Parameters
    ----------
    minutes_max
        How many are kept; the earliest go first.
    """

    def __init__(self, minutes_max: int) -> None:
        self._minutes_max = minutes_max
        self._counts: dict[int, Counter[tuple[str, str]]] = {}

    def said(self, output: Output, time_ms: int) -> None:
        """Count an output."""
        if isinstance(output, Verdict):
            what = "verdicts", output.verdict.value
        elif isinstance(output, Intervention):
            what = "interventions", output.intervention.value
        elif isinstance(output, Scorecard):
            what = "ended", output.outcome
        elif isinstance(output, Decision) and output.decision == "block":
            what = "blocks", "block"
        else:
            return
        self._counts.setdefault(time_ms // MINUTE_MS, Counter())[what] += 1
        if len(self._counts) > self._minutes_max:
            del self._counts[min(self._counts)]

    def read(self, now_ms: int, count: int) -> Minutes:
        """Return ``count`` minutes up to the one of ``now_ms``."""
        last = now_ms // MINUTE_MS
        numbers = range(last - count + 1, last + 1)
        here = [self._counts.get(number, Counter()) for number in numbers]
        found: dict[str, dict[str, tuple[int, ...]]] = {}
        for kind, name in sorted({key for counts in here for key in counts}):
            line = tuple(counts[kind, name] for counts in here)
            found.setdefault(kind, {})[name] = line
        return Minutes(
            tuple(number * MINUTE_MS for number in numbers),
            found.get("verdicts", {}),
            found.get("interventions", {}),
            found.get("ended", {}),
            found.get("blocks", {}).get("block", (0,) * len(numbers)),
        )
