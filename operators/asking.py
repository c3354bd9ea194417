"""Asking the gate: by references and contracts as the profile says."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ontrack.operators import allowance, gate, identity
from ontrack.operators.findings import gate_authority
from ontrack.operators.gate import GateFinding
from ontrack.operators.knowledge import Knowledge
from ontrack.operators.ledger import LedgerState
from ontrack.operators.prefix import Hops
from ontrack.operators.profiles import Profile
from ontrack.operators.scoring_unsafe import seen_in
from ontrack.operators.sightings import SeenValues
from ontrack.operators.transport import TransportState
from ontrack.operators.vectors import StepVectors
from ontrack.topics.events import Call
from ontrack.topics.knowledge import Effect
from ontrack.topics.verdicts import Authority, Reason


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands, as far as the gate looks at it.

    ``transport`` is None where the coupling says nothing any more: beyond the graph's limit.
    ``halted``: the run was told to stop.
    """

    ledger: LedgerState
    transport: TransportState | None
    hops: Hops
    seen: SeenValues
    halted: bool = False


def needs_asking(profile: Profile, knowledge: Knowledge, tool: str) -> bool:
    """Tell whether a call that has run should have been asked about before.

    Only where a contract says that it has an effect. A tool that nobody declared is stopped before
    it runs; once it has run, alignment says what to make of it.
    """
    contracts = knowledge.contracts
    if tool not in contracts:
        return False
    if profile.identity is not None:
        return identity.is_effectful(profile.identity, tool, contracts)
    return gate.is_irreversible(profile.gate, tool, contracts)


def ask(
    profile: Profile, knowledge: Knowledge, standing: Standing, call: Call, vectors: StepVectors
) -> GateFinding:
    """Answer a call against the run before it.

    A run that was told to stop may look around, and change nothing any more.
    """
    answer = _ask(profile, knowledge, standing, call, vectors)
    if not standing.halted or answer.effect is Effect.READ:
        return answer
    text = f"this run was halted; {call.tool} may not run any more"
    halted = Reason(signal="halted", value=1.0, threshold=1.0, text=text)
    return replace(answer, decision="block", reasons=(halted, *answer.reasons), best=None)


def within_allowance(
    knowledge: Knowledge, seen: SeenValues, call: Call, answer: GateFinding
) -> GateFinding:
    """Block a call that the run's task does not allow, whatever else speaks for it.

    The scorecard reads the same allowance after the call has run.

    Parameters
    ----------
    seen
        Values in the run's results so far.
    """
    allowed = None if knowledge.plan is None else knowledge.plan.allowance
    if allowed is None:
        return answer
    breach = allowance.check(allowed, knowledge.contracts.get(call.tool), call, seen_in(seen))
    if breach is None:
        return answer
    reason = Reason(signal="allowance", value=1.0, threshold=1.0, text=breach.reason)
    return replace(answer, decision="block", reasons=(reason, *answer.reasons), best=None)


def _ask(
    profile: Profile, knowledge: Knowledge, standing: Standing, call: Call, vectors: StepVectors
) -> GateFinding:
    if profile.identity is not None:
        return _ask_by_identity(profile, knowledge, standing, call)
    return gate.check(
        profile.gate,
        profile.transport.solver,
        profile.transport.weights,
        profile.artifacts,
        knowledge.contracts,
        knowledge.references,
        standing.ledger,
        standing.transport,
        standing.hops,
        call,
        vectors,
        profile.show_arguments,
    )


def authority_of_answer(knowledge: Knowledge, answer: GateFinding) -> Authority:
    """How far an answer may go: by the reference's provenance and the set's self-test."""
    provenance = knowledge.provenance_of(answer.best)
    return gate_authority(answer, provenance, knowledge.selftest)


def _ask_by_identity(
    profile: Profile, knowledge: Knowledge, standing: Standing, call: Call
) -> GateFinding:
    assert profile.identity is not None
    params = profile.identity
    if params.mode == "values" and knowledge.selftest is not None:
        params = replace(params, mode=knowledge.selftest.gate_mode)
    contracts = knowledge.contracts
    answer = identity.check(
        params, profile.values, contracts, knowledge.values, standing.seen, call
    )
    contract = contracts.get(call.tool)
    if contract is None or not gate.is_irreversible(profile.gate, call.tool, contracts):
        # What can be undone need not wait for what it builds on.
        return _by_policy(profile, knowledge, answer, call)
    reasons, evidence = gate.prerequisites(
        profile.artifacts, contract, standing.ledger, call, profile.show_arguments
    )
    if reasons:
        return replace(
            answer,
            decision="block",
            reasons=(*reasons, *answer.reasons),
            evidence=tuple(sorted({*evidence, *answer.evidence})),
        )
    if answer.decision == "unknown" and contract.consumes:
        # No reference, but a contract whose demands are met.
        return replace(answer, decision="allow", evidence=evidence)
    return _by_policy(profile, knowledge, answer, call)


def _by_policy(
    profile: Profile, knowledge: Knowledge, answer: GateFinding, call: Call
) -> GateFinding:
    """Let the policy for what is not known speak, where neither contract nor reference did."""
    is_used = knowledge.values is not None and call.tool in knowledge.values.tools
    if answer.decision != "unknown" or is_used:
        return answer
    return gate.by_policy(profile.gate, answer.effect)
