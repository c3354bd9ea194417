"""Staleness: references that no longer fit the tools, the task, or how the task is done now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ontrack.operators.mining import Success
from ontrack.operators.stripping import (
    Contracts,
    StripParams,
    effects_of,
    may_write,
    numbered,
    strip_retries,
)
from ontrack.topics.knowledge import Reference, Task


@dataclass(frozen=True, slots=True)
class Stale:
    """What is wrong with a reference: which tool, and a sentence that says what to do."""

    reference: Reference
    kind: Literal["missing_tool", "effect_changed", "not_allowed"]
    tool: str
    text: str


@dataclass(frozen=True, slots=True)
class Shorter:
    """A success that reached a reference's effectful calls in fewer steps."""

    reference: Reference
    run_id: str
    run_steps: int
    effects: int

    @property
    def text(self) -> str:
        """A sentence to act on."""
        calls = "call" if self.effects == 1 else "calls"
        return (
            f"run {self.run_id} reached the same {self.effects} effectful {calls} in "
            f"{self.run_steps} steps instead of {len(self.reference.steps)}: where runs cover less "
            "of this reference it is a shorter path, not a regression; mine again with newer runs"
        )


def stale(
    params: StripParams,
    contracts: Contracts,
    tasks: Mapping[str, Task],
    references: Sequence[Reference],
) -> list[Stale]:
    """Find references that contracts or tasks have moved away from.

    A tool without a contract counts where there are contracts at all; a changed effect where the
    reference's record says what it was; an effectful tool that the task does not allow where the
    task says what it allows. Conditions of an allowance are not looked at.
    """
    found: list[Stale] = []
    for reference in references:
        task = tasks.get(reference.task_id)
        allowed = None if task is None or task.allowed is None else {a.tool for a in task.allowed}
        effects = {} if reference.mined is None else reference.mined.effects
        for tool in dict.fromkeys(step.tool for step in reference.steps):
            contract = contracts.get(tool)
            if contract is None:
                if contracts:
                    text = f"{tool} is not among the tools; drop the reference, or add its contract"
                    found.append(Stale(reference, "missing_tool", tool, text))
                continue
            before = effects.get(tool, contract.effect)
            if before is not contract.effect:
                text = (
                    f"{tool} was declared {before} when this was mined and is {contract.effect} "
                    "now; check the reference, then mine again"
                )
                found.append(Stale(reference, "effect_changed", tool, text))
            if allowed is not None and may_write(params, tool, contracts) and tool not in allowed:
                text = f"{tool} has an effect that the task does not allow; drop the reference"
                found.append(Stale(reference, "not_allowed", tool, text))
    return found


def shorter(
    params: StripParams,
    contracts: Contracts,
    references: Sequence[Reference],
    successes: Mapping[str, Sequence[Success]],
) -> list[Shorter]:
    """Find references that a newer success undercuts: the same effectful calls, fewer steps.

    Retries of the success do not count. References without effectful calls say nothing about where
    the task ends, so they are passed over.

    Parameters
    ----------
    successes
        By task.
    """
    found: list[Shorter] = []
    best: dict[tuple[str, tuple[bytes, ...]], tuple[int, str]] = {}
    for task_id in {reference.task_id for reference in references}:
        for success in successes.get(task_id, ()):
            steps = strip_retries(params, numbered(success.steps), contracts).steps
            key = (task_id, effects_of(params, steps, contracts))
            best[key] = min(
                best.get(key, (len(steps), success.run_id)), (len(steps), success.run_id)
            )
    for reference in references:
        effects = effects_of(params, reference.steps, contracts)
        length, run_id = best.get((reference.task_id, effects), (len(reference.steps), ""))
        if effects and length < len(reference.steps):
            found.append(Shorter(reference, run_id, length, len(effects)))
    return found
