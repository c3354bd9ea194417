"""Modes: which open runs a switch has put into shadow mode, or taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ontrack.pipeline.folding.library import Library
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.topics.events import ModeChanged

RUNS_AT_ONCE: Final = 1_000  # a few milliseconds


class Modes:
    """What one partition has made of the switches.

    A run that begins takes its mode from what had been published by its first event, wherever it
    is folded. Runs that are open when a switch is thrown are told by an event in the log. They are
    looked at twice: at once, and when the log has been folded as far as it reached by then, because
    the first events of some may not have been folded before.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._again_at: int | None = None
        self.switchings = 0

    async def is_due(self, folded: int, end: Callable[[], Awaitable[int]]) -> bool:
        """Tell whether open runs must be looked at.

        Parameters
        ----------
        folded
            Offset up to which the log is folded.
        end
            Asks for the log's end.
        """
        if self._library.switchings != self.switchings:
            self.switchings = self._library.switchings
            self._again_at = await end()
            return True
        if self._again_at is not None and folded >= self._again_at:
            self._again_at = None
            return True
        return False

    async def changes(self, state: PartitionState) -> list[ModeChanged]:
        """Return what the open runs must be told; the event loop goes on in between."""
        found = []
        for number, run_id in enumerate(state.runs, start=1):
            if number % RUNS_AT_ONCE == 0:
                await asyncio.sleep(0)
            run = state.runs.who(run_id)
            if run is None:
                continue
            shadow = self._library.is_shadowed(run.agent, run.task_id, run.tenant, None)
            if run.shadow != shadow:
                found.append(ModeChanged(run_id=run_id, shadow=shadow))
        return found
