"""What the gate promises beyond the engine's answer: one without the engine, and single use."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from ontrack.operators.canonical import call_sha256
from ontrack.operators.report import Stamp
from ontrack.topics.errors import OnTrackError
from ontrack.topics.events import Proposal
from ontrack.topics.verdicts import Authority, Decision, Reason

TICKETS_MAX = 65_536

Refusal = Literal["unknown", "other_call", "used", "expired", "full"]
DecidedBy = Literal["monitor", "policy"]


class NoAnswer(OnTrackError):
    """The gate gave no answer; the text says how that went, without the call's arguments."""


class GateAnswer(Decision):
    """A decision as it is handed to whoever asked; on a topic it stands without what is added here.

    ``decided_by`` tells whether the monitor or the policy for its absence has spoken.
    ``expires_in_s`` says how long a call that may pass can be redeemed; null where there is
    nothing to redeem. ``stale``: the step before this call had not reached the monitor yet.
    """

    decided_by: DecidedBy = "monitor"
    expires_in_s: float | None = None
    stale: bool = False

    @property
    def allowed(self) -> bool:
        """Whether the call may run: it is allowed, or nothing is known against it."""
        return self.decision != "block"

    @classmethod
    def of(
        cls,
        decision: Decision,
        decided_by: DecidedBy,
        expires_in_s: float | None = None,
        stale: bool = False,
    ) -> GateAnswer:
        """Add to a decision what only its asker needs."""
        return cls(**dict(decision), decided_by=decided_by, expires_in_s=expires_in_s, stale=stale)


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """The answer where the monitor gives none: by what the call can do to the world.

    Parameters
    ----------
    fail_open
        Effect classes that pass; every other class is blocked.
    """

    fail_open: frozenset[str]

    @classmethod
    def of(cls, fail_open: Iterable[str]) -> GatePolicy:
        """Make a policy of the setting ``gate_fail_open``."""
        return cls(frozenset(fail_open))

    def decide(
        self,
        stamp: Stamp,
        proposal: Proposal,
        effect: str,
        seq: int,
        why: str,
        suffix: str = "policy",
    ) -> Decision:
        """Decide without the monitor.

        Its id ends in ``:policy``: the monitor may have given the same call another answer.

        Parameters
        ----------
        stamp
            Who decides.
        proposal
            The call.
        effect
            The tool's effect class, ``unknown`` without a contract.
        seq
            The step's number where the proposal has none.
        why
            Why the monitor does not answer, as the beginning of a sentence.
        suffix
            What the id ends in.
        """
        passes = effect in self.fail_open
        done = "pass" if passes else "are blocked"
        text = f"{why}; calls of effect class {effect!r} {done} then, by the setting gate_fail_open"
        sha = call_sha256(proposal.tool, proposal.args)
        number = seq if proposal.seq is None else proposal.seq
        return Decision(
            id=f"{proposal.run_id}:{number}:{sha[:12]}:{suffix}",
            run_id=proposal.run_id,
            seq=number,
            task_id=proposal.task_id,
            agent=proposal.agent,
            tenant=proposal.tenant,
            tool=proposal.tool,
            effect=effect,
            decision="allow" if passes else "block",
            reasons=(Reason(signal="policy", text=text),),
            call_sha256=sha,
            authority=Authority.INTERVENE,
            profile=stamp.profile,
            settings=stamp.settings,
            engine=stamp.engine,
        )


@dataclass(frozen=True, slots=True)
class _Ticket:
    run_id: str
    call_sha256: str
    expires: float


class Tickets:
    """Decisions that let a call pass, each to be redeemed once, soon, and for that call only.

    Used ones are kept apart: neither a flood of questions nor a block in between may make room for
    a second use.

    Parameters
    ----------
    ttl_s
        How long one may be redeemed, in seconds.
    kept_max
        Tickets kept that nobody has used; the oldest go first, and what is gone cannot be redeemed.
        As many used ones are kept until they have run out; beyond that nothing is redeemed.
    clock
        Seconds, monotonic.
    """

    def __init__(
        self,
        ttl_s: float,
        kept_max: int = TICKETS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ttl_s = ttl_s
        self._kept_max = kept_max
        self._clock = clock
        self._open: OrderedDict[str, _Ticket] = OrderedDict()
        self._used: OrderedDict[str, _Ticket] = OrderedDict()

    def __contains__(self, decision_id: str) -> bool:
        return decision_id in self._open or decision_id in self._used

    def __len__(self) -> int:
        return len(self._open) + len(self._used)

    def note(self, decision: Decision) -> float | None:
        """Keep a decision; return the seconds for which it may be redeemed, None for a block.

        The last answer to a question counts: a block withdraws an earlier ticket. One that has
        been used stays used for as long as it would have lasted (0 is returned): asking again does
        not make the same call of the same step run twice.
        """
        now = self._clock()
        self._forget_used(now)
        if decision.decision == "block":
            self._open.pop(decision.id, None)
            return None
        used = self._used.get(decision.id)
        if used is not None:
            if now < used.expires:
                return 0.0
            del self._used[decision.id]
        self._open[decision.id] = _Ticket(decision.run_id, decision.call_sha256, now + self._ttl_s)
        self._open.move_to_end(decision.id)
        if len(self._open) > self._kept_max:
            self._open.popitem(last=False)
        return self._ttl_s

    def redeem(self, decision_id: str, run_id: str, sha256: str) -> Refusal | None:
        """Use a ticket; None if that is fine, else why not."""
        now = self._clock()
        self._forget_used(now)
        ticket = self._open.get(decision_id) or self._used.get(decision_id)
        if ticket is None:
            return "unknown"
        if (ticket.run_id, ticket.call_sha256) != (run_id, sha256):
            return "other_call"
        if decision_id in self._used:
            return "used"
        if now >= ticket.expires:
            return "expired"
        if len(self._used) >= self._kept_max:
            return "full"
        self._used[decision_id] = self._open.pop(decision_id)
        return None

    def _forget_used(self, now: float) -> None:
        """Forget used tickets that have run out, in the order of their use."""
        while self._used:
            first = next(iter(self._used))
            if now < self._used[first].expires:
                return
            del self._used[first]
