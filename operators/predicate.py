"""Conditions on the arguments of a call, in CEL: compiled once, safe, bounded in time.

Source: the Common Expression Language (cel.dev), a language without loops, assignments, clock or
I/O. What a condition sees: ``args``, ``task`` and ``seen(value)``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from cel_expr_python import cel

from ontrack.operators.predicate_names import (
    bound_name,
    fields_read,
    lexemes,
    macros,
    open_pattern,
    place_of,
)

EXPRESSION_CHARACTERS_MAX: Final = 1000


class Bounds(NamedTuple):
    """How much of arguments and variables a condition may look at."""

    values: int
    characters: int


#: By how many of its macros a condition has: what passes over a list does all of its work for each
#: element. Measured worst cases are in docs/decisions/0013-predicates-in-cel.md.
_BOUNDS: Final = (Bounds(1000, 32_768), Bounds(1000, 8192), Bounds(250, 2048))

ARGS: Final = "args"
TASK: Final = "task"
SEEN: Final = "seen"

# What builds new lists or bytes step by step is left out: nothing else lets memory grow with the
# steps of an evaluation. The library itself stops after 10,000 steps and at 32 levels of nesting,
# and its regular expressions take linear time.
_LANGUAGE = """
stdlib:
  exclude_macros: [map]
  exclude_functions:
    - name: "_+_"
      overloads: [{id: add_list}, {id: add_bytes}]
"""

_FIRST_ERROR = re.compile(r"ERROR: <input>:(\d+):(\d+): (.*)")
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)'")
_SYNTAX = (
    (re.compile(r"Syntax error: "), ""),
    (re.compile(r"(?:mismatched|extraneous) input "), "unexpected "),
    (re.compile(r"no viable alternative at input "), "unexpected "),
    (re.compile(r"token recognition error at: "), "unexpected "),
    (re.compile(r"'<EOF>'"), "end"),
    (re.compile(r" expecting \{.*"), ""),
    (re.compile(r" expecting "), ", expected "),
)


class PredicateError(Exception):
    """A condition that cannot be compiled.

    Parameters
    ----------
    problem
        What is wrong and what to do.
    line, column
        1-based, where a place is to blame.
    """

    def __init__(self, problem: str, line: int | None = None, column: int | None = None) -> None:
        self.problem, self.line, self.column = problem, line, column
        super().__init__(problem)


@dataclass(frozen=True, slots=True)
class Predicate:
    """A compiled condition.

    Parameters
    ----------
    expression
        As it was written.
    program
        The library's, type-checked.
    arguments, variables
        Names that it reads of ``args`` and of ``task``, and at which character; None where the
        names cannot be told.
    bounds
        How much it may look at.
    """

    expression: str
    program: cel.Expression = field(compare=False)
    arguments: Mapping[str, int] | None
    variables: Mapping[str, int] | None
    bounds: Bounds

    def __reduce__(self) -> tuple[Callable[[str], Predicate], tuple[str]]:
        """Copy by compiling anew: the library's program cannot be copied."""
        return compile_predicate, (self.expression,)


class Answer(NamedTuple):
    """Whether a condition holds and, where it does not, why; never with values of arguments."""

    holds: bool
    why: str = ""


def compile_predicate(expression: str) -> Predicate:
    """Compile a condition.

    Raises
    ------
    PredicateError
        Syntax, an unknown name, types that never fit, a result that is never true or false, or a
        condition that is too long or too deep.
    """
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise PredicateError(
            f"is {len(expression)} characters long, the limit is {EXPRESSION_CHARACTERS_MAX}; move "
            "values to `vars`, or write one condition per entry of `allowed`"
        )
    if "\0" in expression:  # the library reads no further
        line, column = place_of(expression, expression.index("\0"))
        raise PredicateError("holds a NUL character; remove it", line, column)
    try:
        program = _environment().compile(expression)
    except (RuntimeError, TypeError) as error:  # TypeError: half a surrogate pair
        raise _explained(expression, str(error)) from None
    given = program.return_type()
    if given not in (cel.Type.BOOL, cel.Type.DYN):
        raise PredicateError(
            f"gives a value of type {given.name().lower()}, expected true or false; compare it "
            "with something"
        )
    words = lexemes(expression)
    taken = bound_name(words, {ARGS, TASK, SEEN})
    if taken is not None:
        line, column = place_of(expression, taken.at)
        raise PredicateError(
            f"uses `{taken.text}` as the name of an element, which already has a meaning; choose "
            "another name",
            line,
            column,
        )
    pattern = open_pattern(words, TASK)
    if pattern is not None:  # an agent could write one that takes a tenth of a second to compile
        line, column = place_of(expression, pattern.at)
        raise PredicateError(
            "takes the pattern of `matches` from elsewhere; write it as a text, or put it into "
            "`vars` and name it as task.…",
            line,
            column,
        )
    bounds = _BOUNDS[min(macros(words), len(_BOUNDS) - 1)]
    return Predicate(
        expression, program, fields_read(ARGS, words), fields_read(TASK, words), bounds
    )


