"""Asker: a question to the gate, and the policy's answer where the gate gives none in time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from importlib.metadata import version
from typing import Protocol

import structlog

from ontrack.operators.report import Stamp
from ontrack.pipeline.gating.answers import GateAnswer, GatePolicy, NoAnswer
from ontrack.topics.events import Proposal
from ontrack.topics.knowledge import Effect, ToolContract
from ontrack.topics.verdicts import Decision

_log = structlog.get_logger(__name__)

_STAMP = Stamp("client", "client", version("ontrack"))
EFFECTS_MAX = 10_000  # tools whose effect class is remembered from answers


class Asked(Protocol):
    """Who is asked: a :class:`~ontrack.pipeline.sdk.client.Channel`, seen from here."""

    async def ask(self, proposal: Proposal, deadline_s: float) -> GateAnswer:
        """Ask the gate; raises NoAnswer, EventAfterEnd or another InvalidEvent."""

    def record(self, decision: Decision) -> None:
        """Put a decision of this side's policy on record; returns at once."""


class Asker:
    """Asks within a deadline.

    Parameters
    ----------
    gate
        Who is asked.
    policy
        Answers in the gate's place, by the tool's effect class.
    contracts
        Where effect classes are known from; those in answers are learnt.
    """

    def __init__(
        self, gate: Asked, policy: GatePolicy, contracts: Iterable[ToolContract] = ()
    ) -> None:
        self._gate = gate
        self._policy = policy
        self._effects = {contract.name: contract.effect.value for contract in contracts}

    async def ask(self, proposal: Proposal, deadline_ms: float, seq: int = 0) -> GateAnswer:
        """Return an answer within the deadline; ``decided_by`` tells whose it is.

        Parameters
        ----------
        proposal
            Redacted already.
        deadline_ms
            0 leaves the gate no time.
        seq
            The step's number where the proposal has none and the policy answers.

        Raises
        ------
        EventAfterEnd
            The run has ended.
        InvalidEvent
            The call cannot be read: too large, nested too deep.
        InvalidSettings
            The gate asks for another token.
        """
        try:
            if deadline_ms <= 0:
                raise NoAnswer("no time was given to the monitor")
            async with asyncio.timeout(deadline_ms / 1000):
                answer = await self._gate.ask(proposal, deadline_ms / 1000)
        except TimeoutError:
            return self._without_monitor(proposal, seq, "the gate did not answer in time")
        except NoAnswer as silence:
            return self._without_monitor(proposal, seq, str(silence))
        if answer.effect != Effect.UNKNOWN.value and len(self._effects) < EFFECTS_MAX:
            self._effects[proposal.tool] = answer.effect
        return answer

    def _without_monitor(self, proposal: Proposal, seq: int, why: str) -> GateAnswer:
        _log.warning("gate_silent", run_id=proposal.run_id, tool=proposal.tool, why=why)
        effect = self._effects.get(proposal.tool, Effect.UNKNOWN.value)
        decision = self._policy.decide(_STAMP, proposal, effect, seq, why, suffix="client:policy")
        self._gate.record(decision)
        return GateAnswer.of(decision, "policy")
