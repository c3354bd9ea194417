"""Executions of a plan: a valid order, chosen phrasings, and events with as much metadata as asked.

``execute`` draws a valid order of a task's steps; faults change that list; ``events_of`` writes it
down as events. Nothing here reads a clock: times, cost and tokens come from the run's seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, Literal

from ontrack.operators.artifacts import ArtifactParams, resolve_all
from ontrack.pipeline.workplace.world import Desk, StepPlan, TaskPlan
from ontrack.topics.events import (
    Agent,
    ErrorInfo,
    Event,
    Outcome,
    RunEnded,
    RunStarted,
    Step,
    Tokens,
)
from ontrack.topics.knowledge import ToolContract

Grade = Literal["full", "partial", "none"]

_USD_PER_INPUT_TOKEN, _USD_PER_OUTPUT_TOKEN = 3e-6, 15e-6
_VERSION = "1.0"


@dataclass(frozen=True, slots=True)
class Draft:
    """One call of a run before it is an event.

    Parameters
    ----------
    after
        The steps it builds on.
    waits_s
        Seconds that the answer takes beyond the usual.
    """

    key: str
    tool: str
    args: Mapping[str, Any]
    result: Any
    action: str
    after: tuple[str, ...] = ()
    error: ErrorInfo | None = None
    waits_s: float = 0.0

    def failed(self, error: ErrorInfo) -> Draft:
        """Return the same call, failed."""
        return replace(self, result=None, error=error)


def receipts(rng: Random) -> dict[str, str]:
    """Return the ids that naturally differ from run to run, by placeholder."""
    return {
        "$sha": f"{rng.getrandbits(28):07x}",
        "$number": str(rng.randrange(10_000, 99_999)),
        "$nonce": f"{rng.getrandbits(32):08x}",
    }


def draft(step: StepPlan, names: Mapping[str, str], rng: Random) -> Draft:
    """Return a planned step as a call, with placeholders filled and a phrasing chosen."""
    args, result = _filled(step.args, names), _filled(step.result, names)
    return Draft(step.key, step.tool, args, result, rng.choice(step.says), step.after)


def execute(task: TaskPlan, rng: Random) -> list[Draft]:
    """Return one valid execution: a random topological order of the task's steps."""
    names = receipts(rng)
    done: set[str] = set()
    waiting = list(task.steps)
    drafts: list[Draft] = []
    while waiting:
        step = rng.choice([step for step in waiting if done.issuperset(step.after)])
        waiting.remove(step)
        done.add(step.key)
        drafts.append(draft(step, names, rng))
        if step.pending is not None and rng.random() < 0.5:
            drafts.insert(-1, replace(drafts[-1], result=_filled(step.pending, names)))
    return drafts


def _filled(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for placeholder, name in names.items():
            value = value.replace(placeholder, name)
        return value
    if isinstance(value, Mapping):
        return {key: _filled(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, names) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class Header:
    """What all events of a run share."""

    run_id: str
    task_id: str
    tenant: str
    desk: Desk
    grade: Grade
    started_at: datetime
    outcome: Outcome
    reason: str | None


def events_of(header: Header, drafts: Sequence[Draft], rng: Random) -> Iterator[Event]:
    """Yield run_started, a step per draft and run_ended; ``seq`` counts the steps from 0."""
    desk = header.desk
    common: dict[str, Any] = {
        "run_id": header.run_id,
        "task_id": header.task_id,
        "tenant": header.tenant,
        "agent": Agent(id=desk.agent, name=desk.agent.replace("-", " "), version=_VERSION),
    }
    yield RunStarted(time=header.started_at, **common)
    contracts = {contract.name: contract for contract in desk.tools}
    now = header.started_at
    newest: dict[str, int] = {}
    for seq, item in enumerate(drafts):
        started = now + timedelta(milliseconds=rng.randrange(800, 5_000))
        now = started + timedelta(milliseconds=rng.randrange(100, 2_500), seconds=item.waits_s)
        tokens = Tokens(input=600 + 180 * seq + rng.randrange(200), output=rng.randrange(40, 160))
        yield Step(
            seq=seq,
            time=now,
            started_at=started,
            ended_at=now,
            call_id=f"call-{seq}-{rng.getrandbits(24):06x}",
            action=item.action,
            tool=item.tool,
            args=dict(item.args),
            result=item.result,
            error=item.error,
            tokens=tokens,
            cost_usd=_cost(tokens),
            **_metadata(header.grade, item, contracts.get(item.tool), newest),
            **common,
        )
        if item.error is None:
            newest[item.key] = seq
    yield RunEnded(
        time=now + timedelta(milliseconds=500),
        outcome=header.outcome,
        reward=1.0 if header.outcome == "success" else 0.0,
        reason=header.reason,
        **common,
    )


def consumed_by(item: Draft, contract: ToolContract | None) -> tuple[str, ...]:
    """Return the artifact ids that a call uses, as its contract says."""
    paths = contract.consumes if contract else ()
    return resolve_all(ArtifactParams(), paths, "args", dict(item.args), item.result)


def produced_by(item: Draft, contract: ToolContract | None) -> tuple[str, ...]:
    """Return the artifact ids that a call gives, as its contract says; none if it failed."""
    paths = contract.produces if contract and item.error is None else ()
    return resolve_all(ArtifactParams(), paths, "result", dict(item.args), item.result)


def _metadata(
    grade: Grade, item: Draft, contract: ToolContract | None, newest: Mapping[str, int]
) -> dict[str, Any]:
    if grade == "none":
        return {}
    ids: dict[str, Any] = {
        "consumed": consumed_by(item, contract),
        "produced": produced_by(item, contract),
    }
    if grade == "partial":
        return ids
    return {"parents": tuple(sorted(newest[key] for key in item.after if key in newest)), **ids}


def _cost(tokens: Tokens) -> float:
    spent = (tokens.input or 0) * _USD_PER_INPUT_TOKEN
    return round(spent + (tokens.output or 0) * _USD_PER_OUTPUT_TOKEN, 6)
