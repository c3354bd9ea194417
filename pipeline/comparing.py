"""Comparing recorded runs with others: who is compared with whom, and at which weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ontrack.operators.redaction import Redaction
from ontrack.operators.trajectory import (
    EFFECT_WEIGHTS,
    StepWeights,
    TrajectoryComparison,
    TrajectoryDistance,
    weights_by_effect,
)
from ontrack.pipeline.reading.event_reader import AUTO, EventReader, SourceEvent
from ontrack.pipeline.reading.runs import by_run, in_order
from ontrack.pipeline.reading.sources import expand
from ontrack.topics.codecs import Limits
from ontrack.topics.errors import InvalidInput
from ontrack.topics.events import Step
from ontrack.topics.knowledge import Effect, Reference, ReferenceStep, ToolContract

PairBy = Literal["auto", "run", "task"]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What of a recorded run is compared: its calls, in order, without their results."""

    run_id: str
    task_id: str | None
    steps: tuple[ReferenceStep, ...]


def read_runs(
    paths: Sequence[str],
    limits: Limits,
    redaction: Redaction | None = None,
    format: str = AUTO,
    may_be_references: bool = False,
) -> list[RecordedRun]:
    """Read runs in any supported format, in the order of their first events.

    A step that is there twice counts once, what follows a run's end does not. Runs without steps
    are there as well.

    Parameters
    ----------
    may_be_references
        Lines of the references topic are read as runs, named by their reference id.

    Raises
    ------
    InvalidFile
        As :func:`ontrack.pipeline.reading.readers.read_events`.
    """
    told: list[Reference] = []
    reader = EventReader(expand(paths), format, None, limits, told if may_be_references else None)
    read = sorted(by_run(reader, lambda _head: _Calls(redaction)), key=lambda run: run[0].place)
    runs = [RecordedRun(head.run_id, head.task_id, calls.in_order()) for head, calls in read]
    return runs + [RecordedRun(each.reference_id, each.task_id, each.steps) for each in told]


class _Calls:
    """The calls of one run, as a sink."""

    def __init__(self, redaction: Redaction | None) -> None:
        self._redaction = redaction
        self._calls: list[ReferenceStep] = []

    def take(self, found: SourceEvent) -> None:
        event = found.event if self._redaction is None else self._redaction.event(found.event)
        if isinstance(event, Step):
            self._calls.append(_call_only(event))

    def in_order(self) -> tuple[ReferenceStep, ...]:
        return tuple(in_order(self._calls, lambda call: call.seq))


def _call_only(step: Step) -> ReferenceStep:
    # It was validated as a step; a result may be a thousand times as long as the call.
    return ReferenceStep.model_construct(
        tool=step.tool,
        args=step.args,
        seq=step.seq,
        parents=step.parents,
        consumed=step.consumed,
        produced=step.produced,
    )


class Pairing(NamedTuple):
    """Runs with those they may be compared with.

    Parameters
    ----------
    rule
        ``one``, ``run`` or ``task``: what brought them together.
    pairs
        A run and its candidates; more than one only by task.
    alone
        Runs that nothing can be compared with.
    """

    rule: str
    pairs: list[tuple[RecordedRun, tuple[RecordedRun, ...]]]
    alone: list[RecordedRun]


def pair_up(
    runs: Sequence[RecordedRun], references: Sequence[RecordedRun], by: PairBy = "auto"
) -> Pairing:
    """Find what each run is compared with.

    ``auto``: one run and one reference are a pair, whatever they are called. Else runs of the same
    id are pairs, where any id is on both sides. Else a run has as candidates the references of its
    task, never the run itself.
    """
    if by == "auto" and len(runs) == len(references) == 1:
        return Pairing("one", [(runs[0], (references[0],))], [])
    by_id = {each.run_id: each for each in references}
    candidates: list[tuple[RecordedRun, ...]]
    if by == "run" or (by == "auto" and any(run.run_id in by_id for run in runs)):
        rule = "run"
        candidates = [(by_id[run.run_id],) if run.run_id in by_id else () for run in runs]
    else:
        rule = "task"
        of_task: dict[str | None, list[RecordedRun]] = {}
        for each in references:
            of_task.setdefault(each.task_id, []).append(each)
        of_task.pop(None, None)
        candidates = [
            tuple(each for each in of_task.get(run.task_id, ()) if each.run_id != run.run_id)
            for run in runs
        ]
    both = list(zip(runs, candidates, strict=True))
    return Pairing(
        rule, [pair for pair in both if pair[1]], [run for run, found in both if not found]
    )


class Compared(NamedTuple):
    """A run, what it was compared with, and how far apart they are."""

    run: RecordedRun
    reference: RecordedRun
    comparison: TrajectoryComparison


def compare_all(
    distance: TrajectoryDistance, pairing: Pairing, advance: Callable[[], None] = lambda: None
) -> Iterator[Compared]:
    """Compare each run; of several candidates the nearest counts, the first of equally near ones.

    Nearest is by the normalised distance: references differ in length.
    """
    for run, candidates in pairing.pairs:
        found = [Compared(run, each, distance(run.steps, each.steps)) for each in candidates]
        yield min(found, key=lambda each: each.comparison.normalised)
        advance()


def weights_of(
    contracts: Iterable[ToolContract], told: Mapping[str, float] | None = None
) -> StepWeights:
    """Return weights from contracts and from what somebody says beside them.

    Parameters
    ----------
    told
        By name of an effect (``destructive``), of a tool, or ``tool:argument``. A tool's weight
        wins over that of its effect.

    Raises
    ------
    InvalidInput
        If a weight is negative or not finite.
    """
    told = told or {}
    for name, weight in told.items():
        if not (weight >= 0.0 and math.isfinite(weight)):
            raise InvalidInput(
                f"the weight of {name!r} is {weight}; it must be finite and not negative"
            )
    effects = {each: told.get(each.value, EFFECT_WEIGHTS[each]) for each in Effect}
    weights = weights_by_effect(contracts, effects)
    tools = dict(weights.tools)
    for name, weight in told.items():
        tool, colon, argument = name.rpartition(":")
        if name in effects:
            continue
        if not colon or name in tools:
            tools[name] = replace(tools.get(name, weights.default), step=weight)
        else:
            before = tools.get(tool, weights.default)
            tools[tool] = replace(before, arguments={**before.arguments, argument: weight})
    return StepWeights(tools, weights.default)
