"""What the formats of traces share: runs whose records are spread over a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol

from pydantic_core import to_json

from ontrack.topics.adapters.parts import Origin, built
from ontrack.topics.events import Event, Outcome, RunEnded, RunStarted, Step

#: Flag of a run of which the file lacks a part that it refers to.
PARTIAL: Final = "partial_run"

#: What is held of runs that are not over yet, in bytes of their arguments and results.
HELD_BYTES_MAX: Final = 256 * 1_048_576
#: What a span costs to hold beside its arguments and results.
SPAN_BYTES: Final = 600

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Run(NamedTuple):
    """The events of one run.

    Parameters
    ----------
    events : list of Event
        Start, steps, end; all of one run id.
    place : int
        Where its first record stands, as numbered by the reader.
    flags : tuple of str
        ``PARTIAL`` and the adapter's treatments.
    """

    events: list[Event]
    place: int
    flags: tuple[str, ...] = ()


class Runs(Protocol):
    """Takes a file's records one by one and gives the runs back as they are complete."""

    def add(self, record: object, origin: Origin, place: int) -> Iterator[Run]:
        """Take the record of number ``place``; yield the runs that are over with it.

        Raises
        ------
        WrongShape
            The record is not of this format; nothing of it was taken.
        """

    def rest(self) -> Iterator[Run]:
        """Yield the runs that are still held: the file is over."""


def all_events(runs: Runs, record: object, origin: Origin) -> Iterator[Event]:
    """Yield the events of all runs of a single record."""
    found = [*runs.add(record, origin, 1), *runs.rest()]
    for run in found:
        yield from run.events


def assembled(
    run_id: str,
    steps: list[dict[str, Any]],
    *,
    place: int,
    started: dict[str, Any],
    ended_at: datetime | None = None,
    outcome: Outcome = "unknown",
    reward: float | None = None,
    reason: str | None = None,
    missing: str | None = None,
    flags: Iterable[str] = (),
) -> Run:
    """Put a run together.

    Parameters
    ----------
    steps : list of dict
        Fields of the steps, in order.
    started : dict
        Further fields of ``run_started``; ``time`` and ``agent`` default to the first step's.
    missing : str, optional
        What the file lacks of the run: it is then flagged, and its outcome unknown.
    flags : iterable of str
        Treatments by the adapter; those that the records needed are the reader's to add.

    Raises
    ------
    WrongShape
        A field of an event does not hold.
    """
    first = steps[0] if steps else {}
    known = {name: value for name, value in started.items() if value is not None}
    start = {"time": first.get("time"), "agent": first.get("agent")} | known
    events: list[Event] = [built(RunStarted, run_id=run_id, **start)]
    events += [built(Step, run_id=run_id, seq=seq, **step) for seq, step in enumerate(steps)]
    events.append(
        built(
            RunEnded,
            run_id=run_id,
            time=ended_at,
            outcome="unknown" if missing else outcome,
            reward=reward,
            reason=f"partial recording: {missing}" if missing else reason,
        )
    )
    return Run(events, place, tuple(sorted({*flags, *([PARTIAL] if missing else [])})))


def time_of(value: object) -> datetime | None:
    """Return a time written in ISO 8601, or None; without an offset it is taken as UTC."""
    if not isinstance(value, str):
        return None
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def time_of_nanoseconds(value: int | None) -> datetime | None:
    """Return a time from nanoseconds since 1970, to the microsecond; None beyond year 9999."""
    if value is None:
        return None
    try:
        return _EPOCH + timedelta(microseconds=value // 1000)
    except OverflowError:
        return None


def bytes_of(*values: Any) -> int:
    """Return about how many bytes values take."""
    return sum(
        len(value) if isinstance(value, str) else len(to_json(value, inf_nan_mode="constants"))
        for value in values
        if value is not None
    )
