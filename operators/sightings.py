"""Sightings: which values the results of a run held, where, and at which step.

Hashes only, in one bounded string of bytes: it is copied with the state and stored as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ontrack.operators.artifacts import parsed_result
from ontrack.operators.limits import require
from ontrack.operators.marks import marked_parts
from ontrack.operators.paths import canonical_value, scalars

_VISITED_MAX = 8192
# Inside of prose only what looks like an id: it holds a digit or a mark that words do not have.
_TOKEN = re.compile(r"[\w@#./\\:+\-]{3,200}")
_MARKED = re.compile(r"[0-9_@#/\\]|\w\.\w")


@dataclass(frozen=True, slots=True)
class SightingParams:
    """How much of a run is remembered.

    Parameters
    ----------
    characters_max
        A longer value with white space in it is text and is not kept.
    values_per_result_max, result_characters_max
        Values kept of one result, and characters of a text that are searched.
    records_max
        Records kept a run, 24 bytes each; at the limit the oldest quarter goes.
    """

    characters_max: int = 80
    values_per_result_max: int = 512
    result_characters_max: int = 16_384
    records_max: int = 2048

    def __post_init__(self) -> None:
        require(self, 1, 10_000, "characters_max")
        require(self, 1, 1_000_000, "result_characters_max", "records_max")
        require(self, 1, self.records_max, "values_per_result_max")


@dataclass(frozen=True, slots=True)
class SeenValues:
    """Values in the results of a run so far.

    Parameters
    ----------
    records
        Records of three little-endian uint64: hash of the value, key of its place, sequence
        number of the step with the highest bit set where the step is not trusted, and the next
        where the value stood in its error; oldest first, at most ``records_max``. One whose place
        is 0 says that not everything was kept.
    """

    records: bytes = b""

    @property
    def table(self) -> npt.NDArray[np.uint64]:
        """The records, shape (n, 3)."""
        return np.frombuffer(self.records, dtype="<u8").reshape(-1, 3)

    @property
    def is_complete(self) -> bool:
        """Whether a value that is not found was in no result."""
        return not (self.table[:, 1] == _NOWHERE).any()


_RECORD_BYTES = 24
_UNTRUSTED, _IN_ERROR = 1 << 63, 1 << 62
_SEQ = _IN_ERROR - 1
_NOWHERE = 0
_UNKEPT = bytes(16)  # a value of hash 0 that stands nowhere


class Found(NamedTuple):
    """Where a value was seen.

    Parameters
    ----------
    sources
        Keys of the places in results of trusted steps.
    seqs
        All steps whose result or error held it.
    in_results
        Whether a result held it.
    """

    sources: tuple[int, ...] = ()
    seqs: tuple[int, ...] = ()
    in_results: bool = False


def see(
    params: SightingParams,
    state: SeenValues,
    seq: int,
    tool: str,
    result: Any,
    trusted: bool = True,
    is_error: bool = False,
) -> SeenValues:
    """Remember the values of one result, with the place and the step they came with.

    Structured results by path, keys that look like ids as values too; of prose the words that
    look like ids.

    Parameters
    ----------
    trusted
        The call was about known things itself; what others return is not a source.
    is_error
        It is the text of an error: instructions arrive through those, too, and nothing else.
    """
    found: dict[bytes, None] = {}
    for each in _result_values(params, parsed_result(result)):
        pair = _UNKEPT if each is None else _digest(each[1]) + _place(tool, each[0])
        if len(found) == params.values_per_result_max and pair not in found:
            pair = _UNKEPT
            found.popitem()
        found[pair] = None
        if pair is _UNKEPT:
            break
    if not found:
        return state
    marks = (0 if trusted else _UNTRUSTED) | (_IN_ERROR if is_error else 0)
    step = (seq & _SEQ | marks).to_bytes(8, "little")
    records = state.records + step.join(found) + step
    if len(records) > params.records_max * _RECORD_BYTES:
        records = _compacted(records, params.records_max)
    return SeenValues(records)


def find(state: SeenValues, value: str) -> Found:
    """Return where a canonical value was seen in this run."""
    digest = _digest(value)
    if digest not in state.records:  # a scan at memory speed; most values were in no result
        return Found()
    table = state.table
    rows = table[table[:, 0] == int.from_bytes(digest, "little")].tolist()
    known = [(place, step) for _, place, step in rows if place != _NOWHERE]
    return Found(
        tuple(dict.fromkeys(place for place, step in known if step < _UNTRUSTED)),
        tuple(sorted({step & _SEQ for _, step in known})),
        not all(step & _IN_ERROR for _, step in known),
    )


def source_key(tool: str, path: str) -> int:
    """Return 64 bits that stand for a place in a tool's result; never 0."""
    return int.from_bytes(_place(tool, path), "little")


@lru_cache(maxsize=65_536)  # places are few; the key is pure
def _place(tool: str, path: str) -> bytes:
    digest = _digest(f"{tool}\n{path}")
    return digest if any(digest) else (1).to_bytes(8, "little")


def _digest(value: str) -> bytes:
    # Not a checksum: whoever writes a result could make one that a trusted place holds.
    return blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _compacted(records: bytes, records_max: int) -> bytes:
    """Drop repeated pairs of value and place, then the oldest, down to three quarters.

    The first step of a pair stays, the place in the queue is that of its last. That something was
    dropped is remembered in the first record.
    """
    table = np.frombuffer(records, dtype="<u8").reshape(-1, 3)
    pairs = table.copy()
    pairs[:, 2] //= _IN_ERROR
    _, first = np.unique(pairs, axis=0, return_index=True)
    _, last = np.unique(pairs[::-1], axis=0, return_index=True)
    latest = len(table) - 1 - last
    kept = table[first[np.argsort(latest)]]
    nowhere = kept[:, 1] == _NOWHERE
    if len(kept) > records_max * 3 // 4:
        rest = kept[~nowhere]
        most = max(1, records_max * 3 // 4 - 1)
        kept = np.concatenate([np.zeros((1, 3), dtype="<u8"), rest[-most:]])
    return kept.tobytes()


def _result_values(params: SightingParams, result: Any) -> Iterator[tuple[str, str] | None]:
    """Yield the values with their paths, and None where there may be more of them."""
    budget = params.result_characters_max
    for visited, (path, raw) in enumerate(scalars(result, keys=True)):
        if budget <= 0 or visited == _VISITED_MAX:
            yield None
            return
        if isinstance(raw, bool | float):
            continue  # prices and flags are many, and name nothing
        if isinstance(raw, str) and " " in raw:
            text = raw[:budget]
            budget -= len(raw)
            for part in marked_parts(text):
                for token in _TOKEN.findall(part):
                    bare = token.strip(".:-")
                    if _MARKED.search(bare) is not None:
                        value = canonical_value(bare)
                        if value is not None:
                            yield path, value
        value = canonical_value(raw)
        if value is not None and (len(value) <= params.characters_max or " " not in value):
            yield path, value
    if budget < 0:
        yield None
