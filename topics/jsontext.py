"""JSON as hosts really send it, made plain data that can be stored, compared and sent again.

Three things are legal or common in JSON text and break what comes after: halves of surrogate pairs
(JavaScript cuts strings by UTF-16 units), numbers that are not finite, and integers beyond 64 bits.
Each is replaced and named in a flag; nothing else is touched.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NamedTuple

from pydantic_core import PydanticSerializationError, from_json, to_json

from ontrack.topics.errors import InvalidEvent, MalformedMessage, TooDeep

LONE_SURROGATES: Final = "lone_surrogates"
NON_FINITE: Final = "non_finite"
HUGE_NUMBER: Final = "huge_number"

#: The parser inside pydantic gives up at this nesting; the fallback parser is held to the same.
PARSER_DEPTH: Final = 200
SHOWN_CHARACTERS: Final = 60

_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**64 - 1
_FINE = frozenset({str, bool, type(None)})
_SURROGATES = re.compile("[\ud800-\udfff]")
_DIGITS_ALIKE = bytes.maketrans(b"0123456789E", b"0000000000e")


class Parsed(NamedTuple):
    """A JSON value and the treatments it needed."""

    value: Any
    flags: tuple[str, ...]


class Digits:
    """An integer too long for ``int``: kept as its decimal text, unequal to any JSON type."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return shown(self.text)


def shown(value: object) -> str:
    """Return a value as one line of at most ``SHOWN_CHARACTERS`` characters, for error texts."""
    if isinstance(value, bytes | bytearray):
        value = bytes(value[: SHOWN_CHARACTERS * 4]).decode("utf-8", "replace")
    if isinstance(value, str):
        text = json.dumps(value[: SHOWN_CHARACTERS + 1])
    elif isinstance(value, dict):
        return f"an object of {len(value)} fields"
    elif isinstance(value, list | tuple):
        return f"an array of {len(value)} items"
    elif isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    elif value is None or isinstance(value, bool | float):
        text = json.dumps(value)
    else:
        text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def described(value: object) -> str:
    """Return what kind of value it is, without the value: for texts that others may read."""
    if isinstance(value, dict | list | tuple):
        return shown(value)
    if isinstance(value, str):
        return f"a text of {len(value)} characters"
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a truth value"
    return "a number" if isinstance(value, int | float | Digits) else "something else"


def may_need_taming(raw: bytes) -> bool:
    """Tell whether JSON text could hold a number that is not finite or beyond 64 bits.

    A scan at memory speed (about 3 ns a byte) that never misses one and is rarely wrong the other
    way: such a number needs 19 digits in a row, an exponent of three digits, or a literal.
    """
    alike = raw.translate(_DIGITS_ALIKE, b"+")
    return b"0" * 19 in alike or b"e000" in alike or b"NaN" in raw or b"Infinity" in raw


def is_plainly_fine(value: object) -> bool:
    """Tell whether a value is text, a truth value or null, or an object of these.

    Most arguments and results are; they need neither scan nor walk, however long the text.
    """
    if isinstance(value, dict):
        return _FINE.issuperset(map(type, value.values()))
    return type(value) in _FINE


