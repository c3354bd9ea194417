"""Which run started which, so that a halt of the parent reaches its children.

Parent and child may be in different partitions, so they speak through the log: the partition of a
child writes ``child_started`` under the parent's id, and the partition of a halted parent writes
``parent_halted`` under each child's. Both may be written twice; the second one changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

CHILDREN_MAX = 1000  # of one run; the latest are kept
CHARACTERS_MAX = 1_000_000  # of all ids of a partition: they must fit into one snapshot


@dataclass(slots=True)
class Family:
    """Children and halts of the runs of one partition.

    Parameters
    ----------
    runs_max
        Parents, and halted runs, that are remembered.
    children
        Children by parent, the latest last.
    halted
        Runs that were halted, whether still open or not.
    """

    runs_max: int
    children: OrderedDict[str, OrderedDict[str, None]] = field(default_factory=OrderedDict)
    halted: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _characters: int = 0

    def add(self, parent: str, child: str) -> None:
        """Note that a run has started another one; the parents longest ago are forgotten."""
        siblings = self.children.setdefault(parent, OrderedDict())
        if child not in siblings:
            siblings[child] = None
            self._characters += len(child)
        if len(siblings) > CHILDREN_MAX:
            self._characters -= len(siblings.popitem(last=False)[0])
        self.children.move_to_end(parent)
        while len(self.children) > self.runs_max or self._characters > CHARACTERS_MAX:
            self.end(next(iter(self.children)))

    def halt(self, run_id: str) -> list[str]:
        """Note a run's halt and return the children to be told: none the second time."""
        if run_id in self.halted:
            return []
        self.halted[run_id] = None
        if len(self.halted) > self.runs_max:
            self.halted.popitem(last=False)
        return list(self.children.get(run_id, ()))

    def resume(self, run_id: str) -> None:
        """Forget a run's halt: what it starts from now on is not stopped."""
        self.halted.pop(run_id, None)

    def end(self, run_id: str) -> None:
        """Forget the children of a run that has ended; its halt is remembered."""
        self._characters -= sum(map(len, self.children.pop(run_id, ())))
