"""Shelves: every version of what was published, and how it all looked at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from ontrack.operators.references import choose, tools_of
from ontrack.operators.scoring_plan import TaskPlan
from ontrack.operators.selftest import SelfTest
from ontrack.topics.knowledge import Reference, Task, ToolContract

ALWAYS = -1  # published before every event

Item = TypeVar("Item")

# Which version of a reference: its number on its shelf and -1, or of the task it is written in and
# its index there.
ReferenceVersion = tuple[int, int]
PlanKey = tuple[str | None, tuple[ReferenceVersion, ...]]
Chosen = tuple[Reference, ...]


@dataclass(frozen=True, slots=True)
class Version(Generic[Item]):
    """What was published under a key at a time."""

    published_ms: int
    number: int  # in the order of arrival on its shelf
    item: Item | None  # None: withdrawn


@dataclass(frozen=True, slots=True)
class Current(Generic[Item]):
    """The version of a key that counts."""

    number: int
    item: Item


class Shelf(Generic[Item]):
    """Versions of each key, oldest first."""

    def __init__(self) -> None:
        self._versions: dict[str, list[Version[Item]]] = {}
        self._times: list[int] = []

    def put(self, key: str, item: Item | None, published_ms: int) -> None:
        """Add a version; None withdraws the key."""
        versions = self._versions.setdefault(key, [])
        versions.append(Version(published_ms, len(self._times), item))
        versions.sort(key=lambda version: version.published_ms)
        self._times.append(published_ms)

    def as_of(self, time_ms: int | None) -> dict[str, Current[Item]]:
        """Return what was published up to a time; None means by now."""
        found: dict[str, Current[Item]] = {}
        for key, versions in self._versions.items():
            current: Version[Item] | None = None
            for version in versions:
                if time_ms is None or version.published_ms <= time_ms:
                    current = version
            if current is not None and current.item is not None:
                found[key] = Current(current.number, current.item)
        return found

    def items(self) -> tuple[Item, ...]:
        """Return what counts now."""
        return tuple(current.item for current in self.as_of(None).values())

    def __len__(self) -> int:
        """Return how many versions were ever published."""
        return len(self._times)

    def times(self) -> list[int]:
        """Return the distinct times of publication, sorted."""
        return sorted(set(self._times))


@dataclass(frozen=True)
class View:
    """Everything as of a time.

    Parameters
    ----------
    contracts, contract_versions
        By name of the tool; the numbers of their versions.
    by_task
        References of each task, those written in it among them.
    versions
        Of the references, by the identity of the objects in ``by_task``.
    references_max, steps_max
        What alignment can bear: of a task's references the most trusted so many are chosen.
    pools, plans
        Worked out so far: self-tests of tasks of one kind, by tools; plans of paths.
    """

    contracts: Mapping[str, ToolContract]
    contract_versions: Mapping[str, int]
    by_task: Mapping[str, Chosen]
    versions: Mapping[int, ReferenceVersion]
    tasks: Mapping[str, Task]
    references_max: int
    steps_max: int
    pools: dict[frozenset[str], SelfTest | None] = field(default_factory=dict)
    plans: dict[PlanKey, TaskPlan] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        epoch: int,
        references: Shelf[Reference],
        contracts: Shelf[ToolContract],
        tasks: Shelf[Task],
        references_max: int,
        steps_max: int,
    ) -> View:
        """Return how it looked at a time."""
        by_task: dict[str, list[Reference]] = {}
        versions: dict[int, ReferenceVersion] = {}
        for version in references.as_of(epoch).values():
            by_task.setdefault(version.item.task_id, []).append(version.item)
            versions[id(version.item)] = (version.number, -1)
        for task in tasks.as_of(epoch).values():
            for index, reference in enumerate(task.item.written_references()):
                by_task.setdefault(reference.task_id, []).append(reference)
                versions[id(reference)] = (task.number, index)
        declared = contracts.as_of(epoch)
        return cls(
            {name: version.item for name, version in declared.items()},
            {name: version.number for name, version in declared.items()},
            {task_id: tuple(found) for task_id, found in by_task.items()},
            versions,
            {task_id: version.item for task_id, version in tasks.as_of(epoch).items()},
            references_max,
            steps_max,
        )

    def chosen(self, task_id: str | None, run_id: str) -> Chosen:
        """Return the references that a run is aligned with; never the run itself."""
        of_task = self.by_task.get(task_id, ()) if task_id is not None else ()
        return choose(of_task, run_id, self.references_max, self.steps_max)

    @cached_property
    def kinds(self) -> Mapping[str, tuple[Chosen, frozenset[str]]]:
        """The chosen references of each task, for a run of nobody's, and their tools."""
        found = {task_id: self.chosen(task_id, "") for task_id in self.by_task}
        return {task_id: (chosen, tools_of(chosen)) for task_id, chosen in found.items()}


def is_written(version: ReferenceVersion) -> bool:
    """Tell whether a reference is written in its task."""
    return version[1] >= 0
