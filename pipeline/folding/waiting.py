"""Steps that came before their predecessors, until these arrive or are given up.

A network or a pool of senders can swap steps of one run. A step whose number leaves a gap waits
here with its bytes; what ends the waiting is in the log, so that every reader of it comes to the
same order:

* the missing step arrives: the waiting ones follow it, in order;
* the run ends, or more steps wait than the bounds allow: all are taken as they are, flagged;
* an event ``gap_closed``, which the partition's owner writes into the log after ``reorder_ms``.

A run in which a gap stayed open once is not waited for again: its numbers have holes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ontrack.pipeline.folding.record import Record

BYTES_MAX = 524_288  # of one run: they must fit into its snapshot
TOTAL_BYTES_MAX = 33_554_432  # of a partition


@dataclass(frozen=True, slots=True)
class WaitingStep:
    """A step that waits.

    Parameters
    ----------
    digest
        Of its content, to tell a duplicate from a conflict.
    """

    seq: int
    digest: bytes
    record: Record


class Waiting:
    """The waiting steps of a partition, by run and number."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[int, WaitingStep]] = {}
        self._holed: set[str] = set()
        self._bytes = 0

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._runs

    def __len__(self) -> int:
        return sum(map(len, self._runs.values()))

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._runs))

    def is_worthwhile(self, run_id: str) -> bool:
        """Tell whether a gap of a run may yet be filled."""
        return run_id not in self._holed

    def give_up(self, run_id: str) -> None:
        """Note that a gap of a run stayed open."""
        self._holed.add(run_id)

    def end(self, run_id: str) -> None:
        """Forget a run that has ended."""
        self._holed.discard(run_id)

    def digest(self, run_id: str, seq: int) -> bytes | None:
        """Return the digest of the step that waits under a number."""
        found = self._runs.get(run_id, {}).get(seq)
        return None if found is None else found.digest

    def add(self, run_id: str, step: WaitingStep) -> None:
        """Let a step wait."""
        self._runs.setdefault(run_id, {})[step.seq] = step
        self._bytes += len(step.record.value)

    def is_full(self, run_id: str, steps_max: int) -> bool:
        """Tell whether as many steps or bytes wait as may, of a run or of all together."""
        steps = self._runs[run_id].values()
        held = sum(len(step.record.value) for step in steps)
        return len(steps) >= steps_max or held >= BYTES_MAX or self._bytes >= TOTAL_BYTES_MAX

    def first(self, run_id: str) -> int | None:
        """Return the lowest number that waits in a run."""
        return min(self._runs[run_id]) if run_id in self._runs else None

    def take_first(self, run_id: str) -> WaitingStep:
        """Remove and return the step with the lowest number."""
        steps = self._runs[run_id]
        found = steps.pop(min(steps))
        self._bytes -= len(found.record.value)
        if not steps:
            del self._runs[run_id]
        return found

    def since_ms(self, run_id: str) -> int | None:
        """Return when the first of a run's waiting steps came (broker's time); None without."""
        times = [step.record.timestamp_ms for step in self._runs[run_id].values()]
        return min((time for time in times if time is not None), default=None)

    def stored(self, run_id: str) -> list[Any]:
        """Return what is kept of a run as plain values, for its snapshot."""
        steps = sorted(self._runs.get(run_id, {}).items())
        plain = [[seq, step.digest, *_plain(step.record)] for seq, step in steps]
        return [run_id in self._holed, plain]

    def restore(self, run_id: str, stored: tuple[Any, ...]) -> None:
        """Take back what :meth:`stored` gave."""
        holed, steps = stored
        if holed:
            self.give_up(run_id)
        for seq, digest, *record in steps:
            self.add(run_id, WaitingStep(seq, digest, _record(record)))


def _plain(record: Record) -> list[Any]:
    headers = [part for header in record.headers for part in header]
    place = [record.topic, record.partition, record.offset, record.timestamp_ms]
    return [*place, record.key, record.value, headers]


def _record(plain: list[Any]) -> Record:
    topic, partition, offset, timestamp_ms, key, value, flat = plain
    headers = tuple(zip(flat[::2], flat[1::2], strict=True))
    return Record(value, key, topic, partition, offset, timestamp_ms, headers)
