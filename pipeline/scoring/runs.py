"""The events of one run, in any order, to its score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ontrack.operators import scoring
from ontrack.operators.scoring_plan import ScoringParams, TaskPlan
from ontrack.operators.scoring_results import PathScore
from ontrack.operators.scoring_unsafe import seen_in
from ontrack.operators.sightings import SeenValues, SightingParams, see
from ontrack.pipeline.reading.event_reader import SourceEvent
from ontrack.topics.events import Event, RunEnded, RunStarted, Step
from ontrack.topics.knowledge import ToolContract

_SIGHTINGS: Final = SightingParams()


class InOrder:
    """Steps of one run by sequence number, each once; unnumbered ones as they come."""

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[int, Step] = {}

    def ready(self, step: Step) -> Iterator[tuple[int, Step]]:
        """Yield the steps whose turn it is, now that this one is there."""
        seq = self._next if step.seq is None else step.seq
        if seq > self._next:
            self._waiting.setdefault(seq, step)
        elif seq == self._next:
            yield from self._from(seq, step)

    def rest(self) -> Iterator[tuple[int, Step]]:
        """Yield what waited for steps that never came."""
        while self._waiting:
            seq = min(self._waiting)
            yield from self._from(seq, self._waiting.pop(seq))

    def _from(self, seq: int, step: Step | None) -> Iterator[tuple[int, Step]]:
        while step is not None:
            yield seq, step
            seq += 1
            step = self._waiting.pop(seq, None)
        self._next = seq


class RunFold:
    """One run on its way to its score; what it keeps is bounded, but for steps out of order."""

    def __init__(
        self, params: ScoringParams, plan: TaskPlan, contracts: Mapping[str, ToolContract]
    ) -> None:
        self._params, self._plan, self._contracts = params, plan, contracts
        self._state = scoring.start(plan)
        self._seen = SeenValues()
        self._order = InOrder()

    def add(self, event: Event) -> None:
        """Score one more event."""
        if isinstance(event, Step):
            for seq, step in self._order.ready(event):
                self._score(seq, step)
        elif isinstance(event, RunStarted | RunEnded):
            self._state = scoring.clock(self._state, event)

    def take(self, found: SourceEvent) -> None:
        """Score one more event of a file."""
        self.add(found.event)

    def finish(self) -> PathScore:
        """Return the figures; what still waits for lost steps is scored without them."""
        for seq, step in self._order.rest():
            self._score(seq, step)
        return scoring.finish(self._params, self._plan, self._state)

    def _score(self, seq: int, event: Step) -> None:
        contract = self._contracts.get(event.tool)
        self._state, _ = scoring.step(
            self._params, self._plan, self._state, seq, event, contract, seen_in(self._seen)
        )
        if self._plan.allowance is not None:
            self._seen = see(_SIGHTINGS, self._seen, seq, event.tool, event.result)