def evaluate(
    predicate: Predicate,
    args: Mapping[str, Any],
    variables: Mapping[str, Any],
    seen: Callable[[object], bool],
) -> Answer:
    """Evaluate a condition for one call; whatever fails means that it does not hold.

    An exception that ``seen`` raises is passed on: it is no fault of the condition.
    """
    data = {ARGS: only(args, predicate.arguments), TASK: only(variables, predicate.variables)}
    if exceeds(predicate.bounds, data):
        return Answer(
            False,
            f"what it reads holds more than {predicate.bounds.values} values or "
            f"{predicate.bounds.characters} characters, too much to check",
        )
    if _holds_nul(data):
        return Answer(False, "what it reads holds a NUL character, behind which it is blind")
    question = _Question(seen)
    token = _asked.set(question)
    try:
        result = predicate.program.eval(data=data)
        kind, value = result.type(), result.value()
    except (RuntimeError, TypeError, ValueError) as error:
        kind, value = cel.Type.ERROR, str(error)
    finally:
        _asked.reset(token)
    if question.failure is not None:
        raise question.failure
    if kind == cel.Type.ERROR:
        return Answer(False, _failure(predicate, args, str(value)))
    if kind != cel.Type.BOOL:
        return Answer(False, f"it gives a {kind.name().lower()}, expected true or false")
    return Answer(True) if value else Answer(False, "it does not hold for this call")


def exceeds(bounds: Bounds, data: object) -> bool:
    """Tell whether plain data holds more values or characters than that."""
    values = characters = 0
    waiting = [data]
    while waiting:
        value = waiting.pop()
        values += 1
        if isinstance(value, str | bytes):
            characters += len(value)
        elif isinstance(value, Mapping):
            characters += sum(len(str(name)) for name in value)
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)
        if values + len(waiting) > bounds.values or characters > bounds.characters:
            return True
    return False


def _holds_nul(data: object) -> bool:
    """Tell whether a text in plain data holds a NUL, at which the library cuts texts and names."""
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting.extend(value)
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)
        elif (isinstance(value, str) and "\0" in value) or (
            isinstance(value, bytes) and b"\0" in value
        ):
            return True
    return False


class _Question:
    """The ``seen`` of one evaluation. The library turns exceptions to text, so they are kept."""

    __slots__ = ("failure", "seen")

    def __init__(self, seen: Callable[[object], bool]) -> None:
        self.seen = seen
        self.failure: Exception | None = None


# Functions belong to the environment, which all conditions share; each thread asks its own.
_asked: ContextVar[_Question] = ContextVar("asked")


def _seen(value: object) -> bool:
    question = _asked.get()
    try:
        return bool(question.seen(value))
    except Exception as error:
        question.failure = error
        raise


@lru_cache(maxsize=1)
def _environment() -> cel.Env:
    kind = cel.Type
    # One overload a type: the library finds none for a parameter of any type.
    types = (kind.STRING, kind.INT, kind.DOUBLE, kind.BOOL, kind.NULL, kind.LIST, kind.MAP)
    overloads = [
        cel.Overload(f"seen_{item.name().lower()}", kind.BOOL, [item], impl=_seen) for item in types
    ]
    values = kind.Map(kind.STRING, kind.DYN)
    return cel.NewEnv(
        config=cel.NewEnvConfigFromYaml(_LANGUAGE),
        variables={ARGS: values, TASK: values},
        functions=[cel.FunctionDecl(SEEN, overloads)],
    )


def only(values: Mapping[str, Any], names: Mapping[str, int] | None) -> dict[str, Any]:
    """Return the values of what a condition reads; all of them where that cannot be told.

    It costs time to hand over a file's whole text.
    """
    if names is None:
        return dict(values)
    return {name: values[name] for name in names if name in values}


def _failure(predicate: Predicate, args: Mapping[str, Any], error: str) -> str:
    """Say why an evaluation failed; the library's own text may quote values."""
    missing = sorted(set(predicate.arguments or ()) - set(args))
    if "Key not found" in error or "NOT_FOUND" in error:
        if missing:
            named = " and ".join(f"`{name}`" for name in missing)
            return f"it cannot be decided: the call has no argument {named}"
        return "it cannot be decided: it reads a field that is not there"
    if "No matching overload" in error:
        return "it cannot be decided: a value is of another type than it expects"
    if "Iteration budget" in error:
        return "it cannot be decided: it takes too many steps for these arguments"
    return "it cannot be decided for these arguments"


def _explained(expression: str, error: str) -> PredicateError:
    """Turn the library's text into what is wrong, where, and what to do."""
    if "recursion limit" in error:
        return PredicateError("is nested deeper than 32 levels; write it flatter")
    found = _FIRST_ERROR.search(error)
    if found is None:
        return PredicateError("cannot be compiled; expected a condition in CEL")
    line, column, text = int(found.group(1)), int(found.group(2)), found.group(3)
    text = text.removesuffix(" [INVALID_ARGUMENT]")
    unknown = _UNDECLARED.match(text)
    if unknown is not None:
        return _unknown_name(expression, unknown.group(1), line, column)
    if "found no matching overload" in text:
        what = text.replace("found no matching overload for", "types that never fit:")
        return PredicateError(f"has {what.replace('_', '')}", line, column)
    for pattern, replacement in _SYNTAX:
        text = pattern.sub(replacement, text)
    return PredicateError(f"is no valid CEL: {text[:120]}", line, column)


def _unknown_name(expression: str, name: str, line: int, column: int) -> PredicateError:
    """Name what is unknown, where it stands itself (the library points behind it)."""
    root = name.strip(".").partition(".")[0]
    words = lexemes(expression)
    if any(words[n].text == "." and words[n + 1].text == "map" for n in range(len(words) - 1)):
        return PredicateError(
            "uses `map`, which is left out; use all, exists, exists_one or filter", line, column
        )
    if root == SEEN:
        return PredicateError("calls `seen` with more or less than one value", line, column)
    what = "name"
    for place, word in enumerate(words):
        if word.kind == "name" and word.text == root:
            line, column = place_of(expression, word.at)
            if place + 1 < len(words) and words[place + 1].text == "(":
                what = "function"
            break
    return PredicateError(
        f"uses the unknown {what} `{root}`; known are `args`, `task`, `seen(value)` and the "
        "functions of CEL",
        line,
        column,
    )
