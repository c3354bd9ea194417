"""Axiomatic references: what a task must take, by contracts alone.

From the goals backwards: a tool needs what its contract consumes, and some tool that produces it
comes before. Nothing of it was ever seen to work, so such references warn and never intervene.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ontrack.topics.errors import UnknownName
from ontrack.topics.knowledge import Effect, Provenance, Reference, ReferenceStep, ToolContract

_ROOTS = ("$", "args", "arguments", "result")
_GENERIC = ("id", "ids", "uuid", "key", "name", "number")
_ID_ENDING = re.compile(r"(?<=[a-z0-9])(?:_ids?|Ids?)$")


@dataclass(frozen=True, slots=True)
class Axiomatic:
    """A reference, and the artifacts that no tool produces: whoever gives the task names them."""

    reference: Reference
    given: tuple[str, ...]


def artifact_name(path: str) -> str:
    """Return what a contract's path stands for, equal for a producer and its consumers.

    A literal is itself. Of a path it is the last name, without an ending that says "id", in the
    singular; a name that says nothing by itself takes the one before. Empty for a bare ``result``.

    Examples
    --------
    >>> [artifact_name(path) for path in ("args.order_id", "result.orders[*].id", "=tests_passed")]
    ['order', 'order', '=tests_passed']
    """
    if path.startswith("="):
        return path
    parts = [part for part in re.split(r"[.\[\]]+", path) if part and not part.isdigit()]
    parts = [part for part in parts if part != "*"]
    while parts and parts[0] in _ROOTS:
        parts = parts[1:]
    if not parts:
        return ""
    name = parts[-2] if len(parts) > 1 and parts[-1].lower() in _GENERIC else parts[-1]
    name = _ID_ENDING.sub("", name).lower()
    if name.endswith("ies") and len(name) > 4:
        return name[:-3] + "y"
    if name.endswith(("ches", "shes", "xes", "sses")):
        return name[:-2]
    return name[:-1] if len(name) > 3 and name.endswith("s") and not name.endswith("ss") else name


def axiomatic(
    contracts: Mapping[str, ToolContract], task_id: str, goals: Sequence[str]
) -> Axiomatic:
    """Order the tools that goals need: producers before consumers.

    Of several producers one that is there already is taken, then one of the consumer's domain, then
    the one that only reads, needs least and comes first by name; none of them is a parent, since
    any would do.

    Parameters
    ----------
    goals
        Tools, or artifacts as :func:`artifact_name` or contracts write them.

    Raises
    ------
    UnknownName
        A goal is neither a tool nor produced by one.
    """
    plan = _Plan(contracts)
    for goal in goals:
        tool = goal if goal in contracts else plan.producer(artifact_name(goal), ())
        if tool is None:
            raise UnknownName(
                f"task {task_id!r}: the goal {goal!r} is no tool of the contracts, and none "
                "produces it"
            )
        plan.add(tool, ())
    steps = tuple(plan.step(tool) for tool in plan.order)
    reference = Reference(
        reference_id=f"{task_id}/axiomatic",
        task_id=task_id,
        provenance=Provenance.AXIOMATIC,
        steps=steps,
    )
    return Axiomatic(reference, tuple(dict.fromkeys(plan.given)))


class _Plan:
    """Tools in the order in which they can run, and why."""

    def __init__(self, contracts: Mapping[str, ToolContract]) -> None:
        self._contracts = contracts
        self._producers: dict[str, list[str]] = {}
        for name in sorted(contracts):
            for path in contracts[name].produces:
                if artifact_name(path):
                    self._producers.setdefault(artifact_name(path), []).append(name)
        self.order: dict[str, tuple[str, ...]] = {}  # tool -> tools that it cannot do without
        self.given: list[str] = []

    def producer(self, artifact: str, waiting: Sequence[str]) -> str | None:
        """Return the tool that an artifact comes from, none of those that wait for it."""
        able = [name for name in self._producers.get(artifact, ()) if name not in waiting]
        done = [name for name in able if name in self.order]
        domain = self._contracts[waiting[-1]].domain if waiting else None
        near = [name for name in done or able if self._contracts[name].domain == domain]
        return min(near or done or able, key=self._effort, default=None)

    def add(self, tool: str, waiting: tuple[str, ...]) -> None:
        """Add a tool after what it needs; an artifact that needs itself counts as given."""
        if tool in self.order:
            return
        needed: dict[str, None] = {}
        for path in self._contracts[tool].consumes:
            artifact = artifact_name(path)
            source = self.producer(artifact, (*waiting, tool))
            if source is None:
                self.given.append(artifact or path)
                continue
            self.add(source, (*waiting, tool))
            if len(self._producers[artifact]) == 1:
                needed[source] = None  # of several, any would do
        self.order[tool] = tuple(needed)

    def step(self, tool: str) -> ReferenceStep:
        """Return a tool of the plan as a step, with its parents and the names of its artifacts."""
        places = {name: place for place, name in enumerate(self.order)}
        contract = self._contracts[tool]
        return ReferenceStep(
            seq=places[tool],
            tool=tool,
            action=contract.description,
            parents=tuple(sorted(places[source] for source in self.order[tool])),
            consumed=_names(contract.consumes),
            produced=_names(contract.produces),
        )

    def _effort(self, name: str) -> tuple[bool, int, str]:
        contract = self._contracts[name]
        return contract.effect is not Effect.READ, len(contract.consumes), name


def _names(paths: Sequence[str]) -> tuple[str, ...]:
    """Name artifacts; a literal's id is what follows its sign."""
    names = (artifact_name(path).removeprefix("=") for path in paths)
    return tuple(name for name in dict.fromkeys(names) if name)
