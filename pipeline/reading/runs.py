"""Events of many runs, in any order, to the runs: one rule for where a run ends and its order.

Everything that reads recorded runs (scoring, references, mining, comparing, evaluation) goes
through here, so that all of them mean the same run: what follows its end is left out, a number that
is there twice counts once, and a run without numbers is taken as it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Generic, Protocol, TypeVar

from ontrack.operators.redaction import Redaction
from ontrack.pipeline.reading.event_reader import SourceEvent
from ontrack.topics.events import Outcome, RunEnded, Step

#: Events of a run that wait for its task to be named.
HELD_MAX: Final = 64
_DIGEST_BYTES: Final = 16  # of the id of a run that has ended: kept instead of it

T = TypeVar("T")


def in_order(items: Iterable[T], number: Callable[[T], int | None]) -> list[T]:
    """Return the steps of a run by their numbers, each once; as they came where one has none.

    Parameters
    ----------
    number
        Gives the sequence number of an item.

    Examples
    --------
    >>> in_order([(2, "c"), (0, "a"), (2, "again")], lambda item: item[0])
    [(0, 'a'), (2, 'c')]
    """
    as_read = list(items)
    by_number: dict[int, T] = {}
    for item in as_read:
        place = number(item)
        if place is None:
            return as_read
        by_number.setdefault(place, item)
    return [by_number[place] for place in sorted(by_number)]


@dataclass(slots=True)
class Head:
    """What is known of a run beside its steps.

    Parameters
    ----------
    path, line
        Where it was met first.
    place
        How many runs were met before it.
    """

    run_id: str
    path: str
    line: int
    place: int = 0
    task_id: str | None = None
    outcome: Outcome = "unknown"


class Sink(Protocol):
    """What takes the events of one run."""

    def take(self, found: SourceEvent) -> None:
        """Take one event as it was read."""


S = TypeVar("S", bound=Sink)


class KeptSteps:
    """The steps of one run, as a sink.

    Parameters
    ----------
    redaction
        Of each step before it is kept.
    """

    def __init__(self, redaction: Redaction | None = None) -> None:
        self._redaction = redaction
        self._steps: list[Step] = []

    def take(self, found: SourceEvent) -> None:
        """Keep a step."""
        if isinstance(found.event, Step):
            step = found.event
            self._steps.append(step if self._redaction is None else self._redaction.event(step))

    def in_order(self) -> list[Step]:
        """Return them as :func:`in_order` does."""
        return in_order(self._steps, lambda step: step.seq)


class _Entry(Generic[S]):
    """A run that is being read; its sink is made when its task is known."""

    def __init__(self, found: SourceEvent, place: int) -> None:
        self.head = Head(found.event.run_id, found.path, found.line, place)
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
    is left out; for that a digest of its id stays, unless it stood in one piece.
    """
    running: dict[str, _Entry[S]] = {}
    ended: set[bytes] = set()
    whole: _Entry[S] | None = None
    met = 0
    for found in events:
        event = found.event
        if whole is not None and whole.head.run_id != event.run_id:
            running.pop(whole.head.run_id)
            yield whole.head, whole.made(make)
            whole = None
        entry = running.get(event.run_id)
        if entry is None:
            if ended and _digest(event.run_id) in ended:
                continue
            entry = running[event.run_id] = _Entry(found, met)
            met += 1
        entry.add(found, make)
        if isinstance(event, RunEnded):
            del running[event.run_id]
            if not is_whole(found.path):
                ended.add(_digest(event.run_id))
            whole = None
            yield entry.head, entry.made(make)
        elif is_whole(found.path):
            whole = entry
    for entry in running.values():
        yield entry.head, entry.made(make)


def _digest(run_id: str) -> bytes:
    return blake2b(run_id.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
