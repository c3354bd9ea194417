"""One run: from a decoded event to verdict and intervention.

::

    gate (irreversible calls) → sensing (all operators) → exploration → verdict → abort

Down and never back. What exploration and verdict need of earlier events is their own state.
"""

from __future__ import annotations

from dataclasses import replace

from ontrack.operators import abort, finishing, scoring, transport
from ontrack.operators.acting import act_on, done, episode_of
from ontrack.operators.admission import Admission
from ontrack.operators.asking import (
    Standing,
    ask,
    authority_of_answer,
    needs_asking,
    within_allowance,
)
from ontrack.operators.canonical import call_sha256
from ontrack.operators.confirming import judge_and_confirm
from ontrack.operators.judging import Judged
from ontrack.operators.knowledge import Knowledge
from ontrack.operators.profiles import Profile
from ontrack.operators.report import (
    Numbers,
    Stamp,
    decision,
    intervention,
    scorecard,
)
from ontrack.operators.report import verdict as verdict_record
from ontrack.operators.sensing import Sensed, sense
from ontrack.operators.state import RunState, changed, counted
from ontrack.operators.vectors import StepVectors
from ontrack.topics.events import Event, Proposal, RunEnded, RunStarted, Step
from ontrack.topics.verdicts import (
    AFTER_HALT,
    SHADOW,
    WOULD_HALT,
    Decision,
    Intervention,
    InterventionName,
    Scorecard,
    Verdict,
)


def start(
    stamp: Stamp,
    event: Event | Proposal,
    knowledge: Knowledge,
    time_ms: int | None = None,
    shadow: bool = False,
) -> RunState:
    """Open a run at its first event, which the broker appended at ``time_ms``."""
    references = knowledge.references
    scored = scoring.start(knowledge.plan) if knowledge.plan else scoring.ScoringState()
    if isinstance(event, RunStarted):
        scored = scoring.clock(scored, event)
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
        scoring=scored,
        shadow=shadow,
    )


