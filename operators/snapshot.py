"""Snapshots: the state of a run as bytes, and back.

No pickle and no JSON: msgpack for structure, raw bytes for arrays, a schema fingerprint and a
digest that are checked on read. What a run is compared with is not part of it; the reader brings
the same knowledge (it is a function of the run's first event).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import msgpack
import numpy as np
import zstandard
from rpds import HashTrieMap

from ontrack.operators import (
    abort,
    candidates,
    exploration,
    gain,
    ledger,
    loop,
    orphans,
    prefix,
    ranking,
    repeats,
    scoring,
    scoring_extras,
    scoring_totals,
    settled,
    stall,
    strategy,
    transport,
)
from ontrack.operators.knowledge import Knowledge
from ontrack.operators.report import Stamp
from ontrack.operators.seen import SeenSteps
from ontrack.operators.sightings import SeenValues
from ontrack.operators.state import RunState
from ontrack.operators.vectors import History
from ontrack.solver import relaxed
from ontrack.topics.errors import InvalidSnapshot
from ontrack.topics.events import Agent

MAGIC = b"OTS3"
_DIGEST_BYTES = 16
_STATE, _ARRAY, _MAP, _INTEGER, _AGENT = 1, 2, 3, 4, 5

# Every type that may stand in a snapshot. Nothing else is ever built from its bytes.
_TYPES: tuple[type, ...] = (
    RunState,
    Stamp,
    SeenSteps,
    ledger.LedgerState,
    ledger.Entry,
    prefix.PrefixState,
    transport.TransportState,
    transport.Shared,
    candidates.Candidates,
    relaxed.Relaxed,
    settled.Settled,
    History,
    ranking.RankState,
    orphans.OrphanState,
    SeenValues,
    loop.LoopState,
    loop.Predecessor,
    gain.GainState,
    stall.StallState,
    repeats.RepeatState,
    repeats.Streak,
    exploration.ExplorationState,
    exploration.Pending,
    strategy.StrategyState,
    abort.AbortState,
    scoring.ScoringState,
    scoring_extras.CallMemory,
    scoring_extras.Extras,
    scoring_totals.Totals,
)
_NUMBER_OF = {kind: number for number, kind in enumerate(_TYPES)}
_NOT_STORED = {"knowledge", "terms"}


def _schema() -> str:
    """Fingerprint of the stored types: their names, fields and the fields' declared types."""
    described = [
        (kind.__name__, [(item.name, str(item.type)) for item in fields(kind)]) for kind in _TYPES
    ]
    return hashlib.blake2b(repr(described).encode(), digest_size=8).hexdigest()


SCHEMA = _schema()


def dump(state: RunState, offset: int, beside: Sequence[Any] = ()) -> bytes:
    """Return a run state as bytes.

    Parameters
    ----------
    offset
        Place of the run's last event in the log.
    beside
        What the caller keeps of the run: texts, bytes, numbers and lists of these.
    """
    return seal([SCHEMA, offset, state, list(beside)])


def read(snapshot: bytes) -> tuple[int, RunState, tuple[Any, ...]]:
    """Return what :func:`dump` was given; the state without knowledge, see :func:`restore`.

    Raises
    ------
    InvalidSnapshot
        The bytes are damaged or were written under another schema. The run is folded from the
        log then.
    """
    schema, offset, state, beside = unseal(snapshot)
    if schema != SCHEMA or not isinstance(state, RunState):
        raise InvalidSnapshot("the snapshot has another schema; the run is folded from the log")
    return offset, state, beside


def restore(state: RunState, stamp: Stamp, knowledge: Knowledge) -> RunState:
    """Join a state that was read with what its run is compared with.

    Parameters
    ----------
    stamp
        Settings and engine of the reader; a snapshot made under others is refused.
    knowledge
        As of the run's first event.

    Raises
    ------
    InvalidSnapshot
        The snapshot was made under other settings, by another engine or with other references.
    """
    if state.stamp != stamp:
        raise InvalidSnapshot(
            "the snapshot was made under other settings or by another engine; "
            "the run is folded from the log"
        )
    _check_fit(state, knowledge)
    return replace(state, knowledge=knowledge)


