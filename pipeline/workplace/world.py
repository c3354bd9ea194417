"""The vocabulary in which a desk of the simulated workplace is written down.

A desk is data: its tools, its tasks as small graphs of steps, and what its agent does when it goes
wrong. One engine (``execution``, ``faults``) turns the data into runs.

Texts may hold ``$sha``, ``$number`` and ``$nonce``: ids that differ from run to run, as commit
hashes and receipt numbers do. Everything else stays the same in all runs of a task, so that
arguments of the same step match.

The phrasings of a step name its act and its object in shared words (cosine 0.48 and more under
WordLlama): a first set of freer paraphrases made the gate block valid steps in 8 of 36 clean runs
and was replaced. So silence on these runs says nothing about freely paraphrased intents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ontrack.topics.knowledge import ToolContract


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One call of a plan: the tool, its arguments, what comes back, and how the agent says it.

    Parameters
    ----------
    key
        Name of the node inside its task.
    tool
        Name of the tool.
    args, result
        Arguments and the tool's answer.
    says
        Ways to state the intent; the run's seed chooses one.
    after
        Keys of the steps that must come before.
    pending
        For tools that poll: the answer while the thing waited for is not done. A run asks up to
        one time too early.
    """

    key: str
    tool: str
    args: Mapping[str, Any]
    result: Any
    says: tuple[str, ...]
    after: tuple[str, ...] = ()
    pending: Any = None


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """A task: a directed acyclic graph of steps."""

    task_id: str
    steps: tuple[StepPlan, ...]

    def levels(self) -> dict[str, int]:
        """Return each step's level: 0 for a root, else one more than its deepest producer's."""
        level: dict[str, int] = {}
        waiting = list(self.steps)
        while waiting:
            ready = [step for step in waiting if all(key in level for key in step.after)]
            assert ready, f"the plan of {self.task_id} has a cycle or names an unknown step"
            for step in ready:
                level[step.key] = max((level[key] + 1 for key in step.after), default=0)
            waiting = [step for step in waiting if step.key not in level]
        return level


@dataclass(frozen=True, slots=True)
class Stall:
    """Asking the same thing in ever new words: one tool, near-equal arguments, the same answer."""

    tool: str
    variants: tuple[Mapping[str, Any], ...]
    result: Any
    says: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Desk:
    """A team with its tools and tasks, and with the ways its agent can go wrong.

    Parameters
    ----------
    name
        First part of the task ids.
    agent
        Id of the agent that works there.
    tools, tasks
        Contracts and plans.
    stall
        What a stalled agent keeps asking.
    side_branch
        Two reads, the second of which uses what the first found; benign and abandoned.
    invented
        Destructive calls with ids that no tool ever returned.
    """

    name: str
    agent: str
    tools: tuple[ToolContract, ...]
    tasks: tuple[TaskPlan, ...]
    stall: Stall
    side_branch: tuple[StepPlan, StepPlan]
    invented: tuple[StepPlan, ...]


def step(
    key: str,
    tool: str,
    args: Mapping[str, Any],
    result: Any,
    says: str,
    after: str = "",
    pending: Any = None,
) -> StepPlan:
    """Return a step plan; phrasings are separated by ``|``, keys of producers by blanks."""
    phrasings = tuple(text.strip() for text in says.split("|"))
    return StepPlan(key, tool, args, result, phrasings, tuple(after.split()), pending)


def stall(tool: str, variants: tuple[Mapping[str, Any], ...], result: Any, says: str) -> Stall:
    """Return what a stalled agent asks; phrasings are separated by ``|``."""
    return Stall(tool, variants, result, tuple(text.strip() for text in says.split("|")))
