"""How much memory an object holds, with everything that it leads to."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Collection
from typing import Any, Final

import numpy as np
from rpds import HashTrieMap, HashTrieSet

MAP_ENTRY_BYTES: Final = 144
"""Of a persistent map, key and value apart; measured on maps of 300 and of a million entries."""

_SHARED = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
)


def deep_size(thing: object, without: Collection[object] = ()) -> int:
    """Return the bytes of an object and of all that can be reached from it, each counted once.

    Classes, modules and functions are everybody's and count nothing. Persistent maps keep their
    entries where Python cannot see them: those are counted by :data:`MAP_ENTRY_BYTES`.

    Parameters
    ----------
    without
        Objects that others hold as well: neither they count, nor what they lead to.
    """
    seen: set[int] = set()
    _collect(without, seen)
    return _collect([thing], seen)


def _collect(things: Collection[object], seen: set[int]) -> int:
    total, waiting = 0, list(things)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, _SHARED):
            continue
        seen.add(id(thing))
        total += sys.getsizeof(thing)
        waiting += _led_to(thing)
        if isinstance(thing, HashTrieMap | HashTrieSet):
            total += MAP_ENTRY_BYTES * len(thing)
    return total


def _led_to(thing: Any) -> list[object]:
    if isinstance(thing, HashTrieMap):
        return [part for item in thing.items() for part in item]
    if isinstance(thing, HashTrieSet):
        return list(thing)
    if isinstance(thing, np.ndarray):
        # A view has no data of its own: what it looks at counts, whole.
        return [] if thing.base is None else [thing.base]
    return list(gc.get_referents(thing))
