"""The effectful calls that a task allows: one verdict a call, the same live and offline.

Source: the specification of trajectory scoring ("unsafe actions"). What only reads is never
reported; an unknown tool is, unless the task names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ontrack.operators.predicate import (
    Predicate,
    PredicateError,
    compile_predicate,
    evaluate,
    exceeds,
    only,
)
from ontrack.operators.predicate_names import place_of
from ontrack.topics.errors import InvalidAllowance
from ontrack.topics.events import Call
from ontrack.topics.jsontext import shown
from ontrack.topics.knowledge import Effect, Task, ToolContract

_QUOTED_MAX: Final = 200
# With one of these a schema may accept arguments that its `properties` do not name.
_OPEN_SCHEMA: Final = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties", "if")


@dataclass(frozen=True, slots=True)
class Breach:
    """A call outside of what its task allows.

    Parameters
    ----------
    tool
        Name of the tool.
    effect
        By its contract; unknown without one.
    reason
        A sentence, without values of arguments.
    """

    tool: str
    effect: Effect
    reason: str


@dataclass(frozen=True, slots=True)
class Rule:
    """Under which conditions a task allows calls of one tool.

    Parameters
    ----------
    alternatives
        From entries of ``allowed``: one of them has to hold; empty where an entry has none.
    required
        From ``predicates``: has to hold as well.
    """

    alternatives: tuple[Predicate, ...] = ()
    required: Predicate | None = None


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a task allows, compiled.

    Parameters
    ----------
    task_id
        Of the task.
    rules
        By tool.
    variables
        ``vars`` of the task, which conditions see as ``task``.
    """

    task_id: str
    rules: Mapping[str, Rule]
    variables: Mapping[str, Any]


def compile_allowance(task: Task, contracts: Mapping[str, ToolContract]) -> Allowance | None:
    """Compile what a task allows; None where it declares nothing, and then nothing is reported.

    Parameters
    ----------
    task
        ``allowed: []`` means that nothing effectful is allowed. Several entries of one tool are
        alternatives; one without ``when`` allows every call. ``predicates`` hold besides.
    contracts
        By tool; a condition must not read an argument that a tool's schema rules out.

    Raises
    ------
    InvalidAllowance
        A predicate of a tool that is not allowed, a condition that cannot be compiled, one that
        reads a variable which the task does not declare or an argument which the tool does not
        have, variables that are too large.
    """
    names = dict.fromkeys(entry.tool for entry in task.allowed or ())
    for tool, expression in task.predicates.items():
        if tool not in names:
            raise _not_allowed(task, tool, expression)
    if task.allowed is None:
        return None
    rules = {}
    for tool in names:
        entries = [entry.when for entry in task.allowed if entry.tool == tool]
        conditions = [
            _compiled(task, tool, when, contracts) for when in entries if when is not None
        ]
        required = task.predicates.get(tool)
        rules[tool] = Rule(
            tuple(conditions) if len(conditions) == len(entries) else (),
            None if required is None else _compiled(task, tool, required, contracts),
        )
    return Allowance(task.id, rules, task.vars)


def check(
    allowance: Allowance,
    contract: ToolContract | None,
    call: Call,
    seen: Callable[[object], bool],
) -> Breach | None:
    """Return why a call is outside of what its task allows, None where it is not.

    Parameters
    ----------
    allowance
        Of the run's task.
    contract
        Of the call's tool; None for an unknown tool, which is reported unless it is allowed.
    call
        Step or proposal.
    seen
        Tells whether a value occurred in an earlier result of the run.
    """
    effect = Effect.UNKNOWN if contract is None else contract.effect
    if effect is Effect.READ:
        return None
    rule = allowance.rules.get(call.tool)
    if rule is None:
        text = (
            f"{_what(call.tool, contract)}, and task {shown(allowance.task_id)} does not allow it"
        )
        return Breach(call.tool, effect, text)
    objection = _objection(rule, call.args, allowance.variables, seen)
    if objection is None:
        return None
    text = f"task {shown(allowance.task_id)} allows {shown(call.tool)} only where {objection}"
    return Breach(call.tool, effect, text)


def _objection(
    rule: Rule,
    args: Mapping[str, Any],
    variables: Mapping[str, Any],
    seen: Callable[[object], bool],
) -> str | None:
    if rule.required is not None:
        answer = evaluate(rule.required, args, variables, seen)
        if not answer.holds:
            return f"{_quoted(rule.required.expression)}, and {answer.why}"
    failed = []
    for condition in rule.alternatives:
        answer = evaluate(condition, args, variables, seen)
        if answer.holds:
            return None
        failed.append(f"{_quoted(condition.expression)}, and {answer.why}")
    return "; or where ".join(failed) if failed else None


