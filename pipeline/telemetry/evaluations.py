"""From outputs to evaluation events of the OpenTelemetry GenAI conventions; pure, without the SDK.

The event is ``gen_ai.evaluation.result`` (semantic conventions for GenAI, still in development): a
log record whose trace context is that of the evaluated operation. Attributes of ours begin with
``ontrack.``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ontrack.topics.events import TraceRef
from ontrack.topics.verdicts import (
    Decision,
    Intervention,
    Output,
    Reason,
    Scorecard,
    Verdict,
    VerdictName,
)

EVENT_NAME = "gen_ai.evaluation.result"
EXPLANATION_CHARACTERS_MAX = 4000
GUARDRAIL = "ontrack"

Value = str | bool | int | float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One event to send.

    Parameters
    ----------
    attributes
        By name; nothing is None.
    warns
        Whether it is a warning or a piece of information.
    trace
        Where the evaluated step stands in a trace, if it is known.
    """

    attributes: dict[str, Value]
    warns: bool
    trace: TraceRef | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """Which outputs become events, and how much they say.

    Parameters
    ----------
    verdicts
        ``not_ok``: verdicts other than OK, interventions and scorecards; ``all``: OK as well.
    guardrails
        Also the gate's decisions, with the attributes that are proposed for guardrails.
    quotes_arguments
        The texts of verdicts may quote arguments (``show_arguments``). Then events give figures in
        their place: arguments are not exported.
    """

    verdicts: Literal["all", "not_ok"] = "not_ok"
    guardrails: bool = False
    quotes_arguments: bool = False

    def evaluation(self, output: Output) -> Evaluation | None:
        """Return the event of an output; None if it is not to be told."""
        if isinstance(output, Verdict):
            if output.verdict is VerdictName.OK and self.verdicts != "all":
                return None
            return self._of_verdict(output)
        if isinstance(output, Intervention):
            return self._of_intervention(output)
        if isinstance(output, Scorecard):
            return _of_scorecard(output)
        if isinstance(output, Decision) and self.guardrails:
            if output.decision == "allow" and self.verdicts != "all":
                return None
            return self._of_decision(output)
        return None

    def explanation(self, reasons: Iterable[Reason]) -> str | None:
        """Say why: the sentences of the reasons, or their figures where sentences may quote."""
        said = [_figures(item) if self.quotes_arguments else item.text for item in reasons]
        return " ".join(said) or None

    def _of_verdict(self, verdict: Verdict) -> Evaluation:
        attributes = {
            **_evaluated("ontrack.verdict", verdict.verdict.value, verdict.score),
            "gen_ai.evaluation.explanation": self.explanation(verdict.reasons),
            **_where(verdict),
            "gen_ai.tool.name": verdict.tool,
            "ontrack.seq": verdict.seq,
            "ontrack.severity": verdict.severity,
            "ontrack.authority": verdict.authority.value,
            "ontrack.confirmed": verdict.confirmed,
        }
        return Evaluation(_sound(attributes), verdict.severity >= 2, verdict.trace)

    def _of_intervention(self, intervention: Intervention) -> Evaluation:
        kind = intervention.intervention.value
        agent = intervention.agent
        attributes = {
            **_evaluated("ontrack.intervention", kind, None),
            "gen_ai.evaluation.explanation": (
                intervention.verdict.value if self.quotes_arguments else intervention.reason
            ),
            **_where(intervention),
            "gen_ai.agent.id": None if agent is None else agent.id,
            "ontrack.seq": intervention.seq,
            "ontrack.severity": intervention.severity,
            "ontrack.authority": intervention.authority.value,
            "ontrack.verdict": intervention.verdict.value,
        }
        return Evaluation(_sound(attributes), True, intervention.trace)

    def _of_decision(self, decision: Decision) -> Evaluation:
        why = self.explanation(decision.reasons)
        attributes = {
            **_evaluated("ontrack.gate", decision.decision, None),
            "gen_ai.evaluation.explanation": why,
            **_where(decision),
            "gen_ai.tool.name": decision.tool,
            "ontrack.seq": decision.seq,
            "ontrack.authority": decision.authority.value,
            "ontrack.effect": decision.effect,
            **guardrail(decision.decision),
            "gen_ai.guardrail.verdict.reason": why,
        }
        return Evaluation(_sound(attributes), decision.decision == "block")


