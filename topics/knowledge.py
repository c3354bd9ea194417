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

from ontrack.topics.events import Agent, ArtifactIds, Call, ErrorInfo, Name, Seq, Step


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


ID_CHARACTERS_MAX = 512
STEPS_MAX = 512  # of a reference


class ToolAnnotations(_Model):
    """MCP tool annotations: hints from the tool's server, not facts."""

    read_only: bool | None = Field(
        default=None, alias="readOnlyHint", description="The tool changes nothing."
    )
    destructive: bool | None = Field(
        default=None,
        alias="destructiveHint",
        description="What it changes may be lost; true where this is missing.",
    )
    idempotent: bool | None = Field(
        default=None, alias="idempotentHint", description="Calling it again changes nothing more."
    )
    open_world: bool | None = Field(
        default=None, alias="openWorldHint", description="It deals with the world outside."
    )


def _no_annotations(value: object) -> object:
    return {} if value is None else value


class ToolContract(_Model):
    """One tool: an MCP tool with what OnTrack adds beside its annotations.

    ``produces`` and ``consumes`` are paths to artifact ids. ``args.order.id`` and
    ``result.items[*].id`` name their side; a bare path means the arguments for ``consumes`` and
    the result for ``produces``; ``=tests_passed`` is a literal artifact id.
    """

    name: Name = Field(description="Name of the tool, as runs call it.")
    description: str | None = Field(default=None, description="What the tool does, for people.")
    input_schema: dict[str, Any] | None = Field(
        default=None, alias="inputSchema", description="JSON Schema of the arguments."
    )
    annotations: Annotated[
        ToolAnnotations,
        BeforeValidator(_no_annotations, json_schema_input_type=ToolAnnotations | None),
    ] = Field(
        default_factory=ToolAnnotations,
        description="Hints of the tool's own MCP server; what is written beside them wins.",
    )
    declared_effect: Literal["read", "write", "destructive"] | None = Field(
        default=None,
        alias="effect",
        description="What the tool can do to the world. Without it the annotations count, and "
        "without these a tool is taken for destructive.",
    )
    domain: str | None = Field(default=None, description="What the tool touches: mail, calendar.")
    external: bool | None = Field(
        default=None, description="Whether an effect reaches people or systems outside the house."
    )
    poll: bool = Field(
        default=False, description="Whether calling it again and again is waiting, not a loop."
    )
    identity: tuple[str, ...] | None = Field(
        default=None, description="Arguments that say what a call is about, such as an id."
    )
    produces: tuple[str, ...] = Field(
        default=(), description="Paths to artifact ids in the result: id, items[*].id, =literal."
    )
    consumes: tuple[str, ...] = Field(
        default=(), description="Paths to artifact ids in the arguments: order.id, =literal."
    )

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
    reference_id: Annotated[str, Field(min_length=1, max_length=ID_CHARACTERS_MAX)]
    task_id: Annotated[str, Field(min_length=1, max_length=512)]
    provenance: Provenance = Provenance.MINED
    run_id: str | None = None
    steps: tuple[ReferenceStep, ...] = Field(min_length=1, max_length=STEPS_MAX)
    mined: Mined | None = None

    @property
    def names_only(self) -> bool:
        """Whether it says which tools, and not on what.

        As references made from contracts and those written down as lists of names do. A recorded
        run without an argument did call its tools without one.
        """
        recorded = self.provenance in (Provenance.MINED, Provenance.GENERATED)
        return not recorded and not any(step.args for step in self.steps)


class StepBudget(_Model):
    """How many steps a task may take, and by which rule the number came about."""

    rule: Literal["reference_plus", "median_plus_sd", "fixed"] = Field(
        description="Where the number comes from: the reference's length plus three, the median "
        "of passing runs plus two standard deviations, or a number someone chose."
    )
    value: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        description="Steps that a run may take."
    )


def _budget_from_number(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"rule": "fixed", "value": value}
    return value


class AllowedEffect(_Model):
    """An effectful call that a task may make, optionally under a condition on its arguments."""

    tool: Name = Field(description="Name of the tool.")
    when: str | None = Field(
        default=None,
        description="Condition in CEL over args, task (the task's vars) and seen(value). Without "
        "it every call is allowed; several entries of one tool are alternatives.",
    )


