"""Values of arguments by place: what references hold, and what a call asks for.

A place is a tool and a path into its arguments. Only values that can say whom or what a call is
about take part: neither prose nor dates and times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ontrack.operators.artifacts import parsed_result
from ontrack.operators.limits import require
from ontrack.operators.names import is_prose
from ontrack.operators.paths import canonical_value, joined, plain_path, scalars
from ontrack.operators.sightings import SeenValues, SightingParams, find, see
from ontrack.topics.events import Call
from ontrack.topics.knowledge import Reference, ToolContract

Place = tuple[str, str]
GIVEN = 0
"""Source of a value that no earlier result held: the task, the user or the agent named it."""

_BEYOND = "more values than are looked at"
_ADDRESS = re.compile(r"[^\s@]@[^\s@]|://")


@dataclass(frozen=True, slots=True)
class ValueParams:
    """What counts as an identity value, and how much is looked at.

    Parameters
    ----------
    characters_max
        A longer value with white space in it is text, not an identity.
    values_per_call_max
        Scalars looked at in one call; that there are more counts as one more value.
    sightings
        What is remembered of results.
    """

    characters_max: int = 80
    values_per_call_max: int = 1024
    sightings: SightingParams = SightingParams()

    def __post_init__(self) -> None:
        require(self, 1, 10_000, "characters_max")
        require(self, 1, 1_000_000, "values_per_call_max")


@dataclass(frozen=True, slots=True)
class Argument:
    """One value of a call: its path into the arguments, and its canonical text.

    ``is_text``: it is too long for an identity, which is odd where references have identities.
    """

    path: str
    value: str
    is_text: bool = False


def identity_arguments(
    params: ValueParams, call: Call, contract: ToolContract | None
) -> tuple[Argument, ...]:
    """Return what a call is about: each identity value once, in the order of the arguments.

    The paths that ``contract.identity`` declares, whatever their values; without a declaration
    every value that is neither prose by its name nor a date or time. Lists and objects written as
    JSON in a string are read as such, and keys that look like ids are values. Texts of more than
    ``characters_max`` characters go along, marked unless they hold an address, so that none can
    hide in one.
    """
    declared = None if contract is None else contract.identity
    wanted = None if declared is None else tuple(plain_path(path) for path in declared)
    found: dict[Argument, None] = {}
    for visited, (path, raw) in enumerate(_argument_scalars(call.args)):
        if visited >= params.values_per_call_max:
            found[Argument(_BEYOND, "")] = None
            break
        if wanted is None:
            if is_prose(path):
                continue
        elif not any(path == want or path.startswith((want + ".", want + "[")) for want in wanted):
            continue
        value = canonical_value(raw)
        if value is not None:
            is_text = wanted is None and len(value) > params.characters_max and " " in value
            is_text = is_text and _ADDRESS.search(str(raw)) is None
            found[Argument(path, value, is_text)] = None
    return tuple(found)


def _argument_scalars(args: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in args.items():
        is_data = isinstance(value, str) and not is_prose(name)
        shown = joined("", name)
        data = parsed_result(value) if is_data else value
        if not isinstance(data, dict | list | tuple):
            yield shown, data
            continue
        for path, raw in scalars(data, keys=True):
            yield f"{shown}{'.' if path and path[0] != '[' else ''}{path}", raw


@dataclass(frozen=True, slots=True)
class ReferenceValues:
    """Tools and argument values of K references; sets of references are bit masks.

    Parameters
    ----------
    count
        K.
    tools
        Which references call a tool.
    by_place
        Which references have a value at a place: place, then value, then bit mask.
    anywhere
        Which references have a value in any argument.
    sources
        Where the references' values at a place came from: place, then key of a place in an
        earlier result (:func:`source_key`), then bit mask.
    silent
        References that name tools and no values: made from contracts alone, or written down as a
        list of names.
    """

    count: int
    tools: Mapping[str, int]
    by_place: Mapping[Place, Mapping[str, int]]
    anywhere: Mapping[str, int]
    sources: Mapping[Place, Mapping[int, int]]
    silent: int = 0


def compile_values(
    params: ValueParams, references: Sequence[Reference], contracts: Mapping[str, ToolContract]
) -> ReferenceValues:
    """Collect the values of a reference set, once, when the set is compiled."""
    tools: dict[str, int] = {}
    by_place: dict[Place, dict[str, int]] = {}
    anywhere: dict[str, int] = {}
    sources: dict[Place, dict[int, int]] = {}
    for index, reference in enumerate(references):
        bit = 1 << index
        seen = SeenValues()
        for place, step in enumerate(reference.steps):
            tools[step.tool] = tools.get(step.tool, 0) | bit
            for argument in identity_arguments(params, step, contracts.get(step.tool)):
                if argument.is_text:
                    continue
                at = (step.tool, argument.path)
                _mark(by_place.setdefault(at, {}), argument.value, bit)
                given = (GIVEN,) if seen.is_complete else ()
                for source in find(seen, argument.value).sources or given:
                    _mark(sources.setdefault(at, {}), source, bit)
            for _, raw in islice(_argument_scalars(step.args), params.values_per_call_max):
                value = canonical_value(raw)
                if value is not None:
                    anywhere[value] = anywhere.get(value, 0) | bit
            seen = see(params.sightings, seen, place, step.tool, step.result)
    silent = sum(1 << index for index, reference in enumerate(references) if reference.names_only)
    return ReferenceValues(len(references), tools, by_place, anywhere, sources, silent)


def _mark(marks: dict[Any, int], key: Any, bit: int) -> None:
    marks[key] = marks.get(key, 0) | bit
