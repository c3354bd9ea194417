"""Events of agent runs, as they stand on ``ontrack.events`` and in event files."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, Strict

RunId = Annotated[str, Field(min_length=1, max_length=512)]
Seq = Annotated[int, Strict(), Field(ge=0, le=2**53)]
ArtifactId = Annotated[str, Field(min_length=1, max_length=1024)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
NonNegative = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]


def _agent_from_name(value: object) -> object:
    return {"id": value} if isinstance(value, str) else value


def _null_means_empty(value: object) -> object:
    return {} if value is None else value


def _null_means_none_of_them(value: object) -> object:
    return () if value is None else value


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="null")


class Agent(_Model):
    """Who runs: a stable id, a name for people, a version."""

    id: str | None = Field(default=None, max_length=512)
    name: str | None = Field(default=None, max_length=512)
    version: str | None = Field(default=None, max_length=512)


class ErrorInfo(_Model):
    """What a tool call failed with."""

    type: str | None = None
    message: str | None = None


def _error_from_text(value: object) -> object:
    """Hosts write errors as text or as a flag; both keep their meaning."""
    if isinstance(value, str):
        return {"message": value}
    if value is True:
        return {"type": "error"}
    return None if value is False else value


class Tokens(_Model):
    """Tokens that a step spent."""

    input: Annotated[int, Strict(), Field(ge=0)] | None = None
    output: Annotated[int, Strict(), Field(ge=0)] | None = None


class TraceRef(_Model):
    """Where a step stands in a distributed trace (W3C Trace Context), in lower-case hex."""

    trace_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    span_id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = None


class _Event(_Model):
    run_id: RunId
    seq: Seq | None = None
    time: AwareDatetime | None = None
    agent: (
        Annotated[Agent, BeforeValidator(_agent_from_name, json_schema_input_type=str | Agent)]
        | None
    ) = None
    task_id: str | None = Field(default=None, max_length=512)
    tenant: str | None = Field(default=None, max_length=256)
    parent_run_id: RunId | None = None
    trace: TraceRef | None = None


class RunStarted(_Event):
    """A run begins. Optional: the first step starts a run as well."""

    type: Literal["run_started"] = "run_started"


class Call(_Model):
    """What an agent does in one step: its stated intent, the tool and the arguments."""

    action: str | None = None
    tool: Name
    args: Annotated[
        dict[str, Any],
        BeforeValidator(_null_means_empty, json_schema_input_type=dict[str, Any] | None),
    ] = Field(default_factory=dict)


ArtifactIds = Annotated[
    tuple[ArtifactId, ...],
    BeforeValidator(_null_means_none_of_them, json_schema_input_type=tuple[ArtifactId, ...] | None),
]


class Step(_Event, Call):
    """One step of a run: a tool call with what came back.

    ``parents`` are sequence numbers of the steps this one depends on; ``consumed`` and
    ``produced`` are artifact ids. Each may be missing (the three grades of metadata).
    """

    type: Literal["step"] = "step"
    result: Any = None
    error: Annotated[
        ErrorInfo | None,
        BeforeValidator(_error_from_text, json_schema_input_type=str | bool | ErrorInfo | None),
    ] = None
    call_id: str | None = None
    parents: tuple[Seq, ...] | None = None
    consumed: ArtifactIds | None = None
    produced: ArtifactIds | None = None
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    cost_usd: NonNegative | None = None
    tokens: Tokens | None = None


Outcome = Literal["success", "failure", "cancelled", "unknown"]


class RunEnded(_Event):
    """A run is over; the final solve and the scorecard follow."""

    type: Literal["run_ended"] = "run_ended"
    outcome: Outcome = "unknown"
    reward: Annotated[float, Strict(), Field(allow_inf_nan=False)] | None = None
    reason: str | None = None


class RunResumed(_Event):
    """A person lets a halted run go on; from here on it is warned and halted anew."""

    type: Literal["run_resumed"] = "run_resumed"


class Proposal(_Event, Call):
    """A tool call asked about before it runs (``ontrack.proposals``)."""

    type: Literal["proposal"] = "proposal"
    call_id: str | None = None


class GapClosed(_Event):
    """The steps before ``seq`` are not waited for any longer (written by a worker)."""

    type: Literal["gap_closed"] = "gap_closed"
    seq: Seq


class ChildStarted(_Event):
    """The run has started another one (written by a worker, under the parent's run id)."""

    type: Literal["child_started"] = "child_started"
    child_run_id: RunId


class ParentHalted(_Event):
    """The run that started this one was halted (written by a worker, under the child's run id)."""

    type: Literal["parent_halted"] = "parent_halted"
    parent_run_id: RunId


class ModeChanged(_Event):
    """The run is in shadow mode from here on, or no longer (written by a worker)."""

    type: Literal["mode_changed"] = "mode_changed"
    shadow: bool


#: What workers write into the log, so that every reader of it comes to the same end.
Notice = GapClosed | ChildStarted | ParentHalted | ModeChanged
Event = RunStarted | Step | RunEnded | RunResumed | Notice
AnyEvent = Annotated[Event, Field(discriminator="type")]
EVENT_TYPES: tuple[str, ...] = tuple(kind.model_fields["type"].default for kind in get_args(Event))
