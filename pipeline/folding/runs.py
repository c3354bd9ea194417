"""The open runs of a partition: the recently active ones as states, the others as bytes.

A run that has been silent for a while is kept as its snapshot, a tenth of the memory, and comes
back with its next event. That changes nothing but memory: a state and its snapshot are the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping

from ontrack.operators import snapshot
from ontrack.operators.state import RunState


class RunStore(MutableMapping[str, RunState]):
    """Open runs by id.

    Parameters
    ----------
    warm_max
        Runs kept as states; beyond it the longest idle one is turned into bytes.
    thaw
        Makes the state again.
    """

    def __init__(self, warm_max: int, thaw: Callable[[bytes], RunState]) -> None:
        self._warm_max = warm_max
        self._thaw = thaw
        self._warm: OrderedDict[str, RunState] = OrderedDict()
        self._cold: dict[str, bytes] = {}

    @property
    def cold(self) -> int:
        """Number of runs kept as bytes."""
        return len(self._cold)

    def __getitem__(self, run_id: str) -> RunState:
        state = self._warm.get(run_id)
        if state is not None:
            return state
        return self._thaw(self._cold[run_id])

    def __setitem__(self, run_id: str, state: RunState) -> None:
        self._cold.pop(run_id, None)
        self._warm[run_id] = state
        self._warm.move_to_end(run_id)
        while len(self._warm) > self._warm_max:
            idle, held = self._warm.popitem(last=False)
            self._cold[idle] = snapshot.dump(held, 0)

    def __delitem__(self, run_id: str) -> None:
        if run_id in self._warm:
            del self._warm[run_id]
        else:
            del self._cold[run_id]

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._warm or run_id in self._cold

    def __iter__(self) -> Iterator[str]:
        yield from list(self._cold)
        yield from list(self._warm)

    def __len__(self) -> int:
        return len(self._warm) + len(self._cold)
