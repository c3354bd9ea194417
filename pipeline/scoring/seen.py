"""What a first reading of recorded runs found: how many calls passing runs took, and which."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from ontrack.operators.scoring_coverage import ReferencePath

#: Passing runs of a task that stand in for references, where none are given.
PATHS_KEPT_MAX: Final = 10
#: Below this Jaccard index of their tools, two files mean different tasks by one id.
ALIKE_MIN: Final = 1 / 3

Steps = Counter[int]  # runs by their number of steps


@dataclass
class TaskSeen:
    """Runs of one task: of all, the tools; of the passing ones, steps and different paths."""

    tools: set[str] = field(default_factory=set)
    steps: Steps = field(default_factory=Counter)
    paths: list[ReferencePath] = field(default_factory=list)

    def add(self, run_id: str, passed: bool, tools: tuple[str, ...]) -> None:
        """Take one run."""
        self.tools.update(tools)
        if passed:
            self.steps[len(tools)] += 1
            if tools:
                self._keep(ReferencePath(run_id, tools, (run_id,)))

    def join(self, other: TaskSeen) -> None:
        """Take the runs of the same task from another file."""
        self.tools |= other.tools
        self.steps += other.steps
        for path in other.paths:
            self._keep(path)

    def is_like(self, other: TaskSeen) -> bool:
        """Tell whether the tools are those of one task; of a run without calls they may be."""
        either = len(self.tools | other.tools)
        alike = len(self.tools & other.tools) >= ALIKE_MIN * either
        return alike or not self.tools or not other.tools

    def _keep(self, new: ReferencePath) -> None:
        for place, path in enumerate(self.paths):
            if path.tools == new.tools:
                # Two runs are enough to know that a path is not one run's alone.
                run_ids = tuple(dict.fromkeys((*path.run_ids, *new.run_ids)))[:2]
                self.paths[place] = replace(path, run_ids=run_ids)
                return
        if len(self.paths) < PATHS_KEPT_MAX:
            self.paths.append(new)


class Seen:
    """Runs by task and file, by file, and all together; grows with tasks, not with runs."""

    def __init__(self) -> None:
        self.overall: Steps = Counter()
        self._by_file: dict[str, Steps] = {}
        self._by_task: dict[str, dict[str, TaskSeen]] = {}
        self.apart: list[str] = []

    def add(
        self, task_id: str | None, file: str, run_id: str, passed: bool, tools: tuple[str, ...]
    ) -> None:
        """Take one run."""
        if passed:
            self.overall[len(tools)] += 1
            self._by_file.setdefault(file, Counter())[len(tools)] += 1
        if task_id is not None:
            files = self._by_task.setdefault(task_id, {})
            files.setdefault(file, TaskSeen()).add(run_id, passed, tools)

    def tell_apart(self) -> None:
        """Join what files say of a task, unless they mean different tasks by one id.

        Benchmarks number their tasks, so 17 of one is not 17 of the other. Files whose runs share
        hardly any tools are kept apart; ``apart`` lists the ids.
        """
        for task_id, files in self._by_task.items():
            groups: list[TaskSeen] = []
            for file, found in files.items():
                group = next((each for each in groups if each.is_like(found)), None)
                if group is None:
                    groups.append(found)
                else:
                    group.join(found)
                    files[file] = group
            if len(groups) > 1:
                self.apart.append(task_id)

    def task(self, task_id: str | None, file: str) -> TaskSeen:
        """Return what was seen of the task that a file means by an id."""
        return self._by_task.get(task_id or "", {}).get(file, _NOTHING)

    def file(self, file: str) -> Steps:
        """Return the passing runs of a file, by steps."""
        return self._by_file.get(file, Counter())


_NOTHING = TaskSeen()
