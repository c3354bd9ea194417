"""What the monitor says: verdicts, interventions, decisions, scorecards, dead letters.

The JSON of these models is a function of run, step and settings alone: no clock, no offset, no
host. Times of processing and source offsets travel in message headers.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from ontrack.topics.events import Agent, Outcome, TraceRef

#: Flags of a verdict that say how its run stands: it was halted before and nobody has let it go on;
#: it is in shadow mode, so nothing was said; and this step would have halted it.
AFTER_HALT: Final = "after_halt"
SHADOW: Final = "shadow"
WOULD_HALT: Final = "would_halt"


class VerdictName(StrEnum):
    """The eight verdicts of the specification."""

    OK = "OK"
    EXPLORING = "EXPLORING"
    WARN = "WARN"
    LOOP = "LOOP"
    STALLED = "STALLED"
    CAUSAL_INVERSION = "CAUSAL_INVERSION"
    OFF_TRACK = "OFF_TRACK"
    BLOCK = "BLOCK"


class Authority(StrEnum):
    """How far a verdict may go, given where its references come from."""

    INTERVENE = "intervene"
    WARN = "warn"
    INFORM = "inform"


class InterventionName(StrEnum):
    """What should happen, mildest first."""

    WARN = "warn"
    REPLAN = "replan"
    HALT = "halt"
    BLOCK = "block"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="null")


class Reason(_Record):
    """Why: which signal, its value, the threshold it crossed, and a sentence to act on."""

    signal: str
    value: float | None = None
    threshold: float | None = None
    text: str


class Verdict(_Record):
    """One step's verdict (``ontrack.verdicts``). ``id`` is ``run_id:seq``."""

    type: Literal["verdict"] = "verdict"
    id: str
    run_id: str
    seq: int
    task_id: str | None = None
    agent: Agent | None = None
    tenant: str | None = None
    tool: str | None = None
    verdict: VerdictName
    severity: int = Field(ge=0, le=3)
    reasons: tuple[Reason, ...] = ()
    score: float | None = None
    rank_score: float | None = None
    coverage: float | None = None
    leakage: float | None = None
    match_cost: float | None = None
    information_gain: float | None = None
    best_reference: str | None = None
    evidence: tuple[int, ...] = ()
    authority: Authority
    confirmed: bool | None = None
    flags: tuple[str, ...] = ()
    trace: TraceRef | None = None
    profile: str
    settings: str
    engine: str


class Intervention(_Record):
    """Something must happen to a run (``ontrack.interventions``)."""

    type: Literal["intervention"] = "intervention"
    id: str
    run_id: str
    seq: int
    task_id: str | None = None
    agent: Agent | None = None
    tenant: str | None = None
    intervention: InterventionName
    verdict: VerdictName
    severity: int = Field(ge=0, le=3)
    reason: str
    evidence: tuple[int, ...] = ()
    authority: Authority
    trace: TraceRef | None = None
    profile: str
    settings: str
    engine: str


class Decision(_Record):
    """The gate's answer to a proposal (``ontrack.decisions``).

    ``call_sha256`` binds it to the exact canonical call.
    """

    type: Literal["decision"] = "decision"
    id: str
    run_id: str
    seq: int
    task_id: str | None = None
    agent: Agent | None = None
    tenant: str | None = None
    tool: str
    effect: str
    decision: Literal["allow", "block", "unknown"]
    reasons: tuple[Reason, ...] = ()
    evidence: tuple[int, ...] = ()
    best_reference: str | None = None
    call_sha256: str
    authority: Authority
    profile: str
    settings: str
    engine: str


class ExtraCalls(_Record):
    """Calls over budget, by kind; together they are all of them."""

    recovery: int
    redundant_repeat: int
    exploration: int


class UnsafeCall(_Record):
    """A call with an effect that the task does not allow; arguments only as their digest."""

    seq: int
    tool: str
    effect: str
    args_sha256: str
    reason: str


class Scorecard(_Record):
    """A finished run (``ontrack.scorecards``). ``id`` is ``run_id:end``.

    ``best_reference`` is the one that the alignment ends at, ``covered_reference`` the one whose
    calls were made in order as far as ``reference_coverage`` says. ``unsafe_actions`` is null
    where the task does not say what it allows; ``unsafe_count`` counts those left out, too.
    """

    type: Literal["scorecard"] = "scorecard"
    id: str
    run_id: str
    task_id: str | None = None
    agent: Agent | None = None
    tenant: str | None = None
    outcome: Outcome
    reward: float | None = None
    reason: str | None = None
    steps: int
    errors: int
    final_score: float | None = None
    final_loss: float | None = None
    final_converged: bool | None = None
    final_coverage: float | None = None
    best_reference: str | None = None
    reference_coverage: float | None = None
    covered_reference: str | None = None
    missing_steps: tuple[str, ...] = ()
    step_budget: int | None = None
    budget_rule: str | None = None
    over_budget_by: int | None = None
    repeat_ratio: float | None = None
    extras: ExtraCalls | None = None
    unsafe_actions: tuple[UnsafeCall, ...] | None = None
    unsafe_count: int | None = None
    latency_s: float | None = None
    defects: tuple[str, ...] = ()
    verdicts: dict[str, int]
    interventions: dict[str, int]
    cost_usd: float | None = None
    flags: tuple[str, ...] = ()
    profile: str
    settings: str
    engine: str


def was_halted(card: Scorecard) -> bool:
    """Tell whether a finished run was told to halt.

    A monitor in shadow mode counts its halts as well, and keeps them to itself.
    """
    return card.interventions.get(InterventionName.HALT, 0) > 0 and WOULD_HALT not in card.flags


class DeadLetterError(_Record):
    """Which error of :mod:`ontrack.topics.errors`, and its text."""

    name: str
    text: str


class DeadLetter(_Record):
    """A message that could not be used, with its original bytes (``ontrack.dead-letters``).

    ``topic`` is the Kafka topic, or the file it was read from; ``offset`` the offset, or the line.
    ``value_bytes`` is the size of the original; of one over 4 MiB only the beginning is kept.
    """

    type: Literal["dead_letter"] = "dead_letter"
    id: str
    topic: str
    partition: int
    offset: int
    key_base64: str | None = None
    value_base64: str | None = None
    value_bytes: int = 0
    headers: tuple[tuple[str, str | None], ...] = ()
    error: DeadLetterError


Output = Verdict | Intervention | Decision | Scorecard | DeadLetter


def as_plain(record: BaseModel) -> dict[str, Any]:
    """Return a record as plain data, as it would be parsed from its JSON."""
    return record.model_dump(mode="json")
