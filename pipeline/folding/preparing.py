"""What a record needs of the library, worked out before it is folded, and off the event loop.

Compiling and testing reference sets takes seconds where many have come at once. The fold asks the
library for what a run is compared with, and must find it there: so whoever folds or answers on an
event loop asks here first. The result is the same with and without, only the loop is free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, TypeVar

import structlog

from ontrack.operators.state import RunState
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.pipeline.folding.record import Record
from ontrack.topics.events import Proposal

_log = structlog.get_logger(__name__)

T = TypeVar("T")
Elsewhere = Callable[[], AbstractAsyncContextManager[None]]

# Threads of its own: whoever waits takes none away from long folds. More than one, so that a run of
# a task whose sets are there does not wait behind one whose sets are not.
_threads: Final = ThreadPoolExecutor(max_workers=4, thread_name_prefix="ontrack-preparing")

# A publication may come while a thread works, and count for what is asked as of now.
_TRIES_MAX: Final = 3


async def prepare_record(
    fold: Fold, state: PartitionState, record: Record, elsewhere: Elsewhere = nullcontext
) -> None:
    """Prepare what folding a record of the events topic asks the library for, if anything.

    ``elsewhere`` is entered while a thread works.
    """
    run_id = (record.key or b"").decode("utf-8", "replace")
    known = state.runs.who(run_id)
    if known is not None and known.is_cold:
        await _prepare(fold, known.task_id, run_id, known.started_ms, elsewhere)
    if known is None or known.may_be_renamed:
        named = _attempted(fold.named, record)
        if named is not None:
            await _prepare(fold, named.task_id, named.run_id, record.timestamp_ms, elsewhere)


async def prepare_question(
    fold: Fold, state: PartitionState, record: Record, elsewhere: Elsewhere = nullcontext
) -> None:
    """Prepare what the answer to a record of the proposals topic asks the library for."""
    known = state.runs.who((record.key or b"").decode("utf-8", "replace"))
    if known is None or known.is_cold:
        asked = _attempted(fold.asked, record)
        if asked is not None:
            await prepare_proposal(fold, state, asked, record.timestamp_ms, elsewhere)


async def prepare_proposal(
    fold: Fold,
    state: PartitionState,
    proposal: Proposal,
    time_ms: int | None = None,
    elsewhere: Elsewhere = nullcontext,
) -> None:
    """Prepare what the answer to a proposal asks the library for, if anything."""
    known = state.runs.who(proposal.run_id)
    if known is None:
        await _prepare(fold, proposal.task_id, proposal.run_id, time_ms, elsewhere)
    elif known.is_cold:
        await _prepare(fold, known.task_id, proposal.run_id, known.started_ms, elsewhere)


async def prepare_run(fold: Fold, state: RunState, elsewhere: Elsewhere = nullcontext) -> None:
    """Prepare what making a run's state again from its snapshot asks the library for, if anything.

    Parameters
    ----------
    state
        As :func:`ontrack.operators.snapshot.read` gives it.
    """
    await _prepare(fold, state.task_id, state.run_id, state.started_ms, elsewhere)


def _attempted(read: Callable[[Record], T | None], record: Record) -> T | None:
    """Read a record; a fault of ours in it is met by the fold again, which makes a dead letter."""
    try:
        return read(record)
    except Exception as error:  # noqa: BLE001
        _log.debug("preparing_failed", offset=record.offset, error=type(error).__name__)
        return None


async def _prepare(
    fold: Fold, task_id: str | None, run_id: str, time_ms: int | None, elsewhere: Elsewhere
) -> None:
    for _ in range(_TRIES_MAX):
        preparation = fold.library.preparation(task_id, run_id, time_ms)
        if preparation is None:
            return
        async with elsewhere():
            try:
                await asyncio.get_running_loop().run_in_executor(_threads, preparation.make)
            except Exception as error:  # noqa: BLE001
                # It goes wrong in the fold again, which makes a dead letter of the record.
                _log.debug("preparing_failed", run_id=run_id, error=type(error).__name__)
                return
        fold.library.keep(preparation)
