"""From operators' outputs to the records that are published.

The one place where numbers are rounded: six decimals, so that bytes do not hang on the last bits
of a float.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from ontrack.operators.finishing import Final
from ontrack.operators.gate import GateFinding
from ontrack.operators.scoring import PathScore
from ontrack.operators.transport import Alignment
from ontrack.operators.verdict import VerdictOutput
from ontrack.topics.events import Agent, RunEnded, TraceRef
from ontrack.topics.verdicts import (
    SHADOW,
    WOULD_HALT,
    Authority,
    Decision,
    Intervention,
    InterventionName,
    Reason,
    Scorecard,
    UnsafeCall,
    Verdict,
    VerdictName,
)

TEXT_CHARACTERS_MAX = 2000

R = TypeVar("R", Verdict, Scorecard)
Identity = tuple[str, str | None, Agent | None, str | None]


@dataclass(frozen=True, slots=True)
class Stamp:
    """Which settings and which engine produced a record."""

    profile: str
    settings: str
    engine: str


@dataclass(frozen=True, slots=True)
class Numbers:
    """A verdict's figures, rounded; None where the layer behind them is off."""

    score: float | None
    rank_score: float | None
    coverage: float | None
    leakage: float | None
    match_cost: float | None
    information_gain: float | None
    best_reference: str | None

    @classmethod
    def of(
        cls,
        alignment: Alignment | None,
        best_reference: str | None,
        gain: float | None,
        rank: float | None = None,
    ) -> Numbers:
        """Read the figures off an alignment; ``rank`` is of an operator of its own, if there is."""
        if alignment is None:
            return cls(None, None, None, None, None, rounded(gain), None)
        return cls(
            rounded(alignment.score),
            rounded(alignment.rank_score if rank is None else rank),
            rounded(alignment.coverage),
            rounded(alignment.leakage),
            rounded(alignment.match_cost),
            rounded(gain),
            best_reference,
        )


def rounded(value: float | None) -> float | None:
    """Round to six decimals; negative zero becomes zero."""
    return None if value is None else round(value, 6) + 0.0


def verdict(
    stamp: Stamp,
    identity: Identity,
    seq: int,
    tool: str,
    output: VerdictOutput,
    numbers: Numbers,
    confirmed: bool | None,
    flags: tuple[str, ...],
    trace: TraceRef | None = None,
) -> Verdict:
    """Build the record of one step's verdict."""
    run_id, task_id, agent, tenant = identity
    return Verdict(
        id=f"{run_id}:{seq}",
        run_id=run_id,
        seq=seq,
        task_id=task_id,
        agent=agent,
        tenant=tenant,
        tool=tool,
        verdict=output.name,
        severity=output.severity,
        reasons=tuple(map(_rounded_reason, output.reasons)),
        score=numbers.score,
        rank_score=numbers.rank_score,
        coverage=numbers.coverage,
        leakage=numbers.leakage,
        match_cost=numbers.match_cost,
        information_gain=numbers.information_gain,
        best_reference=numbers.best_reference,
        evidence=output.evidence,
        authority=output.authority,
        confirmed=confirmed,
        flags=flags,
        trace=trace,
        profile=stamp.profile,
        settings=stamp.settings,
        engine=stamp.engine,
    )


def intervention(
    stamp: Stamp,
    identity: Identity,
    seq: int,
    output: VerdictOutput,
    name: InterventionName,
    reason: str,
    evidence: tuple[int, ...],
    trace: TraceRef | None = None,
) -> Intervention:
    """Build the record of an intervention.

    A halt rests on the limit of steps or on severe vital signs, never on references alone, so its
    authority is its own and not that of the references behind the step's verdict.
    """
    halts = name is InterventionName.HALT
    run_id, task_id, agent, tenant = identity
    return Intervention(
        id=f"{run_id}:{seq}:{name.value}",
        run_id=run_id,
        seq=seq,
        task_id=task_id,
        agent=agent,
        tenant=tenant,
        intervention=name,
        verdict=output.name,
        severity=3 if halts else output.severity,
        reason=cut(reason) or "",
        evidence=evidence,
        authority=Authority.INTERVENE if halts else output.authority,
        trace=trace,
        profile=stamp.profile,
        settings=stamp.settings,
        engine=stamp.engine,
    )


def parent_halt(
    stamp: Stamp, identity: Identity, seq: int, parent_run_id: str, halts: int
) -> Intervention:
    """Build the halt of a run whose parent was halted.

    Its own steps are not what is wrong: the verdict says no more than WARN.

    Parameters
    ----------
    halts
        How often the run was told to halt before: it may have gone on, and each halt is another
        one, also where no step lies between two.
    """
    run_id, task_id, agent, tenant = identity
    number = "" if halts == 0 else f":{halts + 1}"
    return Intervention(
        id=f"{run_id}:parent:halt{number}",
        run_id=run_id,
        seq=seq,
        task_id=task_id,
        agent=agent,
        tenant=tenant,
        intervention=InterventionName.HALT,
        verdict=VerdictName.WARN,
        severity=3,
        reason=f"the run that started this one, {parent_run_id!r}, was halted; stop here",
        authority=Authority.INTERVENE,
        profile=stamp.profile,
        settings=stamp.settings,
        engine=stamp.engine,
    )