def _what(tool: str, contract: ToolContract | None) -> str:
    if contract is None:
        return f"no contract says what {shown(tool)} does"
    verb = "writes" if contract.effect is Effect.WRITE else "is destructive"
    about = [f"domain {shown(contract.domain)}"] if contract.domain else []
    about += ["external"] if contract.external else []
    return f"{shown(tool)} {verb}" + (f" ({', '.join(about)})" if about else "")


def _compiled(
    task: Task, tool: str, expression: str, contracts: Mapping[str, ToolContract]
) -> Predicate:
    """Compile one condition of a task, and check the names that it reads."""
    try:
        predicate = compile_predicate(expression)
    except PredicateError as error:
        place = f" (line {error.line}, column {error.column})" if error.line is not None else ""
        raise InvalidAllowance(
            f"{_of(task, tool)}: the condition {_quoted(expression)} {error.problem}{place}",
            task_id=task.id,
            tool=tool,
            expression=expression,
            line=error.line,
            column=error.column,
        ) from None
    for name, at in (predicate.variables or {}).items():
        if name not in task.vars:
            names = f"declared are {', '.join(sorted(task.vars))}" if task.vars else "it has none"
            why = f"not among the `vars` of the task ({names[:_QUOTED_MAX]}); declare it there"
            raise _wrong_name(task, tool, expression, f"task.{name}", at, why)
    for name in unknown_arguments(predicate, contracts.get(tool), is_closed_only=True):
        at = (predicate.arguments or {})[name]
        why = "an argument that the inputSchema of the tool rules out; correct its name"
        raise _wrong_name(task, tool, expression, f"args.{name}", at, why)
    if exceeds(predicate.bounds, only(task.vars, predicate.variables)):
        raise InvalidAllowance(
            f"{_of(task, tool)}: the variables that the condition {_quoted(expression)} reads hold "
            f"more than {predicate.bounds.values} values or {predicate.bounds.characters} "
            "characters; shorten `vars`",
            task_id=task.id,
            tool=tool,
            expression=expression,
        )
    return predicate


def unknown_arguments(
    predicate: Predicate, contract: ToolContract | None, *, is_closed_only: bool = False
) -> list[str]:
    """Return the arguments that a condition reads and the tool's schema does not name, sorted.

    Parameters
    ----------
    is_closed_only
        Only where the schema says that there are no others (``additionalProperties: false``);
        otherwise also where it merely does not name them.
    """
    schema = contract.input_schema if contract is not None else None
    if schema is None or predicate.arguments is None or any(key in schema for key in _OPEN_SCHEMA):
        return []
    properties, additional = schema.get("properties"), schema.get("additionalProperties", True)
    if not isinstance(properties, dict) or (additional is not False and is_closed_only):
        return []
    if "additionalProperties" in schema and additional is not False:
        return []
    return sorted(set(predicate.arguments) - set(properties))


def _wrong_name(
    task: Task, tool: str, expression: str, name: str, at: int, why: str
) -> InvalidAllowance:
    line, column = place_of(expression, at)
    return InvalidAllowance(
        f"{_of(task, tool)}: the condition {_quoted(expression)} reads {name} (line {line}, "
        f"column {column}), {why}",
        task_id=task.id,
        tool=tool,
        expression=expression,
        line=line,
        column=column,
    )


def _not_allowed(task: Task, tool: str, expression: str) -> InvalidAllowance:
    names = ", ".join(dict.fromkeys(entry.tool for entry in task.allowed or ()))
    found = (
        "the task has no list `allowed`" if task.allowed is None else f"allowed: {names or '[]'}"
    )
    return InvalidAllowance(
        f"{_of(task, tool)}: there is a predicate {_quoted(expression)}, but the tool is not "
        f"allowed ({found[:_QUOTED_MAX]}); name it under `allowed` or remove the predicate",
        task_id=task.id,
        tool=tool,
        expression=expression,
    )


def _of(task: Task, tool: str) -> str:
    return f"task {shown(task.id)}, tool {shown(tool)}"


def _quoted(expression: str) -> str:
    text = " ".join(expression.split())
    return f"`{text if len(text) <= _QUOTED_MAX else text[: _QUOTED_MAX - 1] + '…'}`"
