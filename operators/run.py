"""One run: the operators in their order, from a decoded event to verdict and intervention.

::

    gate (irreversible calls) ─┐
    ledger → prefix → transport ┴→ loop, gain, stall → exploration → verdict → abort

Down and never back. What exploration and verdict need of earlier events is their own state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rpds import HashTrieMap

from ontrack.operators import (
    abort,
    exploration,
    gain,
    gate,
    ledger,
    loop,
    prefix,
    stall,
    transport,
    verdict,
)
from ontrack.operators.admission import Admission
from ontrack.operators.artifacts import Artifacts, extract
from ontrack.operators.canonical import call_sha256
from ontrack.operators.profiles import Profile
from ontrack.operators.references import ReferenceSet
from ontrack.operators.report import Numbers, Stamp, decision, intervention, scorecard
from ontrack.operators.report import verdict as verdict_record
from ontrack.operators.vectors import StepVectors
from ontrack.topics.events import Agent, Event, Proposal, RunEnded, Step
from ontrack.topics.knowledge import Provenance, ToolContract
from ontrack.topics.verdicts import Decision, Intervention, InterventionName, Scorecard, Verdict


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What a run is compared with, fixed at its first event."""

    contracts: Mapping[str, ToolContract] = field(default_factory=dict)
    references: ReferenceSet | None = None


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything the monitor keeps of an open run. Immutable; each event makes a new one.

    Parameters
    ----------
    started_ms
        Broker's time of the first event: the knowledge is the one published by then.
    seen
        Digest of each admitted step by sequence number (at most ``steps_max``).
    highest
        Highest sequence number admitted, -1 before the first.
    transport
        None without references; stands still once the prefix graph is full.
    """

    run_id: str
    stamp: Stamp
    knowledge: Knowledge
    task_id: str | None = None
    agent: Agent | None = None
    tenant: str | None = None
    parent_run_id: str | None = None
    started_ms: int | None = None
    seen: HashTrieMap[int, bytes] = field(default_factory=HashTrieMap)
    highest: int = -1
    errors: int = 0
    cost_usd: float | None = None
    verdicts: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    interventions: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    flags: tuple[str, ...] = ()
    ledger: ledger.LedgerState = field(default_factory=ledger.LedgerState)
    prefix: prefix.PrefixState = field(default_factory=prefix.PrefixState)
    transport: transport.TransportState | None = None
    loop: loop.LoopState = field(default_factory=loop.LoopState)
    gain: gain.GainState = field(default_factory=gain.GainState)
    stall: stall.StallState = field(default_factory=stall.StallState)
    exploration: exploration.ExplorationState = field(default_factory=exploration.ExplorationState)
    verdict: verdict.VerdictState = field(default_factory=verdict.VerdictState)
    abort: abort.AbortState = field(default_factory=abort.AbortState)


def start(
    stamp: Stamp, event: Event | Proposal, knowledge: Knowledge, time_ms: int | None = None
) -> RunState:
    """Open a run at its first event, which the broker appended at ``time_ms``."""
    references = knowledge.references
    return RunState(
        run_id=event.run_id,
        stamp=stamp,
        knowledge=knowledge,
        task_id=event.task_id,
        agent=event.agent,
        tenant=event.tenant,
        parent_run_id=event.parent_run_id,
        started_ms=time_ms,
        transport=None if references is None else transport.start(references),
    )


def step(
    profile: Profile,
    state: RunState,
    event: Step,
    admission: Admission,
    vectors: StepVectors,
    flags: tuple[str, ...] = (),
) -> tuple[RunState, Verdict, Intervention | None]:
    """Fold one admitted step into the run.

    Parameters
    ----------
    vectors
        Unit vectors of the step's texts.
    flags
        What the codec had to mend in the message.
    """
    seq, knowledge = admission.seq, state.knowledge
    contract = knowledge.contracts.get(event.tool)
    asked = _gate(profile, state, event, vectors)
    artifacts = extract(profile.artifacts, event, contract)
    grown, delta = _grow(profile, state, seq, event, artifacts)
    aligned, alignment = _align(profile, state, grown, delta, event, vectors)
    is_poll = contract is not None and contract.poll
    loop_state, loop_signal = loop.step(
        profile.loop, state.loop, seq, event, vectors.action, is_poll
    )
    gain_state, gain_value = gain.step(profile.gain, state.gain, vectors.result)
    stall_state, stall_signal = stall.step(
        profile.stall,
        state.stall,
        seq,
        gain_value,
        None if alignment is None else alignment.coverage * alignment.parents.shape[0],
    )
    signals = verdict.Signals(
        seq=seq,
        tool=event.tool,
        loop=loop_signal,
        stall=stall_signal,
        gain=gain_value,
        gate=asked,
        alignment=alignment,
        exploration=None,
        provenance=None,
    )
    judged = _judge(profile, state, signals, delta, profile.exploration)
    withdrawn, confirmed = False, None
    if judged.output.by_transport and judged.output.intervention is not None:
        solved = _escalate(profile, state, grown, aligned, delta, signals)
        withdrawn = solved.output.name != judged.output.name
        judged = solved
        if judged.output.by_transport:
            confirmed = judged.output.intervention is not None
        elif judged.output.intervention is None:
            confirmed = False
    abort_state, abort_signal = abort.step(
        profile.abort, state.abort, seq, judged.output.severity >= 3
    )
    all_flags = _flags(flags, admission, state, grown, delta, judged, withdrawn)
    new_state = replace(
        grown,
        seen=state.seen.insert(seq, admission.digest),
        highest=max(state.highest, seq),
        errors=state.errors + (event.error is not None),
        cost_usd=_add(state.cost_usd, event.cost_usd),
        flags=tuple(dict.fromkeys((*state.flags, *all_flags))),
        transport=aligned,
        loop=loop_state,
        gain=gain_state,
        stall=stall_state,
        exploration=judged.exploration,
        verdict=judged.verdict,
        abort=abort_state,
        verdicts=_count(state.verdicts, judged.output.name),
    )
    best = judged.alignment
    record = verdict_record(
        state.stamp,
        _identity(new_state),
        seq,
        event.tool,
        judged.output,
        Numbers.of(best, _best_reference(knowledge, best), gain_value),
        confirmed,
        all_flags,
    )
    wanted = judged.output.intervention
    reason = judged.output.reasons[0].text if judged.output.reasons else ""
    evidence = judged.output.evidence
    if len(new_state.seen) >= profile.steps_max:
        wanted = InterventionName.HALT
        reason = f"the run has reached {profile.steps_max} steps, the most a run may have"
        evidence = (seq,)
    elif abort_signal.halt:
        wanted = InterventionName.HALT
        severe = len(abort_signal.evidence)
        reason = f"{severe} of the last {profile.abort.window} steps were severe; {reason}"
        evidence = abort_signal.evidence
    if wanted is None:
        return new_state, record, None
    act = intervention(
        state.stamp, _identity(new_state), seq, judged.output, wanted, reason, evidence
    )
    counted = replace(new_state, interventions=_count(state.interventions, wanted))
    return counted, record, act


def propose(
    profile: Profile, state: RunState, proposal: Proposal, vectors: StepVectors
) -> Decision:
    """Answer a proposal against the run as it stands; the run itself is left as it is."""
    answer = _ask(profile, state, proposal, vectors)
    authority = verdict.gate_authority(answer, _provenance(state.knowledge, answer.best))
    seq = state.highest + 1 if proposal.seq is None else proposal.seq
    return decision(
        state.stamp,
        _identity(state),
        seq,
        proposal.tool,
        answer,
        _reference_id(state.knowledge, answer.best),
        call_sha256(proposal.tool, proposal.args),
        authority,
    )


def end(profile: Profile, state: RunState, event: RunEnded) -> Scorecard:
    """Close a run: the final solve (Prop. 1) and its scorecard."""
    final = None
    references = state.knowledge.references
    if references is not None and state.transport is not None and state.prefix.size:
        final = transport.finalise(
            profile.transport,
            references,
            state.transport.cost,
            state.prefix.hops,
            state.prefix.seqs,
        )
    best = None if final is None else _reference_id(state.knowledge, final.best)
    return scorecard(
        state.stamp,
        _identity(state),
        event,
        len(state.seen),
        state.errors,
        state.cost_usd,
        dict(sorted(state.verdicts.items())),
        dict(sorted(state.interventions.items())),
        state.flags,
        final,
        best,
    )


@dataclass(frozen=True, slots=True)
class _Judged:
    exploration: exploration.ExplorationState
    output: verdict.VerdictOutput
    verdict: verdict.VerdictState
    alignment: transport.Alignment | None


def _gate(
    profile: Profile, state: RunState, event: Step, vectors: StepVectors
) -> gate.GateAnswer | None:
    """Check a step that has run against the state before it: did it pass by the gate?

    Only where a contract says that it cannot be undone. A tool that nobody declared is stopped
    before it runs; once it has run, alignment says what to make of it.
    """
    contracts = state.knowledge.contracts
    if event.tool not in contracts or not gate.is_irreversible(profile.gate, event.tool, contracts):
        return None
    return _ask(profile, state, event, vectors)


def _ask(
    profile: Profile, state: RunState, call: Step | Proposal, vectors: StepVectors
) -> gate.GateAnswer:
    settings = profile.transport
    # Beyond the graph's limit the coupling stands still and says nothing of where the run is now.
    is_current = len(state.seen) == state.prefix.size
    return gate.check(
        profile.gate,
        settings.solver,
        settings.weights,
        profile.artifacts,
        state.knowledge.contracts,
        state.knowledge.references,
        state.ledger,
        state.transport if is_current else None,
        state.prefix.hops,
        call,
        vectors,
    )


def _grow(
    profile: Profile, state: RunState, seq: int, event: Step, artifacts: Artifacts
) -> tuple[RunState, prefix.Delta]:
    """Enter the step into ledger and prefix graph."""
    node = state.prefix.size
    ledger_state, found = ledger.step(profile.ledger, state.ledger, seq, node, artifacts)
    prefix_state, delta = prefix.step(
        profile.prefix, state.prefix, seq, event.parents or (), found.edges
    )
    return replace(state, ledger=ledger_state, prefix=prefix_state), delta


def _align(
    profile: Profile,
    state: RunState,
    grown: RunState,
    delta: prefix.Delta,
    event: Step,
    vectors: StepVectors,
) -> tuple[transport.TransportState | None, transport.Alignment | None]:
    """One transport iteration, or nothing without references or beyond the graph's limit."""
    references = state.knowledge.references
    if references is None or state.transport is None or delta.node is None:
        return state.transport, None
    row = transport.cost_row(profile.transport, references, event, vectors)
    age = prefix.age_weights(profile.prefix, grown.prefix)
    return transport.step(
        profile.transport, references, state.transport, grown.prefix.hops, age, row
    )


