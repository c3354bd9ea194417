"""Ledger: which step first surfaced an artifact, who produced it, who waits for it.

It turns artifact ids into dependency edges, late ones too: a consumer whose producer turns up
afterwards (an event that arrived late) gets its edge when that happens.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache

from rpds import HashTrieMap

from ontrack.operators.artifacts import Artifacts
from ontrack.operators.limits import require


@dataclass(frozen=True, slots=True)
class LedgerParams:
    """Limits of the ledger.

    Parameters
    ----------
    artifacts_max
        Artifacts remembered a run. At the limit no new id is entered (edges to known ones still
        appear) and the state says so in ``full``.
    waiting_max
        Consumers remembered per id whose producer is not known yet.
    """

    artifacts_max: int = 4096
    waiting_max: int = 8

    def __post_init__(self) -> None:
        require(self, 1, 1_000_000, "artifacts_max", "waiting_max")


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one artifact.

    Parameters
    ----------
    surfaced
        (seq, node) of the step in which the id first appeared.
    produced
        (seq, node) of the first step that produced it, if any did.
    waiting
        (seq, node) of consumers that came before any step surfaced it.
    """

    surfaced: tuple[int, int] | None
    produced: tuple[int, int] | None
    waiting: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerState:
    """Artifacts by the digest of their id, never more than ``artifacts_max``.

    Digests, because ids are long and many: they would be the larger part of an open run.
    """

    entries: HashTrieMap[int, Entry] = field(default_factory=HashTrieMap)
    full: bool = False

    def producer(self, artifact: str) -> int | None:
        """Return the sequence number of the step that produced an artifact, or None."""
        entry = self.entry(artifact)
        return None if entry is None or entry.produced is None else entry.produced[0]

    def entry(self, artifact: str) -> Entry | None:
        """Return what is known of an artifact."""
        return self.entries.get(_key(artifact))


@dataclass(frozen=True, slots=True)
class LedgerOutput:
    """Edges as (producer node, consumer node); ``consumed`` are nodes whose artifact was used."""

    edges: tuple[tuple[int, int], ...]
    consumed: tuple[int, ...]


def step(
    params: LedgerParams, state: LedgerState, seq: int, node: int, artifacts: Artifacts
) -> tuple[LedgerState, LedgerOutput]:
    """Enter one step's artifacts and return the dependency edges that follow.

    Parameters
    ----------
    seq
        The step's place in its run; an edge always points from a lower to a higher one.
    node
        The step's index in the prefix graph (order of arrival).
    """
    entries, full = state.entries, state.full
    edges: list[tuple[int, int]] = []
    # One object for what many ids share: in a long run they are most of what it keeps.
    here = (seq, seq if seq == node else node)
    products, mentions = Entry(here, here), Entry(here, None)
    waiting_here = (here,)
    for artifact in artifacts.consumed:
        key = _key(artifact)
        entry = entries.get(key)
        source = None if entry is None else _source(entry, seq)
        if source is not None:
            edges.append((source[1], node))
        elif entry is None and len(entries) >= params.artifacts_max:
            full = True
        elif entry is None or (
            here not in entry.waiting and len(entry.waiting) < params.waiting_max
        ):
            known = entry or Entry(None, None)
            waiting = (*known.waiting, here) if known.waiting else waiting_here
            entries = entries.insert(key, Entry(known.surfaced, known.produced, waiting))
    for artifact, is_product in [
        *((artifact, True) for artifact in artifacts.produced),
        *((artifact, False) for artifact in artifacts.mentioned),
    ]:
        key = _key(artifact)
        entry = entries.get(key)
        if entry is None and len(entries) >= params.artifacts_max:
            full = True
            continue
        if entry is None:
            entries = entries.insert(key, products if is_product else mentions)
            continue
        updated, late = _enter(entry, here, is_product)
        edges.extend((node, waiting[1]) for waiting in late)
        if updated != entry:
            entries = entries.insert(key, updated)
    unique = tuple(dict.fromkeys(edges))
    consumed = tuple(dict.fromkeys(source for source, _ in unique))
    return LedgerState(entries, full), LedgerOutput(unique, consumed)


def _source(entry: Entry, seq: int) -> tuple[int, int] | None:
    """Return the step before ``seq`` that an id came from: its producer, else who surfaced it."""
    for candidate in (entry.produced, entry.surfaced):
        if candidate is not None and candidate[0] < seq:
            return candidate
    return None


def _enter(
    entry: Entry, here: tuple[int, int], is_product: bool
) -> tuple[Entry, tuple[tuple[int, int], ...]]:
    """Return the entry with this step in it, and the waiting consumers that it satisfies."""
    earlier = entry.surfaced is None or here[0] < entry.surfaced[0]
    surfaced = here if earlier else entry.surfaced
    produced = entry.produced
    if is_product and (produced is None or here[0] < produced[0]):
        produced = here
    if not entry.waiting:
        return Entry(surfaced, produced), ()
    late = tuple(waiting for waiting in entry.waiting if waiting[0] > here[0])
    still = tuple(waiting for waiting in entry.waiting if waiting[0] <= here[0])
    return Entry(surfaced, produced, still), late


@lru_cache(maxsize=4096)  # a step asks for each id twice, and ids come back; none is long
def _key(artifact: str) -> int:
    digest = hashlib.blake2b(artifact.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
