"""What is wrong with task files, seen from the tools: all of it, not only the first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Literal, NamedTuple

from ontrack.operators.allowance import compile_allowance, unknown_arguments
from ontrack.operators.predicate import compile_predicate
from ontrack.topics.errors import InvalidAllowance
from ontrack.topics.jsontext import shown
from ontrack.topics.knowledge import AllowedEffect, Effect, Task, ToolContract

Kind = Literal["unknown_tool", "bad_predicate", "unknown_argument", "pointless"]


class Finding(NamedTuple):
    """One thing to put right.

    Parameters
    ----------
    task_id, tool
        Where it is.
    kind
        ``unknown_tool``: no contract; ``bad_predicate``: does not compile or is left over;
        ``unknown_argument``: a condition reads what the tool's schema does not name;
        ``pointless``: allowed, though it only reads.
    text
        What is wrong and what to do.
    """

    task_id: str
    tool: str
    kind: Kind
    text: str


def check_tasks(
    tasks: Iterable[Task], contracts: Mapping[str, ToolContract]
) -> tuple[Finding, ...]:
    """Return what is wrong with tasks, in their order, each thing once."""
    found = dict.fromkeys(finding for task in tasks for finding in _of_task(task, contracts))
    return tuple(found)


def _of_task(task: Task, contracts: Mapping[str, ToolContract]) -> Iterator[Finding]:
    allowed = [entry.tool for entry in task.allowed or ()]
    for index, reference in enumerate(task.references):
        for step in reference:
            if step.tool not in contracts:
                yield _unknown(task, step.tool, f"reference {index}", contracts)
    for tool in allowed:
        if tool not in contracts:
            yield _unknown(task, tool, "`allowed`", contracts)
        elif contracts[tool].effect is Effect.READ:
            text = "only reads, which is always allowed; leave it out of `allowed`"
            yield Finding(task.id, tool, "pointless", text)
    for single in _apart(task):
        yield from _of_conditions(single, contracts)


def _apart(task: Task) -> Iterator[Task]:
    """Yield the task once a condition, so that one that is wrong does not hide the others."""
    for entry in task.allowed or ():
        if entry.when is not None:
            yield task.model_copy(update={"allowed": (entry,), "predicates": {}})
    names = {entry.tool for entry in task.allowed or ()}
    plain = tuple(AllowedEffect(tool=name) for name in sorted(names))
    for tool, expression in task.predicates.items():
        allowed = None if task.allowed is None else plain
        yield task.model_copy(update={"allowed": allowed, "predicates": {tool: expression}})


def _of_conditions(task: Task, contracts: Mapping[str, ToolContract]) -> Iterator[Finding]:
    try:
        compile_allowance(task, contracts)
    except InvalidAllowance as error:
        yield Finding(task.id, error.tool, "bad_predicate", str(error))
        return
    conditions = [(entry.tool, entry.when) for entry in task.allowed or () if entry.when]
    for tool, expression in [*conditions, *task.predicates.items()]:
        for name in unknown_arguments(compile_predicate(expression), contracts.get(tool)):
            text = f"the condition `{expression[:200]}` reads args.{name}, which the inputSchema "
            text += "does not name; correct its name, or add it to the schema"
            yield Finding(task.id, tool, "unknown_argument", text)


def _unknown(task: Task, tool: str, place: str, contracts: Mapping[str, ToolContract]) -> Finding:
    near = get_close_matches(tool, contracts, n=1, cutoff=0.7)
    meant = f"; did you mean {shown(near[0])}?" if near else "; add its contract or remove it"
    return Finding(task.id, tool, "unknown_tool", f"{place} names a tool without a contract{meant}")
