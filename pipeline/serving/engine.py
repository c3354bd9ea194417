"""Engine: how events and questions of the daemon reach the monitor, and what it says to them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from ontrack.pipeline.embedded import EmbeddedGate, EmbeddedMonitor
from ontrack.pipeline.folding import offload
from ontrack.pipeline.folding.preparing import prepare_proposal
from ontrack.pipeline.folding.record import Record, Said
from ontrack.pipeline.folding.timing import Observe, unobserved
from ontrack.pipeline.folding.upkeep import Upkeep
from ontrack.pipeline.gating.answers import GateAnswer, Refusal, Tickets
from ontrack.pipeline.gating.wire import Redemption
from ontrack.topics import codecs
from ontrack.topics.events import Event, GapClosed, Notice, Proposal, RunEnded
from ontrack.topics.knowledge import ToolContract
from ontrack.topics.verdicts import DeadLetter, Decision, Output

#: Told of everything that the monitor says, whoever asked for it.
Listener = Callable[[Output], None]

#: Told of each event that was taken (its bytes, itself, whether the monitor made it), in the order
#: in which they were folded; of what became a dead letter at once it is not.
Taken = Callable[[bytes, Event, bool], None]


def nobody(_value: bytes, _event: Event, _made_here: bool) -> None:
    """Take an event and forget it."""


class Engine(Protocol):
    """The monitor, wherever it runs.

    Attributes
    ----------
    taken
        Told of each event that was taken.
    monitor
        The one in this process; None where others judge.
    """

    taken: Taken

    @property
    def monitor(self) -> EmbeddedMonitor | None:
        """The one in this process; None where others judge."""

    async def start(self) -> None:
        """Connect."""

    async def stop(self) -> None:
        """Disconnect."""

    @property
    def ready(self) -> bool:
        """Whether events are taken and questions answered."""

    async def take(self, value: bytes, event: Event | None, source: str) -> tuple[Output, ...]:
        """Take one event as JSON bytes.

        Returns what the monitor says at once, where it does; an event that cannot be used gives a
        dead letter.

        Parameters
        ----------
        event
            The same, decoded; None where it cannot be.
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

    async def idle(self) -> RunEnded | None:
        """Return the end of a run that was silent for too long, where that is its business.

        One at a time: while it is folded, another that was silent may be heard of.
        """

    async def overdue(self) -> list[GapClosed]:
        """Return the gaps that steps have waited behind for too long, likewise."""


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
    taken
        Told of each event, notices of the monitor's own among them: over Kafka these would stand in
        the log of events.
    """

    def __init__(
        self,
        monitor: EmbeddedMonitor,
        ttl_s: float,
        listener: Listener,
        observe: Observe = unobserved,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monitor = monitor
        self._gate = EmbeddedGate(monitor, Tickets(ttl_s, clock=clock))
        self._tell = listener
        self._observe = observe
        self._clock = clock
        self.taken: Taken = nobody
        self._turn = asyncio.Lock()
        settings = monitor.settings
        self._upkeep = Upkeep(settings.run_idle_s, settings.reorder_ms)
        self._place = 0

    @property
    def monitor(self) -> EmbeddedMonitor:
        """The one it was given."""
        return self._monitor

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

    async def take(self, value: bytes, event: Event | None, source: str) -> tuple[Output, ...]:
        """Fold one event and, as the log would have it, the notices that follow from it."""
        async with self._turn:
            outputs: list[Output] = []
            left: deque[Said] = deque(await self._fold(value, event, source, made_here=False))
            while left:
                said = left.popleft()
                if isinstance(said, Notice):
                    left.extend(await self._fold(codecs.encode(said), said, source, made_here=True))
                else:
                    outputs.append(said)
            self._upkeep.folded(self.monitor.state)
        for output in outputs:
            self._tell(output)
        return tuple(outputs)

    async def _fold(
        self, value: bytes, event: Event | None, source: str, made_here: bool
    ) -> list[Said]:
        key = None if event is None else event.run_id.encode("utf-8", "replace")
        # The time of this process's clock, for what is waited for: all knowledge counts before it,
        # since a library without a topic is filled as from the start.
        record = Record(value, key, source, 0, self._place, self._now_ms())
        self._place += 1
        monitor = self.monitor
        said = await offload.apply(monitor.fold, monitor, record, observe=self._observe)
        if event is not None and not any(_is_letter_of(record, item) for item in said):
            self.taken(value, event, made_here)
        return said

    async def ask(self, proposal: Proposal, deadline_s: float) -> GateAnswer:
        """Ask the monitor, by way of the bytes that a worker would get."""
        await prepare_proposal(self.monitor.fold, self.monitor.state, proposal)
        decision, answer = self._gate.ask(proposal)
        self._tell(decision)
        return answer

    async def redeem(self, wanted: Redemption) -> Refusal | None:
        """Use a decision."""
        return self._gate.redeem(wanted.decision_id, wanted.run_id, wanted.call_sha256)

    def record(self, decision: Decision) -> None:
        """Tell it, as any other decision."""
        self._tell(decision)

    def contracts(self) -> Iterable[ToolContract]:
        """Return the monitor's contracts."""
        return self._gate.contracts()

    async def idle(self) -> RunEnded | None:
        """End a silent run as cancelled, as a worker does."""
        async with self._turn:  # a thread may be folding
            ends = self._upkeep.idle(self.monitor.state, self._now_ms(), most=1)
        return ends[0] if ends else None

    async def overdue(self) -> list[GapClosed]:
        """Give up steps that others have waited for long enough, as a worker does."""
        async with self._turn:
            return self._upkeep.overdue(self.monitor.state, self._now_ms())

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)


def _is_letter_of(record: Record, said: Said) -> bool:
    """Tell whether a record itself could not be used; steps that waited have letters, too."""
    return isinstance(said, DeadLetter) and (said.topic, said.offset) == (
        record.topic,
        record.offset,
    )