def _allowed_from_name(value: object) -> object:
    return {"tool": value} if isinstance(value, str) else value


_StepOrName = Annotated[
    ReferenceStep, BeforeValidator(_step_from_name, json_schema_input_type=Name | ReferenceStep)
]
_BudgetOrNumber = Annotated[
    StepBudget,
    BeforeValidator(
        _budget_from_number, json_schema_input_type=Annotated[float, Field(ge=0)] | StepBudget
    ),
]
_AllowedOrName = Annotated[
    AllowedEffect, BeforeValidator(_allowed_from_name, json_schema_input_type=Name | AllowedEffect)
]


class Task(_Model):
    """What a task expects and allows (``ontrack.tasks``).

    ``goals`` are tools that it comes down to, or artifacts as contracts name them; axiomatic
    references are made from them.
    """

    type: Literal["task"] = "task"
    id: Annotated[str, Field(min_length=1, max_length=512)] = Field(
        description="Id of the task, as runs name it in task_id."
    )
    references: tuple[tuple[_StepOrName, ...], ...] = Field(
        default=(),
        description="Known-good ways: each a list of steps, a step a tool's name or an object. "
        "Several valid orders are several references.",
    )
    step_budget: _BudgetOrNumber | None = Field(
        default=None, description="Steps that a run may take: a number, or with its rule."
    )
    allowed: tuple[_AllowedOrName, ...] | None = Field(
        default=None,
        description="Effectful calls that the task may make: names, or objects with a condition. "
        "An empty list allows none; without the list nothing is reported.",
    )
    predicates: dict[Name, str] = Field(
        default_factory=dict,
        description="By tool: a condition in CEL that its calls have to meet besides. The tool "
        "has to be allowed.",
    )
    vars: dict[str, Any] = Field(
        default_factory=dict,
        description="What conditions see as task: the requester, the participants.",
    )
    goals: tuple[Name, ...] = Field(
        default=(), description="Tools or artifacts that the task comes down to."
    )
    cost_usd_max: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="Ceiling of a run's cost in US dollars."
    )
    latency_s_max: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="Ceiling of a run's duration in seconds."
    )

    @model_validator(mode="after")
    def _no_empty_reference(self) -> Task:
        for index, reference in enumerate(self.references):
            if not reference:
                raise ValueError(
                    f"reference {index} of task {self.id!r} has no steps; "
                    "leave it out or name at least one tool"
                )
            # What a written reference could not be would be found out when a run begins: any run.
            if len(reference) > STEPS_MAX:
                raise ValueError(
                    f"reference {index} of task {self.id!r} has {len(reference)} steps; "
                    f"expected at most {STEPS_MAX}"
                )
            if len(f"{self.id}/{index}") > ID_CHARACTERS_MAX:
                raise ValueError(
                    f"the id of a task with references has {len(self.id)} characters; its "
                    f"references are called ID/0 and so on, in {ID_CHARACTERS_MAX} at most"
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


SwitchScope = Literal["all", "agent", "task", "tenant"]


class Switch(_Model):
    """A part of the fleet in shadow mode (``ontrack.switches``); an empty value takes it back.

    Judged as ever, told nothing: no interventions, and the gate stops nothing.
    """

    type: Literal["switch"] = "switch"
    scope: SwitchScope
    name: str | None = Field(default=None, max_length=512)
    reason: str | None = Field(default=None, max_length=2000)
    by: str | None = Field(default=None, max_length=512)

    @model_validator(mode="after")
    def _named(self) -> Switch:
        if (self.scope == "all") != (self.name is None):
            raise ValueError("`name` says which agent, task or tenant; with scope all it is null")
        return self

    @property
    def key(self) -> str:
        """The message key: one switch for each part of the fleet."""
        return self.scope if self.name is None else f"{self.scope}:{self.name}"

    def covers(self, agent: Agent | None, task_id: str | None, tenant: str | None) -> bool:
        """Tell whether a run is of this part.

        An agent is meant by its id and by its name: pages and tables show the one or the other, and
        many hosts say a name alone.
        """
        if self.scope == "all":
            return True
        if self.scope == "agent":
            return agent is not None and self.name in (agent.id, agent.name)
        return self.name == (task_id if self.scope == "task" else tenant)