def _judge(
    profile: Profile,
    state: RunState,
    signals: verdict.Signals,
    delta: prefix.Delta,
    lifecycle: exploration.ExplorationParams,
) -> _Judged:
    """Lifecycle and verdict on one alignment."""
    explored, signal = state.exploration, None
    if signals.alignment is not None:
        explored, signal = exploration.step(
            lifecycle, state.exploration, signals.seq, signals.alignment, delta.consumed
        )
    provenance = None
    if signals.alignment is not None:
        provenance = _provenance(state.knowledge, signals.alignment.best)
    gate_provenance = None
    if signals.gate is not None:
        gate_provenance = _provenance(state.knowledge, signals.gate.best)
    verdict_state, output = verdict.step(
        profile.verdict,
        lifecycle,
        profile.stall,
        state.verdict,
        replace(
            signals, exploration=signal, provenance=provenance, gate_provenance=gate_provenance
        ),
    )
    return _Judged(explored, output, verdict_state, signals.alignment)


def _escalate(
    profile: Profile,
    state: RunState,
    grown: RunState,
    aligned: transport.TransportState | None,
    delta: prefix.Delta,
    signals: verdict.Signals,
) -> _Judged:
    """Confirm or withdraw a would-be intervention by the converged solve."""
    references = state.knowledge.references
    assert references is not None
    assert state.transport is not None
    assert aligned is not None
    solved = transport.converge(
        profile.transport,
        references,
        state.transport,
        aligned,
        grown.prefix.hops,
        prefix.age_weights(profile.prefix, grown.prefix),
    )
    settled = replace(
        profile.exploration, leak_threshold=profile.exploration.converged_leak_threshold
    )
    return _judge(profile, state, replace(signals, alignment=solved), delta, settled)


