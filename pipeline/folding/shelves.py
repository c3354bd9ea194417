"""Shelves: all that was published, with its times: references, contracts, tasks and switches."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from ontrack.operators.allowance import compile_allowance
from ontrack.operators.redaction import Redaction
from ontrack.pipeline.folding.shelf import ALWAYS, Current, Shelf
from ontrack.topics.events import Agent
from ontrack.topics.knowledge import Reference, Switch, Task, ToolContract


class Items(NamedTuple):
    """Knowledge as it is published."""

    references: tuple[Reference, ...] = ()
    contracts: tuple[ToolContract, ...] = ()
    tasks: tuple[Task, ...] = ()


class Shelves:
    """All that was published; any thread may ask and publish.

    Parameters
    ----------
    redaction
        Of references and tasks, as of the runs that are compared with them.
    pinned
        Known always, and whatever is published under these names later does not count.
    """

    def __init__(
        self,
        redaction: Redaction | None = None,
        pinned: Items = Items(),  # noqa: B008
    ) -> None:
        self._lock = threading.RLock()
        self._redaction = redaction or Redaction()
        self._references: Shelf[Reference] = Shelf()
        self._contracts: Shelf[ToolContract] = Shelf()
        self._tasks: Shelf[Task] = Shelf()
        self._switches: Shelf[Switch] = Shelf()
        self._current_switches: dict[str, Current[Switch]] | None = None
        self._changes = 0  # of references, contracts and tasks
        self._pinned: tuple[frozenset[str], frozenset[str], frozenset[str]] = (
            frozenset(),
            frozenset(),
            frozenset(),
        )
        self.fill(*pinned)
        self._pinned = (
            frozenset(item.reference_id for item in pinned.references),
            frozenset(item.name for item in pinned.contracts),
            frozenset(item.id for item in pinned.tasks),
        )

    def add_reference(self, key: str, item: Reference | None, published_ms: int = ALWAYS) -> None:
        """Publish a reference, or withdraw it (None)."""
        if key in self._pinned[0]:
            return
        redacted = None if item is None else self._redaction.reference(item)
        with self._lock:
            self._references.put(key, redacted, published_ms)
            self._changes += 1

    def add_contract(self, key: str, item: ToolContract | None, published_ms: int = ALWAYS) -> None:
        """Publish a tool contract, or withdraw it (None)."""
        if key in self._pinned[1]:
            return
        with self._lock:
            self._contracts.put(key, item, published_ms)
            self._changes += 1

    def add_task(self, key: str, item: Task | None, published_ms: int = ALWAYS) -> None:
        """Publish a task with its written references, or withdraw it (None).

        Raises
        ------
        InvalidAllowance
            What it allows cannot be compiled; the version before it stands.
        """
        if item is not None:
            compile_allowance(item, {})
        if key in self._pinned[2]:
            return
        redacted = None if item is None else self._redaction.task(item)
        with self._lock:
            self._tasks.put(key, redacted, published_ms)
            self._changes += 1

    def add_switch(self, key: str, item: Switch | None, published_ms: int = ALWAYS) -> None:
        """Put a part of the fleet into shadow mode, or take it back (None)."""
        with self._lock:
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
        with self._lock:
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
            self.add_reference(reference.reference_id, reference)
        for contract in contracts:
            self.add_contract(contract.name, contract)
        for task in tasks:
            self.add_task(task.id, task)

    def fill_from(self, other: Shelves) -> None:
        """Publish all that counts on other shelves now, as known from the start."""
        with other._lock:
            references, contracts, tasks = other.current()
            switches = other._switches.as_of(None)
        with self._lock:
            for reference in references:  # redacted there
                self._references.put(reference.reference_id, reference, ALWAYS)
            for contract in contracts:
                self._contracts.put(contract.name, contract, ALWAYS)
            for task in tasks:
                self._tasks.put(task.id, task, ALWAYS)
            self._changes += 1
        for key, switch in switches.items():
            self.add_switch(key, switch.item)

    def current(self) -> Items:
        """Return what counts now, redacted."""
        with self._lock:
            return Items(self._references.items(), self._contracts.items(), self._tasks.items())

    def contracts_now(self) -> dict[str, ToolContract]:
        """Return the contracts that count now, by the name of the tool."""
        with self._lock:
            return {contract.name: contract for contract in self._contracts.items()}

    def counts(self) -> dict[str, int]:
        """Return the number of current references, contracts and tasks."""
        return {name: len(items) for name, items in self.current()._asdict().items()}
