"""Events of many runs, in any order, to one score a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ontrack.operators import scoring
from ontrack.operators.scoring_plan import ScoringParams, TaskPlan
from ontrack.operators.scoring_results import PathScore
from ontrack.pipeline.reading.event_reader import SourceEvent
from ontrack.topics.events import Event, Outcome, RunEnded, RunStarted, Step
from ontrack.topics.knowledge import ToolContract

#: Events of a run that wait for its task to be named.
HELD_MAX = 64


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
        self._state, _ = scoring.step(self._params, self._plan, self._state, seq, event, contract)


@dataclass(slots=True)
class Head:
    """What is known of a run beside its steps.

    Parameters
    ----------
    path, line
        Where it was met first.
    """

    run_id: str
    path: str
    line: int
    task_id: str | None = None
    outcome: Outcome = "unknown"


class Sink(Protocol):
    """What takes the events of one run."""

    def take(self, found: SourceEvent) -> None:
        """Take one event as it was read."""


S = TypeVar("S", bound=Sink)


class _Entry(Generic[S]):
    """A run that is being read; its sink is made when its task is known."""

    def __init__(self, found: SourceEvent) -> None:
        self.head = Head(found.event.run_id, found.path, found.line)
        self.held: list[SourceEvent] = []
        self.sink: S | None = None

    def add(self, found: SourceEvent, make: Callable[[Head], S]) -> None:
        head, event = self.head, found.event
        head.task_id = head.task_id or event.task_id
        if isinstance(event, RunEnded):
            head.outcome = event.outcome
        if self.sink is not None:
            self.sink.take(found)
            return
        self.held.append(found)
        if head.task_id is not None or len(self.held) >= HELD_MAX:
            self.made(make)

    def made(self, make: Callable[[Head], S]) -> S:
        """Return the sink, made now if it was not."""
        if self.sink is None:
            self.sink = make(self.head)
            for found in self.held:
                self.sink.take(found)
            self.held.clear()
        return self.sink


def by_run(
    events: Iterable[SourceEvent],
    make: Callable[[Head], S],
    is_whole: Callable[[str], bool] = lambda path: False,
) -> Iterator[tuple[Head, S]]:
    """Hand the events of each run to a sink of its own; yield runs as they end.

    Runs without an end come last, or as soon as the next one begins where ``is_whole`` says of
    their file that each run stands in one piece, under an id of its own. What follows a run's end
    is left out; for that a hash of its id stays, unless it stood in one piece.
    """
    running: dict[str, _Entry[S]] = {}
    ended: set[int] = set()
    whole: _Entry[S] | None = None
    for found in events:
        event = found.event
        if whole is not None and whole.head.run_id != event.run_id:
            running.pop(whole.head.run_id)
            yield whole.head, whole.made(make)
            whole = None
        entry = running.get(event.run_id)
        if entry is None:
            if hash(event.run_id) in ended:
                continue
            entry = running[event.run_id] = _Entry(found)
        entry.add(found, make)
        if isinstance(event, RunEnded):
            del running[event.run_id]
            if not is_whole(found.path):
                ended.add(hash(event.run_id))
            whole = None
            yield entry.head, entry.made(make)
        elif is_whole(found.path):
            whole = entry
    for entry in running.values():
        yield entry.head, entry.made(make)
