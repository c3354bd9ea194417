"""The open runs of a partition: the recently active ones as states, the others as bytes.

A run that has been silent for a while is kept as its snapshot, a tenth of the memory, and comes
back with its next event. That changes nothing but memory: a state and its snapshot are the same.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import NamedTuple

from ontrack.operators import snapshot
from ontrack.operators.state import RunState
from ontrack.topics.events import Agent


class Who(NamedTuple):
    """What can be told of a run without making its state again.

    Parameters
    ----------
    started_ms
        Broker's time of its first event.
    is_cold
        Whether it is kept as bytes: making its state again asks what it is compared with.
    highest
        Highest number of its steps; -1 before the first.
    """

    agent: Agent | None
    task_id: str | None
    tenant: str | None
    shadow: bool
    started_ms: int | None
    is_cold: bool
    highest: int

    @classmethod
    def of(cls, state: RunState, is_cold: bool = False) -> Who:
        """Tell of a run's state."""
        return cls(
            state.agent,
            state.task_id,
            state.tenant,
            state.shadow,
            state.started_ms,
            is_cold,
            state.highest,
        )

    @property
    def may_be_renamed(self) -> bool:
        """Whether its start may still name the task: before its first step."""
        return self.task_id is None and self.highest < 0


class Runs(MutableMapping[str, RunState]):
    """Open runs by id, of which something can be told at no cost."""

    @abstractmethod
    def who(self, run_id: str) -> Who | None:
        """Tell of a run; None if it is not open."""


class _Cold(NamedTuple):
    held: bytes
    who: Who


def _never(_held: bytes) -> RunState:
    raise AssertionError("a store without an end keeps no run as bytes")


class RunStore(Runs):
    """Open runs by id.

    One thread writes at a time; others may read meanwhile and find every run, as it is or was.

    Parameters
    ----------
    warm_max
        Runs kept as states; beyond it the longest idle one is turned into bytes.
    thaw
        Makes the state again.
    """

    def __init__(
        self, warm_max: int = sys.maxsize, thaw: Callable[[bytes], RunState] = _never
    ) -> None:
        self._warm_max = warm_max
        self._thaw = thaw
        self._warm: OrderedDict[str, RunState] = OrderedDict()
        self._cold: dict[str, _Cold] = {}

    @property
    def cold(self) -> int:
        """Number of runs kept as bytes."""
        return len(self._cold)

    def __getitem__(self, run_id: str) -> RunState:
        state = self._warm.get(run_id)
        if state is not None:
            return state
        cold = self._cold.get(run_id)
        if cold is None:  # it came back between the two looks, or there is none
            return self._warm[run_id]
        return self._thaw(cold.held)

    def who(self, run_id: str) -> Who | None:
        """Tell of a run, at no cost; None if it is not open."""
        state = self._warm.get(run_id)
        if state is not None:
            return Who.of(state)
        cold = self._cold.get(run_id)
        return None if cold is None else cold.who

    def __setitem__(self, run_id: str, state: RunState) -> None:
        self._warm[run_id] = state
        self._warm.move_to_end(run_id)
        self._cold.pop(run_id, None)
        while len(self._warm) > self._warm_max:
            # At every moment it stands in one of both: the gate may ask while a thread folds.
            idle, held = next(iter(self._warm.items()))
            self._cold[idle] = _Cold(snapshot.dump(held, 0), Who.of(held, is_cold=True))
            del self._warm[idle]

    def __delitem__(self, run_id: str) -> None:
        found = self._warm.pop(run_id, None) is not None
        found = self._cold.pop(run_id, None) is not None or found
        if not found:
            raise KeyError(run_id)

    def __contains__(self, run_id: object) -> bool:
        # Looked for in the warm ones again: it may come back between the first two looks.
        return run_id in self._warm or run_id in self._cold or run_id in self._warm

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys([*self._cold, *self._warm, *self._cold])

    def __len__(self) -> int:
        return len(self._warm) + len(self._cold)
