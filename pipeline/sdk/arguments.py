"""Python values as JSON, and the arguments of a call by name."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel

#: Characters of one text that are kept; the monitor looks at no more.
TEXT_MAX: Final = 65_536
#: Levels of objects and arrays; what is below is shown as text.
DEPTH_MAX: Final = 40
ITEMS_MAX: Final = 10_000
_SHOWN_MAX: Final = 2000
_LONE: Final = re.compile("[\ud800-\udfff]")
_BYTES: Final = (bytes, bytearray, memoryview)


def plain(value: Any, depth: int = DEPTH_MAX) -> Any:
    """Return a value as JSON can hold it.

    JSON values come through equal. Models, dataclasses, enumerations, tuples and other mappings
    become what they are in JSON; everything else its text. Texts beyond ``TEXT_MAX`` characters,
    containers beyond ``ITEMS_MAX`` entries and what is nested too deep are cut; half a surrogate
    pair becomes U+FFFD.
    """
    kind = type(value)
    if value is None or kind is bool or kind is int or kind is float:
        return value
    if kind is str:
        return _text(value)
    if isinstance(value, Enum):
        return plain(value.value, depth)
    if isinstance(value, str | int | float):  # subclasses of them
        return plain(next(base for base in (str, int, float) if isinstance(value, base))(value))
    if depth <= 0:
        return _shown(value)
    try:
        return _container(value, depth)
    except Exception:  # noqa: BLE001 (a value that cannot be looked into must not stop the call)
        return _shown(value)


def _container(value: Any, depth: int) -> Any:
    if isinstance(value, BaseModel):
        return plain({name: getattr(value, name) for name in type(value).model_fields}, depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = dataclasses.fields(value)
        return plain({field.name: getattr(value, field.name, None) for field in own}, depth)
    if isinstance(value, Mapping):
        pairs = list(value.items())[:ITEMS_MAX]
        return {_text(str(name)): plain(child, depth - 1) for name, child in pairs}
    if isinstance(value, list | tuple):
        return [plain(child, depth - 1) for child in value[:ITEMS_MAX]]
    if isinstance(value, set | frozenset):
        # Sorted as texts: the order of a set differs from process to process.
        return sorted((plain(child, depth - 1) for child in list(value)[:ITEMS_MAX]), key=repr)
    return _shown(value)


def _text(text: str) -> str:
    if len(text) > TEXT_MAX:
        text = f"{text[:TEXT_MAX]}… ({len(text)} characters)"
    return text if text.isascii() else _LONE.sub("\ufffd", text)


def _shown(value: Any) -> str:
    """Show what JSON lacks; a text that cannot be made is the type's name."""
    if isinstance(value, _BYTES):
        return f"{len(value)} bytes"
    try:
        text = str(value)
    except Exception as error:  # noqa: BLE001 (an argument's own fault must not stop the call)
        text = f"{type(value).__name__} ({type(error).__name__})"
    return _text(text[:_SHOWN_MAX])


class Binder:
    """Names the arguments of a function's calls.

    Defaults are included, ``self`` and ``cls`` of methods left out, further keyword arguments
    stand beside the others.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._signature = inspect.signature(function)
        names = list(self._signature.parameters)
        owner = function.__qualname__.rpartition(".")[0]
        is_method = bool(owner) and not owner.endswith("<locals>")
        self._left_out = names[0] if is_method and names[:1] in (["self"], ["cls"]) else None

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments as JSON.

        Raises
        ------
        TypeError
            They do not fit, as the call itself would find.
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if name == self._left_out:
                continue
            is_rest = self._signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            if is_rest and not value.keys() & bound.arguments.keys():
                found |= plain(value)
            else:
                found[name] = plain(value)
        return found
