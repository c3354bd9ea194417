"""Kinship: what a run's beginning, halt and resumption mean for those that it started.

A parent and its children may live in different partitions, so they hear of each other through
notices in the log of events (decision 0010).
"""

from __future__ import annotations

from ontrack.operators import acting
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.topics.events import ChildStarted, Event, Notice, ParentHalted, RunResumed
from ontrack.topics.verdicts import Intervention


def introduction(event: Event) -> list[Notice]:
    """Tell a run's parent, if it has one, that the run has begun."""
    parent = event.parent_run_id
    if parent is None or parent == event.run_id:
        return []
    return [ChildStarted(run_id=parent, child_run_id=event.run_id)]


def child_started(state: PartitionState, event: ChildStarted) -> list[Notice]:
    """Note a run's child; one that starts after its parent's halt is halted as well."""
    parent, child = event.run_id, event.child_run_id
    known = state.runs.get(parent)
    if parent not in state.ended:
        state.family.add(parent, child)
    if parent in state.family.halted or (known is not None and known.abort.halted):
        return [ParentHalted(run_id=child, parent_run_id=parent)]
    return []


def parent_halted(state: PartitionState, event: ParentHalted) -> list[Notice | Intervention]:
    """Halt a run because the one that started it was halted."""
    known = state.runs.get(event.run_id)
    if known is None or known.abort.halted or known.shadow:
        return []
    state.runs[event.run_id], intervention = acting.halt_by_parent(known, event.parent_run_id)
    return [*tell_children(state, event.run_id), intervention]


def resumed(state: PartitionState, event: RunResumed) -> None:
    """Let a halted run go on; one that was not halted is left as it is."""
    state.family.resume(event.run_id)
    known = state.runs.get(event.run_id)
    if known is not None and known.abort.halted:
        state.runs[event.run_id] = acting.resume(known)


def tell_children(state: PartitionState, run_id: str) -> list[Notice]:
    """Tell all that a halted run has started."""
    children = state.family.halt(run_id)
    return [ParentHalted(run_id=child, parent_run_id=run_id) for child in children]