def seal(parts: list[Any]) -> bytes:
    """Pack and compress values, with a magic number and a digest before them."""
    packed = msgpack.packb(parts, default=_pack, strict_types=True)
    body = zstandard.ZstdCompressor(level=1).compress(packed)
    return MAGIC + hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() + body


def unseal(sealed: bytes) -> tuple[Any, ...]:
    """Check and unpack what :func:`seal` made.

    Raises
    ------
    InvalidSnapshot
        It is something else, or damaged.
    """
    digest = sealed[len(MAGIC) : len(MAGIC) + _DIGEST_BYTES]
    body = sealed[len(MAGIC) + _DIGEST_BYTES :]
    if sealed[: len(MAGIC)] != MAGIC:
        raise InvalidSnapshot("not a snapshot of this version; the run is folded from the log")
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
        raise InvalidSnapshot("the snapshot is damaged; the run is folded from the log")
    return _parts(zstandard.ZstdDecompressor().decompress(body))


def _check_fit(state: RunState, knowledge: Knowledge) -> None:
    """Refuse a coupling or pointers that were made with other references than those at hand."""
    held, references = state.transport, knowledge.references
    paths = () if knowledge.plan is None else knowledge.plan.paths
    wanted = None if references is None else references.arrays.nu.shape
    found = None if held is None else (held.cost.shape[0], held.cost.shape[2])
    if found != wanted or len(state.scoring.pointers) != len(paths):
        raise InvalidSnapshot(
            "the snapshot was made with other references; the run is folded from the log"
        )


def _pack(value: Any) -> msgpack.ExtType:
    if type(value) in _NUMBER_OF and is_dataclass(value):
        parts = [
            None if item.name in _NOT_STORED else getattr(value, item.name)
            for item in fields(value)
        ]
        return msgpack.ExtType(_STATE, _nested([_NUMBER_OF[type(value)], *parts]))
    if isinstance(value, np.ndarray):
        head = [value.dtype.str, *value.shape]
        return msgpack.ExtType(_ARRAY, _nested([head, np.ascontiguousarray(value).tobytes()]))
    if isinstance(value, HashTrieMap):
        # Sorted, so that equal states give equal bytes whatever their history. By their text: a
        # name may be a member of its enumeration or, once it was read back, plain text.
        items = sorted(value.items(), key=lambda item: str(item[0]))
        return msgpack.ExtType(_MAP, _nested([part for item in items for part in item]))
    if isinstance(value, int):
        width = value.bit_length() // 8 + 1
        return msgpack.ExtType(_INTEGER, value.to_bytes(width, "little", signed=True))
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Agent):
        return msgpack.ExtType(_AGENT, _nested([value.id, value.name, value.version]))
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"{type(value).__name__} has no place in a snapshot")


def _nested(parts: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(parts, default=_pack, strict_types=True)
    return packed


def _parts(data: bytes) -> tuple[Any, ...]:
    parts: tuple[Any, ...] = _unpacked(data)
    return parts


def _unpacked(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_unpack, use_list=False, strict_map_key=False)


def _unpack_state(data: bytes) -> Any:
    number, *parts = _parts(data)
    return _TYPES[number](*parts)


def _unpack_array(data: bytes) -> Any:
    (kind, *shape), raw = _parts(data)
    return np.frombuffer(raw, dtype=np.dtype(kind)).reshape(shape)


def _unpack_map(data: bytes) -> Any:
    parts = _parts(data)
    return HashTrieMap(dict(zip(parts[::2], parts[1::2], strict=True)))


def _unpack_integer(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _unpack_agent(data: bytes) -> Agent:
    identity, name, version = _parts(data)
    return Agent(id=identity, name=name, version=version)


_UNPACK: dict[int, Callable[[bytes], Any]] = {
    _STATE: _unpack_state,
    _ARRAY: _unpack_array,
    _MAP: _unpack_map,
    _INTEGER: _unpack_integer,
    _AGENT: _unpack_agent,
}


def _unpack(code: int, data: bytes) -> Any:
    return _UNPACK[code](data)
