"""Checkpoints: the open runs of a partition as entries of a compacted topic, and back.

An accelerator, nothing more: without them, or with damaged ones, the same state comes out of the
log. One entry a run, under its id, and one entry for the partition, under the empty key, which says

* from which offset on the log must be read,
* which runs were open there, and offset and time of the last event of each,
* which runs had ended,
* which runs started which, and which were halted,
* what is known of runs whose beginning the log has lost.

A run's entry also holds its waiting steps. It may be newer than the partition's: then the events
that it already holds are passed over (``known_until``). It must never be older, as a former
owner's last words could be. The entry of a run that has ended is removed only once the partition's
own entry says so: until then a successor begins with the run still open, and folds its end again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ontrack.operators import snapshot
from ontrack.operators.state import RunState
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.topics.errors import InvalidSnapshot

PARTITION_KEY = b""
_KIND = "partition-4"
VALUE_BYTES_MAX = 8_000_000
"""What the topic takes, with room for the rest of a message; a larger entry is cut into parts."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as it stands on the topic.

    Parameters
    ----------
    value
        None: removed.
    offset
        Place in the events log of the last event that the entry knows; for its header.
    time_ms
        Broker's time of the entry.
    """

    key: bytes
    value: bytes | None
    offset: int = -1
    time_ms: int = 0


def run_entry(partition: PartitionState, run_id: str) -> Entry:
    """Return the entry of an open run."""
    offset = partition.positions[run_id]
    waiting = partition.waiting.stored(run_id)
    return Entry(run_id.encode(), snapshot.dump(partition.runs[run_id], offset, waiting), offset)


def partition_entry(fold: Fold, state: PartitionState, next_offset: int) -> Entry:
    """Return the partition's own entry, written after those of its runs."""
    ended = [part for item in state.ended.items() for part in item]
    children = [[parent, *some] for parent, some in state.family.children.items()]
    family = [children, list(state.family.halted)]
    cut = [state.cut_until, list(state.cut_runs)]
    parts = [_KIND, list(_stamp(fold)), next_offset, _open_runs(state), ended, family, cut]
    return Entry(PARTITION_KEY, snapshot.seal(parts), next_offset - 1)


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint as far as it can be read without knowledge.

    ``newest_ms`` is the latest first event of an open run: the library must reach that far.
    ``heard_ms`` are the times of the runs' last events; ``written_ms`` stands in where an entry is
    newer than the partition's own, so that idle runs are closed a little late.
    """

    next_offset: int
    open_runs: Mapping[str, tuple[int, RunState, tuple[Any, ...]]]
    ended: Mapping[str, bytes]
    family: tuple[Any, ...]
    cut: tuple[Any, ...]
    written_ms: int
    heard_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def newest_ms(self) -> int:
        """Broker time of the newest first event among the open runs, -1 without any."""
        return max((state.started_ms or -1 for _, state, _ in self.open_runs.values()), default=-1)


def read(fold: Fold, entries: Iterable[Entry]) -> Stored | None:
    """Read a partition's entries, oldest first; None where no checkpoint was ever written.

    Raises
    ------
    InvalidSnapshot
        Something is damaged, missing, too old, or was written under other settings.
    """
    latest = {entry.key: entry for entry in entries}
    own = latest.get(PARTITION_KEY)
    if own is None or own.value is None:
        return None
    kind, stamp, *content = snapshot.unseal(own.value)
    if kind != _KIND or stamp != _stamp(fold):
        raise InvalidSnapshot(
            "the checkpoint was written under other settings or by another engine; "
            "the partition is folded from the log"
        )
    next_offset, positions, ended, family, cut = content
    open_runs: dict[str, tuple[int, RunState, tuple[Any, ...]]] = {}
    heard_ms: dict[str, int] = {}
    for run_id, position, heard in zip(
        positions[::3], positions[1::3], positions[2::3], strict=True
    ):
        entry = latest.get(run_id.encode())
        if entry is None or entry.value is None:
            raise InvalidSnapshot(f"the snapshot of run {run_id!r} is missing")
        offset, state, waiting = snapshot.read(entry.value)
        if offset < position:
            raise InvalidSnapshot(
                f"the snapshot of run {run_id!r} is older than the checkpoint that names it"
            )
        open_runs[run_id] = offset, state, waiting
        if offset == position and heard is not None:
            heard_ms[run_id] = heard
    ends = dict(zip(ended[::2], ended[1::2], strict=True))
    return Stored(next_offset, open_runs, ends, family, cut, own.time_ms, heard_ms)


def restore(fold: Fold, stored: Stored) -> Iterator[PartitionState]:
    """Build the partition's state, a run at a time, so that the caller can give way between them.

    The log is then read from ``stored.next_offset`` on. Before each run, in the order of
    ``stored.open_runs``, the caller may prepare what it is compared with.

    Yields
    ------
    PartitionState
        The same one each time; complete with the last.

    Raises
    ------
    InvalidSnapshot
        A run was compared with other references than those at hand.
    """
    state = fold.partition()
    state.ended = OrderedDict(stored.ended)
    children, halted = stored.family
    for parent, *some in children:
        for child in some:
            state.family.add(parent, child)
    state.family.halted = OrderedDict.fromkeys(halted)
    state.cut_until, cut_runs = stored.cut
    state.cut_runs = OrderedDict.fromkeys(cut_runs)
    yield state
    for run_id, (offset, held, waiting) in stored.open_runs.items():
        state.runs[run_id] = thawed = fold.thaw(held)
        state.waiting.restore(run_id, waiting)
        state.positions[run_id] = state.known_until[run_id] = offset
        state.heard_ms[run_id] = stored.heard_ms.get(run_id, stored.written_ms)
        if thawed.abort.halted:  # after the partition's entry was written, perhaps
            state.family.halted[run_id] = None
        yield state


def _stamp(fold: Fold) -> tuple[str, ...]:
    return (snapshot.SCHEMA, fold.stamp.profile, fold.stamp.settings, fold.stamp.engine)


def _open_runs(state: PartitionState) -> list[str | int | None]:
    found: list[str | int | None] = []
    for run_id, position in state.positions.items():
        found += [run_id, position, state.heard_ms.get(run_id)]
    return found
