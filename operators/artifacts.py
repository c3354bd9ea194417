"""Which artifact ids a step consumes and produces: read off, by contract, or by built-in rules.

Deterministic string matching, never a model call (section 1 of the specification). The grades:

* what the event itself declares is taken as it is;
* a tool contract names paths into arguments and result;
* otherwise every identifier-like string counts: consumed from the arguments, produced from the
  result, and arguments are remembered as mentioned.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from ontrack.operators.limits import require
from ontrack.operators.marks import marked_parts
from ontrack.topics.events import Call
from ontrack.topics.knowledge import ReferenceStep, ToolContract

_TOKEN = re.compile(r"[#@\w./\\:\-]{3,200}")
_SPACE = re.compile(r"\s")
# A digit or one of _ @ # in it, a file name with a suffix, or a path of two slashes or more:
# "well-known", "and/or" and "e.g." are prose.
_LOOKS_LIKE_ID = re.compile(r"[0-9_#@]|\w\.[A-Za-z]{2,5}$|/.*/|/[\w-]+\.\w|^/\w")
_CLOCK_OR_DATE = re.compile(r"\d{1,2}:\d{2}(:\d{2})?|\d{4}-\d{2}-\d{2}([T ].*)?")
# src/config.py:12:5, as search tools and compilers print places: the file is the artifact.
_PLACE_IN_FILE = re.compile(r"([^:]*[./\\][^:]*):[0-9]+(?::.*)?")
_PATH_PART = re.compile(r"([^.\[\]]+)|\[(\*|\d+)\]")


@dataclass(frozen=True, slots=True)
class ArtifactParams:
    """Limits of artifact extraction.

    Parameters
    ----------
    ids_per_step_max
        Ids kept per step and side; what comes after is ignored.
    characters_max
        Characters of a result or of one argument that are searched.
    id_characters_max
        A longer string is text, not an id; one that is declared or that a contract points at is
        shortened to a digest.
    """

    ids_per_step_max: int = 64
    characters_max: int = 16_384
    id_characters_max: int = 200

    def __post_init__(self) -> None:
        require(self, 1, 10_000_000, "ids_per_step_max", "characters_max", "id_characters_max")


@dataclass(frozen=True, slots=True)
class Artifacts:
    """Artifact ids of one step.

    ``required`` is the part of ``consumed`` that a contract asks for (the gate reads it);
    ``mentioned`` are ids in the arguments that nobody is known to have produced.
    """

    consumed: tuple[str, ...] = ()
    produced: tuple[str, ...] = ()
    mentioned: tuple[str, ...] = ()
    required: tuple[str, ...] = ()


def extract(
    params: ArtifactParams, step: ReferenceStep | Call, contract: ToolContract | None
) -> Artifacts:
    """Return the artifact ids of one step or proposal.

    A step that failed produces nothing, whatever its contract says.
    """
    result = getattr(step, "result", None)
    failed = getattr(step, "error", None) is not None
    declared_in = getattr(step, "consumed", None)
    declared_out = getattr(step, "produced", None)
    has_contract = contract is not None and bool(contract.consumes or contract.produces)
    by_contract_in: tuple[str, ...] = ()
    by_contract_out: tuple[str, ...] = ()
    if contract is not None and has_contract:
        parsed = parsed_result(result)
        by_contract_in = resolve_all(params, contract.consumes, "args", step.args, parsed)
        if not failed:
            by_contract_out = resolve_all(params, contract.produces, "result", step.args, parsed)
    if has_contract or (declared_in is not None and declared_out is not None):
        consumed = _unique([*(declared_in or ()), *by_contract_in], params)
        declared = () if failed else declared_out or ()
        produced = _unique([*declared, *by_contract_out], params)
        return Artifacts(consumed, produced, (), by_contract_in)
    # A harness that logs one side only says nothing about the other, so the rules still do.
    consumed = _identifiers(params, step.args)
    if declared_in is not None:
        consumed = _unique(declared_in, params)
    found = declared_out
    if found is None:
        known = set(consumed)
        found = tuple(a for a in _identifiers(params, parsed_result(result)) if a not in known)
    produced = () if failed else _unique(found, params)
    return Artifacts(consumed, produced, consumed, ())


def resolve_all(
    params: ArtifactParams,
    paths: Iterable[str],
    default_side: str,
    args: dict[str, Any],
    result: Any,
) -> tuple[str, ...]:
    """Return the ids that contract paths point at, in the order of the paths."""
    found: list[str] = []
    for path in paths:
        if path.startswith("="):
            found.append(path[1:])
        else:
            found.extend(_resolve(path, default_side, args, result))
    return _unique(found, params)


def absent_arguments(contract: ToolContract, args: dict[str, Any]) -> tuple[str, ...]:
    """Return the ``consumes`` paths whose argument is not given at all.

    A required artifact cannot exist where the call does not even name it. Arguments that the
    tool's input schema leaves optional may be absent.
    """
    schema = contract.input_schema or {}
    declared, required = schema.get("properties"), schema.get("required") or ()
    absent: list[str] = []
    for path in contract.consumes:
        parts = _path_parts(path)
        if parts and parts[0] in ("args", "arguments"):
            parts = parts[1:]
        if path.startswith("=") or not parts or parts[0] == "result":
            continue
        optional = isinstance(declared, dict) and parts[0] in declared and parts[0] not in required
        if args.get(parts[0]) is None and not optional:
            absent.append(path)
    return tuple(absent)


def parsed_result(result: Any) -> Any:
    """Return a result that is JSON in a string as data; anything else as it is."""
    if isinstance(result, str) and len(result) <= 65_536 and result.lstrip()[:1] in ("{", "["):
        try:
            return orjson.loads(result)
        except orjson.JSONDecodeError:
            return result  # text that only begins like JSON stays text
    return result


def _resolve(path: str, default_side: str, args: dict[str, Any], result: Any) -> Iterator[str]:
    parts = _path_parts(path)
    sides: dict[str, Any] = {"args": args, "arguments": args, "result": result}
    if parts and parts[0] in sides:
        root, parts = sides[parts[0]], parts[1:]
    else:
        root = sides[default_side]
    for value in _walk(root, parts):
        if isinstance(value, str) and value:
            yield value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield str(value)


def _path_parts(path: str) -> list[str]:
    return [name or index for name, index in _PATH_PART.findall(path.removeprefix("$."))]


def _walk(value: Any, parts: list[str]) -> Iterator[Any]:
    if not parts:
        if isinstance(value, list):
            yield from value
        else:
            yield value
        return
    head, rest = parts[0], parts[1:]
    if isinstance(value, dict):
        if head == "*":
            for child in value.values():
                yield from _walk(child, rest)
        elif head in value:
            yield from _walk(value[head], rest)
    elif isinstance(value, list):
        if head.isdigit():
            if int(head) < len(value):
                yield from _walk(value[int(head)], rest)
        else:
            remaining = rest if head == "*" else parts
            for child in value:
                yield from _walk(child, remaining)


def _identifiers(params: ArtifactParams, value: Any) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for text in _scalars(value, params.characters_max):
        if len(found) >= params.ids_per_step_max:
            break
        if len(text) <= params.id_characters_max and _SPACE.search(text) is None:
            if _is_id(text):
                found[text] = None
            continue
        for token in _tokens(text):
            bare = token.strip(".:-")
            place = _PLACE_IN_FILE.fullmatch(bare)
            bare = bare if place is None else place.group(1)
            if _is_id(bare):
                found[bare] = None
                if len(found) >= params.ids_per_step_max:
                    break
    return tuple(found)


def _tokens(text: str) -> Iterator[str]:
    """Yield what looks like an id, marks around it included."""
    for part in marked_parts(text):
        for token in _TOKEN.findall(part):
            if _LOOKS_LIKE_ID.search(token) is not None:
                yield token


def _is_id(text: str) -> bool:
    if len(text) < 3 or _CLOCK_OR_DATE.fullmatch(text):
        return False
    return _LOOKS_LIKE_ID.search(text) is not None


def _scalars(value: Any, characters_max: int) -> Iterator[str]:
    """Yield the scalars of nested data as text, in order, until the budget is used up."""
    stack, budget = [value], characters_max
    while stack and budget > 0:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(reversed(item.values()))
        elif isinstance(item, list | tuple):
            stack.extend(reversed(item))
        elif isinstance(item, str):
            text = item[:budget]
            budget -= len(text)
            yield text
        elif isinstance(item, int) and not isinstance(item, bool) and abs(item) >= 1000:
            text = str(item)[:budget]
            budget -= len(text)
            yield text


def _unique(ids: Iterable[str], params: ArtifactParams) -> tuple[str, ...]:
    """Return ids once each, within both limits.

    Declared ids and those that a contract points at may be whole documents. They must not be
    dropped, for a gate may require them, nor kept, for the ledger holds thousands.
    """
    short = (_shortened(artifact, params.id_characters_max) for artifact in ids)
    return tuple(dict.fromkeys(short))[: params.ids_per_step_max]


def _shortened(artifact: str, characters_max: int) -> str:
    if len(artifact) <= characters_max:
        return artifact
    digest = hashlib.blake2b(artifact.encode(), digest_size=8).hexdigest()
    return f"{artifact[: max(0, characters_max - 17)]}#{digest}"
