"""Long folds in a thread, so that the event loop is never held for long.

A step costs as much as its alignment is large: rows times references times their nodes. Nearly all
stay on the event loop, where they cost nothing extra. The few that are large enough for a
converged solve to take long go to a thread, one at a time for a partition; heartbeats, other
partitions and the gate go on meanwhile.

A partition's state has one writer at any time, the fold of its current record, here or there. The
gate reads: while a thread folds a run's record, it is shown that run as it was before the record.
"""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

from ontrack.operators import settled
from ontrack.operators.state import RunState
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.pipeline.folding.preparing import prepare_record
from ontrack.pipeline.folding.record import Record, Said
from ontrack.pipeline.folding.runs import RunStore, Who
from ontrack.pipeline.folding.timing import Observe, timed_apply, unobserved
from ontrack.topics.errors import InvalidSnapshot

CELLS_MAX = 16_384
"""Alignment cells (t, K and M multiplied) that are folded on the event loop. The longest converged
solve of so many, ten linearisations of fifty iterations each, takes 7 ms compiled and 20 ms with
numpy (docs/performance.md)."""

BYTES_MAX = 131_072
"""Bytes of a message that are read on the event loop, where the run is known."""

WAITING_MAX = 8
"""Waiting steps that may be folded with one record on the event loop."""


_END = b"run_ended"
"""Stands in every message that ends a run. In a text of another it costs a way to a thread."""


class Holder(Protocol):
    """Who shows a partition's state to readers."""

    state: PartitionState


async def apply(
    fold: Fold,
    holder: Holder,
    record: Record,
    elsewhere: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    observe: Observe = unobserved,
) -> list[Said]:
    """Fold a record, in a thread where that may take long; the result is the same.

    Only its caller may change the state until this returns. ``elsewhere`` is entered while a thread
    works, so that other partitions need not wait for it. ``observe`` is told the seconds of the
    fold alone, without the waiting.
    """
    state = holder.state
    await prepare_record(fold, state, record, elsewhere)
    known = _known(state, record)
    if known is None or not is_long(known, state, record, fold.profile.prefix.exact_max):
        # A run's first record finds in the library what takes long, which was just prepared.
        return timed_apply(fold, state, record, observe)
    holder.state = _before(state, known)
    try:
        async with elsewhere():
            return await asyncio.to_thread(timed_apply, fold, state, record, observe)
    finally:
        holder.state = state


def is_long(known: RunState, state: PartitionState, record: Record, exact_max: int) -> bool:
    """Tell whether folding a record of a known run may take long.

    What may be the run's end is measured by the final solve, with all its references and, up to
    ``exact_max`` of them, all its steps; every other record by the rows that the alignment has now.
    Steps that wait for it are folded with it, so a run of which some wait has less to spare. A run
    without a step is not: its start may still name the task, and then the library is asked.
    """
    if _may_begin(known):
        return False
    if len(record.value) > BYTES_MAX:
        return True
    if _END in record.value and final_cells(known, exact_max) > CELLS_MAX:
        return True
    if known.run_id not in state.waiting:
        return cells(known) > CELLS_MAX
    return cells(known) * WAITING_MAX > CELLS_MAX or state.waiting.is_full(
        known.run_id, WAITING_MAX
    )


def asks_library(state: PartitionState, record: Record) -> bool:
    """Tell whether folding or answering a record looks up what a run is compared with.

    Only what may begin a run does: an open run keeps what it began with, unless its start is still
    to name the task.
    """
    known = _known(state, record)
    return known is None or (known.task_id is None and _may_begin(known))


def _may_begin(known: RunState) -> bool:
    """Tell whether a run's start may still name the task: before its first step."""
    return known.highest < 0


def cells(known: RunState) -> int:
    """Return the size of the alignment after the next step: (t + 1) * K * M; 0 without one."""
    if known.transport is None:
        return 0
    count, steps, width = known.transport.plan.shape
    return int(count * (steps + 1) * width)


def final_cells(known: RunState, exact_max: int) -> int:
    """Return the size of the final solve, were this the end; 0 without references."""
    references, steps = known.knowledge.references, known.prefix.size
    if references is None or known.transport is None:
        return 0
    rows = -(-steps // settled.resolution(steps, exact_max))
    return references.count * rows * references.width


def _known(state: PartitionState, record: Record) -> RunState | None:
    """Return a run's state; one that was kept as bytes is kept as a state from now on."""
    run_id = (record.key or b"").decode("utf-8", "replace")
    try:
        known = state.runs.get(run_id)
    except InvalidSnapshot:
        return None  # the fold will say so
    if known is not None:
        state.runs[run_id] = known
    return known


class _RunsBefore(ChainMap[str, RunState]):
    """The open runs, one of them as it was."""

    def who(self, run_id: str) -> Who | None:
        """Tell of a run; None if it is not open."""
        first, others = self.maps
        assert isinstance(others, RunStore)
        return Who.of(first[run_id]) if run_id in first else others.who(run_id)


def _before(state: PartitionState, known: RunState) -> PartitionState:
    """Return a view of a state in which one run stands still; for readers only."""
    runs: Any = _RunsBefore({known.run_id: known}, state.runs)
    position = state.positions.get(known.run_id)
    first = {} if position is None else {known.run_id: position}
    positions: Any = ChainMap(first, state.positions)
    return replace(state, runs=runs, positions=positions)