def guardrail(decision: str, call_id: str | None = None) -> dict[str, Value]:
    """Return what is proposed for guardrails (semantic-conventions-genai, pull request 427).

    Names may change until it is merged. What the caller did with the answer is not known here, so
    ``gen_ai.guardrail.action.type`` is left out.
    """
    attributes: dict[str, Value | None] = {
        "gen_ai.operation.name": "run_guardrail",
        "gen_ai.guardrail.component.name": GUARDRAIL,
        "gen_ai.guardrail.verdict.type": "deny" if decision == "block" else decision,
        "gen_ai.guardrail.target.type": "input",
        "gen_ai.guardrail.target.subtype": "tool_call",
        "gen_ai.guardrail.target.id": call_id,
    }
    return _sound(attributes)


def _of_scorecard(scorecard: Scorecard) -> Evaluation:
    """Evaluate the conversation as a whole; what the host said of its end is not passed on."""
    agent = scorecard.agent
    label = _gravest(scorecard.verdicts)
    attributes = {
        **_evaluated("ontrack.final_score", label, scorecard.final_score),
        "gen_ai.evaluation.explanation": _summary(scorecard),
        **_where(scorecard),
        "gen_ai.agent.id": None if agent is None else agent.id,
        "gen_ai.agent.name": None if agent is None else agent.name,
        "gen_ai.agent.version": None if agent is None else agent.version,
        "ontrack.outcome": scorecard.outcome,
        "ontrack.steps": scorecard.steps,
        "ontrack.errors": scorecard.errors,
        "ontrack.interventions": sum(scorecard.interventions.values()),
        "ontrack.reference_coverage": scorecard.reference_coverage,
        "ontrack.over_budget_by": scorecard.over_budget_by,
        "ontrack.unsafe_calls": scorecard.unsafe_count,
        "ontrack.cost_usd": scorecard.cost_usd,
    }
    return Evaluation(_sound(attributes), bool(scorecard.interventions))


def _evaluated(name: str, label: str | None, score: float | None) -> dict[str, Value | None]:
    return {
        "gen_ai.evaluation.name": name,
        "gen_ai.evaluation.score.label": label,
        "gen_ai.evaluation.score.value": score,
    }


def _where(output: Verdict | Intervention | Decision | Scorecard) -> dict[str, Value | None]:
    return {
        "gen_ai.conversation.id": output.run_id,
        "ontrack.id": output.id,
        "ontrack.task_id": output.task_id,
        "ontrack.profile": output.profile,
        "ontrack.settings": output.settings,
        "ontrack.engine": output.engine,
    }


def _figures(reason: Reason) -> str:
    """Give a reason without its sentence."""
    value = "" if reason.value is None else f" {reason.value:g}"
    threshold = "" if reason.threshold is None else f" (threshold {reason.threshold:g})"
    return f"{reason.signal}{value}{threshold}."


def _gravest(verdicts: dict[str, int]) -> str | None:
    """Return the last verdict, in the order of their definition, that was given at all."""
    given = [name.value for name in VerdictName if verdicts.get(name.value)]
    return given[-1] if given else None


def _summary(scorecard: Scorecard) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in scorecard.verdicts.items() if count)
    said = [f"{scorecard.steps} steps" + (f": {counts}" if counts else "")]
    if scorecard.interventions:
        done = ", ".join(f"{count} {name}" for name, count in scorecard.interventions.items())
        said.append(f"interventions: {done}")
    if scorecard.reference_coverage is not None:
        said.append(f"reference covered to {scorecard.reference_coverage:.0%}")
    return "; ".join(said) + "."


def _sound(attributes: dict[str, Value | None]) -> dict[str, Value]:
    """Leave out what is not known; make texts such that they can be encoded, and short enough."""
    return {
        name: encodable(value) if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None
    }


def encodable(value: str) -> str:
    """Cut a long text, and replace what UTF-8 cannot hold: it would cost the whole batch."""
    cut = value[:EXPLANATION_CHARACTERS_MAX]
    return cut if cut.isascii() else cut.encode("utf-8", "replace").decode("utf-8")
