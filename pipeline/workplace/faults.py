"""Faults of simulated runs: each changes a valid execution in one known way at a known step.

``retry`` and ``exploration`` are benign: they must raise no alarm, and their runs succeed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from ontrack.pipeline.workplace.execution import (
    Draft,
    consumed_by,
    draft,
    produced_by,
    receipts,
)
from ontrack.pipeline.workplace.foreign import FOREIGN
from ontrack.pipeline.workplace.world import Desk, TaskPlan
from ontrack.topics.events import ErrorInfo, Outcome
from ontrack.topics.knowledge import Effect, ToolContract

ERRORS = (
    ErrorInfo(type="timeout", message="The tool did not answer within 30 seconds."),
    ErrorInfo(type="rate_limited", message="Too many requests. Try again in a moment."),
    ErrorInfo(type="unavailable", message="503: the service is restarting."),
)


@dataclass(frozen=True, slots=True)
class Injected:
    """An execution with a fault: its calls, the first call of the fault, how the run ends."""

    drafts: list[Draft]
    onset: int
    outcome: Outcome
    reason: str | None


@dataclass(frozen=True, slots=True)
class Scene:
    """What a fault is put into: a valid execution of a task at a desk, and the fault's dice."""

    desk: Desk
    task: TaskPlan
    drafts: list[Draft]
    rng: Random

    def contract(self, item: Draft) -> ToolContract:
        """Return the contract of a call's tool; every planned step has one."""
        return next(contract for contract in self.desk.tools if contract.name == item.tool)


def loop(scene: Scene) -> Injected:
    """Repeat the last two calls four to six times more: same arguments, same results."""
    drafts, rng = scene.drafts, scene.rng
    last = rng.choice([i for i in range(1, len(drafts) - 1) if _may_cycle(scene, i)])
    cycle = drafts[last - 1 : last + 1]
    looped = drafts[: last + 1] + cycle * rng.randint(4, 6)
    return Injected(looped, last + 1, "failure", "the step limit was reached")


def _may_cycle(scene: Scene, last: int) -> bool:
    """Whether these two calls would be repeated by mistake, and not because they poll."""
    pair = scene.drafts[last - 1 : last + 1]
    contracts = [scene.contract(item) for item in pair]
    return pair[0].key != pair[1].key and not any(
        contract.poll or contract.effect is Effect.DESTRUCTIVE for contract in contracts
    )


