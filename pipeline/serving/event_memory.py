"""Event memory: the bytes of the latest runs' events, so that a run can be folded again."""

from __future__ import annotations

from collections import OrderedDict

BYTES_MAX = 64 * 1_048_576
OVERHEAD_BYTES = 64  # of one event, beside its own bytes
SHARE_MAX = 2  # a run holds one of so many parts at most
FORGOTTEN_MAX = 100_000  # ids of runs that are not remembered any more


class EventMemory:
    """Events by run, whole runs only: the run that was silent for the longest goes first.

    Of a run that went nothing is kept later either, since what begins in the middle is judged
    otherwise than it was. A run that needs more than its share goes before it drives out all
    others, whose pages would be gone for ever.

    Parameters
    ----------
    bytes_max
        Bytes of all events of all runs, :data:`OVERHEAD_BYTES` added for each.

    Attributes
    ----------
    held_bytes
        What is held now.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._runs: OrderedDict[str, list[bytes]] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run_id: str, value: bytes) -> None:
        """Keep an event."""
        if run_id in self._gone:
            self._gone.move_to_end(run_id)
            return
        events = self._runs.setdefault(run_id, [])
        events.append(value)
        self._runs.move_to_end(run_id)
        size = len(value) + OVERHEAD_BYTES
        self._sizes[run_id] = self._sizes.get(run_id, 0) + size
        self.held_bytes += size
        if self._sizes[run_id] > self._bytes_max // SHARE_MAX:
            self._forget(run_id)
        while self.held_bytes > self._bytes_max:
            self._forget(next(iter(self._runs)))

    def events(self, run_id: str) -> tuple[bytes, ...] | None:
        """Return a run's events in the order in which they were folded; None: not held."""
        found = self._runs.get(run_id)
        return None if found is None else tuple(found)

    def since(self, run_id: str, number: int) -> list[bytes] | None:
        """Return a run's events from a number on; None: not held."""
        found = self._runs.get(run_id)
        return None if found is None else found[number:]

    def has_forgotten(self, run_id: str) -> bool:
        """Tell whether the run was held once."""
        return run_id in self._gone

    def why_not(self, run_id: str) -> str:
        """Say why a run's events are not held."""
        if self.has_forgotten(run_id):
            return (
                f"the events of run {run_id[:80]!r} are not held any more, to make room for later "
                "ones; ontrack serve --record FILE keeps them, ontrack replay FILE reads them"
            )
        return f"no run {run_id[:80]!r} was heard of since the start"

    def _forget(self, run_id: str) -> None:
        del self._runs[run_id]
        self.held_bytes -= self._sizes.pop(run_id)
        self._gone[run_id] = None
        if len(self._gone) > FORGOTTEN_MAX:
            self._gone.popitem(last=False)
