"""Leaves: the values of a call by the place they stand at, and how far two calls are apart.

A vector of all arguments together hides the one value that matters: another order's id is nearly
the same text. Here each argument is compared with the one that plays the same role, which is the
one at the same path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ontrack.operators.names import TEXTS, KeyKind, key_kind
from ontrack.operators.paths import joined
from ontrack.operators.volatile import mask

TEXT_CHARACTERS = 40
"""Longer values are texts: they are compared by what they mean, not by being the same."""

LEAVES_MAX = 512
"""Values of one call that are looked at, in the order of its arguments."""

VALUE_CHARACTERS_MAX = 4096
"""Characters of one value that are looked at."""

_VOLATILE, _AMBIGUOUS, _IDENTITY = KeyKind.VOLATILE, KeyKind.AMBIGUOUS, KeyKind.IDENTITY
_MASKED = (KeyKind.OTHER, *TEXTS)


class Leaves(NamedTuple):
    """What a call says, by place.

    Parameters
    ----------
    values
        Canonical values by path. Items of a list share one path, so they are a set.
    texts
        Paths that hold a text of more than :data:`TEXT_CHARACTERS`.
    """

    values: Mapping[str, frozenset[bytes]]
    texts: frozenset[str]


def leaves(args: Mapping[str, Any]) -> Leaves:
    """Return the values of a call by path, written so that equal means asking for the same.

    ``3.0`` is ``3``, white space is folded, volatile arguments are left out and volatile parts of
    values masked, except in what names the call's object. ``id``, ``uuid`` and ``time`` are left
    out where another argument does so. None counts as not given.

    Examples
    --------
    >>> leaves({"order": {"id": 3.0}, "items": ["a", "b  c"]}).values["items"] == {b"a", b"b c"}
    True
    """
    found: dict[str, set[bytes]] = {}
    texts: set[str] = set()
    kinds = {name: key_kind(name) for name in args}
    is_named = _IDENTITY in kinds.values()
    left = LEAVES_MAX
    for name, value in args.items():
        kind = kinds[name]
        if kind is _VOLATILE or (kind is _AMBIGUOUS and is_named):
            continue
        left = _collect(joined("", name), value, kind in _MASKED, found, texts, left)
    return Leaves({path: frozenset(values) for path, values in found.items()}, frozenset(texts))


def distance(left: Leaves, right: Leaves, text: float) -> float:
    """Distance of the arguments of two calls of one tool, in [0, 1].

    The mean over the paths of both: 0 where equal, 1 where one side has no value, ``text`` where a
    text differs, else 1 - Jaccard of the value sets. 0 where neither call has arguments.

    Parameters
    ----------
    text
        Cosine distance of the texts, in [0, 1].
    """
    total, common, others = 0.0, 0, right.values
    for path, values in left.values.items():
        other = others.get(path)
        if other is None:
            total += 1.0
            continue
        common += 1
        if values != other:
            if path in left.texts or path in right.texts:
                total += text
            else:
                total += 1.0 - len(values & other) / len(values | other)
    paths = len(left.values) + len(others) - common
    return (total + (len(others) - common)) / paths if paths else 0.0


def _collect(
    path: str,
    value: Any,
    is_masked: bool,
    found: dict[str, set[bytes]],
    texts: set[str],
    left: int,
) -> int:
    """Add the values below a path; return how many more may be added."""
    if left <= 0 or value is None:
        return left
    kind = type(value)
    if kind is dict:
        for name, child in value.items():
            below = key_kind(name)
            if below is not _VOLATILE:
                left = _collect(joined(path, name), child, below in _MASKED, found, texts, left)
        return left
    if kind is list:
        for child in value:
            left = _collect(path, child, is_masked, found, texts, left)
        return left
    written = _written(value, is_masked)
    if kind is str and len(value) > TEXT_CHARACTERS:
        texts.add(path)
    if path in found:
        found[path].add(written)
    else:
        found[path] = {written}
    return left - 1


def _written(value: Any, is_masked: bool) -> bytes:
    """Write a value down, equal values alike: 3.0 as 3, white space folded, no volatile parts."""
    kind = type(value)
    if kind is str:
        plain = " ".join(value[:VALUE_CHARACTERS_MAX].split()).encode("utf-8", "replace")
        return plain if not is_masked or plain.isalpha() else mask(plain)
    if kind is float and value.is_integer() and abs(value) <= 2**53:
        value = int(value)
    elif kind is bool:
        return b"true" if value else b"false"
    plain = str(value).encode()
    return mask(plain) if is_masked and len(plain) >= 10 else plain  # an epoch has ten digits
