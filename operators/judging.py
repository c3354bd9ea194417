"""Judging: from an alignment and the other operators' signals to one verdict.

Apart from the run's step because it happens twice where an intervention would rest on the coupling:
once on the fast path's, and again on the converged one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ontrack.operators import exploration, findings, strategy, transport, verdict
from ontrack.operators.exploration import ExplorationParams, ExplorationState
from ontrack.operators.findings import Finding, Signals, authority_of
from ontrack.operators.knowledge import Knowledge
from ontrack.operators.profiles import Profile
from ontrack.operators.strategy import StrategyState


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, and the states that led to it."""

    output: verdict.VerdictOutput
    exploration: ExplorationState
    strategy: StrategyState
    alignment: transport.Alignment | None


def judge(
    profile: Profile,
    knowledge: Knowledge,
    explored: ExplorationState,
    followed: StrategyState,
    signals: Signals,
    consumed: tuple[int, ...],
    lifecycle: ExplorationParams | None,
) -> Judged:
    """Judge a step by its signals.

    Parameters
    ----------
    explored, followed
        States before the step.
    consumed
        Nodes whose artifacts the step has consumed.
    lifecycle
        Of steps without a place; None: switched off.
    """
    alignment = signals.alignment
    lived, following = None, None
    if alignment is not None and lifecycle is not None:
        explored, lived = exploration.step(lifecycle, explored, signals.seq, alignment, consumed)
    if alignment is not None and profile.strategy is not None:
        followed, following = strategy.step(profile.strategy, followed, signals.seq, alignment)
    signals = replace(
        signals,
        exploration=lived,
        strategy=following,
        provenance=knowledge.provenance_of(None if alignment is None else alignment.best),
        gate_provenance=knowledge.provenance_of(
            None if signals.gate is None else signals.gate.best
        ),
    )
    found = findings_of(profile, signals, lifecycle)
    output = verdict.choose(found, authority_of(signals.provenance))
    return Judged(output, explored, followed, alignment)


def for_converged(lifecycle: ExplorationParams | None) -> ExplorationParams | None:
    """Return the lifecycle's thresholds for a converged coupling."""
    if lifecycle is None:
        return None
    return replace(lifecycle, leak_threshold=lifecycle.converged_leak_threshold)


def findings_of(
    profile: Profile, signals: Signals, lifecycle: ExplorationParams | None
) -> list[Finding]:
    """Collect what all operators have found at a step."""
    found = findings.of_path(signals) + findings.of_gate(signals)
    if lifecycle is not None:
        found += findings.of_exploration(lifecycle, signals)
    found += findings.of_loop(signals)
    found += findings.of_repeats(signals)
    found += findings.of_orphans(signals)
    if profile.stall is not None:
        found += findings.of_stall(profile.stall, signals)
    if profile.strategy is not None:
        found += findings.of_strategy(profile.strategy, signals)
    return found
