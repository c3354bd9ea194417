"""Library: the references, contracts and tasks that runs are compared with, by time.

A run is compared with what was published before its first event, and keeps that to its end. So
every entry keeps its versions with their times of publication: a run that is folded again from the
log meets the same knowledge as the first time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from ontrack.operators import selftest
from ontrack.operators.allowance import compile_allowance
from ontrack.operators.judging import Knowledge
from ontrack.operators.profiles import Profile
from ontrack.operators.redaction import Redaction
from ontrack.operators.references import choose, compile_references, texts, tools_of
from ontrack.operators.scoring_coverage import ReferencePath
from ontrack.operators.scoring_plan import TaskPlan, compile_plan
from ontrack.operators.selftest import SelfTest, limited, pooled
from ontrack.operators.values import compile_values
from ontrack.pipeline.encoding.encoders import CachedEncoder
from ontrack.topics.events import Agent
from ontrack.topics.knowledge import STEPS_MAX, Reference, Switch, Task, ToolContract

ALWAYS = -1  # published before every event
POOL_TASKS_MAX = 32  # tasks whose self-tests are summed up
POOL_LIKENESS_MIN = 0.3  # Jaccard likeness of the tools of two tasks of one kind


Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class _Version(Generic[Item]):
    published_ms: int
    number: int  # in the order of arrival on its shelf
    item: Item | None  # None: withdrawn


@dataclass(frozen=True, slots=True)
class _Current(Generic[Item]):
    number: int
    item: Item


# Which version of a reference: its number on its shelf and -1, or of the task it is written in and
# its index there.
_ReferenceVersion = tuple[int, int]
_SetKey = tuple[tuple[int, int], tuple[_ReferenceVersion, ...]]
_WITHOUT_REFERENCES: dict[str, object] = {"references": (), "allowed": None, "predicates": {}}
_PlanKey = tuple[str | None, tuple[_ReferenceVersion, ...]]


class _Shelf(Generic[Item]):
    """Versions of each key, oldest first."""

    def __init__(self) -> None:
        self._versions: dict[str, list[_Version[Item]]] = {}
        self._times: list[int] = []

    def put(self, key: str, item: Item | None, published_ms: int) -> None:
        versions = self._versions.setdefault(key, [])
        versions.append(_Version(published_ms, len(self._times), item))
        versions.sort(key=lambda version: version.published_ms)
        self._times.append(published_ms)

    def as_of(self, time_ms: int | None) -> dict[str, _Current[Item]]:
        """Return what was published up to a time; None means by now."""
        found: dict[str, _Current[Item]] = {}
        for key, versions in self._versions.items():
            current: _Version[Item] | None = None
            for version in versions:
                if time_ms is None or version.published_ms <= time_ms:
                    current = version
            if current is not None and current.item is not None:
                found[key] = _Current(current.number, current.item)
        return found

    def mark(self, time_ms: int) -> tuple[int, int]:
        """Return a mark of what was published up to a time: equal marks, equal content.

        Versions are only ever added, so their count and the last to arrive tell them apart.
        """
        numbers = [
            version.number
            for versions in self._versions.values()
            for version in versions
            if version.published_ms <= time_ms
        ]
        return len(numbers), max(numbers, default=-1)

    def __len__(self) -> int:
        """Return how many versions were ever published."""
        return len(self._times)

    def times(self) -> list[int]:
        """Return the distinct times of publication, sorted."""
        return sorted(set(self._times))


class Library:
    """Knowledge by time, compiled on demand and cached.

    Parameters
    ----------
    profile
        Says how many references a run is aligned with, and which are too long.
    encoder
        Gives the references' vectors.
    compiled_max
        Reference sets kept compiled (least recently used ones go).
    redaction
        Of references, as of the runs that are compared with them.
    """

    def __init__(
        self,
        profile: Profile,
        encoder: CachedEncoder,
        compiled_max: int = 1024,
        redaction: Redaction | None = None,
    ) -> None:
        self._redaction = redaction or Redaction()
        self._profile = profile
        self._encoder = encoder
        self._compiled_max = compiled_max
        self._references: _Shelf[Reference] = _Shelf()
        self._contracts: _Shelf[ToolContract] = _Shelf()
        self._tasks: _Shelf[Task] = _Shelf()
        self._switches: _Shelf[Switch] = _Shelf()
        self._current_switches: dict[str, _Current[Switch]] | None = None
        self._pooled_with: Library | None = None
        self._epochs: list[int] | None = None
        self._views: OrderedDict[int, _View] = OrderedDict()
        self._sets: OrderedDict[_SetKey, Knowledge] = OrderedDict()

    def add_reference(self, key: str, item: Reference | None, published_ms: int = ALWAYS) -> None:
        """Publish a reference, or withdraw it (None)."""
        redacted = None if item is None else self._redaction.reference(item)
        self._references.put(key, redacted, published_ms)
        self._changed()

    def add_contract(self, key: str, item: ToolContract | None, published_ms: int = ALWAYS) -> None:
        """Publish a tool contract, or withdraw it (None)."""
        self._contracts.put(key, item, published_ms)
        self._changed()

    def add_task(self, key: str, item: Task | None, published_ms: int = ALWAYS) -> None:
        """Publish a task with its written references, or withdraw it (None).

        Raises
        ------
        InvalidAllowance
            What it allows cannot be compiled; the version before it stands.
        """
        if item is not None:
            compile_allowance(item, {})
        redacted = None if item is None else self._redaction.task(item)
        self._tasks.put(key, redacted, published_ms)
        self._changed()

    def add_switch(self, key: str, item: Switch | None, published_ms: int = ALWAYS) -> None:
        """Put a part of the fleet into shadow mode, or take it back (None)."""
        self._switches.put(key, item, published_ms)
        self._current_switches = None

    @property
    def switchings(self) -> int:
        """How many switches have been thrown: the same number, the same modes."""
        return len(self._switches)

    def is_shadowed(
        self, agent: Agent | None, task_id: str | None, tenant: str | None, time_ms: int | None
    ) -> bool:
        """Tell whether a run was in shadow mode at a time; None means now."""
        if not self.switchings:
            return False
        if time_ms is not None:
            switches = self._switches.as_of(time_ms)
        else:
            self._current_switches = self._current_switches or self._switches.as_of(None)
            switches = self._current_switches
        return any(found.item.covers(agent, task_id, tenant) for found in switches.values())

    def fill(
        self,
        references: Iterable[Reference] = (),
        contracts: Iterable[ToolContract] = (),
        tasks: Iterable[Task] = (),
    ) -> None:
        """Publish many items as known from the start.

        Raises
        ------
        InvalidAllowance
            What a task allows cannot be compiled.
        """
        for reference in references:
            redacted = self._redaction.reference(reference)
            self._references.put(reference.reference_id, redacted, ALWAYS)
        for contract in contracts:
            self._contracts.put(contract.name, contract, ALWAYS)
        for task in tasks:
            compile_allowance(task, {})
            self._tasks.put(task.id, self._redaction.task(task), ALWAYS)
        self._changed()

    def knowledge(self, task_id: str | None, run_id: str, time_ms: int | None) -> Knowledge:
        """Return what a run is compared with whose first event has this time."""
        view = self._view(time_ms)
        chosen = self._chosen(view, task_id, run_id)
        plan = self._plan(view, task_id, run_id)
        if not chosen:
            return Knowledge(view.contracts, plan=plan)
        known = replace(self._compiled(view, chosen), plan=plan)
        if known.selftest is None or self._profile.selftest is None:
            return known
        pool = (self._pooled_with or self)._pool(tools_of(chosen), time_ms)
        return replace(known, selftest=limited(known.selftest, pool))

    def _plan(self, view: _View, task_id: str | None, run_id: str) -> TaskPlan | None:
        """Return what the path of a run is scored against.

        All references of the task, as offline: a pointer costs next to nothing, and a budget must
        not depend on how many references, and how long ones, alignment can bear.
        """
        if self._profile.scoring is None:
            return None
        of_task = view.by_task.get(task_id, ()) if task_id is not None else ()
        chosen = choose(of_task, run_id, len(of_task), STEPS_MAX)
        task = None if task_id is None else view.tasks.get(task_id)
        if task is None and not chosen:  # not kept: a run may name any task
            return TaskPlan(task_id)
        key = task_id, tuple(view.versions[id(reference)] for reference in chosen)
        plan = view.plans.get(key)
        if plan is None:
            plan = view.plans[key] = replace(
                compile_plan(
                    self._profile.scoring,
                    # Its references are among the chosen ones, as far as they are usable.
                    None if task is None else task.model_copy(update=_WITHOUT_REFERENCES),
                    view.contracts,
                    [ReferencePath.of(reference) for reference in chosen],
                ),
                task_id=task_id,
                # Contracts and tasks come independently of each other: a condition on an argument
                # that the tool has not is no reason to stop here, it merely never holds.
                allowance=None if task is None else compile_allowance(task, {}),
                written=bool(chosen)
                and all(_is_written(view.versions[id(item)]) for item in chosen),
            )
        return plan

    def pool_with(self, other: Library) -> None:
        """Judge the self-tests by another library's, for a library that holds a single task."""
        self._pooled_with = other

    def _pool(self, tools: frozenset[str], time_ms: int | None) -> SelfTest | None:
        view = self._view(time_ms)
        if tools not in view.pools and self._profile.selftest is not None:
            view.pools[tools] = pooled(self._profile.selftest, self._tests_like(view, tools))
        return view.pools.get(tools)

    def _compiled(self, view: _View, chosen: tuple[Reference, ...]) -> Knowledge:
        # By version, not by name: a reference or contract may be replaced under its old name.
        key = (view.contracts_mark, tuple(view.versions[id(reference)] for reference in chosen))
        compiled = self._sets.get(key)
        if compiled is None:
            compiled = self._compile(chosen, view.contracts)
            self._sets[key] = compiled
            if len(self._sets) > self._compiled_max:
                self._sets.popitem(last=False)
        else:
            self._sets.move_to_end(key)
        return compiled

    def _tests_like(self, view: _View, tools: frozenset[str]) -> list[SelfTest]:
        """Return the self-tests of tasks of one kind: those done with much the same tools.

        Of the ``POOL_TASKS_MAX`` most alike, then by name: the same wherever it is computed.
        """
        alike: list[tuple[float, str]] = []
        for task_id in view.by_task:
            others = tools_of(self._chosen(view, task_id, ""))
            likeness = len(tools & others) / len(tools | others)
            if likeness >= POOL_LIKENESS_MIN:
                alike.append((-likeness, task_id))
        tests = []
        for _, task_id in sorted(alike):
            chosen = self._chosen(view, task_id, "")
            test = self._compiled(view, chosen).selftest if len(chosen) > 1 else None
            if test is not None:
                tests.append(test)
            if len(tests) == POOL_TASKS_MAX:
                break
        return tests

    def _chosen(self, view: _View, task_id: str | None, run_id: str) -> tuple[Reference, ...]:
        return choose(
            view.by_task.get(task_id, ()) if task_id is not None else (),
            run_id,
            self._profile.references_max,
            self._profile.reference_steps_max,
        )

    def counts(self) -> dict[str, int]:
        """Return the number of current references, contracts and tasks."""
        return {
            "references": len(self._references.as_of(None)),
            "contracts": len(self._contracts.as_of(None)),
            "tasks": len(self._tasks.as_of(None)),
        }

    def _compile(
        self, chosen: tuple[Reference, ...], contracts: Mapping[str, ToolContract]
    ) -> Knowledge:
        profile = self._profile
        vectors = self._encoder.encode(texts(chosen))
        references = compile_references(chosen, contracts, list(vectors), profile.artifacts)
        if profile.identity is None:
            return Knowledge(contracts, references)
        values = compile_values(profile.values, chosen, contracts)
        if profile.selftest is None or profile.orphans is None:
            return Knowledge(contracts, references, values)
        test = selftest.run(
            profile.selftest,
            profile.values,
            profile.identity,
            profile.orphans,
            profile.transport,
            contracts,
            references,
            values,
        )
        return Knowledge(contracts, references, values, test)

    def _changed(self) -> None:
        self._epochs = None
        self._views.clear()

    def _view(self, time_ms: int | None) -> _View:
        """Return the library as of a time; equal between two publications, so cached by these."""
        if self._epochs is None:
            shelves = (self._references, self._contracts, self._tasks)
            self._epochs = sorted({moment for shelf in shelves for moment in shelf.times()})
        count = len(self._epochs) if time_ms is None else bisect_right(self._epochs, time_ms)
        epoch = self._epochs[count - 1] if count else ALWAYS - 1
        view = self._views.get(epoch)
        if view is None:
            view = _View.of(epoch, self._references, self._contracts, self._tasks)
            self._views[epoch] = view
            if len(self._views) > 64:
                self._views.popitem(last=False)
        return view