def rename(
    state: RunState, event: RunStarted, knowledge: Knowledge, time_ms: int | None
) -> RunState:
    """Make a run, before its first step, one of the task that its start names only now.

    What is known besides stays: who started it, and that it was halted.
    """
    begun = start(state.stamp, event, knowledge, time_ms)
    return replace(
        state,
        task_id=begun.task_id,
        agent=begun.agent or state.agent,
        tenant=begun.tenant or state.tenant,
        started_ms=begun.started_ms,
        knowledge=begun.knowledge,
        transport=begun.transport,
        scoring=scoring.clock(replace(begun.scoring, totals=state.scoring.totals), event),
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
    asked = None
    if needs_asking(profile, knowledge, event.tool):  # did it pass by the gate?
        # That a halted run goes on is said by its flag, not by a block at each step.
        asked = ask(profile, knowledge, _standing(state), event, vectors)
    sensed = sense(profile, state, seq, event, vectors, asked)
    moved = sensed.moved
    judged, withdrawn, confirmed = judge_and_confirm(profile, state, sensed)
    abort_state, abort_signal = state.abort, None
    if profile.abort is not None:
        abort_state, abort_signal = abort.step(
            profile.abort, state.abort, seq, judged.output.severity >= 3
        )
    if state.shadow:  # nobody is told to halt: should it go on like that, it is halted later
        abort_state = replace(abort_state, halted=state.abort.halted)
    act = act_on(profile, state, seq, judged.output, abort_signal, len(state.seen) + 1)
    all_flags = _flags(flags, admission, state, sensed, judged, withdrawn)
    if state.shadow and act is not None and act.wanted is InterventionName.HALT:
        all_flags = (*all_flags, WOULD_HALT)
    new_state = changed(
        state,
        **moved._asdict(),
        seen=state.seen.insert(seq, admission.digest),
        highest=max(state.highest, seq),
        errors=state.errors + (event.error is not None),
        cost_usd=_add(state.cost_usd, event.cost_usd),
        flags=tuple(dict.fromkeys((*state.flags, *all_flags))),
        exploration=judged.exploration,
        strategy=judged.strategy,
        abort=abort_state,
        # What is not said in shadow is still to be said when the run leaves it.
        episode=state.episode if state.shadow else episode_of(judged.output),
        verdicts=counted(state.verdicts, judged.output.name),
    )
    best = judged.alignment
    record = verdict_record(
        state.stamp,
        new_state.identity,
        seq,
        event.tool,
        judged.output,
        Numbers.of(
            best,
            knowledge.reference_id(None if best is None else best.best),
            sensed.signals.gain,
            sensed.rank_score,
        ),
        confirmed,
        all_flags,
        event.trace,
    )
    if act is None or state.shadow:  # in shadow nothing was said, so nothing is to be counted
        return new_state, record, None
    made = intervention(
        state.stamp,
        new_state.identity,
        seq,
        judged.output,
        *act,
        event.trace,
    )
    return done(new_state, act.wanted), record, made


def propose(
    profile: Profile, state: RunState, proposal: Proposal, vectors: StepVectors
) -> Decision:
    """Answer a proposal against the run as it stands; the run itself is left as it is."""
    standing = replace(_standing(state), halted=state.abort.halted)
    answer = ask(profile, state.knowledge, standing, proposal, vectors)
    answer = within_allowance(state.knowledge, state.values, proposal, answer)
    authority = authority_of_answer(state.knowledge, answer)
    seq = state.highest + 1 if proposal.seq is None else proposal.seq
    return decision(
        state.stamp,
        state.identity,
        seq,
        proposal.tool,
        answer,
        state.knowledge.reference_id(answer.best),
        call_sha256(proposal.tool, proposal.args),
        authority,
    )


def end(profile: Profile, state: RunState, event: RunEnded) -> Scorecard:
    """Close a run: the final solve (Prop. 1) and its scorecard."""
    final = None
    references = state.knowledge.references
    if references is not None and state.transport is not None and state.prefix.size:
        final = finishing.finish(
            profile.transport, profile.prefix, references, state.transport, state.prefix
        )
    best = state.knowledge.reference_id(None if final is None else final.best)
    return scorecard(
        state.stamp,
        state.identity,
        event,
        len(state.seen),
        state.errors,
        state.cost_usd,
        dict(sorted(state.verdicts.items())),
        dict(sorted(state.interventions.items())),
        state.flags,
        final,
        best,
        _path(profile, state, event),
    )


def _path(profile: Profile, state: RunState, event: RunEnded) -> scoring.PathScore | None:
    """Return the figures of the path, where paths are scored."""
    plan = state.knowledge.plan
    if profile.scoring is None or plan is None:
        return None
    return scoring.finish(profile.scoring, plan, scoring.clock(state.scoring, event))


def _standing(state: RunState) -> Standing:
    # Beyond the graph's limit the coupling stands still and says nothing of where the run is now.
    is_current = len(state.seen) == state.prefix.size
    coupling = state.transport if is_current else None
    return Standing(state.ledger, coupling, state.prefix.hops, state.values)


def _flags(
    codec_flags: tuple[str, ...],
    admission: Admission,
    state: RunState,
    sensed: Sensed,
    judged: Judged,
    withdrawn: bool,
) -> tuple[str, ...]:
    """Name what was unusual about this event, in a fixed order."""
    alignment, delta = judged.alignment, sensed.delta
    checks = {
        "parent_not_earlier": bool(delta.rejected),
        "retroactive_edge": bool(delta.retroactive),
        "artifacts_full": sensed.moved.ledger.full,
        "graph_full": delta.node is None,
        "frontier_stalled": alignment is not None and alignment.frontier_stalled,
        "withdrawn": withdrawn,
        "unconverged": alignment is not None and not alignment.converged,
        AFTER_HALT: state.abort.halted,
        SHADOW: state.shadow,
    }
    return (
        *codec_flags,
        *admission.flags,
        *(name for name, raised in checks.items() if raised),
    )


def _add(total: float | None, part: float | None) -> float | None:
    if part is None:
        return total
    return (total or 0.0) + part
