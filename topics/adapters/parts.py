"""What adapters share: pieces of foreign records turned into fields of events."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from ontrack.topics.codecs import explain
from ontrack.topics.errors import InvalidEvent, WrongShape
from ontrack.topics.events import Outcome
from ontrack.topics.jsontext import parse

M = TypeVar("M", bound=BaseModel)

_OUTCOMES: dict[object, Outcome] = {
    "success": "success",
    "failure": "failure",
    "cancelled": "cancelled",
    "unknown": "unknown",
    True: "success",
    False: "failure",
}


#: The tool of a recorded step in which the agent called none; such steps count, and can loop.
NO_TOOL = "(no tool)"


class Origin(NamedTuple):
    """Where a record stands.

    Parameters
    ----------
    run_id : str
        The id of the run if the record does not name one.
    instance : str or None
        The file's name without suffixes, for formats that name files after the task.
    """

    run_id: str
    instance: str | None = None


def built(model: type[M], **fields: Any) -> M:
    """Validate the fields of an event.

    Raises
    ------
    WrongShape
        Naming the event, the field and what was found.
    """
    try:
        return model(**fields)
    except ValidationError as error:
        which = getattr(model.model_fields.get("type"), "default", model.__name__)
        raise WrongShape(f"{which}: {explain(error.errors(include_url=False))}") from None


def args_of(value: Any) -> Any:
    """Return tool arguments as an object; what is no JSON object stays under ``_raw``."""
    if value is None or value == "":
        return {}
    if isinstance(value, dict):
        return value
    if isinstance(value, str):
        try:
            parsed = parse(value.encode("utf-8", "replace")).value
        except InvalidEvent:
            parsed = None
        if isinstance(parsed, dict):
            return parsed
    return {"_raw": value}


def content_of(value: Any) -> Any:
    """Return a message's content: text parts joined by newlines, anything else as it is."""
    if not isinstance(value, list):
        return value
    parts = [part.get("text") if isinstance(part, dict) else part for part in value]
    texts = [part for part in parts if isinstance(part, str)]
    return "\n".join(texts) if texts and len(texts) == len(parts) else value


def text_of(value: Any) -> str | None:
    """Return a content's text, or None where there is none."""
    content = content_of(value)
    return content if isinstance(content, str) and content.strip() else None


def id_of(value: Any) -> str | None:
    """Return an id as text; hosts also write them as integers."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None


def number_of(value: Any) -> float | None:
    """Return a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def outcome_of(*candidates: Any) -> Outcome:
    """Return the first outcome that is stated: by name, or as a flag of success."""
    for candidate in candidates:
        if isinstance(candidate, bool | str) and candidate in _OUTCOMES:
            return _OUTCOMES[candidate]
    return "unknown"


def list_of(value: Any) -> list[Any]:
    """Return a list as it is, and nothing for anything else."""
    return value if isinstance(value, list) else []


def dig(value: Any, *path: str) -> Any:
    """Follow a path through objects; None where it ends early."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
