"""State of one partition: its open runs, and what is remembered of those that have ended."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from ontrack.pipeline.folding.family import Family
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.folding.runs import Runs, RunStore
from ontrack.pipeline.folding.waiting import Waiting
from ontrack.topics.errors import BeginningLost
from ontrack.topics.events import Event, Notice, Step


@dataclass(slots=True)
class PartitionState:
    """Runs of one partition.

    Parameters
    ----------
    runs
        Open runs by id; the values are immutable. ``Fold.partition`` bounds their memory.
    ended
        Ended runs, the latest ``ended_runs_max``, with a digest of their last event.
    ended_runs_max
        How many ended runs, and runs without a beginning, are remembered.
    heard_ms
        Broker's time of the last event of each open run.
    positions
        Offset of the last event of each open run.
    known_until
        Offset up to which a run's events are in its state already, though the log is being read
        from an earlier place (see :mod:`ontrack.pipeline.folding.checkpoint`).
    cut_until
        The log's beginning is gone and no checkpoint makes up for it: steps of runs that are first
        seen up to this offset cannot be numbered any more, unless they bring their numbers.
    cut_runs
        Those runs; the latest ``ended_runs_max``.
    touched
        Open runs with an event since the last checkpoint; whoever writes one clears it.
    duplicates
        Steps dropped because they had been seen.
    waiting
        Steps that came before their predecessors.
    family
        Who started whom, and who was halted.
    """

    runs: Runs = field(default_factory=RunStore)
    ended: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    ended_runs_max: int = 20_000
    heard_ms: dict[str, int] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    known_until: dict[str, int] = field(default_factory=dict)
    cut_until: int = -1
    cut_runs: OrderedDict[str, None] = field(default_factory=OrderedDict)
    touched: set[str] = field(default_factory=set)
    duplicates: int = 0
    waiting: Waiting = field(default_factory=Waiting)
    family: Family = field(default_factory=lambda: Family(20_000))

    def heard(self, event: Event, record: Record) -> None:
        """Note when and where a run was heard of last; forget it if that ended it."""
        run_id = event.run_id
        if run_id in self.runs:
            self.positions[run_id] = record.offset
            self.touched.add(run_id)
            if record.timestamp_ms is not None and not isinstance(event, Notice):
                self.heard_ms[run_id] = record.timestamp_ms
        else:
            self.positions.pop(run_id, None)
            self.heard_ms.pop(run_id, None)
            self.touched.discard(run_id)

    def end(self, run_id: str, digest: bytes) -> None:
        """Close a run; its id and the digest of its last event are remembered."""
        self.runs.pop(run_id, None)
        self.family.end(run_id)
        self.waiting.end(run_id)
        self.ended[run_id] = digest
        if len(self.ended) > self.ended_runs_max:
            self.ended.popitem(last=False)

    def is_cut(self, event: Event, offset: int) -> bool:
        """Tell whether a step would be numbered by arrival where earlier arrivals may be gone.

        A number once published for another step would be published again: equal ids with unequal
        bytes, the one thing that a consumer must never see. What was judged before is passed over.

        Raises
        ------
        BeginningLost
            Nobody has judged this step, and nobody can number it any more.
        """
        run_id = event.run_id
        if not isinstance(event, Step) or event.seq is not None or run_id in self.runs:
            return False
        if offset > self.cut_until and run_id not in self.cut_runs:
            return False
        self.cut_runs[run_id] = None
        if len(self.cut_runs) > self.ended_runs_max:
            self.cut_runs.popitem(last=False)
        if offset <= self.cut_until:
            return True
        raise BeginningLost(
            f"run {run_id!r} began before what the events topic still holds, and this step has no "
            "number of its own; number the steps (seq), or keep events longer than runs take"
        )
