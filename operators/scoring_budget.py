"""Step budgets: how many calls a task may take, and by which rule the number came about."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ontrack.operators.scoring_coverage import ReferencePath
from ontrack.topics.knowledge import StepBudget

Rule = Literal["reference_plus", "median_plus_sd", "fixed"]

#: Whose passing runs were observed, where they are those of the task itself.
OF_TASK: Final = "the task"
_ROUNDING = 1e-9  # a median plus deviations that is a whole number but for rounding is that number


@dataclass(frozen=True, slots=True)
class Observed:
    """Step counts of passing runs, summed up.

    Parameters
    ----------
    runs
        How many; at least one.
    median, sd
        Of their steps; ``sd`` with n - 1, 0 for a single run.
    basis
        Which runs these are, in words: ``the task``.
    """

    runs: int
    median: float
    sd: float
    basis: str = OF_TASK

    @classmethod
    def of(cls, steps: Mapping[int, int] | Iterable[int], basis: str = OF_TASK) -> Observed | None:
        """Sum up step counts, given one by one or as {steps: runs}; None where there are none."""
        counts: dict[int, int] = {}
        if isinstance(steps, Mapping):
            counts = {value: count for value, count in sorted(steps.items()) if count}
        else:
            for value in sorted(steps):
                counts[value] = counts.get(value, 0) + 1
        runs = sum(counts.values())
        if not runs:
            return None
        mean = sum(value * count for value, count in counts.items()) / runs
        squares = sum((value - mean) ** 2 * count for value, count in counts.items())
        sd = math.sqrt(squares / (runs - 1)) if runs > 1 else 0.0
        low, high = _at(counts, (runs - 1) // 2), _at(counts, runs // 2)
        return cls(runs, (low + high) / 2, sd, basis)


@dataclass(frozen=True, slots=True)
class Budget:
    """A number of calls and where it comes from.

    Parameters
    ----------
    steps
        Calls that are within the budget; one more is over it.
    rule
        As tasks write it.
    value
        The rule's own number: margin, standard deviations, or the budget itself.
    text
        The rule in words, with its figures.
    """

    steps: int
    rule: Rule
    value: float
    text: str

    def over(self, steps: int) -> int:
        """Return by how many calls a run is over the budget, 0 if it is not."""
        return max(0, steps - self.steps)


def budget_of(
    asked: StepBudget | None,
    paths: Sequence[ReferencePath],
    observed: Observed | None,
    margin: float = 3,
    deviations: float = 2.0,
    observed_min: int = 3,
) -> Budget | None:
    """Set a task's budget by the rule it asks for, or by the first rule that can be followed.

    Without a rule: the references' length plus a margin, else median plus standard deviations of
    passing runs. What a rule needs and is not there gives None, never another rule's number.

    Parameters
    ----------
    asked
        The task's rule; its value stands in for ``margin`` or ``deviations``.
    paths
        References that are not stale. The longest sets the length: each is a valid order, and
        none may be over budget by itself.
    observed
        Steps of passing runs; of fewer than ``observed_min`` runs no spread can be told.
    """
    if asked is None:
        asked = StepBudget(rule="reference_plus", value=margin)
        if not paths:
            asked = StepBudget(rule="median_plus_sd", value=deviations)
    if asked.rule == "fixed":
        text = f"{asked.value:g} by the task"
        return Budget(_whole(asked.value), "fixed", asked.value, text)
    if asked.rule == "reference_plus":
        if not paths:
            return None
        longest = max(paths, key=lambda path: len(path.tools))
        length = len(longest.tools)
        text = f"reference of {length} {'call' if length == 1 else 'calls'} + {asked.value:g}"
        return Budget(_whole(length + asked.value), "reference_plus", asked.value, text)
    if observed is None or observed.runs < observed_min:
        return None
    text = (
        f"median {observed.median:g} + {asked.value:g} sd of {observed.sd:.2f}, "
        f"{observed.runs:,} passing runs of {observed.basis}"
    )
    limit = observed.median + asked.value * observed.sd
    return Budget(_whole(limit), "median_plus_sd", asked.value, text)


def _whole(limit: float) -> int:
    """Return the most calls that do not exceed a limit."""
    return math.floor(limit + _ROUNDING)


def _at(counts: Mapping[int, int], place: int) -> int:
    """Return the value at a 0-based place of the sorted values."""
    for value, count in counts.items():
        place -= count
        if place < 0:
            return value
    raise IndexError(place)
