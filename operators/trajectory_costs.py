"""What calls of tools weigh, and what one costs in place of another."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter, eq
from typing import Any, NamedTuple

import numpy as np
import orjson

from ontrack.operators.trajectory_weights import StepWeights
from ontrack.solver.arrays import Floats, Ints
from ontrack.topics.errors import InvalidInput
from ontrack.topics.events import Call
from ontrack.topics.knowledge import Reference

Canonicaliser = Callable[[str], str]
AnyCall = Call | str | tuple[str, Mapping[str, Any]] | Mapping[str, Any]
Trajectory = Sequence[AnyCall] | Reference


def fold_text(text: str) -> str:
    """Return text without case and repeated white space, composed (NFC): a canonicaliser.

    Examples
    --------
    >>> fold_text("  New   York ")
    'new york'
    """
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return " ".join(text.casefold().split())


_TOOL, _ARGS = attrgetter("tool"), attrgetter("args")


class Calls:
    """Tools and arguments of a trajectory, in order.

    Parameters
    ----------
    args
        Of each call.
    steps
        What has a ``tool`` each. The names are read when they are asked for: where two runs differ
        early, telling that they do is not worth reading them all.
    """

    __slots__ = ("_steps", "_tools", "args")

    def __init__(self, args: list[Mapping[str, Any]], steps: Sequence[Any]) -> None:
        self.args = args
        self._steps = steps
        self._tools: list[str] | None = None

    def __len__(self) -> int:
        return len(self.args)

    @property
    def tools(self) -> list[str]:
        """Name of each call's tool."""
        if self._tools is None:
            self._tools = list(self.names())
        return self._tools

    def names(self) -> Iterator[str]:
        """Yield the name of each call's tool."""
        return map(_TOOL, self._steps)


class _Named(NamedTuple):
    tool: str
    args: Mapping[str, Any]


def calls_of(trajectory: Trajectory) -> Calls:
    """Read the calls of a trajectory, however they are written down.

    Raises
    ------
    InvalidInput
        If something in it is no call.
    """
    steps: Any = steps_of(trajectory)
    try:
        return Calls(list(map(_ARGS, steps)), steps)
    except AttributeError:  # not all of them are steps
        steps = [_call(place, step) for place, step in enumerate(steps)]
        return Calls([step.args for step in steps], steps)


def steps_of(trajectory: Trajectory) -> Sequence[AnyCall]:
    """Return the steps of a trajectory, also those of a reference."""
    if isinstance(trajectory, Reference):
        return trajectory.steps
    if isinstance(trajectory, str) or not isinstance(trajectory, Sequence):
        raise InvalidInput(
            f"a trajectory is a list of calls, not {type(trajectory).__name__}; "
            "for one call, put it into a list"
        )
    return trajectory


def masses(calls: Calls, weights: StepWeights) -> Floats:
    """Return what each call weighs with all its arguments, (n,)."""
    of = {tool: weights.of(tool) for tool in set(calls.tools)}
    if any(each.arguments for each in of.values()):
        return np.array(
            [
                of[tool].step + sum(of[tool].of(name) for name in sorted(args))
                for tool, args in zip(calls.tools, calls.args, strict=True)
            ],
            dtype=np.float64,
        )
    size = len(calls)
    step = {tool: each.step for tool, each in of.items()}
    argument = {tool: each.argument for tool, each in of.items()}
    total = np.fromiter(map(argument.__getitem__, calls.tools), np.float64, size)
    total *= np.fromiter(map(len, calls.args), np.float64, size)
    total += np.fromiter(map(step.__getitem__, calls.tools), np.float64, size)
    return total


def total_mass(calls: Calls, weights: StepWeights) -> float:
    """Return what all calls weigh together."""
    if weights.tools or weights.default.arguments:
        return float(masses(calls, weights).sum())
    each = weights.default
    return each.step * len(calls) + each.argument * sum(map(len, calls.args))


class Pool(NamedTuple):
    """The calls of one tool that both trajectories have.

    Parameters
    ----------
    tool
        Its name.
    left, right : (n,), (m,)
        Places of its calls.
    names : length A
        Arguments that any of the calls has, sorted.
    left_values, right_values : (n, A), (m, A)
        Values as numbers: equal numbers are equal values, -1 is a missing one.
    """

    tool: str
    left: Ints
    right: Ints
    names: list[str]
    left_values: Ints
    right_values: Ints