def _flags(
    codec_flags: tuple[str, ...],
    admission: Admission,
    state: RunState,
    grown: RunState,
    delta: prefix.Delta,
    judged: _Judged,
    withdrawn: bool,
) -> tuple[str, ...]:
    """Name what was unusual about this event, in a fixed order."""
    alignment = judged.alignment
    checks = {
        "parent_not_earlier": bool(delta.rejected),
        "retroactive_edge": bool(delta.retroactive),
        "artifacts_full": grown.ledger.full,
        "graph_full": delta.node is None,
        "frontier_stalled": alignment is not None and alignment.frontier_stalled,
        "withdrawn": withdrawn,
        "unconverged": alignment is not None and not alignment.converged,
        "after_halt": state.abort.halted,
    }
    return (
        *codec_flags,
        *admission.flags,
        *(name for name, raised in checks.items() if raised),
    )


def _identity(state: RunState) -> tuple[str, str | None, Agent | None, str | None]:
    return state.run_id, state.task_id, state.agent, state.tenant


def _best_reference(knowledge: Knowledge, alignment: transport.Alignment | None) -> str | None:
    return None if alignment is None else _reference_id(knowledge, alignment.best)


def _reference_id(knowledge: Knowledge, best: int | None) -> str | None:
    if knowledge.references is None or best is None:
        return None
    return knowledge.references.references[best].reference_id


def _provenance(knowledge: Knowledge, best: int | None) -> Provenance | None:
    if knowledge.references is None or best is None:
        return None
    return knowledge.references.references[best].provenance


def _count(counts: HashTrieMap[str, int], name: str) -> HashTrieMap[str, int]:
    return counts.insert(name, (counts.get(name) or 0) + 1)


def _add(total: float | None, part: float | None) -> float | None:
    if part is None:
        return total
    return (total or 0.0) + part
