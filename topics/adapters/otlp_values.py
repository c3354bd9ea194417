"""Values of OTLP documents in JSON as plain data.

Field names are taken as OTLP writes them and as protobuf's JSON does (``start_time_unix_nano``);
64-bit integers as text or number, ids as hexadecimal or base64.
"""

from __future__ import annotations

import base64
import binascii
from functools import cache
from typing import Any

from ontrack.topics.adapters.parts import dig, list_of, number_of
from ontrack.topics.errors import WrongShape
from ontrack.topics.jsontext import described


def attributes_of(pairs: object) -> dict[str, Any]:
    """Return attributes by name; the last of a name counts."""
    found: dict[str, Any] = {}
    for pair in list_of(pairs):
        name = dig(pair, "key")
        if isinstance(name, str):
            found[name] = _value(dig(pair, "value"))
    return found


def _value(value: object) -> Any:
    """Return an ``AnyValue`` as plain data, null where it holds nothing."""
    if not isinstance(value, dict):
        return None
    for name, found in value.items():
        match name:
            case "stringValue" | "string_value" | "bytesValue" | "bytes_value":
                return found if isinstance(found, str) else None
            case "intValue" | "int_value":
                return integer_of(found)
            case "boolValue" | "bool_value":
                return found if isinstance(found, bool) else None
            case "doubleValue" | "double_value":
                return number_of(found)
            case "arrayValue" | "array_value":
                return [_value(item) for item in list_of(dig(found, "values"))]
            case "kvlistValue" | "kvlist_value":
                return attributes_of(dig(found, "values"))
    return None


def first_of(attributes: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Return the first attribute of these names that holds something."""
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)


def field_of(value: object, *names: str) -> Any:
    """Return a field by its name in OTLP, or as protobuf spells it."""
    if not isinstance(value, dict):
        return None
    for name in names:
        found = value.get(name)
        if found is None:
            found = value.get(_snake(name))
        if found is not None:
            return found
    return None


@cache
def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def objects_of(value: object, name: str) -> list[dict[str, Any]]:
    """Return the objects of a field; errors as :func:`checked_objects`."""
    return checked_objects(field_of(value, name), name)


def checked_objects(found: object, where: str) -> list[dict[str, Any]]:
    """Return a list of objects; what is missing is an empty one.

    Raises
    ------
    WrongShape
        It is something else; ``where`` names it.
    """
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise WrongShape(f"`{where}`: expected a list of objects, found {described(found)}")
    return found


def hex_id(value: object) -> str | None:
    """Return an id of a trace or span in hexadecimal; zeros and nothing are no id."""
    if not isinstance(value, str):
        return None
    text = value.strip().lower()
    if len(text) in (12, 24):  # 8 or 16 bytes in base64
        try:
            text = base64.b64decode(value, validate=True).hex()
        except (binascii.Error, ValueError):
            return None
    return text if text.strip("0") else None


def integer_of(value: object) -> int | None:
    """Return an integer, also one that is written as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) <= 20 and value.removeprefix("-").isdecimal():
        return int(value)
    return None


def count_of(value: object) -> int | None:
    """Return an integer that is not negative."""
    number = integer_of(value)
    return number if number is not None and number >= 0 else None


def name_of(value: object) -> str | None:
    """Return a text that is not empty."""
    return value if isinstance(value, str) and value else None
