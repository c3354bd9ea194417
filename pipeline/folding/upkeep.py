"""Upkeep: what time brings to a partition's runs, as events that its owner writes into the log.

In the log, because every reader of it must come to the same end; each event is the same whoever
sends it, so a second one is a duplicate. Without a log they are simply the next events. Times are
those of the records, by whatever clock they bear.
"""

from __future__ import annotations

from itertools import islice

from ontrack.pipeline.folding.partition import PartitionState
from ontrack.topics.events import GapClosed, RunEnded


class Upkeep:
    """Which runs have been silent, and which steps waited for, for long enough.

    Parameters
    ----------
    idle_s
        Silence after which a run is ended.
    reorder_ms
        How long a missing step is waited for.
    """

    def __init__(self, idle_s: float, reorder_ms: float) -> None:
        self._idle_s = idle_s
        self._reorder_ms = reorder_ms
        self._closing: set[str] = set()
        self._given_up: dict[str, int] = {}  # run and first waiting step

    def begin_again(self) -> None:
        """Forget what was said: what was written of it may not have arrived."""
        self._closing.clear()
        self._given_up.clear()

    def folded(self, state: PartitionState) -> None:
        """Forget what the log has answered meanwhile."""
        self._closing &= state.heard_ms.keys()
        for run_id in [run_id for run_id in self._given_up if run_id not in state.waiting]:
            del self._given_up[run_id]

    def idle(self, state: PartitionState, now_ms: int, most: int | None = None) -> list[RunEnded]:
        """Return the ends of runs that have been silent for too long, each once.

        Parameters
        ----------
        most
            So many at a time; None: all.
        """
        limit_ms = self._idle_s * 1000
        found = (
            run_id
            for run_id, heard_ms in list(state.heard_ms.items())
            if now_ms - heard_ms > limit_ms and run_id not in self._closing
        )
        silent = list(islice(found, most))
        self._closing.update(silent)
        reason = f"idle: no event for {self._idle_s} s"
        return [RunEnded(run_id=run_id, outcome="cancelled", reason=reason) for run_id in silent]

    def overdue(self, state: PartitionState, now_ms: int) -> list[GapClosed]:
        """Return the steps that have been waited for long enough, each once."""
        gaps = []
        for run_id in state.waiting:
            since_ms, first = state.waiting.since_ms(run_id), state.waiting.first(run_id)
            late = since_ms is not None and now_ms - since_ms >= self._reorder_ms
            if late and first is not None and self._given_up.get(run_id) != first:
                gaps.append(GapClosed(run_id=run_id, seq=first))
        self._given_up |= {gap.run_id: gap.seq for gap in gaps}
        return gaps
