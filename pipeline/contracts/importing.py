"""Tool contracts from what others have: MCP answers, OpenAI and Anthropic tools, corpus schemas.

An effect is written down only where the source states one. MCP annotations are hints of the tool's
server: they are kept as such, and what they leave open counts as destructive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from pydantic import ValidationError

from ontrack.pipeline.contracts.formats import AUTO, FORMATS, contract_record
from ontrack.pipeline.reading.plain_files import read_plain
from ontrack.topics.codecs import explain
from ontrack.topics.errors import InvalidFile, UnknownName
from ontrack.topics.jsontext import described, shown
from ontrack.topics.knowledge import ToolContract


@dataclass(frozen=True, slots=True)
class Imported:
    """A tool that was read.

    Parameters
    ----------
    contract
        As it will stand in the tools file.
    origin
        File, and group of tools inside of it.
    guess
        Why its effect is a guess; None where the source states it.
    """

    contract: ToolContract
    origin: tuple[str, str | None]
    guess: str | None


@dataclass(frozen=True, slots=True)
class Import:
    """All that was read.

    Parameters
    ----------
    tools
        By name, in the order of the files.
    merged
        Names of tools that several groups or files describe differently, with one effect.
    unnamed
        What has no name, by kind: tools built into a model's service.
    """

    tools: dict[str, Imported]
    merged: tuple[str, ...]
    unnamed: tuple[str, ...]


def import_contracts(
    paths: Iterable[str],
    format: str = AUTO,
    groups: Collection[str] = (),
    stdin: BinaryIO | None = None,
) -> Import:
    """Read the tools of all files.

    Parameters
    ----------
    paths
        Files in JSON, YAML or TOML; ``-`` is standard input.
    format
        One of ``contract_formats.FORMATS``.
    groups
        Only these groups, where a file has its tools by group.
    stdin
        What ``-`` reads.

    Raises
    ------
    InvalidFile
        A file without tools, a tool that cannot be read, or two tools of one name that do
        different things.
    UnknownName
        No such format or group.
    """
    if format not in FORMATS:
        raise UnknownName(f"unknown format {format[:80]!r}; known are {', '.join(FORMATS)}")
    tools: dict[str, Imported] = {}
    merged: dict[str, None] = {}
    unnamed: dict[str, None] = {}
    met: set[str] = set()
    for path in paths:
        for group, items in _grouped(path, read_plain(path, stdin)):
            met |= {group} if group is not None else set()
            if groups and group not in groups:
                continue
            for index, item in enumerate(items):
                where = f"tools[{index}]" if group is None else f"{group}[{index}]"
                if _is_unnamed(item):
                    unnamed[str(item["type"])] = None
                    continue
                found = _imported(item, format, (path, group), where)
                name = found.contract.name
                known = tools.setdefault(name, found)
                if known.contract != found.contract:
                    tools[name] = _merged(known, found, where)
                    merged[name] = None
    for group in groups:
        if group not in met:
            raise UnknownName(
                f"no group {group[:80]!r}; there are {', '.join(sorted(met)) or 'none'}"
            )
    return Import(tools, tuple(merged), tuple(unnamed))


def tool_record(contract: ToolContract) -> dict[str, Any]:
    """Return a contract as it stands in a tools file, without what is not said."""
    return contract.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _grouped(path: str, data: Any) -> Iterator[tuple[str | None, list[Any]]]:
    """Yield lists of tools, with the name of their group where the file has groups."""
    tools = _tools_in(path, data)
    if tools is not None:
        found: list[tuple[str | None, list[Any]]] = [(None, tools)]
    elif isinstance(data, dict) and data and all(_is_tool_list(item) for item in data.values()):
        found = list(data.items())
    else:
        raise InvalidFile(
            path,
            None,
            f"holds no tools: found {described(data)}, expected an answer to tools/list, "
            "{tools: [...]}, a list of tools, one tool, or lists of tools by group",
        )
    if not any(items for _, items in found):
        raise InvalidFile(path, None, "holds no tools: its list is empty")
    yield from found


def _tools_in(path: str, data: Any) -> list[Any] | None:
    """Return the tools of one list, answer or session; None where it is something else."""
    if isinstance(data, dict):
        if isinstance(data.get("error"), dict) and "result" not in data:
            message = shown(data["error"].get("message"))
            raise InvalidFile(path, None, f"is an error of the server, {message}, and no answer")
        if isinstance(data.get("result"), dict):
            return _tools_in(path, data["result"])
        if isinstance(data.get("tools"), list):
            return list(data["tools"])
        is_tool = isinstance(data.get("name"), str) or isinstance(data.get("function"), dict)
        return [data] if is_tool else None
    if not isinstance(data, list):
        return None
    messages = [item for item in data if isinstance(item, dict) and "result" in item]
    if not messages:
        return data
    answers = [item["result"] for item in messages if isinstance(item["result"], dict)]
    lists = [answer["tools"] for answer in answers if isinstance(answer.get("tools"), list)]
    return [tool for tools in lists for tool in tools]


def _is_tool_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _is_unnamed(item: Any) -> bool:
    """Tell whether this is a tool built into a model's service, which has a type and no name."""
    if not isinstance(item, dict) or "name" in item:
        return False
    return isinstance(item.get("type"), str) and item["type"] not in ("function", "custom")


def _imported(item: Any, format: str, origin: tuple[str, str | None], where: str) -> Imported:
    path, group = origin
    if not isinstance(item, dict):
        raise InvalidFile(path, None, f"{where}: expected a tool, found {described(item)}")
    record, guess = contract_record(item, format)
    if group is not None:
        record.setdefault("domain", group.partition("/")[0])
    try:
        contract = ToolContract.model_validate(record)
    except ValidationError as error:
        problem = explain(error.errors(include_url=False))
        hint = "" if format == AUTO else f"; it was read as {format}, try --format auto"
        raise InvalidFile(path, None, f"{where}: {problem}{hint}") from None
    return Imported(contract, origin, None if contract.declared_effect else guess)


def _merged(known: Imported, found: Imported, where: str) -> Imported:
    """Make one of two tools of one name from different places.

    What is stated wins over a guess; of two that are alike in that, the effects have to agree, and
    what else differs is left out.
    """
    one, two = known.contract, found.contract
    path, name = found.origin[0], shown(found.contract.name)
    if known.origin == found.origin:
        raise InvalidFile(
            path, None, f"{where}: {name} is described twice, in two ways; keep one of them"
        )
    if (known.guess is None) != (found.guess is None):
        stated, other = (known, two) if known.guess is None else (found, one)
        filled = {
            field: getattr(stated.contract, field) or getattr(other, field)
            for field in ("description", "input_schema")
        }
        return replace(stated, contract=stated.contract.model_copy(update=filled))
    if (one.effect, one.external) != (two.effect, two.external):
        first = " ".join(part for part in known.origin if part)
        raise InvalidFile(
            path,
            None,
            f"{where}: {name} has another effect ({two.effect}) than in {first} ({one.effect}); "
            "import them into files of their own (--group NAME, where they are groups)",
        )
    kept = {
        field: getattr(one, field)
        for field in type(one).model_fields
        if field == "description" or getattr(one, field) == getattr(two, field)
    }
    return replace(known, contract=ToolContract.model_validate(kept))
