"""Mining references: successes from files or from the events topic, sets with their self-tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from ontrack.operators.grouping import Group, GroupParams, colliding
from ontrack.operators.mining import MinedTask, MiningParams, Success, mine
from ontrack.operators.profiles import Profile
from ontrack.operators.redaction import Redaction
from ontrack.operators.selftest import RULES, RuleTest, SelfTest
from ontrack.pipeline.encoding.encoders import CachedEncoder
from ontrack.pipeline.folding.library import Library
from ontrack.pipeline.reading import readers
from ontrack.pipeline.reading.runs import in_order
from ontrack.topics.codecs import DEFAULT_LIMITS, Limits
from ontrack.topics.events import Event, Outcome, RunEnded, Step
from ontrack.topics.knowledge import (
    STEPS_MAX,
    Provenance,
    Reference,
    ReferenceStep,
    SetTest,
    ToolContract,
)
from ontrack.topics.verdicts import Authority


@dataclass(slots=True)
class _Run:
    source: str
    task_id: str | None = None
    outcome: Outcome = "unknown"
    run_at: datetime | None = None
    steps: list[Step] = field(default_factory=list)


class Successes:
    """Collects runs from their events, and sorts out the successful ones.

    Attributes
    ----------
    runs
        Number of runs seen.
    """

    def __init__(self, redaction: Redaction | None = None) -> None:
        self._redaction = redaction or Redaction()
        self._runs: dict[str, _Run] = {}
        self._ended: set[str] = set()

    @property
    def runs(self) -> int:
        """Number of runs seen."""
        return len(self._runs)

    def take(self, event: Event, source: str, arrived: datetime | None = None) -> None:
        """Enter one event; what follows a run's end is left out.

        Parameters
        ----------
        source
            Of the run's first event: a file, or a place on a topic.
        arrived
            When it arrived; taken for the run's time where its events name none.
        """
        if event.run_id in self._ended:
            return
        event = self._redaction.event(event)
        run = self._runs.setdefault(event.run_id, _Run(source, run_at=None))
        run.task_id = run.task_id or event.task_id
        started = event.started_at if isinstance(event, Step) else None
        run.run_at = run.run_at or event.time or started or arrived
        if isinstance(event, Step):
            run.steps.append(event)
        elif isinstance(event, RunEnded):
            run.outcome = event.outcome
            self._ended.add(event.run_id)
            if run.outcome in ("failure", "cancelled"):
                run.steps.clear()  # topics are long; what cannot become a reference goes at once

    def judge(self, run_id: str, outcome: Outcome) -> None:
        """Enter an outcome from elsewhere; it counts where the run's own end names none."""
        run = self._runs.get(run_id)
        if run is not None and run.outcome == "unknown":
            run.outcome = outcome

    def by_task(self) -> dict[str, list[Success]]:
        """Return the successful runs by task, tasks and runs by name; the others are left out."""
        found: dict[str, list[Success]] = {}
        for run_id, run in sorted(self._runs.items()):
            steps = in_order(run.steps, lambda step: step.seq)
            usable = run.outcome == "success" and 1 <= len(steps) <= STEPS_MAX
            if usable and run.task_id:
                kept = tuple(map(ReferenceStep.of, steps))
                success = Success(run_id, kept, run.source, run.run_at)
                found.setdefault(run.task_id, []).append(success)
        return dict(sorted(found.items()))


def successes_in(
    paths: Iterable[str],
    format: str = "auto",
    limits: Limits = DEFAULT_LIMITS,
    redaction: Redaction | None = None,
) -> Successes:
    """Read the runs of files.

    Raises
    ------
    InvalidFile
        As :func:`ontrack.pipeline.reading.readers.read_events`.
    """
    found = Successes(redaction)
    for each in readers.read_events(paths, format, None, limits):
        found.take(each.event, Path(each.path).name)
    return found


@dataclass(frozen=True, slots=True)
class MinedSets:
    """What mining has found.

    Parameters
    ----------
    tasks
        In the order of their ids, as they are named now.
    before
        Self-test of each task's raw successes, by task.
    after
        Self-test of what was kept.
    collisions
        Groups of successes by task id, where one id stands for several tasks; after splitting the
        ids are those of before.
    """

    tasks: tuple[MinedTask, ...]
    before: Mapping[str, SelfTest]
    after: Mapping[str, SelfTest]
    collisions: Mapping[str, tuple[Group, ...]]

    @property
    def references(self) -> tuple[Reference, ...]:
        """All that were kept, each with its set's self-test."""
        return tuple(
            _with_test(reference, self.after.get(task.task_id))
            for task in self.tasks
            for reference in task.references
        )


