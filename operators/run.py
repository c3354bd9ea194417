"""One run: the operators in their order, from a decoded event to verdict and intervention.

::

    gate (irreversible calls) ─┐
    ledger → prefix → transport ┴→ loop, gain, stall → exploration → verdict → abort

Down and never back. What exploration and verdict need of earlier events is their own state.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from rpds import HashTrieMap

from ontrack.operators import (
    abort,
    exploration,
    gain,
    identity,
    ledger,
    loop,
    orphans,
    prefix,
    ranking,
    repeats,
    stall,
    strategy,
    transport,
)
from ontrack.operators.admission import Admission
from ontrack.operators.artifacts import Artifacts, extract
from ontrack.operators.asking import Standing, ask, authority_of_answer, needs_asking
from ontrack.operators.canonical import call_sha256, value_text
from ontrack.operators.findings import Signals
from ontrack.operators.judging import Judged, Knowledge, judge, settled
from ontrack.operators.loop import LoopSignal
from ontrack.operators.profiles import Profile
from ontrack.operators.repeats import RepeatSignal
from ontrack.operators.report import (
    Numbers,
    Stamp,
    decision,
    intervention,
    parent_halt,
    scorecard,
)
from ontrack.operators.report import verdict as verdict_record
from ontrack.operators.sightings import SeenValues, see
from ontrack.operators.stall import StallSignal
from ontrack.operators.vectors import StepVectors
from ontrack.operators.verdict import VerdictOutput
from ontrack.topics.events import Agent, Event, Proposal, RunEnded, Step
from ontrack.topics.knowledge import Effect, ToolContract
from ontrack.topics.verdicts import (
    Authority,
    Decision,
    Intervention,
    InterventionName,
    Scorecard,
    Verdict,
)

CostRow = npt.NDArray[np.float32]  # of a step against every reference node, shape (K, M)
_SHOWN_CHARACTERS = 500  # of the arguments, where a reason quotes them


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
    episode
        What the last verdict was about.
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
    episode: tuple[str, ...] = ()
    ledger: ledger.LedgerState = field(default_factory=ledger.LedgerState)
    prefix: prefix.PrefixState = field(default_factory=prefix.PrefixState)
    transport: transport.TransportState | None = None
    ranking: ranking.RankState | None = None
    orphans: orphans.OrphanState = field(default_factory=orphans.OrphanState)
    values: SeenValues = field(default_factory=SeenValues)
    loop: loop.LoopState = field(default_factory=loop.LoopState)
    gain: gain.GainState = field(default_factory=gain.GainState)
    stall: stall.StallState = field(default_factory=stall.StallState)
    repeats: repeats.RepeatState = field(default_factory=repeats.RepeatState)
    exploration: exploration.ExplorationState = field(default_factory=exploration.ExplorationState)
    strategy: strategy.StrategyState = field(default_factory=strategy.StrategyState)
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
    asked = None
    if needs_asking(profile, knowledge, event.tool):  # did it pass by the gate?
        # That a halted run goes on is said by its flag, not by a block at each step.
        asked = ask(profile, knowledge, _standing(state), event, vectors)
    artifacts = extract(profile.artifacts, event, contract)
    entered, graph, delta = _grow(profile, state, seq, event, artifacts)
    aligned, alignment, row = _align(profile, state, graph, delta, event, vectors)
    ranked, rank = _rank(profile, state, aligned, alignment, event, vectors)
    vital = _vital_signs(profile, state, seq, event, vectors, contract, alignment)
    strayed, values, orphan = _compare(profile, state, seq, event, row)
    signals = Signals(
        seq=seq,
        tool=event.tool,
        loop=vital.looped,
        stall=vital.stalled,
        repeats=vital.again,
        gain=vital.gained,
        gate=asked,
        alignment=alignment,
        orphan=orphan,
        selftest=knowledge.selftest,
        arguments=value_text(event.args, _SHOWN_CHARACTERS) if profile.show_arguments else None,
    )
    judged, withdrawn, confirmed = _judge(profile, state, graph, aligned, delta, signals)
    abort_state, abort_signal = state.abort, None
    if profile.abort is not None:
        abort_state, abort_signal = abort.step(
            profile.abort, state.abort, seq, judged.output.severity >= 3
        )
    all_flags = _flags(flags, admission, state, entered.full, delta, judged, withdrawn)
    new_state = replace(
        state,
        seen=state.seen.insert(seq, admission.digest),
        highest=max(state.highest, seq),
        errors=state.errors + (event.error is not None),
        cost_usd=_add(state.cost_usd, event.cost_usd),
        flags=tuple(dict.fromkeys((*state.flags, *all_flags))),
        ledger=entered,
        prefix=graph,
        transport=aligned,
        ranking=ranked,
        orphans=strayed,
        values=values,
        loop=vital.loop,
        gain=vital.gain,
        stall=vital.stall,
        repeats=vital.repeats,
        exploration=judged.exploration,
        strategy=judged.strategy,
        abort=abort_state,
        episode=_episode(judged.output),
        verdicts=_count(state.verdicts, judged.output.name),
    )
    best = judged.alignment
    record = verdict_record(
        state.stamp,
        _identity(new_state),
        seq,
        event.tool,
        judged.output,
        Numbers.of(best, _best_reference(knowledge, best), vital.gained, rank),
        confirmed,
        all_flags,
    )
    act = _act(profile, state, seq, judged.output, abort_signal, len(new_state.seen))
    if act is None:
        return new_state, record, None
    wanted, reason, evidence = act
    counted = replace(
        new_state,
        interventions=_count(state.interventions, wanted),
        abort=replace(abort_state, halted=abort_state.halted or wanted is InterventionName.HALT),
    )
    made = intervention(
        state.stamp, _identity(new_state), seq, judged.output, wanted, reason, evidence
    )
    return counted, record, made


def propose(
    profile: Profile, state: RunState, proposal: Proposal, vectors: StepVectors
) -> Decision:
    """Answer a proposal against the run as it stands; the run itself is left as it is."""
    standing = replace(_standing(state), halted=state.abort.halted)
    answer = ask(profile, state.knowledge, standing, proposal, vectors)
    authority = authority_of_answer(state.knowledge, answer)
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


def halt_by_parent(state: RunState, parent_run_id: str) -> tuple[RunState, Intervention]:
    """Halt a run because the one that started it was halted."""
    act = parent_halt(state.stamp, _identity(state), max(state.highest, 0), parent_run_id)
    halted = replace(
        state,
        abort=replace(state.abort, halted=True),
        interventions=_count(state.interventions, InterventionName.HALT),
    )
    return halted, act


def _standing(state: RunState) -> Standing:
    # Beyond the graph's limit the coupling stands still and says nothing of where the run is now.
    is_current = len(state.seen) == state.prefix.size
    coupling = state.transport if is_current else None
    return Standing(state.ledger, coupling, state.prefix.hops, state.values)


def _grow(
    profile: Profile, state: RunState, seq: int, event: Step, artifacts: Artifacts
) -> tuple[ledger.LedgerState, prefix.PrefixState, prefix.Delta]:
    """Enter the step into ledger and prefix graph."""
    node = state.prefix.size
    entered, found = ledger.step(profile.ledger, state.ledger, seq, node, artifacts)
    graph, delta = prefix.step(profile.prefix, state.prefix, seq, event.parents or (), found.edges)
    return entered, graph, delta


def _align(
    profile: Profile,
    state: RunState,
    graph: prefix.PrefixState,
    delta: prefix.Delta,
    event: Step,
    vectors: StepVectors,
) -> tuple[transport.TransportState | None, transport.Alignment | None, CostRow | None]:
    """One transport iteration, or nothing without references or beyond the graph's limit."""
    references = state.knowledge.references
    if references is None or state.transport is None or delta.node is None:
        return state.transport, None, None
    row = transport.cost_row(profile.transport, references, event, vectors)
    age = prefix.age_weights(profile.prefix, graph)
    aligned, alignment = transport.step(
        profile.transport, references, state.transport, graph.hops, age, row
    )
    return aligned, alignment, row


