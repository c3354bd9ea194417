"""One step through the operators that read it, each with its own state and settings.

::

    collapse → ledger → prefix → transport → ranking, orphans
                                     └ coverage → stall      loop, repeats, gain: of the step alone

An operator that is switched off, or has nothing to compare with, keeps its state and says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ontrack.operators import (
    collapse,
    gain,
    identity,
    ledger,
    loop,
    orphans,
    pooling,
    prefix,
    ranking,
    repeats,
    scoring,
    stall,
    transport,
)
from ontrack.operators.artifacts import Artifacts, extract
from ontrack.operators.canonical import value_text
from ontrack.operators.findings import Signals
from ontrack.operators.gate import GateFinding
from ontrack.operators.loop import LoopSignal
from ontrack.operators.profiles import Profile
from ontrack.operators.repeats import RepeatSignal
from ontrack.operators.scoring_extras import CanonicalCall
from ontrack.operators.scoring_unsafe import seen_in
from ontrack.operators.sightings import SeenValues, see
from ontrack.operators.stall import StallSignal
from ontrack.operators.state import RunState
from ontrack.operators.vectors import StepVectors
from ontrack.operators.volatile import Written, write_down
from ontrack.topics.events import Step
from ontrack.topics.knowledge import Effect, ToolContract
from ontrack.topics.verdicts import Authority

CostRow = npt.NDArray[np.float32]  # of a step against every reference node, shape (K, M)
_SHOWN_CHARACTERS = 500  # of the arguments, where a reason quotes them


class Moved(NamedTuple):
    """The operators' states after a step, under the names they have in the run's state."""

    ledger: ledger.LedgerState
    prefix: prefix.PrefixState
    transport: transport.TransportState | None
    ranking: ranking.RankState | None
    orphans: orphans.OrphanState
    values: SeenValues
    scoring: scoring.ScoringState
    loop: loop.LoopState
    gain: gain.GainState
    stall: stall.StallState
    repeats: repeats.RepeatState


class Sensed(NamedTuple):
    """What a step did to the operators, and what they say of it.

    Parameters
    ----------
    delta
        What was new in the prefix graph.
    rank_score
        How the run ranks so far among others of its task; None where nothing ranks it.
    aligned_before
        Alignment before the step, its rows as after it.
    """

    moved: Moved
    delta: prefix.Delta
    signals: Signals
    rank_score: float | None
    aligned_before: transport.TransportState | None


def sense(
    profile: Profile,
    state: RunState,
    seq: int,
    event: Step,
    vectors: StepVectors,
    asked: GateFinding | None,
) -> Sensed:
    """Take a step through all operators that are switched on.

    Parameters
    ----------
    vectors
        Unit vectors of the step's texts.
    asked
        What the gate would have said of this call, where it should have been asked.
    """
    known = state.knowledge
    graph, aligned = collapse.step(
        profile.prefix,
        profile.transport.solver,
        known.references,
        state.prefix,
        state.transport,
        1 if profile.exploration is None else profile.exploration.grace,
    )
    if graph is not state.prefix:
        state = replace(state, prefix=graph, transport=aligned)
    contract = known.contracts.get(event.tool)
    artifacts = extract(profile.artifacts, event, contract)
    entered, graph, delta = _grow(profile, state, seq, event, artifacts)
    aligned, alignment, row = _align(profile, state, graph, delta, event, vectors)
    ranked, rank = _rank(profile, state, aligned, alignment, event, vectors)
    written = _written(profile, event, contract)
    vital = _vital_signs(profile, state, seq, event, vectors, contract, alignment, written)
    strayed, orphan = _compare(profile, state, seq, event, row)
    scored, path = _score(profile, state, seq, event, contract, written)
    values = _see(profile, state, seq, event)
    moved = Moved(
        entered,
        graph,
        aligned,
        ranked,
        strayed,
        values,
        scored,
        vital.loop,
        vital.gain,
        vital.stall,
        vital.repeats,
    )
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
        selftest=known.selftest,
        path=path,
        plan=known.plan,
        arguments=value_text(event.args, _SHOWN_CHARACTERS) if profile.show_arguments else None,
    )
    return Sensed(moved, delta, signals, rank, state.transport)


def _written(profile: Profile, event: Step, contract: ToolContract | None) -> Written | None:
    """Write the step down once for repeats and scoring; None where they ask for different cuts."""
    repeated, scored = profile.repeats, profile.scoring
    if repeated is None or scored is None or repeated.text_bytes_max != scored.text_bytes_max:
        return None
    identity = None if contract is None else contract.identity
    return write_down(event.args, event.result, event.error, repeated.text_bytes_max, identity)


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
    aligned, alignment = pooling.step(
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
        alignment,
        event,
        vectors.result,
        writes,
        event.error is not None,
    )
    return ranked, signal.score


def _compare(
    profile: Profile, state: RunState, seq: int, event: Step, row: CostRow | None
) -> tuple[orphans.OrphanState, orphans.OrphanSignal | None]:
    """Compare a step with all references: does it belong here?"""
    known = state.knowledge
    if known.references is None or known.values is None or profile.identity is None:
        return state.orphans, None
    if profile.orphans is None or row is None:
        return state.orphans, None
    plain, strange = Authority.WARN, Authority.INTERVENE
    if known.selftest is not None:
        plain, strange = known.selftest.orphans.authority, known.selftest.strangers.authority
    return orphans.step(
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
        strange=strange,
    )


def _see(profile: Profile, state: RunState, seq: int, event: Step) -> SeenValues:
    """Remember what a step brings, where the gate, orphans or the task's allowance look at it."""
    known, params = state.knowledge, profile.sightings
    values = None if known.references is None or profile.identity is None else known.values
    is_limited = known.plan is not None and known.plan.allowance is not None
    if values is None and not is_limited:
        return state.values
    trusted = values is None or identity.is_known(
        profile.values, known.contracts, values, state.values, event
    )
    seen = see(params, state.values, seq, event.tool, event.result, trusted)
    if values is not None and event.error is not None:
        # Instructions arrive through errors too, and nothing is taken from one.
        seen = see(params, seen, seq, event.tool, event.error.message, False, True)
    return seen


def _score(
    profile: Profile,
    state: RunState,
    seq: int,
    event: Step,
    contract: ToolContract | None,
    written: Written | None,
) -> tuple[scoring.ScoringState, scoring.PathSignal | None]:
    """Add the step to the scorecard, where paths are scored."""
    plan = state.knowledge.plan
    if profile.scoring is None or plan is None:
        return state.scoring, None
    call = None if written is None else CanonicalCall(written.arguments, written.result)
    seen = seen_in(state.values)
    return scoring.step(profile.scoring, plan, state.scoring, seq, event, contract, seen, call)


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
    written: Written | None,
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
            profile.repeats, state.repeats, seq, event, contract, written
        )
    if profile.gain is not None:
        vital.gain, vital.gained = gain.step(profile.gain, state.gain, vectors.result)
    if profile.stall is not None:
        covered = None if alignment is None else alignment.coverage * alignment.parents.shape[0]
        vital.stall, vital.stalled = stall.step(
            profile.stall, state.stall, seq, vital.gained, covered
        )
    return vital
