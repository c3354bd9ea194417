"""One figure of an experiment, as a value: what ``ontrack evaluate --json`` prints a line of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

DIGITS = 4


class Estimate(NamedTuple):
    """A value with its 95 % interval; None where there is no interval or no data.

    ``n`` is the number of runs (or calls) that the value rests on.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure.

    Parameters
    ----------
    experiment, corpus, profile
        What was measured, on which runs, under which profile of settings.
    method
        What is being judged: a score, a baseline, a fault, a policy.
    measure
        What was measured of it, such as ``auroc_within_task``.
    k
        Number of steps seen; None where the whole run was.
    more
        Counts and names that explain the value.
    """

    experiment: str
    corpus: str
    profile: str
    method: str
    measure: str
    estimate: Estimate
    k: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def as_record(self) -> dict[str, Any]:
        """Return the fields of the JSON line; more digits than four mean nothing here."""
        value, low, high, n = self.estimate
        return {
            "type": "measure",
            "experiment": self.experiment,
            "corpus": self.corpus,
            "profile": self.profile,
            "method": self.method,
            "measure": self.measure,
            "k": self.k,
            "value": _rounded(value),
            "low": _rounded(low),
            "high": _rounded(high),
            "n": n,
            **self.more,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, DIGITS)