def _rank(
    profile: Profile,
    state: RunState,
    aligned: transport.TransportState | None,
    alignment: transport.Alignment | None,
    event: Step,
    vectors: StepVectors,
) -> tuple[ranking.RankState | None, float | None]:
    """Rank the run so far, where its step has been aligned and the operator is switched on."""
    references = state.knowledge.references
    if profile.ranking is None or alignment is None or references is None or aligned is None:
        return state.ranking, None
    contract = state.knowledge.contracts.get(event.tool)
    writes = contract is not None and contract.effect is not Effect.READ
    before = state.ranking or ranking.start(profile.ranking, references)
    ranked, signal = ranking.step(
        profile.ranking,
        references,
        before,
        aligned,
        event,
        vectors.result,
        writes,
        event.error is not None,
    )
    return ranked, signal.score


def _compare(
    profile: Profile, state: RunState, seq: int, event: Step, row: CostRow | None
) -> tuple[orphans.OrphanState, SeenValues, orphans.OrphanSignal | None]:
    """Compare a step with all references: does it belong here, and what does it bring?"""
    known = state.knowledge
    if known.references is None or known.values is None or profile.identity is None:
        return state.orphans, state.values, None
    strayed, signal = state.orphans, None
    if profile.orphans is not None and row is not None:
        plain = Authority.WARN if known.selftest is None else known.selftest.orphans.authority
        strayed, signal = orphans.step(
            profile.orphans,
            profile.values,
            profile.identity,
            known.contracts,
            known.references,
            known.values,
            state.orphans,
            state.values,
            seq,
            event,
            row,
            plain,
        )
    trusted = identity.is_known(profile.values, known.contracts, known.values, state.values, event)
    values = see(profile.sightings, state.values, seq, event.tool, event.result, trusted)
    return strayed, values, signal


