"""Run model: a run folded again, with the monitor's state looked at after each step.

The fold is the one that judged the run, so what it says here is what was published, byte for byte,
where settings and knowledge are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from ontrack.operators import pooling, run
from ontrack.operators.prefix import PrefixState
from ontrack.operators.state import RunState
from ontrack.pipeline.dashboard.run.picture import (
    Coupling,
    GraphEdge,
    GraphNode,
    Place,
    ReferenceColumn,
    RunPicture,
    Series,
    TimelineStep,
)
from ontrack.pipeline.dashboard.run.watch import Facts, RunWatch
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.record import Record
from ontrack.topics.codecs import Limits
from ontrack.topics.events import RunEnded
from ontrack.topics.verdicts import Output, Verdict, as_plain

__all__ = [
    "Coupling",
    "GraphEdge",
    "GraphNode",
    "Place",
    "ReferenceColumn",
    "RunFold",
    "RunPicture",
    "Series",
    "TimelineStep",
    "picture_of",
]

#: By the numbers of :mod:`ontrack.pipeline.dashboard.run.watch`.
PLACES: Final[tuple[Place, ...]] = ("dormant", "ahead", "active", "satisfied")
ACTION_CHARACTERS_MAX: Final = 240


class RunFold:
    """One run, folded event by event.

    Parameters
    ----------
    fold
        With the library that the run was judged by.
    limits
        Of one event, as the fold has them.
    """

    def __init__(self, fold: Fold, run_id: str, limits: Limits | None = None) -> None:
        self._watch = RunWatch(fold, run_id, limits or Limits())

    def feed(self, records: Iterable[Record]) -> list[Output]:
        """Fold more of the run's events, notices of workers among them; other runs' are skipped.

        Returns what the monitor says to them.
        """
        return self._watch.feed(records)

    def picture(self, notes: tuple[str, ...] = ()) -> RunPicture:
        """Look at the run as it stands.

        Parameters
        ----------
        notes
            Of whoever brought the events, put in front of those found here.

        Raises
        ------
        LookupError
            None of its events could be folded.
        """
        watch = self._watch
        state = watch.state
        if state is None:
            raise LookupError(f"no event of run {watch.run_id!r} could be folded")
        final = watch.scorecard
        ended = final is not None
        # The same pure function that closes the run, applied to a run that goes on.
        card = final or run.end(watch.fold.profile, state, RunEnded(run_id=watch.run_id))
        stamp = state.stamp
        return RunPicture(
            run_id=watch.run_id,
            agent=None if state.agent is None else as_plain(state.agent),
            task_id=state.task_id,
            tenant=state.tenant,
            parent_run_id=state.parent_run_id,
            state="ended" if ended else "halted" if _is_halted(watch) else "open",
            outcome=None if final is None else final.outcome,
            shadow=state.shadow or not watch.fold.intervenes,
            timeline=_timeline(watch),
            nodes=_nodes(watch, state),
            edges=tuple(
                GraphEdge(source, target, found.retroactive, found.at)
                for (source, target), found in watch.edges.items()
            ),
            coupling=_coupling(watch, state, card.best_reference if ended else None),
            series=_series(list(watch.verdicts.values())),
            scorecard=as_plain(card),
            final=ended,
            settings={
                "profile": stamp.profile,
                "settings": stamp.settings,
                "engine": stamp.engine,
            },
            notes=(*notes, *_notes(watch)),
        )


def picture_of(fold: Fold, run_id: str, records: Iterable[Record]) -> RunPicture:
    """Fold a run's events and look at it.

    Raises
    ------
    LookupError
        None of its events could be folded.
    """
    folded = RunFold(fold, run_id)
    folded.feed(records)
    return folded.picture()


def _is_halted(watch: RunWatch) -> bool:
    # What was said, not what was thought: in shadow mode nobody halts.
    was_halted = any(act.intervention.value == "halt" for act in watch.interventions)
    state = watch.state
    return was_halted and state is not None and state.abort.halted and not state.shadow


def _notes(watch: RunWatch) -> list[str]:
    notes = []
    first = next(iter(watch.verdicts), 0)
    if first > 0:
        notes.append(
            f"the run's first known step is number {first}: it is judged from the middle, so not "
            "as the monitor judged it"
        )
    if watch.unusable:
        notes.append(f"{watch.unusable} of its events could not be used: see the dead letters")
    if watch.state is not None and len(watch.state.seen) > watch.state.prefix.size:
        left_out = len(watch.state.seen) - watch.state.prefix.size
        notes.append(f"the graph is full: the last {left_out} steps are not in graph and heat map")
    return notes


def _timeline(watch: RunWatch) -> tuple[TimelineStep, ...]:
    """Return the steps in the order in which they were judged."""
    parents: dict[int, list[int]] = {}
    late: dict[int, list[int]] = {}
    for (source, target), found in watch.edges.items():
        parents.setdefault(target, []).append(source)
        if found.retroactive:
            late.setdefault(target, []).append(source)
    acts: dict[int, list[dict[str, Any]]] = {}
    for act in watch.interventions:
        acts.setdefault(act.seq, []).append(
            {
                "intervention": act.intervention.value,
                "reason": act.reason,
                "evidence": list(act.evidence),
            }
        )
    return tuple(
        TimelineStep(
            seq=seq,
            tool=verdict.tool or "",
            verdict=verdict.verdict.value,
            severity=verdict.severity,
            reasons=tuple(as_plain(reason) for reason in verdict.reasons),
            interventions=tuple(acts.get(seq, ())),
            evidence=verdict.evidence,
            flags=verdict.flags,
            confirmed=verdict.confirmed,
            parents=tuple(sorted(parents.get(seq, ()))),
            late_parents=tuple(sorted(late.get(seq, ()))),
            **_told(watch, watch.facts.get(seq, Facts())),
        )
        for seq, verdict in watch.verdicts.items()
    )


def _told(watch: RunWatch, facts: Facts) -> dict[str, Any]:
    """Return what a step says of itself, as far as it may be shown."""
    error = facts.error_kind
    if facts.error_text and watch.fold.profile.show_arguments:
        error = f"{error}: {facts.error_text}"
    return {
        "action": None if facts.action is None else facts.action[:ACTION_CHARACTERS_MAX],
        "error": error,
        "time": None if facts.time is None else facts.time.isoformat(),
        "duration_s": facts.duration_s,
        "cost_usd": facts.cost_usd,
    }


def _nodes(watch: RunWatch, state: RunState) -> tuple[GraphNode, ...]:
    graph = state.prefix
    seqs = (*graph.settled_seqs.tolist(), *graph.seqs)
    sources: dict[int, list[int]] = {}
    for source, target in watch.edges:
        sources.setdefault(target, []).append(source)
    depths: dict[int, int] = {}
    # Edges point from lower to higher numbers, whatever the order of arrival.
    for seq in sorted(seqs):
        depths[seq] = max((depths[source] + 1 for source in sources.get(seq, ())), default=0)
    nodes = []
    for seq in seqs:
        verdict = watch.verdicts[seq]
        name = verdict.verdict.value
        nodes.append(GraphNode(seq, verdict.tool or "", name, verdict.severity, depths[seq]))
    return tuple(nodes)


def _labels(graph: PrefixState) -> list[str]:
    """Return what to call each row."""
    labels = []
    for start, members in zip(graph.starts, graph.members, strict=True):
        inside = graph.settled_seqs[start : start + members]
        labels.append(f"{inside.min()}–{inside.max()} ({members})")
    labels += map(str, graph.seqs)
    return labels


def _coupling(watch: RunWatch, state: RunState, final_best: str | None) -> Coupling | None:
    """Return the plan against the reference that the run ends at, or is nearest to now."""
    known, transport = state.knowledge.references, state.transport
    if known is None or transport is None or not transport.plan.shape[1]:
        return None
    transport = pooling.whole(known, transport)
    ids = [reference.reference_id for reference in known.references]
    named = [verdict.best_reference for verdict in watch.verdicts.values()]
    name = final_best or next((one for one in reversed(named) if one is not None), None)
    best = ids.index(name) if name in ids else 0
    arrays, reference = known.arrays, known.references[best]
    size = int(arrays.sizes[best])
    lasts = state.prefix.lasts
    mass = transport.masses(len(lasts), arrays.mean_size)
    shares = transport.plan[best, :, :size].astype(np.float64) / mass[:, None]
    costs = transport.cost[best, :, :size].astype(np.float64)
    parents = arrays.parents[best, :size, :size]
    columns = tuple(
        ReferenceColumn(
            index,
            step.tool,
            None if step.action is None else step.action[:ACTION_CHARACTERS_MAX],
            tuple(np.flatnonzero(parents[index]).tolist()),
        )
        for index, step in enumerate(reference.steps)
    )
    return Coupling(
        reference_id=reference.reference_id,
        provenance=reference.provenance.value,
        rows=tuple(state.prefix.seq_of(node) for node in lasts),
        columns=columns,
        shares=tuple(tuple(row) for row in shares.round(4).tolist()),
        costs=tuple(tuple(row) for row in costs.round(4).tolist()),
        frontier=tuple(
            tuple(PLACES[place] for place in watch.places[node][best, :size].tolist())
            for node in lasts
        ),
        labels=tuple(_labels(state.prefix)),
    )


def _series(verdicts: list[Verdict]) -> Series:
    return Series(
        seqs=tuple(one.seq for one in verdicts),
        score=tuple(one.score for one in verdicts),
        rank_score=tuple(one.rank_score for one in verdicts),
        coverage=tuple(one.coverage for one in verdicts),
        leakage=tuple(one.leakage for one in verdicts),
        match_cost=tuple(one.match_cost for one in verdicts),
        information_gain=tuple(one.information_gain for one in verdicts),
        best_reference=tuple(one.best_reference for one in verdicts),
        severity=tuple(one.severity for one in verdicts),
    )
