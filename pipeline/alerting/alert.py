"""An alert: what an intervention or a blocked call says, as far as people are told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Final

from ontrack.pipeline.alerting.settings import GroupField, Route
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.terminal import printable
from ontrack.topics.errors import MessageTooLarge, WrongShape
from ontrack.topics.verdicts import Decision, Intervention, Output

RECORD_BYTES_MAX: Final = 262_144
_TEXT_MAX: Final = 600
_NAME_MAX: Final = 200
_EVIDENCE_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Alert:
    """One intervention, or one blocked call.

    Parameters
    ----------
    id
        Of the intervention or decision.
    verdict, intervention, severity
        As the record says; a blocked call has verdict ``BLOCK`` and severity 3.
    text
        The reason, for people: one line without control characters.
    time_s
        When it was said, in seconds since 1970.
    record
        The original message, for a dead letter.
    again
        Whether somebody sent it again on purpose, as ``ontrack dead-letters replay`` does.
    """

    id: str
    run_id: str
    seq: int
    verdict: str
    intervention: str
    severity: int
    text: str
    authority: str
    time_s: float
    record: Record
    agent: str | None = None
    task: str | None = None
    tenant: str | None = None
    tool: str | None = None
    evidence: tuple[int, ...] = ()
    again: bool = False

    @property
    def place(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.record.topic, self.record.partition

    @property
    def moment(self) -> datetime:
        """When it was said, UTC."""
        return datetime.fromtimestamp(self.time_s, UTC)

    def field(self, name: GroupField) -> str | None:
        """Return what a route can group by."""
        values = {
            "run": self.run_id,
            "agent": self.agent,
            "task": self.task,
            "tenant": self.tenant,
            "verdict": self.verdict,
        }
        return values[name]


def alert_of(output: Output, record: Record, time_s: float, again: bool = False) -> Alert | None:
    """Return what people are to be told of an output; None where that is nothing.

    Raises
    ------
    MessageTooLarge
        The message is longer than any of ours.
    """
    if isinstance(output, Decision) and output.decision != "block":
        return None
    if not isinstance(output, Intervention | Decision):
        return None
    if len(record.value) > RECORD_BYTES_MAX:
        raise MessageTooLarge(
            f"{len(record.value)} bytes; an alert has {RECORD_BYTES_MAX} at most, "
            "and no intervention of OnTrack is as long"
        )
    return Alert(
        id=output.id,
        run_id=output.run_id,
        seq=output.seq,
        verdict="BLOCK" if isinstance(output, Decision) else output.verdict.value,
        intervention="block" if isinstance(output, Decision) else output.intervention.value,
        severity=3 if isinstance(output, Decision) else output.severity,
        text=_line(_reason(output), _TEXT_MAX),
        authority=output.authority.value,
        time_s=time_s,
        record=record,
        agent=None if output.agent is None else output.agent.id,
        task=output.task_id,
        tenant=output.tenant,
        tool=output.tool if isinstance(output, Decision) else None,
        evidence=output.evidence[:_EVIDENCE_MAX],
        again=again,
    )


def expected(output: Output, topic: str) -> None:
    """Refuse what has no business on a topic of interventions or decisions.

    Raises
    ------
    WrongShape
        It is neither.
    """
    if not isinstance(output, Intervention | Decision):
        raise WrongShape(
            f"a {output.type} on {topic[:120]!r}; expected an intervention or a decision"
        )


def matches(route: Route, alert: Alert) -> bool:
    """Tell whether all conditions of a route hold for an alert."""
    if alert.severity < route.severity_min:
        return False
    pairs = (
        (route.agent, alert.agent),
        (route.task, alert.task),
        (route.tenant, alert.tenant),
        (route.verdict, alert.verdict),
        (route.intervention, alert.intervention),
    )
    return all(not patterns or _fits(patterns, value) for patterns, value in pairs)


def _fits(patterns: tuple[str, ...], value: str | None) -> bool:
    return value is not None and any(
        pattern == value or fnmatchcase(value, pattern) for pattern in patterns
    )


def _reason(output: Intervention | Decision) -> str:
    if isinstance(output, Intervention):
        return output.reason
    why = "; ".join(reason.text for reason in output.reasons) or "the gate gave no reason"
    return f"the call of {output.tool} was blocked: {why}"


def _line(text: str, length_max: int) -> str:
    clean = printable(" ".join(text.split()))
    return clean if len(clean) <= length_max else clean[: length_max - 1] + "…"


def shown_name(text: str | None) -> str:
    """Return a name that an agent may have chosen, fit to stand in a text."""
    return "" if text is None else _line(text, _NAME_MAX)
