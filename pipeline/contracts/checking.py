"""What is wrong with task files, seen from the tools: all of it, not only the first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

from pydantic import AliasChoices, BaseModel

from ontrack.operators.allowance import compile_allowance, unknown_arguments
from ontrack.operators.predicate import compile_predicate
from ontrack.topics.errors import InvalidAllowance
from ontrack.topics.jsontext import shown
from ontrack.topics.knowledge import AllowedEffect, Effect, Task, ToolContract

Kind = Literal["unknown_tool", "bad_predicate", "unknown_argument", "pointless", "unknown_field"]
_NEAR = 0.75  # of two names of which one is likely to be the other, misspelt


class Finding(NamedTuple):
    """One thing to put right.

    Parameters
    ----------
    task_id, tool
        Where it is.
    kind
        ``unknown_tool``: no contract; ``bad_predicate``: does not compile or is left over;
        ``unknown_argument``: a condition reads what the tool's schema does not name;
        ``pointless``: allowed, though it only reads; ``unknown_field``: nothing reads it.
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


def check_fields(data: Any, kind: Literal["tasks", "tools"]) -> Iterator[Finding]:
    """Yield fields of a file that nothing reads: a rule that is misspelt guards nothing.

    Of tools only what looks like one of ours, misspelt: descriptions from MCP servers bring many
    fields of their own.

    Parameters
    ----------
    data
        As it was read, before it became tasks or tools.
    """
    items = data.get(kind, [data]) if isinstance(data, dict) else data
    model: type[BaseModel] = Task if kind == "tasks" else ToolContract
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict):
            continue
        name = str(item.get("id", item.get("name", "")))
        ids = (name, "") if kind == "tasks" else ("", name)
        yield from _unknown_fields(item, model, ids, "", strict=kind == "tasks")
        for index, entry in enumerate(item.get("allowed") or () if kind == "tasks" else ()):
            if isinstance(entry, dict):
                where = f"allowed[{index}]."
                yield from _unknown_fields(entry, AllowedEffect, ids, where, strict=True)


def _unknown_fields(
    item: Mapping[str, Any], model: type[BaseModel], ids: tuple[str, str], where: str, strict: bool
) -> Iterator[Finding]:
    known = _names(model)
    for field in item:
        if field in known:
            continue
        near = get_close_matches(field, known, n=1, cutoff=_NEAR)
        if near:
            text = f"nothing reads `{where}{shown(field)}`; is `{near[0]}` meant?"
            yield Finding(*ids, "unknown_field", text)
        elif strict:
            yield Finding(*ids, "unknown_field", f"nothing reads `{where}{shown(field)}`")


def _names(model: type[BaseModel]) -> list[str]:
    """Return what fields may be called in files."""
    found: list[str] = []
    for name, field in model.model_fields.items():
        found.append(name)
        alias = field.validation_alias or field.alias
        if isinstance(alias, str):
            found.append(alias)
        elif isinstance(alias, AliasChoices):
            found += [choice for choice in alias.choices if isinstance(choice, str)]
    return found


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
