"""Scoring files of recorded runs, in memory flat in their number.

They are read twice: once for what passing runs took, which budgets by ``median_plus_sd`` need and
which stands in for references where none are given; once to score them, through the same operator
that scores live runs.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Final, Literal, cast

from ontrack.operators.recovery import MadeCall, Recovery, recoveries
from ontrack.operators.redaction import Redaction
from ontrack.operators.references import choose
from ontrack.operators.scoring_budget import OF_TASK, Observed
from ontrack.operators.scoring_coverage import ReferencePath
from ontrack.operators.scoring_plan import ScoringParams, TaskPlan, compile_plan, without_own
from ontrack.operators.scoring_results import PathScore
from ontrack.pipeline.reading.event_reader import AUTO, EventReader, SourceEvent
from ontrack.pipeline.reading.readers import read_events
from ontrack.pipeline.reading.runs import Head, by_run
from ontrack.pipeline.scoring.marks import MarkedCalls
from ontrack.pipeline.scoring.runs import InOrder, RunFold
from ontrack.pipeline.scoring.seen import Seen
from ontrack.topics.adapters import events as native
from ontrack.topics.codecs import DEFAULT_LIMITS, Limits
from ontrack.topics.events import Step
from ontrack.topics.knowledge import STEPS_MAX, Reference, Task, ToolContract

PASSING: Final = "success"
#: Whose passing runs a budget comes from, where neither the task nor its file has enough.
OF_ALL: Final = "all tasks"
_PLANS_KEPT_MAX = 4096
# Task and file, and the run where one of the given references is a recording of it.
_PlanKey = tuple[str | None, str, str | None]

ReferenceSource = Literal["given", "passing_runs"]


@dataclass(frozen=True, slots=True)
class Against:
    """What files are scored against.

    Parameters
    ----------
    tasks, contracts
        By id, by name.
    references
        Besides those in tasks, by task id.
    from_passing
        Let passing runs stand in for references of tasks that have none.
    """

    params: ScoringParams = ScoringParams()
    tasks: Mapping[str, Task] = field(default_factory=dict)
    contracts: Mapping[str, ToolContract] = field(default_factory=dict)
    references: Mapping[str, Sequence[ReferencePath]] = field(default_factory=dict)
    from_passing: bool = True

    @classmethod
    def of(
        cls,
        params: ScoringParams,
        tasks: Iterable[Task] = (),
        contracts: Iterable[ToolContract] = (),
        references: Iterable[Reference] = (),
        from_passing: bool = True,
    ) -> Against:
        """Index what files hold, references in the order of a monitor: most trusted first."""
        by_task: dict[str, list[Reference]] = {}
        for reference in references:
            by_task.setdefault(reference.task_id, []).append(reference)
        return cls(
            params,
            {task.id: task for task in tasks},
            {contract.name: contract for contract in contracts},
            {
                task_id: [
                    ReferencePath.of(each) for each in choose(found, "", len(found), STEPS_MAX)
                ]
                for task_id, found in by_task.items()
            },
            from_passing,
        )


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """A run with its figures.

    Parameters
    ----------
    path, line
        Where it was read.
    reference_source
        Where the references come from; None where there are none.
    recoveries
        What became of the faults put into it, where that was asked for.
    """

    run_id: str
    task_id: str | None
    outcome: str
    path: str
    line: int
    reference_source: ReferenceSource | None
    score: PathScore
    recoveries: tuple[Recovery, ...] = ()


class Scorer:
    """Scores runs once it has seen which of them passed.

    Parameters
    ----------
    against
        Tasks, contracts, references.
    seen
        What a first reading found.
    """

    def __init__(self, against: Against, seen: Seen) -> None:
        self._against, self._seen = against, seen
        self._plans: OrderedDict[_PlanKey, tuple[TaskPlan, ReferenceSource | None]] = OrderedDict()
        # Wrong allowances are told before the first run is scored.
        for task in against.tasks.values():
            compile_plan(against.params, task, against.contracts)

    def fold(self, head: Head) -> RunFold:
        """Begin a run."""
        return RunFold(self._against.params, self._plan(head)[0], self._against.contracts)

    def scored(self, head: Head, fold: RunFold, made: Sequence[MadeCall] = ()) -> ScoredRun:
        """End a run.

        Parameters
        ----------
        made
            Its calls, where it is to be told what became of faults.
        """
        score = fold.finish()
        plan, source = self._plan(head)
        against = self._against
        return ScoredRun(
            head.run_id,
            head.task_id,
            head.outcome,
            head.path,
            head.line,
            None if score.best_reference is None else source,
            score,
            recoveries(against.params, plan, against.contracts, made, head.outcome),
        )

    def _plan(self, head: Head) -> tuple[TaskPlan, ReferenceSource | None]:
        given = self._against.references.get(head.task_id or "", ())
        own = any(path.run_ids == (head.run_id,) for path in given)
        key = (head.task_id, head.path, head.run_id if own else None)
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = self._compiled(head)
            while len(self._plans) > _PLANS_KEPT_MAX:
                self._plans.popitem(last=False)
        plan, source = found
        if source == "passing_runs":
            plan = replace(plan, paths=without_own(plan.paths, head.run_id))
        return plan, source

    def _compiled(self, head: Head) -> tuple[TaskPlan, ReferenceSource | None]:
        against, name = self._against, head.task_id or ""
        task, given = against.tasks.get(name), tuple(against.references.get(name, ()))
        seen = self._seen.task(head.task_id, head.path)
        plan = compile_plan(
            against.params,
            task,
            against.contracts,
            given,
            self._observed(head, task),
            head.run_id,
        )
        if plan.task_id is None:
            plan = replace(plan, task_id=head.task_id)
        if plan.paths or plan.stale or given:
            return plan, "given"
        if not against.from_passing:
            return plan, None
        # Nobody looked at these: they say what passing runs did, set no budget and are no duty.
        return replace(plan, paths=tuple(seen.paths), reviewed=False), "passing_runs"

    def _observed(self, head: Head, task: Task | None) -> Observed | None:
        """Return what passing runs of the task took; of its file, or all, where they are few."""
        of_task = self._seen.task(head.task_id, head.path).steps
        least = self._against.params.observed_min
        if of_task.total() >= least or (task is not None and task.step_budget is not None):
            return Observed.of(of_task, OF_TASK)
        of_file = self._seen.file(head.path)
        if of_file.total() >= least:
            return Observed.of(of_file, Path(head.path).name)
        return Observed.of(self._seen.overall, OF_ALL)


class _Path:
    """The tools of one run, in order."""

    def __init__(self) -> None:
        self._order = InOrder()
        self._tools: list[str] = []

    def take(self, found: SourceEvent) -> None:
        event = found.event
        if isinstance(event, Step):
            self._tools += [sys.intern(step.tool) for _, step in self._order.ready(event)]

    def finish(self) -> tuple[str, ...]:
        return (*self._tools, *(step.tool for _, step in self._order.rest()))


class _Scored:
    """One run on its way to its score, with its calls where recoveries are asked for."""

    def __init__(self, fold: RunFold, recovery: bool) -> None:
        self.fold = fold
        self._made = MarkedCalls() if recovery else None

    def take(self, found: SourceEvent) -> None:
        self.fold.take(found)
        if self._made is not None:
            self._made.take(found)

    @property
    def made(self) -> Sequence[MadeCall]:
        return () if self._made is None else self._made.in_order()


def score_files(
    paths: Sequence[str | Path],
    against: Against | None = None,
    format: str = AUTO,
    limits: Limits = DEFAULT_LIMITS,
    redaction: Redaction | None = None,
    stdin: BinaryIO | None = None,
    on_apart: Callable[[list[str]], object] | None = None,
    recovery: bool = False,
) -> Iterator[ScoredRun]:
    """Score the runs of files, in the order in which they end.

    Parameters
    ----------
    paths
        Files, folders, globs and ``-``; standard input is kept in a temporary file.
    against
        Tasks, contracts, references; nothing by default.
    limits
        Of one event.
    redaction
        Of events before they are scored, as senders redact live ones.
    on_apart
        Called with the task ids by which different files mean different tasks, if there are any.
    recovery
        Tell what became of injected faults; the calls of open runs are then held in memory.

    Raises
    ------
    InvalidFile
        A file that cannot be read, of no known format, or with an event that is not usable.
    InvalidInput
        An allowance that cannot be compiled.
    UnknownName
        No such format.
    """
    against = against or Against()
    with tempfile.TemporaryFile() as copy:
        if any(str(path) == "-" for path in paths):
            shutil.copyfileobj(stdin or sys.stdin.buffer, copy)
        held = cast(BinaryIO, copy)

        def read() -> tuple[Iterator[SourceEvent], EventReader]:
            copy.seek(0)
            reader = read_events(paths, format, None, limits, held)
            return _redacted(reader, redaction), reader

        Scorer(against, Seen())  # tells of wrong allowances at once
        events, first = read()
        seen = _seen(events, first)
        if on_apart is not None and seen.apart:
            on_apart(seen.apart)
        scorer = Scorer(against, seen)
        events, reader = read()
        reader.recognised.update(first.recognised)  # formats are told of once

        def begin(head: Head) -> _Scored:
            return _Scored(scorer.fold(head), recovery)

        for head, run in by_run(events, begin, _in_one_piece(reader)):
            yield scorer.scored(head, run.fold, run.made)


def _seen(events: Iterator[SourceEvent], reader: EventReader) -> Seen:
    seen = Seen()
    for head, path in by_run(events, lambda head: _Path(), _in_one_piece(reader)):
        passed = head.outcome == PASSING
        seen.add(head.task_id, sys.intern(head.path), head.run_id, passed, path.finish())
    seen.tell_apart()
    return seen


def _redacted(events: Iterable[SourceEvent], redaction: Redaction | None) -> Iterator[SourceEvent]:
    for found in events:
        yield found if redaction is None else found._replace(event=redaction.event(found.event))


def _in_one_piece(reader: EventReader) -> Callable[[str], bool]:
    """Return a test for files in foreign formats, whose records are whole runs."""
    return lambda path: reader.recognised.get(path) != native.NAME
