"""What can be calibrated: single thresholds, the values tried, and what each is weighed by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from ontrack.pipeline.calibrated import Budget

Limit = Literal["loops", "halts", "alarms", "blocks"]
Gain = Literal[
    "auroc after 5 steps",
    "failures warned",
    "failures halted",
    "injected streaks found",
    "injected calls blocked",
]
Value = int | float | str


@dataclass(frozen=True, slots=True)
class Knob:
    """One threshold.

    Parameters
    ----------
    key
        Its name below ``operators``, with dots.
    values
        What is tried, beside the profile's own value.
    limit
        The budget that clean runs must keep.
    gain
        What is made as large as possible within it.
    """

    key: str
    values: tuple[Value, ...]
    limit: Limit
    gain: Gain

    def budget(self, budget: Budget) -> float:
        """Return the largest share of clean runs that may be disturbed."""
        return float(getattr(budget, self.limit))


_LAMBDA: Final = Knob(
    "transport.solver.lam", (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0), "alarms", "auroc after 5 steps"
)

#: In the order in which they are chosen; each is tried with the choices before it.
KNOBS: Final[dict[str, tuple[Knob, ...]]] = {
    "default": (
        Knob("repeats.repeats_max", (2, 3, 4, 5, 6), "loops", "failures warned"),
        Knob("repeats.grace", (1, 2, 3, 4, 6), "halts", "failures halted"),
        Knob(
            "orphans.orphan_cost",
            (0.35, 0.4, 0.45, 0.5, 0.55, 0.6),
            "alarms",
            "injected streaks found",
        ),
        Knob("identity.mode", ("values", "sources", "tools"), "blocks", "injected calls blocked"),
        _LAMBDA,  # no verdict of this profile rests on it, only the ranking score
    ),
    "paper": (
        _LAMBDA,
        Knob("loop.window", (1, 2, 4, 8, 16, 64), "loops", "failures warned"),
        Knob("stall.window", (4, 6, 8, 12), "loops", "failures warned"),
        Knob("abort.density", (0.4, 0.6, 0.8, 1.0), "halts", "failures halted"),
        Knob(
            "exploration.orphan_budget",
            (0.15, 0.25, 0.35, 0.5, 0.75),
            "alarms",
            "injected streaks found",
        ),
        Knob("gate.match_cost_max", (0.3, 0.4, 0.5, 0.6), "blocks", "injected calls blocked"),
    ),
}


def current(profile: Any, key: str) -> Value | None:
    """Return a profile's own value; None where its operator is off."""
    value = profile
    for name in key.split("."):
        if value is None:
            return None
        value = getattr(value, name)
    found: Value | None = value
    return found


def with_value(operators: dict[str, Any], key: str, value: Value) -> dict[str, Any]:
    """Return changes to a profile with one more; the given ones stay as they are."""
    name, _, rest = key.partition(".")
    if not rest:
        return {**operators, name: value}
    inner = operators.get(name)
    return {**operators, name: with_value(inner if isinstance(inner, dict) else {}, rest, value)}