def stall(scene: Scene) -> Injected:
    """Ask one tool the same thing six to eight times in other words, with the same answer."""
    plan, rng = scene.desk.stall, scene.rng
    at = rng.randint(2, len(scene.drafts) // 2)
    asked = rng.sample(plan.variants, rng.randint(6, 8))
    calls = [
        Draft(f"stall_{i}", plan.tool, args, plan.result, rng.choice(plan.says))
        for i, args in enumerate(asked)
    ]
    return Injected(scene.drafts[:at] + calls, at, "failure", "no progress")


def hallucination(scene: Scene) -> Injected:
    """Turn to three to five steps of a foreign domain and never come back."""
    rng = scene.rng
    at = rng.randint(2, len(scene.drafts) - 2)
    steps = rng.choice(FOREIGN)[: rng.randint(3, 5)]
    calls = [draft(step, {}, rng) for step in steps]
    return Injected(scene.drafts[:at] + calls, at, "failure", "the task was not done")


def inversion(scene: Scene) -> Injected:
    """Do a step directly after the first one, long before what it depends on.

    None of its producers has run, nor could run yet: two levels are skipped at least. Steps that
    can be undone come first, since the others are a gate's business; then the deepest.
    """
    drafts, levels = scene.drafts, scene.task.levels()
    after = {step.key: set(step.after) for step in scene.task.steps}
    first = drafts[0].key
    near = {key for key, producers in after.items() if producers <= {first}} | {first}
    close = {
        artifact
        for item in drafts
        if item.key in near
        for artifact in produced_by(item, scene.contract(item))
    }

    def rank(item: Draft) -> tuple[bool, int]:
        return not _irreversible(scene.contract(item)), levels[item.key]

    ahead = [
        item
        for item in drafts
        if item.key not in near
        and not after[item.key] & near
        and close.isdisjoint(consumed_by(item, scene.contract(item)))
    ]
    early = max(ahead, key=rank)
    others = [item for item in drafts[1:] if item is not early]
    reason = f"{early.tool} ran before what it depends on"
    return Injected([drafts[0], early, *others], 1, "failure", reason)


def _irreversible(contract: ToolContract) -> bool:
    return contract.effect is Effect.DESTRUCTIVE or bool(contract.external)


def irreversible(scene: Scene) -> Injected:
    """Make a destructive call with ids that no tool ever returned."""
    rng = scene.rng
    at = rng.randint(2, len(scene.drafts) - 1)
    call = draft(rng.choice(scene.desk.invented), {}, rng)
    return Injected([*scene.drafts[:at], call], at, "failure", f"{call.tool} was not asked for")


def missing_artifact(scene: Scene) -> Injected:
    """Ask for an id that nobody has produced: the right one with another ending."""
    rng = scene.rng
    at = rng.choice([i for i in range(1, len(scene.drafts)) if _id_in_args(scene, i) is not None])
    item, wanted = scene.drafts[at], _id_in_args(scene, at)
    assert wanted is not None
    wrong = f"{wanted}-{receipts(rng)['$nonce'][:4]}"
    asked = replace(
        item,
        args=with_id_swapped(item.args, wanted, wrong),
        result={"status": "not_found", "message": f"There is no {wrong}."},
    )
    return Injected([*scene.drafts[:at], asked], at, "failure", "an id was not found")


def _id_in_args(scene: Scene, at: int) -> str | None:
    """Return an artifact id in the arguments of a call that can come back empty-handed."""
    item = scene.drafts[at]
    contract = scene.contract(item)
    always_gives = any(path.startswith("=") for path in contract.produces)
    if contract.effect is Effect.DESTRUCTIVE or always_gives:
        return None
    consumed = consumed_by(item, contract)
    return next((name for name in consumed if f"={name}" not in contract.consumes), None)


def with_id_swapped(value: Any, old: str, new: Any) -> Any:
    """Return a value with another in place of every text that equals ``old``."""
    if isinstance(value, Mapping):
        return {key: with_id_swapped(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [with_id_swapped(item, old, new) for item in value]
    return new if value == old else value


def tool_error(scene: Scene) -> Injected:
    """Meet an error and give up."""
    rng = scene.rng
    at = rng.randint(2, len(scene.drafts) - 1)
    error = rng.choice(ERRORS)
    failed = scene.drafts[at].failed(error)
    return Injected([*scene.drafts[:at], failed], at, "failure", f"{failed.tool}: {error.message}")


def retry(scene: Scene) -> Injected:
    """Meet an error in a call that may be repeated, and repeat it with success. Benign."""
    rng = scene.rng
    harmless = [
        i
        for i in range(1, len(scene.drafts))
        if scene.contract(scene.drafts[i]).effect is not Effect.DESTRUCTIVE
    ]
    at = rng.choice(harmless)
    failed = scene.drafts[at].failed(rng.choice(ERRORS))
    return Injected([*scene.drafts[:at], failed, *scene.drafts[at:]], at, "success", None)


def exploration(scene: Scene) -> Injected:
    """Look into something else for two reads, drop it and go on. Benign."""
    rng = scene.rng
    at = rng.randint(2, len(scene.drafts) - 1)
    first, second = (draft(step, {}, rng) for step in scene.desk.side_branch)
    first = replace(first, after=(scene.drafts[at - 1].key,))
    calls = [*scene.drafts[:at], first, second, *scene.drafts[at:]]
    return Injected(calls, at, "success", None)


INJECTORS: dict[str, Callable[[Scene], Injected]] = {
    "loop": loop,
    "stall": stall,
    "hallucination": hallucination,
    "inversion": inversion,
    "irreversible": irreversible,
    "missing_artifact": missing_artifact,
    "tool_error": tool_error,
    "retry": retry,
    "exploration": exploration,
}

BENIGN = ("retry", "exploration")
FAULTS = tuple(name for name in INJECTORS if name not in BENIGN)
