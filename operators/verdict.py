"""Verdict engine: from the signals of one event to one verdict, with its reasons.

All triggers are per-event, per-node quantities; the aggregate score is reported, never
thresholded (section 7).
"""

from __future__ import annotations

from dataclasses import dataclass

from ontrack.operators.exploration import ExplorationParams, ExplorationSignal
from ontrack.operators.gate import GateAnswer
from ontrack.operators.limits import require
from ontrack.operators.loop import LoopSignal
from ontrack.operators.stall import StallParams, StallSignal
from ontrack.operators.transport import Alignment
from ontrack.topics.knowledge import Provenance
from ontrack.topics.verdicts import Authority, InterventionName, Reason, VerdictName


@dataclass(frozen=True, slots=True)
class VerdictParams:
    """When a change of strategy warns.

    Parameters
    ----------
    switch_margin
        Loss by which another reference must be better before it counts as a switch.
    switch_window, switches_max
        More switches than ``switches_max`` among the last ``switch_window`` steps warn; a single
        one is benign.
    """

    switch_margin: float = 0.02
    switch_window: int = 8
    switches_max: int = 2

    def __post_init__(self) -> None:
        require(self, 1, 1000, "switch_window", "switches_max")
        require(self, 0.0, 100.0, "switch_margin")


@dataclass(frozen=True, slots=True)
class VerdictState:
    """The reference followed, and in which of the last steps it changed."""

    following: int | None = None
    switches: tuple[tuple[int, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class Signals:
    """Everything the engine looks at, from upstream only.

    ``provenance`` is that of the reference aligned best, ``gate_provenance`` that of the one the
    gate compared with: before the step they can differ.
    """

    seq: int
    tool: str
    loop: LoopSignal
    stall: StallSignal
    gain: float | None
    gate: GateAnswer | None
    alignment: Alignment | None
    exploration: ExplorationSignal | None
    provenance: Provenance | None
    gate_provenance: Provenance | None = None


@dataclass(frozen=True, slots=True)
class VerdictOutput:
    """``by_transport``: the verdict rests on the coupling, so it needs the converged solve."""

    name: VerdictName
    reasons: tuple[Reason, ...]
    evidence: tuple[int, ...]
    authority: Authority
    by_transport: bool

    @property
    def severity(self) -> int:
        """0 fine, 1 noted, 2 warned, 3 severe; capped by authority."""
        return min(_SEVERITY[self.name], _CAP[self.authority])

    @property
    def intervention(self) -> InterventionName | None:
        """What should happen because of this verdict, if anything."""
        wanted = _INTERVENTION.get(self.name)
        if wanted is None or self.authority is Authority.INFORM:
            return None
        return wanted if self.authority is Authority.INTERVENE else InterventionName.WARN


_SEVERITY = {
    VerdictName.OK: 0,
    VerdictName.EXPLORING: 1,
    VerdictName.WARN: 2,
    VerdictName.STALLED: 3,
    VerdictName.LOOP: 3,
    VerdictName.OFF_TRACK: 3,
    VerdictName.CAUSAL_INVERSION: 3,
    VerdictName.BLOCK: 3,
}
_CAP = {Authority.INTERVENE: 3, Authority.WARN: 2, Authority.INFORM: 1}
_INTERVENTION = {
    VerdictName.WARN: InterventionName.WARN,
    VerdictName.STALLED: InterventionName.REPLAN,
    VerdictName.LOOP: InterventionName.REPLAN,
    VerdictName.OFF_TRACK: InterventionName.REPLAN,
    VerdictName.CAUSAL_INVERSION: InterventionName.REPLAN,
    VerdictName.BLOCK: InterventionName.BLOCK,
}
_AUTHORITY = {
    Provenance.GOLD: Authority.INTERVENE,
    Provenance.MINED: Authority.INTERVENE,
    Provenance.AXIOMATIC: Authority.WARN,
    Provenance.GENERATED: Authority.INFORM,
}


@dataclass(frozen=True, slots=True)
class _Finding:
    name: VerdictName
    reason: Reason
    evidence: tuple[int, ...]
    authority: Authority
    by_transport: bool = False


def authority_of(provenance: Provenance | None) -> Authority:
    """How far a verdict may go that rests on references of this provenance."""
    return Authority.INTERVENE if provenance is None else _AUTHORITY[provenance]


def gate_authority(answer: GateAnswer, provenance: Provenance | None) -> Authority:
    """How far an answer of the gate may go.

    Missing prerequisites are a matter of contracts; only an answer that rests on a reference alone
    is limited by that reference's provenance.
    """
    if answer.best is None or any(reason.signal == "prerequisites" for reason in answer.reasons):
        return Authority.INTERVENE
    return authority_of(provenance)


def step(
    params: VerdictParams,
    exploration_params: ExplorationParams,
    stall_params: StallParams,
    state: VerdictState,
    signals: Signals,
) -> tuple[VerdictState, VerdictOutput]:
    """Choose the gravest finding; the reasons of all findings go along, gravest first."""
    new_state, oscillating = _follow(params, state, signals)
    findings = [
        *_gate(signals),
        *_exploration(exploration_params, signals),
        *_vital_signs(stall_params, signals),
        *_strategy(params, new_state, signals, oscillating),
    ]
    if not findings:
        authority = authority_of(signals.provenance)
        return new_state, VerdictOutput(VerdictName.OK, (), (), authority, False)
    order = {name: rank for rank, name in enumerate(_GRAVEST_FIRST)}
    findings.sort(key=lambda finding: order[finding.name])
    gravest = findings[0]
    output = VerdictOutput(
        gravest.name,
        tuple(finding.reason for finding in findings),
        gravest.evidence,
        gravest.authority,
        gravest.by_transport,
    )
    return new_state, output


# Among the severe ones the more certain comes first: what the run shows by itself (L1) needs no
# reference, and says more exactly what to do than "off track".
_GRAVEST_FIRST = (
    VerdictName.BLOCK,
    VerdictName.CAUSAL_INVERSION,
    VerdictName.LOOP,
    VerdictName.STALLED,
    VerdictName.OFF_TRACK,
    VerdictName.WARN,
    VerdictName.EXPLORING,
)


def _gate(signals: Signals) -> list[_Finding]:
    """Find an irreversible call that was made although the gate would not have let it pass."""
    if signals.gate is None or signals.gate.decision != "block":
        return []
    authority = gate_authority(signals.gate, signals.gate_provenance)
    evidence = (*signals.gate.evidence, signals.seq)
    return [
        _Finding(VerdictName.BLOCK, reason, evidence, authority) for reason in signals.gate.reasons
    ]


def _exploration(params: ExplorationParams, signals: Signals) -> list[_Finding]:
    found, alignment = signals.exploration, signals.alignment
    if found is None or alignment is None:
        return []
    authority = authority_of(signals.provenance)
    findings: list[_Finding] = []
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
        findings.append(_Finding(VerdictName.CAUSAL_INVERSION, reason, evidence, authority, True))
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
        findings.append(_Finding(VerdictName.OFF_TRACK, reason, found.evidence, authority, True))
    if found.exploring:
        reason = Reason(
            signal="leakage",
            value=alignment.leakage,
            threshold=params.leak_threshold,
            text=f"{signals.tool} has no place yet in the part of the task that is open now",
        )
        findings.append(_Finding(VerdictName.EXPLORING, reason, (signals.seq,), authority))
    return findings


def _vital_signs(params: StallParams, signals: Signals) -> list[_Finding]:
    findings: list[_Finding] = []
    loop, stall = signals.loop, signals.stall
    if loop.score > 0:
        times = len(loop.repeats) + 1
        text = (
            f"{signals.tool} was called {times} times with the same arguments "
            f"(first at step {loop.repeats[0]}); use what it returned or try something else"
        )
        reason = Reason(signal="loop", value=float(times), threshold=2.0, text=text)
        evidence = (*loop.repeats[-8:], signals.seq)
        findings.append(_Finding(VerdictName.LOOP, reason, evidence, Authority.INTERVENE))
    if stall.stalled:
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
        findings.append(
            _Finding(VerdictName.STALLED, reason, stall.since[-8:], Authority.INTERVENE)
        )
    return findings


def _follow(
    params: VerdictParams, state: VerdictState, signals: Signals
) -> tuple[VerdictState, bool]:
    """Update which reference is followed; tell whether the run oscillates between them."""
    alignment = signals.alignment
    if alignment is None:
        return state, False
    following, switched = state.following, False
    if following is None:
        following = alignment.best
    elif alignment.best != following:
        margin = float(alignment.losses[following] - alignment.losses[alignment.best])
        if margin > params.switch_margin:
            following, switched = alignment.best, True
    switches = (*state.switches, (signals.seq, switched))[-params.switch_window :]
    count = sum(flag for _, flag in switches)
    return VerdictState(following, switches), switched and count > params.switches_max


def _strategy(
    params: VerdictParams, state: VerdictState, signals: Signals, oscillating: bool
) -> list[_Finding]:
    if not oscillating:
        return []
    changed = tuple(seq for seq, flag in state.switches if flag)
    reason = Reason(
        signal="strategy_switch",
        value=float(len(changed)),
        threshold=float(params.switches_max),
        text=(
            f"the run changed between known strategies {len(changed)} times in its last "
            f"{len(state.switches)} steps; settle on one"
        ),
    )
    # The losses come from the coupling, so this too needs the converged solve.
    return [_Finding(VerdictName.WARN, reason, changed, authority_of(signals.provenance), True)]
