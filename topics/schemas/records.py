"""JSON Schemas of what stands on the topics, made from the models, for consumers and producers.

The files in ``v1`` are the contract with everybody who reads or writes these topics, as of the
last release: what :func:`record_schema_text` returns today must equal them or differ in a way
that breaks nobody (:mod:`ontrack.topics.compatibility`).

What OnTrack reads is described as it accepts it (a field with a default may be missing), what it
writes as it writes it. Unknown fields are allowed everywhere: readers pass over them.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from ontrack.topics.catalog import TopicSpec, catalogue
from ontrack.topics.compatibility import Direction, breaks
from ontrack.topics.errors import UnknownName
from ontrack.topics.schemas.plain import plainly_described, require_type

VERSION: Final = "v1"
#: Topics that OnTrack reads; it writes the others.
READ: Final = ("events", "proposals", "references", "contracts", "tasks")

_SPECS: Final[dict[str, TopicSpec]] = {
    spec.name: spec for spec in catalogue(prefix="") if spec.models
}
#: Topics whose values have a schema, without prefix.
TOPICS: Final = tuple(_SPECS)


def direction_of(topic: str) -> Direction:
    """Tell whether OnTrack reads a topic or writes it. Errors as :func:`record_schema`."""
    _spec(topic)
    return "read" if topic in READ else "write"


def record_schema(topic: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the values of a topic, named without prefix.

    Raises
    ------
    UnknownName
        No such topic, or its values have no schema.
    """
    models = _spec(topic).models
    mode: Literal["validation", "serialization"] = (
        "validation" if direction_of(topic) == "read" else "serialization"
    )
    kind: Any = models[0]
    for model in models[1:]:
        kind = kind | model
    if len(models) > 1:
        kind = Annotated[kind, Field(discriminator="type")]
    made = TypeAdapter(kind).json_schema(by_alias=True, mode=mode)
    if mode == "serialization":
        require_type(made)
    for model in models if len(models) > 1 else ():
        require_type(made["$defs"][model.__name__])
    head = {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": f"urn:ontrack:{VERSION}:{topic}.schema.json",
        "title": f"OnTrack {topic}",
    }
    made.pop("title", None)
    plain: dict[str, Any] = plainly_described(made)
    return head | plain


def record_schema_text(topic: str) -> str:
    """Return the schema as the text of a file. Errors as :func:`record_schema`."""
    return json.dumps(record_schema(topic), indent=2, ensure_ascii=False) + "\n"


def released_text(topic: str) -> str | None:
    """Return the schema as it was last released, None where it never was.

    Errors as :func:`record_schema`.
    """
    _spec(topic)
    place = resources.files("ontrack.topics.schemas") / VERSION / f"{topic}.schema.json"
    return place.read_text(encoding="utf-8") if place.is_file() else None


def breaks_of(topic: str) -> list[str]:
    """Name what has changed since the release in a way that breaks a program of somebody's."""
    released = released_text(topic)
    if released is None:
        return []
    return breaks(json.loads(released), record_schema(topic), direction_of(topic))


def _spec(topic: str) -> TopicSpec:
    if topic not in _SPECS:
        raise UnknownName(
            f"no schema of topic {topic[:80]!r}; expected one of {', '.join(TOPICS)}, "
            "without the prefix"
        )
    return _SPECS[topic]
