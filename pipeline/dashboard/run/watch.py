"""Run watch: one run folded again, with a look at the monitor's state after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt

from ontrack.operators import pooling
from ontrack.operators.state import RunState
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.folding.runs import RunStore
from ontrack.solver import frontier, objective
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidEvent
from ontrack.topics.events import Event, Notice, Step
from ontrack.topics.verdicts import DeadLetter, Intervention, Output, Scorecard, Verdict

#: What a cell of :attr:`RunWatch.places` means.
DORMANT, AHEAD, ACTIVE, SATISFIED = range(4)

Places = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a step says of itself and its verdict does not."""

    action: str | None = None
    error_kind: str | None = None
    error_text: str | None = None
    time: datetime | None = None
    duration_s: float | None = None
    cost_usd: float | None = None

    @classmethod
    def of(cls, step: Step) -> Facts:
        """Read them off a step."""
        begun, ended = step.started_at, step.ended_at
        seconds = None if begun is None or ended is None else (ended - begun).total_seconds()
        error = step.error
        kind = None if error is None else error.type or "error"
        text = None if error is None else error.message
        return cls(step.action, kind, text, begun or step.time, seconds, step.cost_usd)


@dataclass(frozen=True, slots=True)
class Found:
    """How an edge was found: at which step, and whether its target had been judged by then."""

    at: int
    retroactive: bool


class RunWatch:
    """Folds one run's events.

    Parameters
    ----------
    fold
        With the library that the run was judged by.
    limits
        Of one event, as the fold has them.

    Attributes
    ----------
    state
        The run as of its last event; an ended one as it was before its end.
    facts
        By sequence number.
    verdicts
        By sequence number, in the order in which they were given.
    interventions
        In the same order.
    scorecard
        Of an ended run.
    unusable
        Events of the run that became dead letters.
    edges
        By sequence numbers (source, target), in the order in which they were found.
    places
        Where the steps of all references stood once a node had been judged, shape (K, M), by node:
        the last one of each row of the prefix graph. Empty without references.
    """

    def __init__(self, fold: Fold, run_id: str, limits: codecs.Limits) -> None:
        self.fold = fold
        self.run_id = run_id
        self._limits = limits
        self.state: RunState | None = None
        self.facts: dict[int, Facts] = {}
        self.verdicts: dict[int, Verdict] = {}
        self.interventions: list[Intervention] = []
        self.scorecard: Scorecard | None = None
        self.unusable = 0
        self.edges: dict[tuple[int, int], Found] = {}
        self.places: dict[int, Places] = {}
        self._partition = fold.partition()
        self._partition.runs = _Watched(self._changed)

    def feed(self, records: Iterable[Record]) -> list[Output]:
        """Fold more events of the run; those of other runs are skipped.

        Notices that the fold gives are not folded: they stand among the events, where the monitor
        wrote them.
        """
        outputs: list[Output] = []
        for record in records:
            event = self._read(record)
            if not self._concerns(record, event):
                continue
            if isinstance(event, Step) and event.seq is not None:
                self.facts.setdefault(event.seq, Facts.of(event))
            for output in self.fold.apply(self._partition, record):
                if not isinstance(output, Notice):
                    self._note(output, event)
                    outputs.append(output)
        return outputs

    def _read(self, record: Record) -> Event | None:
        try:
            event = codecs.decode_event(record.value, self._limits).event
        except InvalidEvent:
            return None  # the fold makes the dead letter of it
        return self.fold.redaction.event(event)

    def _concerns(self, record: Record, event: Event | None) -> bool:
        if event is not None and event.run_id == self.run_id:
            return True
        return record.key is not None and record.key == self.run_id.encode("utf-8", "replace")

    def _note(self, output: Output, event: Event | None) -> None:
        if isinstance(output, Verdict):
            self.verdicts[output.seq] = output
            if output.seq not in self.facts and isinstance(event, Step) and event.seq is None:
                self.facts[output.seq] = Facts.of(event)
        elif isinstance(output, Intervention):
            self.interventions.append(output)
        elif isinstance(output, Scorecard):
            self.scorecard = output
        elif isinstance(output, DeadLetter):
            self.unusable += 1

    def _changed(self, state: RunState) -> None:
        """Compare the run's new state with the one before; a step adds at most one node."""
        before, self.state = self.state, state
        known = 0 if before is None else before.prefix.size
        graph = state.prefix
        if graph.size <= known:
            return
        at = graph.seqs[-1]
        for source, target in graph.latest:
            edge = graph.seq_of(source), graph.seq_of(target)
            self.edges[edge] = Found(at, target < known)
        references, transport = state.knowledge.references, state.transport
        if references is None or transport is None:
            return
        transport = pooling.whole(references, transport)
        mass = objective.column_mass(transport.coupling.plan)
        mask = frontier.frontier(mass, references.arrays, self.fold.profile.transport.solver)
        places = np.zeros(mass.shape, np.int8)
        places[mask.lookahead] = AHEAD
        places[mask.active] = ACTIVE
        places[mask.satisfied] = SATISFIED
        self.places[graph.size - 1] = places
        if before is not None and before.prefix.starts != graph.starts:
            # Whoever is not the last of a row any more will never be it again.
            self.places = {node: self.places[node] for node in graph.lasts}


class _Watched(RunStore):
    """Open runs of a partition; tells of every state that is put in.

    One record may let several waiting steps go: only here each of their states can be seen.
    """

    def __init__(self, changed: Callable[[RunState], None]) -> None:
        super().__init__()
        self._tell = changed

    def __setitem__(self, run_id: str, state: RunState) -> None:
        super().__setitem__(run_id, state)
        self._tell(state)
