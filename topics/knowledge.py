"""What runs are compared with: tool contracts, references and tasks."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from ontrack.topics.events import ArtifactIds, Call, ErrorInfo, Name, Seq, Step


class Effect(StrEnum):
    """What a tool can do to the world."""

    READ = "read"
    WRITE = "write"
    DESTRUCTIVE = "destructive"
    UNKNOWN = "unknown"


class Provenance(StrEnum):
    """Where a reference comes from; it scales the authority of verdicts."""

    GOLD = "gold"
    MINED = "mined"
    AXIOMATIC = "axiomatic"
    GENERATED = "generated"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class ToolAnnotations(_Model):
    """MCP tool annotations: hints from the tool's server, not facts."""

    read_only: bool | None = Field(default=None, alias="readOnlyHint")
    destructive: bool | None = Field(default=None, alias="destructiveHint")
    idempotent: bool | None = Field(default=None, alias="idempotentHint")
    open_world: bool | None = Field(default=None, alias="openWorldHint")


def _no_annotations(value: object) -> object:
    return {} if value is None else value


class ToolContract(_Model):
    """One tool: an MCP tool with what OnTrack adds beside its annotations.

    ``produces`` and ``consumes`` are paths to artifact ids. ``args.order.id`` and
    ``result.items[*].id`` name their side; a bare path means the arguments for ``consumes`` and
    the result for ``produces``; ``=tests_passed`` is a literal artifact id.
    """

    name: Name
    description: str | None = None
    input_schema: dict[str, Any] | None = Field(default=None, alias="inputSchema")
    annotations: Annotated[ToolAnnotations, BeforeValidator(_no_annotations)] = Field(
        default_factory=ToolAnnotations
    )
    declared_effect: Literal["read", "write", "destructive"] | None = Field(
        default=None, alias="effect"
    )
    domain: str | None = None
    external: bool | None = None
    poll: bool = False
    identity: tuple[str, ...] | None = None
    produces: tuple[str, ...] = ()
    consumes: tuple[str, ...] = ()

    @property
    def effect(self) -> Effect:
        """The effect class; what is declared wins over annotations, missing means destructive.

        Source: MCP tool annotations (``destructiveHint`` defaults to true).
        """
        if self.declared_effect is not None:
            return Effect(self.declared_effect)
        if self.annotations.read_only:
            return Effect.READ
        return Effect.WRITE if self.annotations.destructive is False else Effect.DESTRUCTIVE


def _step_from_name(value: object) -> object:
    return {"tool": value} if isinstance(value, str) else value


class ReferenceStep(Call):
    """One step of a reference: event fields without what belongs to a live run."""

    seq: Seq | None = None
    result: Any = None
    error: ErrorInfo | None = None
    parents: tuple[Seq, ...] | None = None
    consumed: ArtifactIds | None = None
    produced: ArtifactIds | None = None

    @classmethod
    def of(cls, step: Step) -> ReferenceStep:
        """Keep of a recorded step what a reference needs."""
        return cls(**{name: getattr(step, name) for name in cls.model_fields})


class SetTest(_Model):
    """Self-test of a reference set: its members, each judged by the others.

    ``blocked``: members that the gate would have stopped. ``orphan_steps``: steps without a
    counterpart in any other member. ``warns``: rules that may warn on this set and not intervene.
    """

    members: int
    blocked: int
    steps: int
    orphan_steps: int
    gate_mode: Literal["values", "sources"]
    warns: tuple[str, ...] = ()


class Mined(_Model):
    """How a reference was mined from a recorded success.

    Parameters
    ----------
    source
        File's name, or topic, partition and offset.
    run_at
        When the run ran, by its own events.
    successes
        Of the task, among which it was chosen.
    retries, dead_ends
        Sequence numbers of the run's steps that were left out.
    effects
        What its tools could do by their contracts when it was mined.
    set_test
        Of the whole set of the task.
    """

    source: str
    run_at: AwareDatetime | None = None
    successes: int
    retries: tuple[Seq, ...] = ()
    dead_ends: tuple[Seq, ...] = ()
    effects: dict[str, Effect] = Field(default_factory=dict)
    set_test: SetTest | None = None


class Reference(_Model):
    """A known-good run of a task (``ontrack.references``)."""

    type: Literal["reference"] = "reference"
    reference_id: Annotated[str, Field(min_length=1, max_length=512)]
    task_id: Annotated[str, Field(min_length=1, max_length=512)]
    provenance: Provenance = Provenance.MINED
    run_id: str | None = None
    steps: tuple[ReferenceStep, ...] = Field(min_length=1, max_length=512)
    mined: Mined | None = None


class StepBudget(_Model):
    """How many steps a task may take, and by which rule the number came about."""

    rule: Literal["reference_plus", "median_plus_sd", "fixed"]
    value: Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _budget_from_number(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"rule": "fixed", "value": value}
    return value


class AllowedEffect(_Model):
    """An effectful call that a task may make, optionally under a condition on its arguments."""

    tool: Name
    when: str | None = None


def _allowed_from_name(value: object) -> object:
    return {"tool": value} if isinstance(value, str) else value


class Task(_Model):
    """What a task expects and allows (``ontrack.tasks``).

    ``goals`` are tools that it comes down to, or artifacts as contracts name them; axiomatic
    references are made from them.
    """

    type: Literal["task"] = "task"
    id: Annotated[str, Field(min_length=1, max_length=512)]
    references: tuple[
        tuple[Annotated[ReferenceStep, BeforeValidator(_step_from_name)], ...], ...
    ] = ()
    step_budget: Annotated[StepBudget, BeforeValidator(_budget_from_number)] | None = None
    allowed: tuple[Annotated[AllowedEffect, BeforeValidator(_allowed_from_name)], ...] | None = None
    goals: tuple[Name, ...] = ()
    cost_usd_max: Annotated[float, Field(ge=0)] | None = None
    latency_s_max: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _no_empty_reference(self) -> Task:
        for index, reference in enumerate(self.references):
            if not reference:
                raise ValueError(
                    f"reference {index} of task {self.id!r} has no steps; "
                    "leave it out or name at least one tool"
                )
        return self

    def written_references(self) -> tuple[Reference, ...]:
        """Return the references that stand in the task itself, as gold references."""
        return tuple(
            Reference(
                reference_id=f"{self.id}/{index}",
                task_id=self.id,
                provenance=Provenance.GOLD,
                steps=steps,
            )
            for index, steps in enumerate(self.references)
        )
