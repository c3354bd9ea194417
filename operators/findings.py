"""Findings: what each operator's signal means, in words that a model or a person can act on."""

from __future__ import annotations

from dataclasses import dataclass

from ontrack.operators.exploration import ExplorationParams, ExplorationSignal
from ontrack.operators.gate import GateFinding
from ontrack.operators.loop import LoopSignal
from ontrack.operators.orphans import OrphanSignal
from ontrack.operators.repeats import RepeatKind, RepeatLevel, RepeatSignal
from ontrack.operators.scoring import PathSignal
from ontrack.operators.scoring_plan import TaskPlan
from ontrack.operators.selftest import SelfTest, weaker
from ontrack.operators.stall import StallParams, StallSignal
from ontrack.operators.strategy import StrategyParams, StrategySignal
from ontrack.operators.transport import Alignment
from ontrack.topics.knowledge import Provenance
from ontrack.topics.verdicts import Authority, InterventionName, Reason, VerdictName


@dataclass(frozen=True, slots=True)
class Signals:
    """What the operators say about one step; None from those that are switched off.

    ``provenance`` is that of the reference aligned best, ``gate_provenance`` that of the one the
    gate compared with: before the step they can differ. ``selftest`` is that of the references.
    ``path`` is what the step adds to the scorecard, ``plan`` what that is measured against.
    ``arguments`` is their text where reasons may quote it.
    """

    seq: int
    tool: str
    loop: LoopSignal | None = None
    stall: StallSignal | None = None
    repeats: RepeatSignal | None = None
    gain: float | None = None
    gate: GateFinding | None = None
    alignment: Alignment | None = None
    exploration: ExplorationSignal | None = None
    strategy: StrategySignal | None = None
    orphan: OrphanSignal | None = None
    provenance: Provenance | None = None
    gate_provenance: Provenance | None = None
    selftest: SelfTest | None = None
    path: PathSignal | None = None
    plan: TaskPlan | None = None
    arguments: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One operator's objection to a step.

    Parameters
    ----------
    by_transport
        It rests on the coupling, so it needs the converged solve.
    wanted
        What should happen, where that is not what the verdict's name says.
    """

    name: VerdictName
    reason: Reason
    evidence: tuple[int, ...]
    authority: Authority
    by_transport: bool = False
    wanted: InterventionName | None = None


_AUTHORITY = {
    Provenance.GOLD: Authority.INTERVENE,
    Provenance.MINED: Authority.INTERVENE,
    Provenance.AXIOMATIC: Authority.WARN,
    Provenance.GENERATED: Authority.INFORM,
}


def authority_of(provenance: Provenance | None) -> Authority:
    """How far a verdict may go that rests on references of this provenance."""
    return Authority.INTERVENE if provenance is None else _AUTHORITY[provenance]


def gate_authority(
    answer: GateFinding, provenance: Provenance | None, selftest: SelfTest | None = None
) -> Authority:
    """How far an answer of the gate may go.

    Missing prerequisites are a matter of contracts; only an answer that rests on a reference alone
    is limited by that reference's provenance and the self-test of its set.
    """
    if answer.best is None or any(reason.signal == "prerequisites" for reason in answer.reasons):
        return Authority.INTERVENE
    authority = authority_of(provenance)
    return authority if selftest is None else weaker(authority, selftest.gate_authority(answer))


def of_gate(signals: Signals) -> list[Finding]:
    """Find an irreversible call that was made although the gate would not have let it pass."""
    if signals.gate is None or signals.gate.decision != "block":
        return []
    authority = gate_authority(signals.gate, signals.gate_provenance, signals.selftest)
    evidence = (*signals.gate.evidence, signals.seq)
    return [
        Finding(VerdictName.BLOCK, reason, evidence, authority) for reason in signals.gate.reasons
    ]


def of_exploration(params: ExplorationParams, signals: Signals) -> list[Finding]:
    """Find what the lifecycle of a step without a place says."""
    found, alignment = signals.exploration, signals.alignment
    if found is None or alignment is None:
        return []
    authority = authority_of(signals.provenance)
    findings: list[Finding] = []
    if found.inversion is not None:
        text = (
            f"step {found.inversion} ({signals.tool}) came before the steps whose results it "
            "needs; do those first"
            if found.inversion == signals.seq
            else f"step {found.inversion} came before the steps whose results it needs"
        )
        leaked = alignment.leakage > params.leak_threshold
        reason = Reason(
            signal="leakage" if leaked else "attribute_cost",
            value=alignment.leakage if leaked else alignment.attribute_cost,
            threshold=params.leak_threshold if leaked else params.near_cost,
            text=text,
        )
        evidence = tuple(dict.fromkeys((found.inversion, signals.seq)))
        findings.append(Finding(VerdictName.CAUSAL_INVERSION, reason, evidence, authority, True))
    if found.off_track:
        text = (
            f"steps {', '.join(map(str, found.evidence[-6:]))} match nothing in any recorded "
            "success of this task; return to the task or plan again"
        )
        reason = Reason(
            signal="unresolved_mass",
            value=found.unresolved,
            threshold=params.orphan_budget,
            text=text,
        )
        findings.append(Finding(VerdictName.OFF_TRACK, reason, found.evidence, authority, True))
    if found.exploring:
        reason = Reason(
            signal="leakage",
            value=alignment.leakage,
            threshold=params.leak_threshold,
            text=f"{signals.tool} has no place yet in the part of the task that is open now",
        )
        findings.append(Finding(VerdictName.EXPLORING, reason, (signals.seq,), authority))
    return findings


def of_loop(signals: Signals) -> list[Finding]:
    """Find a call that was made before."""
    loop = signals.loop
    if loop is None or not loop.score > 0:
        return []
    times = len(loop.repeats) + 1
    text = (
        f"{signals.tool} was called {times} times with the same arguments "
        f"(first at step {loop.repeats[0]}); use what it returned or try something else"
    )
    if signals.arguments is not None:
        text += f"; arguments: {signals.arguments}"
    reason = Reason(signal="loop", value=float(times), threshold=2.0, text=text)
    evidence = (*loop.repeats[-8:], signals.seq)
    return [Finding(VerdictName.LOOP, reason, evidence, Authority.INTERVENE)]


def of_repeats(signals: Signals) -> list[Finding]:
    """Find a run that goes round: a warning first, and a halt where it does not stop."""
    repeats = signals.repeats
    if repeats is None or repeats.level is RepeatLevel.NONE:
        return []
    text = repeats.text
    if signals.arguments is not None:
        text += f"; arguments: {signals.arguments}"
    reason = Reason(
        signal="repeats", value=float(repeats.count), threshold=float(repeats.threshold), text=text
    )
    if repeats.level is RepeatLevel.WARN:
        return [Finding(VerdictName.WARN, reason, repeats.evidence, Authority.INTERVENE)]
    # Other calls with the same answers are activity without progress; the same call is a loop.
    is_stall = repeats.kind is RepeatKind.JITTER
    name = VerdictName.STALLED if is_stall else VerdictName.LOOP
    halt = InterventionName.HALT
    return [Finding(name, reason, repeats.evidence, Authority.INTERVENE, wanted=halt)]


def of_orphans(signals: Signals) -> list[Finding]:
    """Find a run that has left its task, or does something too early."""
    found = signals.orphan
    if found is None or found.name is None or found.reason is None:
        return []
    authority = authority_of(signals.provenance)
    if signals.selftest is not None:
        authority = weaker(authority, signals.selftest.authority_of(found.reason.signal))
    return [Finding(found.name, found.reason, found.evidence, authority)]


def of_stall(params: StallParams, signals: Signals) -> list[Finding]:
    """Find activity without progress."""
    stall = signals.stall
    if stall is None or not stall.stalled:
        return []
    text = (
        f"the last {len(stall.since)} results say nothing new since step {stall.since[0]}; "
        "change the approach or stop"
    )
    reason = Reason(
        signal="information_gain",
        value=signals.gain,
        threshold=params.gain_min,
        text=text,
    )
    return [Finding(VerdictName.STALLED, reason, stall.since[-8:], Authority.INTERVENE)]


def of_strategy(params: StrategyParams, signals: Signals) -> list[Finding]:
    """Find a run that keeps changing between known strategies."""
    strategy = signals.strategy
    if strategy is None or not strategy.oscillating:
        return []
    reason = Reason(
        signal="strategy_switch",
        value=float(len(strategy.changed)),
        threshold=float(params.switches_max),
        text=(
            f"the run changed between known strategies {len(strategy.changed)} times in its last "
            f"{strategy.looked_at} steps; settle on one"
        ),
    )
    # The losses come from the coupling, so this too needs the converged solve.
    authority = authority_of(signals.provenance)
    return [Finding(VerdictName.WARN, reason, strategy.changed, authority, True)]


def of_path(signals: Signals) -> list[Finding]:
    """Find what the task's own rules say against a step: its allowance, its budget, its ceilings.

    Someone wrote these rules down, so they need no reference. A destructive call outside of the
    allowance stops the run, any other is worth a look. A budget that nobody declared, such as a
    reference's length and a margin, stands in the scorecard and warns nobody.
    """
    path, plan, here = signals.path, signals.plan, (signals.seq,)
    if path is None or plan is None:
        return []
    found = []
    if path.unsafe is not None:
        reason = Reason(signal="allowance", value=1.0, threshold=1.0, text=path.unsafe.reason)
        stops = path.unsafe.response == "stop"
        found.append(
            Finding(
                VerdictName.BLOCK if stops else VerdictName.WARN,
                reason,
                here,
                Authority.INTERVENE,
                wanted=InterventionName.HALT if stops else None,
            )
        )
    for reason in _over_limits(path, plan):
        found.append(Finding(VerdictName.WARN, reason, here, Authority.INTERVENE))
    return found


def _over_limits(path: PathSignal, plan: TaskPlan) -> list[Reason]:
    """Say which of the task's declared limits a run is over."""
    found, budget = [], plan.budget
    if plan.budget_declared and budget is not None and path.over_budget_by:
        steps = budget.steps + path.over_budget_by
        text = f"step {steps} of a budget of {budget.steps} ({budget.text}); finish or ask for help"
        found.append(
            Reason(
                signal="step_budget",
                value=float(steps),
                threshold=float(budget.steps),
                text=text,
            )
        )
    if path.late and plan.latency_s_max is not None:
        text = f"the run takes longer than the {plan.latency_s_max:g} s that its task may take"
        found.append(
            Reason(signal="latency", value=path.latency_s, threshold=plan.latency_s_max, text=text)
        )
    if path.costly and plan.cost_usd_max is not None:
        text = f"the run costs more than the {plan.cost_usd_max:g} USD that its task may cost"
        found.append(
            Reason(signal="cost", value=path.cost_usd, threshold=plan.cost_usd_max, text=text)
        )
    return found
