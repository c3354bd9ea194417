"""One tool in the words of others, as a tools file has it, and what of its effect is a guess."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

AUTO: Final = "auto"
#: What is read; ``auto`` looks at each tool.
FORMATS: Final = (AUTO, "mcp", "openai", "anthropic", "corpus")

_NOT_OURS: Final = ("function", "custom", "parameters", "strict", "type", "input_schema")
# Tools that run at the model's vendor are named by a type with a date: text_editor_20250728.
_VENDOR_TYPE = re.compile(r".+_\d{8}")
_JSON_TYPES: Final = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}
_STATED_EFFECTS: Final = {"READ": "read", "WRITE": "write", "DESTRUCTIVE": "destructive"}


def contract_record(item: dict[str, Any], format: str = AUTO) -> tuple[dict[str, Any], str | None]:
    """Return the fields of a tool contract, and why its effect is a guess, None where it is stated.

    Parameters
    ----------
    item
        A tool as it was found.
    format
        One of :data:`FORMATS`; ``auto`` goes by the fields that are there.
    """
    return _READERS[_format_of(item) if format == AUTO else format](item)


def _format_of(item: dict[str, Any]) -> str:
    if "tool_type" in item:
        return "corpus"
    kind = item.get("type")
    if isinstance(item.get("function"), dict) or isinstance(item.get("custom"), dict):
        return "openai"
    if "input_schema" in item or (isinstance(kind, str) and _VENDOR_TYPE.fullmatch(kind)):
        return "anthropic"
    return "openai" if kind in ("function", "custom") or "parameters" in item else "mcp"


def _from_mcp(item: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    hints = item.get("annotations")
    hints = hints if isinstance(hints, dict) else {}
    if hints.get("readOnlyHint") or hints.get("destructiveHint") is not None:
        return dict(item), None
    if hints.get("readOnlyHint") is False:
        return dict(item), "not read-only; destructiveHint is missing, which means true"
    return dict(item), "no annotation says what it does"


def _from_openai(item: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    own = {name: value for name, value in item.items() if name not in _NOT_OURS}
    nested = item.get("function", item.get("custom"))
    said = nested if isinstance(nested, dict) else item
    record = {name: said[name] for name in ("name", "description") if name in said}
    if isinstance(said.get("parameters"), dict):
        record["inputSchema"] = said["parameters"]
    return record | own, "OpenAI tool schemas do not say what a tool does"


def _from_anthropic(item: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    record = {name: value for name, value in item.items() if name not in _NOT_OURS}
    if item.get("input_schema") is not None:
        record["inputSchema"] = item["input_schema"]
    return record, "Anthropic tool schemas do not say what a tool does"


def _from_corpus(item: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    if "tool_type" not in item:
        return _READERS[_format_of(item)](item)
    record: dict[str, Any] = {"name": item.get("name")}
    if isinstance(item.get("doc"), str):
        record["description"] = item["doc"].partition("\n\nArgs:")[0].strip()
    if isinstance(item.get("params"), list):
        record["inputSchema"] = {"type": "object", "properties": _properties(item["params"])}
    stated = str(item["tool_type"]).rpartition(".")[2].upper()
    switches = item.get("kw")
    if isinstance(switches, dict) and str(switches.get("mutates_state")).lower() == "true":
        stated = "WRITE"
    if stated in _STATED_EFFECTS:
        record["effect"] = _STATED_EFFECTS[stated]
    return record, f"the source says {stated[:40]}, which is neither READ nor WRITE"


_READERS: Final[dict[str, Callable[[dict[str, Any]], tuple[dict[str, Any], str | None]]]] = {
    "mcp": _from_mcp,
    "openai": _from_openai,
    "anthropic": _from_anthropic,
    "corpus": _from_corpus,
}


def _properties(params: list[Any]) -> dict[str, Any]:
    """Turn pairs of a name and a Python type into properties; other types are left open."""
    found: dict[str, Any] = {}
    for pair in params:
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str):
            kind = _JSON_TYPES.get(str(pair[1]).partition("[")[0].lower())
            found[pair[0]] = {"type": kind} if kind else {}
    return found
