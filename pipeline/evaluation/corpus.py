"""Corpora: recorded runs with task, model and outcome, and the references each is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from ontrack.operators.grouping import GroupParams, colliding
from ontrack.operators.mining import Success
from ontrack.operators.redaction import Redaction
from ontrack.pipeline.reading import readers
from ontrack.pipeline.reading.event_reader import SourceEvent
from ontrack.pipeline.reading.runs import Head, KeptSteps, by_run
from ontrack.pipeline.reading.sources import STDIN
from ontrack.topics.codecs import DEFAULT_LIMITS, Limits
from ontrack.topics.errors import InvalidInput
from ontrack.topics.events import Agent, Event, Outcome, RunEnded, RunStarted, Step
from ontrack.topics.knowledge import Provenance, Reference, ReferenceStep, ToolContract

EVERYTHING: Final = "(all)"  # the name under which all corpora are evaluated together


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded run.

    Parameters
    ----------
    corpus
        The file's name without suffixes; of files with one run each, their folder's.
    task
        Task within the corpus; a run that names none is a task of its own.
    has_task
        Whether the run names its task.
    model
        The agent's id, or None.
    steps
        In order, numbered from 0.
    reason
        Why it ended, as the recording has it.
    """

    corpus: str
    run_id: str
    task: str
    has_task: bool
    model: str | None
    outcome: Outcome
    steps: tuple[Step, ...]
    reason: str | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the recording says so."""
        return self.outcome == "success"

    @property
    def key(self) -> str:
        """Task, distinct among all corpora: what is resampled and never split."""
        return f"{self.corpus}\x1f{self.task}"

    @property
    def events(self) -> list[Event]:
        """The run as it would have arrived, its end apart."""
        agent = None if self.model is None else Agent(id=self.model)
        return [RunStarted(run_id=self.run_id, task_id=self.task, agent=agent), *self.steps]

    def as_reference(self) -> Reference:
        """Return the run as a reference of its task."""
        return self.as_reference_of(self.task)

    def as_reference_of(self, task: str) -> Reference:
        """Return the run as a reference of any task."""
        return Reference(
            reference_id=self.run_id,
            task_id=task,
            provenance=Provenance.MINED,
            run_id=self.run_id,
            steps=tuple(ReferenceStep.of(step) for step in self.steps),
        )


class _Open:
    """A run while it is being read, as a sink."""

    def __init__(self, redaction: Redaction | None) -> None:
        self.model: str | None = None
        self.reason: str | None = None
        self._redaction = redaction
        self._kept = KeptSteps(redaction)

    def take(self, found: SourceEvent) -> None:
        event = found.event
        if event.agent is not None:
            self.model = self.model or event.agent.id or event.agent.name
        if isinstance(event, RunEnded):
            end = event if self._redaction is None else self._redaction.event(event)
            self.reason = end.reason
        self._kept.take(found)

    def steps(self) -> list[Step]:
        return self._kept.in_order()


def read_corpora(
    paths: Sequence[str],
    format: str = "auto",
    limits: Limits = DEFAULT_LIMITS,
    redaction: Redaction | None = None,
    stdin: Any = None,
) -> list[Recording]:
    """Read every run of files in any supported format, in the order of corpus, task and run.

    Runs without steps are left out: there is nothing to judge.

    Raises
    ------
    InvalidFile
        As :func:`ontrack.pipeline.reading.readers.read_events`.
    InvalidInput
        No run of the files has both steps and an outcome.
    """
    events = readers.read_events(paths, format, None, limits, stdin)
    runs = list(by_run(events, lambda _head: _Open(redaction)))
    per_file = Counter(head.path for head, _ in runs)
    recordings = [
        _recording(head, run, steps, _corpus(head.path, per_file[head.path]))
        for head, run in runs
        if (steps := run.steps())
    ]
    if not any(each.outcome in ("success", "failure") for each in recordings):
        raise InvalidInput(
            f"none of the {len(recordings)} runs with steps says whether it succeeded; evaluation "
            "needs runs that end with an outcome of success or failure"
        )
    return sorted(recordings, key=lambda each: (each.corpus, each.task, each.run_id))


def told_apart(
    recordings: Sequence[Recording], contracts: Mapping[str, ToolContract]
) -> tuple[list[Recording], int]:
    """Give tasks that bear one id in a corpus ids of their own; return how many ids that were.

    Benchmarks are renumbered, and two lists of tasks then meet under the same numbers. Compared
    with each other such runs say nothing about a monitor.
    """
    found: list[Recording] = []
    collisions = 0
    for runs in each_corpus(recordings).values():
        tasks: dict[str, list[Recording]] = {}
        for run in runs:
            tasks.setdefault(run.task, []).append(run)
        as_successes = {
            task: [Success(run.run_id, run.as_reference().steps) for run in members]
            for task, members in tasks.items()
        }
        apart = colliding(GroupParams(), contracts, as_successes)
        collisions += len(apart)
        for task, members in tasks.items():
            names = [task] * len(members)
            for number, group in enumerate(apart.get(task, ()), start=1):
                for place in group:
                    names[place] = f"{task}#{number}"
            found += [replace(run, task=name) for run, name in zip(members, names, strict=True)]
    return sorted(found, key=lambda each: (each.corpus, each.task, each.run_id)), collisions


def each_corpus(recordings: Sequence[Recording]) -> dict[str, list[Recording]]:
    """Group runs by corpus."""
    groups: dict[str, list[Recording]] = {}
    for each in recordings:
        groups.setdefault(each.corpus, []).append(each)
    return groups


def spread(runs: Sequence[Recording], most: int | None) -> list[Recording]:
    """Return so many of the runs, evenly spread over them; None takes all."""
    count = len(runs) if most is None else min(most, len(runs))
    return [runs[place * len(runs) // count] for place in range(count)]


def by_corpus(recordings: Sequence[Recording]) -> dict[str, list[Recording]]:
    """Group runs by corpus; where there are several, all of them together come last."""
    groups = each_corpus(recordings)
    if len(groups) > 1:
        groups[EVERYTHING] = list(recordings)
    return groups


def _corpus(path: str, runs: int) -> str:
    if path == STDIN:
        return "stdin"
    file = Path(path)
    return file.name.split(".")[0] if runs > 1 else file.resolve().parent.name


def _recording(head: Head, run: _Open, ordered: list[Step], corpus: str) -> Recording:
    numbered = all(step.seq is not None for step in ordered)
    places = {step.seq if numbered else place: place for place, step in enumerate(ordered)}
    task = head.task_id or f"(none: {head.run_id})"[:512]
    steps = tuple(
        step.model_copy(
            update={
                "seq": place,
                "task_id": task,
                "parent_run_id": None,
                "parents": None
                if step.parents is None
                else tuple(places[seq] for seq in step.parents if seq in places),
            }
        )
        for place, step in enumerate(ordered)
    )
    return Recording(
        corpus,
        head.run_id,
        task,
        head.task_id is not None,
        run.model,
        head.outcome,
        steps,
        run.reason,
    )


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    """How a run's references are chosen.

    Parameters
    ----------
    count
        References a run gets at most.
    steps_max
        Longer runs are no references.
    exclude_own_model
        No reference of the model that made the run.
    equal
        Every run of a task gets the same number: a failed run could have one more than a
        successful one, which must not be compared with itself, and would look better for it.
    other_tasks
        The references are ``count`` successes of other tasks, the same ones for every run (for
        corpora whose tasks have one run each); the tasks they come from are left out.
    """

    count: int = 5
    steps_max: int = 128
    exclude_own_model: bool = False
    equal: bool = True
    other_tasks: bool = False
    seed: int = 0

    def choose(self, recordings: Sequence[Recording]) -> dict[str, tuple[Recording, ...]]:
        """Return the references of each run by run id, never the run itself.

        Which are chosen depends on the seed and the run alone, not on the order of the runs. A run
        without any is in the result with none; with ``other_tasks``, one that is itself of a
        reference's task is not in it.
        """
        found: dict[str, tuple[Recording, ...]] = {}
        for runs in _groups(recordings, self.other_tasks).values():
            found |= self._of_corpus(runs) if self.other_tasks else self._of_task(runs)
        return found

    def _of_task(self, runs: list[Recording]) -> dict[str, tuple[Recording, ...]]:
        good = [run for run in runs if self._can_be_reference(run) and run.has_task]
        pools = {run.run_id: self._others(good, run) for run in runs}
        sizes = [len(pool) for pool in pools.values() if pool]
        most = min([self.count, *sizes]) if self.equal else self.count
        return {run.run_id: tuple(self._drawn(run.run_id, pools[run.run_id], most)) for run in runs}

    def _of_corpus(self, runs: list[Recording]) -> dict[str, tuple[Recording, ...]]:
        good = [run for run in runs if self._can_be_reference(run)]
        by_task: dict[str, Recording] = {}
        for run in self._drawn(runs[0].corpus, good, len(good)):
            by_task.setdefault(run.key, run)
        chosen = tuple(list(by_task.values())[: self.count])
        taken = {run.key for run in chosen}
        return {
            run.run_id: tuple(self._others(chosen, run)) for run in runs if run.key not in taken
        }

    def _can_be_reference(self, run: Recording) -> bool:
        return run.succeeded and len(run.steps) <= self.steps_max

    def _others(self, pool: Sequence[Recording], run: Recording) -> list[Recording]:
        return [
            other
            for other in pool
            if other.run_id != run.run_id
            and not (self.exclude_own_model and other.model == run.model)
        ]

    def _drawn(self, name: str, pool: Sequence[Recording], count: int) -> list[Recording]:
        rng = Random(f"{self.seed}|references|{name}")
        ordered = sorted(pool, key=lambda run: run.run_id)
        return rng.sample(ordered, min(count, len(ordered)))


def _groups(recordings: Sequence[Recording], whole_corpus: bool) -> dict[str, list[Recording]]:
    groups: dict[str, list[Recording]] = {}
    for run in recordings:
        groups.setdefault(run.corpus if whole_corpus else run.key, []).append(run)
    return groups