def mine_sets(
    params: MiningParams,
    profile: Profile,
    encoder: CachedEncoder,
    contracts: Mapping[str, ToolContract],
    successes: Mapping[str, Sequence[Success]],
    split: bool = False,
    tell: Callable[[], None] | None = None,
) -> MinedSets:
    """Mine every task, and test what comes out.

    Parameters
    ----------
    profile
        Whose self-test is run; one without gives no self-tests.
    split
        Give each group of an id that stands for several tasks an id of its own: ``17#1``, ``17#2``.
    tell
        Called after each task.
    """
    collisions = colliding(GroupParams(), contracts, successes)
    named = split_ids(successes, collisions) if split else successes
    tasks = []
    for task_id, runs in named.items():
        tasks.append(mine(params, contracts, task_id, runs))
        if tell is not None:
            tell()
    raw = [
        Reference(
            reference_id=success.run_id,
            task_id=task.task_id,
            run_id=success.run_id,
            steps=success.steps,
        )
        for task in tasks
        for success in task.successes
    ]
    kept = [reference for task in tasks for reference in task.references]
    return MinedSets(
        tuple(tasks),
        self_tests(profile, encoder, contracts, raw),
        self_tests(profile, encoder, contracts, kept),
        collisions,
    )


def split_ids(
    successes: Mapping[str, Sequence[Success]], collisions: Mapping[str, Sequence[Group]]
) -> dict[str, list[Success]]:
    """Give every group of a colliding id an id of its own.

    Also the first: a run that still bears the old id then meets no references, not wrong ones.
    """
    found: dict[str, list[Success]] = {}
    for task_id, runs in successes.items():
        groups = collisions.get(task_id)
        if groups is None:
            found[task_id] = list(runs)
            continue
        for number, group in enumerate(groups, start=1):
            found[f"{task_id}#{number}"] = [runs[place] for place in group]
    return found


def self_tests(
    profile: Profile,
    encoder: CachedEncoder,
    contracts: Mapping[str, ToolContract],
    references: Sequence[Reference],
) -> dict[str, SelfTest]:
    """Test every task's set as a worker does when it meets the set, by task."""
    library = Library(profile, encoder)
    library.fill(references, contracts.values())
    found = {}
    for task_id in dict.fromkeys(reference.task_id for reference in references):
        test = library.knowledge(task_id, "", None).selftest
        if test is not None:
            found[task_id] = test
    return found


def warning_rules(test: SelfTest) -> tuple[str, ...]:
    """Return the rules that may warn on a set, or less, and not intervene.

    Of the two rules for values only the one in use counts.
    """
    unused = "sources" if test.gate_mode == "values" else "values"
    return tuple(
        rule
        for rule in RULES
        if rule != unused and rule_test(test, rule).authority is not Authority.INTERVENE
    )


def rule_test(test: SelfTest, rule: str) -> RuleTest:
    """Return what was found of one rule."""
    found: RuleTest = getattr(test, rule)
    return found


def authority(references: Sequence[Reference], test: SelfTest | None) -> str:
    """Say how far verdicts on a set may go: intervene, warn or inform, and what only warns."""
    best = min((_REACH[reference.provenance] for reference in references), default=2)
    if best:
        return ("intervene", "warn", "inform")[best]
    warns = () if test is None else warning_rules(test)
    return f"intervene; warn on {', '.join(warns)}" if warns else "intervene"


_REACH = {
    Provenance.GOLD: 0,
    Provenance.MINED: 0,
    Provenance.AXIOMATIC: 1,
    Provenance.GENERATED: 2,
}


def _with_test(reference: Reference, test: SelfTest | None) -> Reference:
    if test is None or reference.mined is None:
        return reference
    record = SetTest(
        members=test.members,
        blocked=test.blocked,
        steps=test.steps,
        orphan_steps=test.orphan_steps,
        gate_mode=test.gate_mode,
        warns=warning_rules(test),
    )
    mined = reference.mined.model_copy(update={"set_test": record})
    return reference.model_copy(update={"mined": mined})
