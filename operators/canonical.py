"""Texts and digests of calls: the one place that says how a call is written down."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import orjson
from pydantic_core import to_json

from ontrack.topics.jsontext import as_read, text_of
from ontrack.topics.knowledge import ReferenceStep

_WORD = re.compile(r"[a-z]+|[0-9]+")


def value_text(value: Any, characters_max: int) -> str:
    """Return any JSON value as text: strings as they are, the rest as compact JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value[:characters_max]
    text = to_json(value, inf_nan_mode="null", fallback=str).decode()
    return text[:characters_max]


def arguments_text(args: dict[str, Any], characters_max: int = 4096) -> str:
    """Return arguments as one text for the encoder: names and values, sorted by name."""
    if not args:
        return ""
    parts = [f"{name} {value_text(args[name], characters_max)}" for name in sorted(args)]
    return "\n".join(parts)[:characters_max]


def canonical_json(value: Any) -> bytes:
    """Return JSON bytes that do not depend on the order of keys.

    An integer beyond 64 bits and half a surrogate pair, which a program may hold and no message
    can, are written as :mod:`ontrack.topics.codecs` reads them, so both sides of a message agree.
    Of other objects (bytes, sets, times) that is not promised: make them text first.

    Raises
    ------
    TooDeep
        More levels than a message may have, or an object that holds itself.
    MalformedMessage
        An object of another type holds text that is no Unicode.
    """
    try:
        return _written(value)
    except TypeError:  # as orjson says all of these
        return _written(as_read(value))


def _written(value: Any) -> bytes:
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(value, default=text_of, option=options)


def call_sha256(tool: str, args: dict[str, Any]) -> str:
    """Return the hex SHA-256 of a call: what a gate's decision is bound to."""
    return hashlib.sha256(canonical_json([tool, args])).hexdigest()


def call_key(tool: str, args: dict[str, Any]) -> bytes:
    """Return eight bytes that stand for a call inside one run."""
    return hashlib.blake2b(canonical_json([tool, args]), digest_size=8).digest()


def reference_id(task_id: str, run_id: str, steps: Iterable[ReferenceStep]) -> str:
    """Return the id of a recorded run as a reference: a digest of task, run and steps."""
    dumped = [step.model_dump(mode="json") for step in steps]
    return hashlib.sha256(canonical_json([task_id, run_id, dumped])).hexdigest()[:16]


def name_tokens(tool: str) -> frozenset[str]:
    """Split a tool's name into lower-case words: ``cancelOrder_v2`` gives cancel, order, v, 2."""
    separated = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", tool)
    return frozenset(_WORD.findall(separated.lower()))


@lru_cache(maxsize=65_536)  # names are few; the distance is pure
def tool_distance(tool: str, other: str) -> float:
    """Tool-substitution cost d_tool in [0, 1] (section 2 of the specification).

    0 for the same tool, otherwise ``1 - 0.5 * Jaccard`` of the words in the names: sharing words
    makes a substitution more plausible, never free.
    """
    if tool == other:
        return 0.0
    left, right = name_tokens(tool), name_tokens(other)
    union = len(left | right)
    return 1.0 - 0.5 * (len(left & right) / union if union else 0.0)