def _is_written(version: _ReferenceVersion) -> bool:
    """Tell whether a reference is written in its task."""
    return version[1] >= 0


@dataclass(frozen=True, slots=True)
class _View:
    contracts_mark: tuple[int, int]
    contracts: Mapping[str, ToolContract]
    by_task: Mapping[str, tuple[Reference, ...]]
    versions: Mapping[int, _ReferenceVersion]  # by the identity of the objects in by_task
    tasks: Mapping[str, Task]
    pools: dict[frozenset[str], SelfTest | None] = field(default_factory=dict)
    plans: dict[_PlanKey, TaskPlan] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        epoch: int,
        references: _Shelf[Reference],
        contracts: _Shelf[ToolContract],
        tasks: _Shelf[Task],
    ) -> _View:
        by_task: dict[str, list[Reference]] = {}
        versions: dict[int, _ReferenceVersion] = {}
        for version in references.as_of(epoch).values():
            by_task.setdefault(version.item.task_id, []).append(version.item)
            versions[id(version.item)] = (version.number, -1)
        for task in tasks.as_of(epoch).values():
            for index, reference in enumerate(task.item.written_references()):
                by_task.setdefault(reference.task_id, []).append(reference)
                versions[id(reference)] = (task.number, index)
        return cls(
            contracts.mark(epoch),
            {name: version.item for name, version in contracts.as_of(epoch).items()},
            {task_id: tuple(found) for task_id, found in by_task.items()},
            versions,
            {task_id: version.item for task_id, version in tasks.as_of(epoch).items()},
        )
