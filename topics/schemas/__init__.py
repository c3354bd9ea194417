"""JSON Schemas of the files that people write, made from the models, for editors and checks.

The files beside this one are what :func:`schema_text` returns; a test compares them.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import GenerateJsonSchema

from ontrack.topics.errors import UnknownName
from ontrack.topics.knowledge import Task, ToolContract
from ontrack.topics.schemas.plain import plainly_described

# Only people write these, so an unknown field is a typing error. The loader ignores it.
_CLOSED: Final = ("Task", "AllowedEffect", "StepBudget")


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    schema_id: str | None = Field(
        default=None, alias="$schema", title="Schema", description="Address of this schema."
    )


class _ToolsFile(_File):
    """Tools that agents call, and what each can do to the world (``--tools``)."""

    model_config = ConfigDict(title="OnTrack tools file")

    tools: tuple[ToolContract, ...] = Field(description="One entry a tool; names differ.")


class _TasksFile(_File):
    """What tasks expect and allow (``--tasks``)."""

    model_config = ConfigDict(title="OnTrack tasks file")

    tasks: tuple[Task, ...] = Field(description="One entry a task; ids differ.")


_FILES: Final[dict[str, type[_File]]] = {"tools": _ToolsFile, "tasks": _TasksFile}
#: What there are schemas of.
KINDS: Final = tuple(_FILES)


def file_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a tools file or a tasks file, JSON, YAML or TOML.

    Raises
    ------
    UnknownName
        No such kind of file.
    """
    if kind not in _FILES:
        raise UnknownName(f"no schema of {kind[:80]!r}; there are {', '.join(KINDS)}")
    made = _FILES[kind].model_json_schema(by_alias=True, mode="validation")
    for name in _CLOSED:
        if name in made.get("$defs", {}):
            made["$defs"][name]["additionalProperties"] = False
    head = {"$schema": GenerateJsonSchema.schema_dialect, "$id": f"urn:ontrack:{kind}.schema.json"}
    cleaned: dict[str, Any] = plainly_described(made)
    return head | {"title": cleaned.pop("title")} | cleaned


def schema_text(kind: str) -> str:
    """Return the schema as the text of a file. Errors as :func:`file_schema`."""
    return json.dumps(file_schema(kind), indent=2, ensure_ascii=False) + "\n"
