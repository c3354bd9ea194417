"""Scalars of nested data: by which path they are reached, and when two of them name the same.

Paths join names by dots; indices of lists are written ``[*]``, so that the items of a list share
one path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from itertools import repeat
from typing import Any

_DATE_OR_TIME = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}(?:[t ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:z|[+-]\d{2}:?\d{2})?)?"
    r"|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}|\d{1,2}:\d{2}(?::\d{2})?(?: ?[ap]m)?"
)
_LONG = 200
_NAME, _PATH = 100, 400


def canonical_value(value: Any) -> str | None:
    """Return a scalar as text that is equal for equal identities; None for what is none.

    White space folded, case folded, 3.0 as 3, a number or truth value and its text alike; long
    ones shortened to their beginning and a digest.
    """
    if isinstance(value, str):
        folded = " ".join(value.split()).casefold()
        if len(folded) > _LONG:
            digest = blake2b(folded.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
            return f"{folded[:_LONG]}#{digest}"
        return None if not folded or _DATE_OR_TIME.fullmatch(folded) else folded
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) <= 2**53 else repr(value)
    return str(value) if isinstance(value, int) else None


def scalars(value: Any, keys: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield (path, scalar) of nested data in its order.

    With ``keys``, a key that looks like an id is written ``*`` in paths, and yielded as a value.
    One path is written at a time, and none is long: an event of a megabyte may hold a hundred
    thousand values below one name of half a megabyte.
    """
    stack: list[Iterator[tuple[str, Any]]] = [iter([("", value)])]
    while stack:
        for path, item in stack[-1]:
            if isinstance(item, dict):
                stack.append(_children(path, item, keys))
                break
            if isinstance(item, list | tuple):
                stack.append(zip(repeat(f"{path}[*]"), item, strict=False))
                break
            yield path, item
        else:
            stack.pop()


def joined(path: str, name: str) -> str:
    """Return the path of a name below a path; what is too long is shortened to a digest."""
    if len(name) > _NAME:
        name = _shortened(name, _NAME)
    return f"{_shortened(path, _PATH)}.{name}" if path else name


def _shortened(text: str, characters_max: int) -> str:
    if len(text) <= characters_max:
        return text
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[: characters_max // 2]}#{digest}"


def _children(path: str, item: dict[Any, Any], keys: bool) -> Iterator[tuple[str, Any]]:
    if keys:
        for name in item:
            if _looks_like_key(str(name)):
                yield f"{_shortened(path, _PATH)}.{{}}", str(name)
    for name, child in item.items():
        shown = str(name)
        yield joined(path, "*" if keys and _looks_like_key(shown) else shown), child


def _looks_like_key(name: str) -> bool:
    """Tell an id used as a key from a field's name: it holds two digits or more, @ or #."""
    return _is_key(name) if len(name) <= _NAME else _is_key.__wrapped__(name)


@lru_cache(maxsize=4096)  # names of fields are few; a long one is none
def _is_key(name: str) -> bool:
    return sum(map(str.isdigit, name)) >= 2 or "@" in name or "#" in name


@lru_cache(maxsize=4096)
def plain_path(path: str) -> str:
    """Write a contract's path as places write it: ``args.items[0].id`` as ``items[*].id``."""
    bare = path.removeprefix("$.").removeprefix("args.").removeprefix("arguments.")
    return re.sub(r"\[\d+\]", "[*]", bare)
