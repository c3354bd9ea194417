"""Values that a schema describes, for the schemas that our models give.

(The package for this does not work with the hypothesis that is pinned here.)
"""

from __future__ import annotations

from datetime import timedelta, timezone
from typing import Any

from hypothesis import strategies as st

from tests.strategies import json_values

Schema = dict[str, Any]
# RFC 3339 knows hours and minutes of an offset.
_ZONES = st.integers(-840, 840).map(lambda minutes: timezone(timedelta(minutes=minutes)))
_TIMES = st.datetimes(timezones=_ZONES).map(lambda time: time.isoformat())


def values_of(schema: Any, root: Schema) -> st.SearchStrategy[Any]:
    """Values of a schema; of fields, only those that it names."""
    if schema is True or not schema:
        return json_values()
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return values_of(root["$defs"][name], root)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return st.one_of([values_of(child, root) for child in schema[union]])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    return _of_type(schema, root)


def _of_type(schema: Schema, root: Schema) -> st.SearchStrategy[Any]:
    match schema.get("type"):
        case "object":
            return _objects(schema, root)
        case "array":
            return _arrays(schema, root)
        case "string" if schema.get("format") == "date-time":
            return _TIMES
        case "string" if "pattern" in schema:
            return st.from_regex(schema["pattern"], fullmatch=True)
        case "string":
            longest = schema.get("maxLength", 8)
            return st.text(min_size=schema.get("minLength", 0), max_size=min(longest, 8))
        case "integer":
            return st.integers(schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1))
        case "number":
            return st.floats(
                schema.get("minimum"),
                schema.get("maximum"),
                allow_nan=False,
                allow_infinity=False,
            )
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
    return json_values()


def _objects(schema: Schema, root: Schema) -> st.SearchStrategy[Any]:
    fields = {name: values_of(child, root) for name, child in schema.get("properties", {}).items()}
    if not fields:
        rest = schema.get("additionalProperties", True)
        names = values_of({"type": "string", **schema.get("propertyNames", {})}, root)
        return st.dictionaries(names, values_of(rest, root), max_size=2)
    needed = schema.get("required", ())
    return st.fixed_dictionaries(
        {name: fields[name] for name in needed},
        optional={name: field for name, field in fields.items() if name not in needed},
    )


def _arrays(schema: Schema, root: Schema) -> st.SearchStrategy[Any]:
    if "prefixItems" in schema:
        return st.tuples(*(values_of(item, root) for item in schema["prefixItems"])).map(list)
    return st.lists(
        values_of(schema.get("items", {}), root), min_size=schema.get("minItems", 0), max_size=2
    )
