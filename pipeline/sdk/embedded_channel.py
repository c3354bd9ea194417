"""The client's way to a monitor in its own process."""

from __future__ import annotations

from collections.abc import Iterable

from ontrack.pipeline.embedded import EmbeddedGate, EmbeddedMonitor
from ontrack.pipeline.gating.answers import GateAnswer, Refusal, Tickets
from ontrack.pipeline.sdk.declared import declared_contracts
from ontrack.topics.events import Event, Proposal
from ontrack.topics.knowledge import ToolContract
from ontrack.topics.verdicts import Decision, Output


class EmbeddedChannel:
    """The way to a monitor in this process."""

    def __init__(self, monitor: EmbeddedMonitor, ttl_s: float) -> None:
        self._monitor = monitor
        self._gate = EmbeddedGate(monitor, Tickets(ttl_s))
        self._recorded: list[Decision] = []

    async def open(self) -> None:
        """Let the monitor know the contracts that the program declares and it lacks."""
        known = {contract.name for contract in self.contracts()}
        new = [item for item in declared_contracts() if item.name not in known]
        if new:
            self._monitor.fold.library.fill(contracts=new)

    async def close(self) -> None:
        """Nothing to disconnect; the monitor belongs to the caller."""

    async def send(self, event: Event) -> tuple[Output, ...]:
        """Fold the event; what the policy has decided since the last one comes first."""
        recorded, self._recorded = self._recorded, []
        return (*recorded, *self._monitor.feed(event))

    async def ask(self, proposal: Proposal, deadline_s: float) -> GateAnswer:
        """Ask the monitor, by way of the bytes that it would get over HTTP."""
        return self._gate.ask(proposal)[1]

    async def redeem(self, answer: GateAnswer) -> Refusal | None:
        """Use a decision of this run."""
        return self._gate.redeem(answer.id, answer.run_id, answer.call_sha256)

    def record(self, decision: Decision) -> None:
        """Keep a decision for the next event's outputs."""
        self._recorded.append(decision)

    def contracts(self) -> Iterable[ToolContract]:
        """Return the monitor's contracts."""
        return self._gate.contracts()
