"""Engine: how events and questions of the daemon reach the monitor, and what it says to them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.folding import offload
from ontrack.pipeline.folding.record import Record, Said
from ontrack.pipeline.folding.timing import Observe, unobserved
from ontrack.pipeline.gating.answers import GateAnswer, Refusal, Tickets
from ontrack.pipeline.gating.wire import Redemption
from ontrack.topics import codecs
from ontrack.topics.events import GapClosed, Notice, Proposal, RunEnded
from ontrack.topics.knowledge import ToolContract
from ontrack.topics.verdicts import Decision, Output

#: Told of everything that the monitor says, whoever asked for it.
Listener = Callable[[Output], None]


class Engine(Protocol):
    """The monitor, wherever it runs."""

    async def start(self) -> None:
        """Connect."""

    async def stop(self) -> None:
        """Disconnect."""

    @property
    def ready(self) -> bool:
        """Whether events are taken and questions answered."""

    async def take(self, value: bytes, run_id: str | None, source: str) -> tuple[Output, ...]:
        """Take one event as JSON bytes.

        Returns what the monitor says at once, where it does; an event that cannot be used gives a
        dead letter.

        Parameters
        ----------
        run_id
            The event's, where it is known already.
        source
            Where it came from, for dead letters.

        Raises
        ------
        BrokerUnavailable
            The event could not be handed on, and whoever sent it should try again.
        """

    async def ask(self, proposal: Proposal, deadline_s: float) -> GateAnswer:
        """Ask the gate; raises NoAnswer, EventAfterEnd or another InvalidEvent."""

    async def redeem(self, wanted: Redemption) -> Refusal | None:
        """Use a decision; raises NoAnswer."""

    def record(self, decision: Decision) -> None:
        """Put a decision of the policy on record; returns at once."""

    def contracts(self) -> Iterable[ToolContract]:
        """Return the contracts that are known here."""

    def idle(self, idle_s: float, now_s: float) -> RunEnded | None:
        """Return the end of a run that was silent for so long, where that is its business.

        One at a time: while it is folded, another that was silent may be heard of.
        """

    def overdue(self, reorder_s: float, now_s: float) -> list[GapClosed]:
        """Return the gaps that steps have waited behind for so long, likewise."""


class EmbeddedEngine:
    """The monitor in this process.

    Events are folded one at a time, in the order in which they came; a long fold goes to a thread,
    so that questions are answered meanwhile.

    Parameters
    ----------
    monitor
        Fed by nobody else.
    ttl_s
        Seconds in which an allowed call can be redeemed.
    listener
        Told of every output.
    observe
        Told how many seconds each event took to fold.
    clock
        Seconds, monotonic.

    Attributes
    ----------
    monitor
        The one it was given.
    noticed
        Told of each notice that the monitor has given and folded: over Kafka it would stand in the
        log of events.
    """

    def __init__(
        self,
        monitor: EmbeddedMonitor,
        ttl_s: float,
        listener: Listener,
        observe: Observe = unobserved,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.monitor = monitor
        self._tickets = Tickets(ttl_s, clock=clock)
        self._tell = listener
        self._observe = observe
        self._clock = clock
        self.noticed: Callable[[Notice], None] = lambda _notice: None
        self._turn = asyncio.Lock()
        self._heard: dict[str, float] = {}
        self._gaps: dict[tuple[str, int], float] = {}
        self._place = 0

    async def start(self) -> None:
        """Nothing to connect."""

    async def stop(self) -> None:
        """Wait for the event in hand."""
        async with self._turn:
            return

    @property
    def ready(self) -> bool:
        """Always."""
        return True

    async def take(self, value: bytes, run_id: str | None, source: str) -> tuple[Output, ...]:
        """Fold one event and, as the log would have it, the notices that follow from it."""
        async with self._turn:
            place = self._place
            self._place += 1
            outputs: list[Output] = []
            left: deque[Said] = deque(await self._fold(value, run_id, source, place))
            while left:
                said = left.popleft()
                if isinstance(said, Notice):
                    left.extend(await self._fold(codecs.encode(said), said.run_id, source, place))
                    self.noticed(said)
                else:
                    outputs.append(said)
            self._note(run_id)
        for output in outputs:
            self._tell(output)
        return tuple(outputs)

    async def _fold(self, value: bytes, run_id: str | None, source: str, place: int) -> list[Said]:
        key = None if run_id is None else run_id.encode("utf-8", "replace")
        record = Record(value, key, source, 0, place)
        return await offload.apply(self.monitor.fold, self.monitor, record, observe=self._observe)

    def _note(self, run_id: str | None) -> None:
        if run_id is None:
            return
        # Last in the order of the dictionary is who was heard of last.
        self._heard.pop(run_id, None)
        if run_id in self.monitor.state.runs:
            self._heard[run_id] = self._clock()

    async def ask(self, proposal: Proposal, deadline_s: float) -> GateAnswer:
        """Ask the monitor, by way of the bytes that a worker would get."""
        decision = self.monitor.ask(proposal)
        self._tell(decision)
        return GateAnswer.of(decision, "monitor", self._tickets.note(decision))

    async def redeem(self, wanted: Redemption) -> Refusal | None:
        """Use a decision."""
        return self._tickets.redeem(wanted.decision_id, wanted.run_id, wanted.call_sha256)

    def record(self, decision: Decision) -> None:
        """Tell it, as any other decision."""
        self._tell(decision)

    def contracts(self) -> Iterable[ToolContract]:
        """Return the monitor's contracts."""
        return self.monitor.fold.library.knowledge(None, "", None).contracts.values()

    def idle(self, idle_s: float, now_s: float) -> RunEnded | None:
        """End the most silent run as cancelled, as a worker does."""
        run_id, heard_s = next(iter(self._heard.items()), (None, now_s))
        if run_id is None or now_s - heard_s < idle_s:
            return None
        del self._heard[run_id]
        reason = f"idle: no event for {idle_s:g} s"
        return RunEnded(run_id=run_id, outcome="cancelled", reason=reason)

    def overdue(self, reorder_s: float, now_s: float) -> list[GapClosed]:
        """Give up steps that others have waited for long enough, as a worker does."""
        waiting = self.monitor.state.waiting
        gaps = {run_id: waiting.first(run_id) for run_id in waiting}
        since = {
            (run_id, seq): self._gaps.get((run_id, seq), now_s)
            for run_id, seq in gaps.items()
            if seq is not None
        }
        self._gaps = since
        return [
            GapClosed(run_id=run_id, seq=seq)
            for (run_id, seq), seen_s in since.items()
            if now_s - seen_s >= reorder_s
        ]