def decision(
    stamp: Stamp,
    identity: Identity,
    seq: int,
    tool: str,
    answer: GateFinding,
    best_reference: str | None,
    call_sha256: str,
    authority: Authority,
) -> Decision:
    """Build the gate's answer; authority that may not block turns a block into unknown."""
    run_id, task_id, agent, tenant = identity
    allowed_to_block = authority is Authority.INTERVENE
    outcome = answer.decision
    if outcome == "block" and not allowed_to_block:
        outcome = "unknown"
    return Decision(
        id=f"{run_id}:{seq}:{call_sha256[:12]}",
        run_id=run_id,
        seq=seq,
        task_id=task_id,
        agent=agent,
        tenant=tenant,
        tool=tool,
        effect=answer.effect.value,
        decision=outcome,
        reasons=tuple(map(_rounded_reason, answer.reasons)),
        evidence=answer.evidence,
        best_reference=best_reference,
        call_sha256=call_sha256,
        authority=authority,
        profile=stamp.profile,
        settings=stamp.settings,
        engine=stamp.engine,
    )


def unsaid(verdict: Verdict, act: Intervention | None) -> Verdict:
    """Return a verdict of a monitor in shadow mode, which keeps what should happen to itself."""
    halts = act is not None and act.intervention is InterventionName.HALT
    return _flagged(verdict, SHADOW, *[WOULD_HALT] * halts)


def unsaid_in_all(card: Scorecard) -> Scorecard:
    """Return the scorecard of a run of which nothing was said: it counts what would have been."""
    return _flagged(card, SHADOW, *[WOULD_HALT] * (InterventionName.HALT in card.interventions))


def _flagged(record: R, *flags: str) -> R:
    return record.model_copy(update={"flags": tuple(dict.fromkeys((*record.flags, *flags)))})


def in_shadow(answer: Decision) -> Decision:
    """Return an answer that stops nothing: its reasons say what it would have been."""
    if answer.decision != "block":
        return answer
    return answer.model_copy(update={"decision": "unknown", "authority": Authority.INFORM})


def scorecard(
    stamp: Stamp,
    identity: Identity,
    event: RunEnded,
    steps: int,
    errors: int,
    cost_usd: float | None,
    verdicts: dict[str, int],
    interventions: dict[str, int],
    flags: tuple[str, ...],
    final: Final | None,
    best_reference: str | None,
    path: PathScore | None = None,
) -> Scorecard:
    """Build the record of a finished run."""
    run_id, task_id, agent, tenant = identity
    return Scorecard(
        id=f"{run_id}:end",
        run_id=run_id,
        task_id=task_id or event.task_id,
        agent=agent,
        tenant=tenant,
        outcome=event.outcome,
        reward=event.reward,
        reason=cut(event.reason),
        steps=steps,
        errors=errors,
        final_score=None if final is None else rounded(final.score),
        final_loss=None if final is None else rounded(final.loss),
        final_converged=None if final is None else final.converged,
        final_coverage=None if final is None else rounded(final.coverage),
        best_reference=best_reference,
        **_path_figures(path),
        verdicts=verdicts,
        interventions=interventions,
        cost_usd=rounded(cost_usd),
        flags=flags,
        profile=stamp.profile,
        settings=stamp.settings,
        engine=stamp.engine,
    )


def _path_figures(path: PathScore | None) -> dict[str, Any]:
    """Return the figures of the path under the names they have in a scorecard."""
    if path is None:
        return {}
    return {
        "reference_coverage": rounded(path.reference_coverage),
        "covered_reference": path.best_reference,
        "missing_steps": path.missing_steps,
        "step_budget": path.step_budget,
        "budget_rule": path.budget_rule,
        "over_budget_by": path.over_budget_by,
        "repeat_ratio": rounded(path.repeat_ratio),
        "extras": None if path.extras is None else asdict(path.extras),
        "unsafe_actions": _unsafe(path),
        "unsafe_count": path.unsafe_count if path.unsafe_checked else None,
        "latency_s": rounded(path.latency_s),
        "defects": path.defects,
    }


def _unsafe(path: PathScore) -> tuple[UnsafeCall, ...] | None:
    if not path.unsafe_checked:
        return None
    return tuple(
        UnsafeCall(
            seq=action.seq,
            tool=action.tool,
            effect=action.effect,
            args_sha256=action.args_sha256,
            reason=cut(action.reason) or "",
        )
        for action in path.unsafe_actions
    )


def cut(text: str | None) -> str | None:
    """Bound a text that comes from outside: outputs must fit on their topics."""
    if text is None or len(text) <= TEXT_CHARACTERS_MAX:
        return text
    return text[: TEXT_CHARACTERS_MAX - 1] + "…"


def _rounded_reason(reason: Reason) -> Reason:
    return reason.model_copy(
        update={
            "value": rounded(reason.value),
            "threshold": rounded(reason.threshold),
            "text": cut(reason.text),
        }
    )
