"""Weights of trajectory distance: what calls and arguments cost, by tool or by what it can do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ontrack.topics.knowledge import Effect, ToolContract

EFFECT_WEIGHTS: Final[Mapping[Effect, float]] = {
    Effect.READ: 1.0,
    Effect.WRITE: 3.0,
    Effect.DESTRUCTIVE: 10.0,
    Effect.UNKNOWN: 1.0,
}
"""What a call costs by what its tool can do: a needless deletion is worse than a needless look."""


@dataclass(frozen=True, slots=True)
class ToolWeights:
    """What one tool's calls cost.

    Parameters
    ----------
    step
        A call that is missing, or one too many; its arguments come on top.
    argument
        An argument that is not named in ``arguments``.
    arguments
        Arguments by name.

    Raises
    ------
    ValueError
        If a weight is negative or not finite.
    """

    step: float = 1.0
    argument: float = 1.0
    arguments: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = {f"argument {name!r}": weight for name, weight in self.arguments.items()}
        for name, weight in ({"step": self.step, "argument": self.argument} | named).items():
            if not (weight >= 0.0 and math.isfinite(weight)):
                raise ValueError(
                    f"the weight of {name} must be finite and not negative, got {weight}"
                )

    def of(self, argument: str) -> float:
        """Return the weight of an argument."""
        return self.arguments.get(argument, self.argument)


@dataclass(frozen=True, slots=True)
class StepWeights:
    """What calls cost, by tool; ``default`` for tools that are not named."""

    tools: Mapping[str, ToolWeights] = field(default_factory=dict)
    default: ToolWeights = ToolWeights()

    def of(self, tool: str) -> ToolWeights:
        """Return the weights of a tool."""
        return self.tools.get(tool, self.default)


def weights_by_effect(
    contracts: Iterable[ToolContract], effects: Mapping[Effect, float] = EFFECT_WEIGHTS
) -> StepWeights:
    """Return weights of calls by what their tools can do; arguments cost 1 each.

    A tool without a contract costs what ``Effect.UNKNOWN`` does.

    Examples
    --------
    >>> from ontrack.operators.trajectory import TrajectoryDistance
    >>> contracts = [ToolContract(name="look", effect="read"),
    ...              ToolContract(name="delete", effect="destructive")]
    >>> distance = TrajectoryDistance(weights=weights_by_effect(contracts))
    >>> distance(["look", "look"], ["look"]).distance
    1.0
    >>> distance(["look", "delete"], ["look"]).distance
    10.0
    """
    return StepWeights(
        {each.name: ToolWeights(step=effects[each.effect]) for each in contracts},
        ToolWeights(step=effects[Effect.UNKNOWN]),
    )