def deeper_than(value: object, limit: int) -> bool:
    """Tell whether a value has more than ``limit`` levels of objects and arrays."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        if not level:
            return False
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if child.__class__ is dict or child.__class__ is list
        ]
    return bool(level)


def tame(value: Any, flags: set[str]) -> Any:
    """Replace non-finite numbers by null and integers beyond 64 bits by their decimal text."""
    if isinstance(value, dict):
        return {key: tame(child, flags) for key, child in value.items()}
    if isinstance(value, list):
        return [tame(child, flags) for child in value]
    if isinstance(value, Digits):
        flags.add(HUGE_NUMBER)
        return value.text
    if isinstance(value, float) and not math.isfinite(value):
        flags.add(NON_FINITE)
        return None
    if isinstance(value, int) and not _INTEGER_MIN <= value <= _INTEGER_MAX:
        flags.add(HUGE_NUMBER)
        return to_json(value).decode()  # ``str`` refuses more than some thousand digits
    return value


def mend(value: Any, flags: set[str]) -> Any:
    """Replace what UTF-8 cannot hold in texts, also those that are keys: U+FFFD stands there."""
    if isinstance(value, str):
        if _SURROGATES.search(value) is None:
            return value
        flags.add(LONE_SURROGATES)
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, dict):
        return {mend(key, flags): mend(child, flags) for key, child in value.items()}
    if isinstance(value, list):
        return [mend(child, flags) for child in value]
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(mend(child, flags) for child in value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value


def as_read(value: Any) -> Any:
    """Return any value of a program as plain data: as it is read again once it was sent.

    Raises
    ------
    TooDeep
        More than ``PARSER_DEPTH`` levels, or an object that holds itself.
    MalformedMessage
        An object of another type holds text that is no Unicode.
    """
    try:
        raw = to_json(mend(value, set()), fallback=text_of, inf_nan_mode="null")
    except (PydanticSerializationError, RecursionError) as error:
        raise unwritable(error) from None
    return parse(raw).value


def unwritable(error: Exception) -> InvalidEvent:
    """Return what is to be said where pydantic could not write a value as JSON."""
    if isinstance(error, PydanticSerializationError) and "utf-8" in str(error):
        return MalformedMessage(
            "an object holds text that is not Unicode; give plain JSON data in its place"
        )
    return TooDeep("nested too deep to be written as JSON; flatten it")


def text_of(value: object) -> str:
    """Return what stands for an object that JSON does not know: its text, else its type's name."""
    try:
        return str(mend(str(value), set()))
    except Exception:  # noqa: BLE001 (the object's own fault; a call with it is a call all the same)
        return type(value).__name__


def parse_leniently(raw: bytes, quote: bool = False) -> Parsed:
    """Parse with the standard library, which takes what pydantic's parser refuses.

    Lone surrogates become U+FFFD; integers of more than 20 digits become :class:`Digits` (their
    number of digits is then no matter). Numbers are otherwise left for :func:`tame`.

    Parameters
    ----------
    quote
        Whether an error may quote the beginning of the bytes.

    Raises
    ------
    MalformedMessage
        The bytes are no JSON in UTF-8.
    TooDeep
        More than ``PARSER_DEPTH`` levels.
    """
    try:
        value = json.loads(raw.decode("utf-8"), parse_int=_integer)
    except UnicodeDecodeError as error:
        raise MalformedMessage(
            f"not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}; "
            "expected JSON encoded as UTF-8"
        ) from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise MalformedMessage(
            f"not JSON: {error}; found {(shown if quote else described)(raw)}; "
            "expected one complete JSON value"
        ) from None
    if deeper_than(value, PARSER_DEPTH):
        raise _too_deep()
    flags: set[str] = set()
    value = mend(value, flags)
    return Parsed(value, tuple(sorted(flags)))


def parse(raw: bytes) -> Parsed:
    """Parse JSON bytes of a file or request into plain, tame data.

    Raises
    ------
    MalformedMessage
        The bytes are no JSON in UTF-8.
    TooDeep
        More than ``PARSER_DEPTH`` levels.
    """
    flags: set[str] = set()
    try:
        value = from_json(raw)
    except ValueError as error:
        if "recursion limit" in str(error):
            raise _too_deep() from None
        value, mended = parse_leniently(raw)
        flags.update(mended)
    if flags or may_need_taming(raw):
        value = tame(value, flags)
    return Parsed(value, tuple(sorted(flags)))


def _too_deep() -> TooDeep:
    return TooDeep(
        f"nested deeper than {PARSER_DEPTH} levels, which is more than the parser takes; "
        "send deeply nested data as a string"
    )


def _integer(digits: str) -> int | Digits:
    return int(digits) if len(digits) <= 20 else Digits(digits)