def _act(
    profile: Profile,
    state: RunState,
    seq: int,
    output: VerdictOutput,
    density: abort.AbortSignal | None,
    steps: int,
) -> tuple[InterventionName, str, tuple[int, ...]] | None:
    """Say what must happen after a step, why, and on what evidence; None: nothing."""
    if steps >= profile.steps_max:
        text = f"the run has reached {profile.steps_max} steps, the most a run may have"
        return InterventionName.HALT, text, (seq,)
    reason = output.reasons[0].text if output.reasons else ""
    if density is not None and density.halt:
        severe = len(density.evidence)
        text = f"{severe} of the last {density.window} steps were severe; {reason}"
        return InterventionName.HALT, text, density.evidence
    wanted = output.intervention
    if wanted is None:
        return None
    lasts = _episode(output) == state.episode or state.abort.halted
    if profile.once and lasts and wanted is not InterventionName.BLOCK:
        return None
    return wanted, reason, output.evidence


def _episode(output: VerdictOutput) -> tuple[str, ...]:
    """Name what a verdict is about: as long as it stays the same, it is one and the same alarm."""
    return (output.name.value, *(reason.signal for reason in output.reasons[:1]))


@dataclass(slots=True)
class _Vital:
    """States and signals of the operators that need no references, after a step."""

    loop: loop.LoopState
    gain: gain.GainState
    stall: stall.StallState
    repeats: repeats.RepeatState
    looped: LoopSignal | None = None
    gained: float | None = None
    stalled: StallSignal | None = None
    again: RepeatSignal | None = None


def _vital_signs(
    profile: Profile,
    state: RunState,
    seq: int,
    event: Step,
    vectors: StepVectors,
    contract: ToolContract | None,
    alignment: transport.Alignment | None,
) -> _Vital:
    """Step those of the vital signs (L1) that are switched on."""
    vital = _Vital(state.loop, state.gain, state.stall, state.repeats)
    if profile.loop is not None:
        is_poll = contract is not None and contract.poll
        vital.loop, vital.looped = loop.step(
            profile.loop, state.loop, seq, event, vectors.action, is_poll
        )
    if profile.repeats is not None:
        vital.repeats, vital.again = repeats.step(
            profile.repeats, state.repeats, seq, event, contract
        )
    if profile.gain is not None:
        vital.gain, vital.gained = gain.step(profile.gain, state.gain, vectors.result)
    if profile.stall is not None:
        covered = None if alignment is None else alignment.coverage * alignment.parents.shape[0]
        vital.stall, vital.stalled = stall.step(
            profile.stall, state.stall, seq, vital.gained, covered
        )
    return vital


def _judge(
    profile: Profile,
    state: RunState,
    graph: prefix.PrefixState,
    aligned: transport.TransportState | None,
    delta: prefix.Delta,
    signals: Signals,
) -> tuple[Judged, bool, bool | None]:
    """Judge a step; confirm or withdraw by the converged solve what would intervene.

    Returns
    -------
    judged, withdrawn, confirmed
        Whether the verdict of the fast path was withdrawn, and whether a verdict that rests on the
        coupling was confirmed (None where none does).
    """
    references, consumed = state.knowledge.references, delta.consumed
    explored, followed = state.exploration, state.strategy
    lifecycle = profile.exploration
    known = state.knowledge
    judged = judge(profile, known, explored, followed, signals, consumed, lifecycle)
    if not judged.output.by_transport or judged.output.intervention is None:
        return judged, False, None
    assert references is not None
    assert state.transport is not None
    assert aligned is not None
    age = prefix.age_weights(profile.prefix, graph)
    converged = transport.converge(
        profile.transport, references, state.transport, aligned, graph.hops, age
    )
    signals = replace(signals, alignment=converged)
    solved = judge(profile, known, explored, followed, signals, consumed, settled(lifecycle))
    confirmed = None
    if solved.output.by_transport:
        confirmed = solved.output.intervention is not None
    elif solved.output.intervention is None:
        confirmed = False
    return solved, solved.output.name != judged.output.name, confirmed


def _flags(
    codec_flags: tuple[str, ...],
    admission: Admission,
    state: RunState,
    artifacts_full: bool,
    delta: prefix.Delta,
    judged: Judged,
    withdrawn: bool,
) -> tuple[str, ...]:
    """Name what was unusual about this event, in a fixed order."""
    alignment = judged.alignment
    checks = {
        "parent_not_earlier": bool(delta.rejected),
        "retroactive_edge": bool(delta.retroactive),
        "artifacts_full": artifacts_full,
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


def _count(counts: HashTrieMap[str, int], name: str) -> HashTrieMap[str, int]:
    return counts.insert(name, (counts.get(name) or 0) + 1)


def _add(total: float | None, part: float | None) -> float | None:
    if part is None:
        return total
    return (total or 0.0) + part