def pools(left: Calls, right: Calls, canonicaliser: Canonicaliser | None) -> list[Pool]:
    """Sort the calls of two trajectories by tool; tools that only one of them has are left out."""
    numbers = _Numbers(canonicaliser)
    places_left, places_right = _places(left.tools), _places(right.tools)
    found = []
    for tool in sorted(places_left.keys() & places_right.keys()):
        here, there = places_left[tool], places_right[tool]
        args = [left.args[i] for i in here], [right.args[j] for j in there]
        names = sorted(set().union(*args[0], *args[1]))
        values = [numbers.of(tool, each, names) for each in args]
        found.append(Pool(tool, np.array(here), np.array(there), names, *values))
    return found


def differing(
    one: Mapping[str, Any], other: Mapping[str, Any], canonicaliser: Canonicaliser | None
) -> list[str]:
    """Return the names of the arguments that two calls do not have alike, sorted."""
    return [
        name
        for name in sorted({*one, *other})
        if name not in one or name not in other or not _alike(one[name], other[name], canonicaliser)
    ]


def identical(left: Calls, right: Calls, canonicaliser: Canonicaliser | None) -> bool:
    """Tell whether two trajectories make the same calls in the same order."""
    if len(left) != len(right) or not all(map(eq, left.names(), right.names())):
        return False
    try:
        here, there = orjson.dumps(left.args), orjson.dumps(right.args)
        if here == there and b"null" not in here:  # a NaN is written as null, too
            return True
    except TypeError:
        pass  # something that orjson does not write; it is looked at below
    return all(
        one is other
        or (
            one.keys() == other.keys()
            and all(_alike(value, other[name], canonicaliser) for name, value in one.items())
        )
        for one, other in zip(left.args, right.args, strict=True)
    )


def _alike(one: Any, other: Any, canonicaliser: Canonicaliser | None) -> bool:
    if type(one) is str and type(other) is str:
        return one == other or (
            canonicaliser is not None and canonicaliser(one) == canonicaliser(other)
        )
    return bool(_key(one, canonicaliser) == _key(other, canonicaliser))


class _Numbers:
    """Numbers of values: the same one for equal values."""

    def __init__(self, canonicaliser: Canonicaliser | None) -> None:
        self._canonicaliser = canonicaliser
        self._of_key: dict[Any, int] = {}
        self._of_text: dict[str, int] = {}  # so that a text is made canonical once

    def of(self, tool: str, calls: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Ints:
        """Return the values of calls, (n, A)."""
        found = np.full((len(calls), len(names)), -1, dtype=np.int64)
        for column, name in enumerate(names):
            try:
                found[:, column] = [
                    self._number(args[name]) if name in args else -1 for args in calls
                ]
            except InvalidInput as error:
                raise InvalidInput(f"argument {name!r} of {tool!r}: {error}") from error
        return found

    def _number(self, value: Any) -> int:
        if type(value) is not str:
            return self._of_key.setdefault(_key(value, self._canonicaliser), len(self._of_key))
        number = self._of_text.get(value)
        if number is None:
            key = value if self._canonicaliser is None else self._canonicaliser(value)
            number = self._of_key.setdefault(key, len(self._of_key))
            self._of_text[value] = number
        return number


def _key(value: Any, canonicaliser: Canonicaliser | None) -> Any:
    """Return what is equal for equal JSON values only: 1 is 1.0 and not true."""
    kind = type(value)
    if kind is str:
        return value if canonicaliser is None else canonicaliser(value)
    if kind is int or value is None:
        return value
    if kind is float:
        return value if value == value else ("nan",)
    if kind is bool:
        return ("bool", value)
    if isinstance(value, Mapping):
        items = ((name, _key(child, canonicaliser)) for name, child in value.items())
        return ("object", frozenset(items))
    if isinstance(value, list | tuple):
        return ("array", *(_key(child, canonicaliser) for child in value))
    raise InvalidInput(f"expected a JSON value, got {kind.__name__}")


def _places(tools: Sequence[str]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, tool in enumerate(tools):
        places.setdefault(tool, []).append(place)
    return places


def _call(place: int, step: object) -> _Named:
    tool: object = None
    args: object = None
    if isinstance(step, str):
        tool = step
    elif isinstance(step, Mapping):
        tool, args = step.get("tool"), step.get("args")
    elif isinstance(step, tuple | list) and len(step) == 2:
        tool, args = step
    else:  # a step, or somebody else's record of one
        tool, args = getattr(step, "tool", None), getattr(step, "args", None)
    args = {} if args is None else args
    if isinstance(tool, str) and isinstance(args, Mapping):
        return _Named(tool, args)
    raise InvalidInput(
        f"step {place} is no call: expected a step, the name of a tool, (tool, arguments) or an "
        f"object with tool and args, got {type(step).__name__}"
    )
