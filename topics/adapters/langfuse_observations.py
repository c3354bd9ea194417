"""Observations of a Langfuse trace, and which of them are the execution of a tool."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from ontrack.topics.adapters.messages import answer_of_message, failure
from ontrack.topics.adapters.parts import NO_TOOL, args_of, content_of, dig, id_of, text_of
from ontrack.topics.adapters.traces import time_of
from ontrack.topics.errors import InvalidEvent, WrongShape
from ontrack.topics.jsontext import described, parse

_KINDS: Final = (
    "SPAN", "EVENT", "GENERATION", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING",
    "GUARDRAIL",
)  # fmt: skip
_TOOL_MARKS: Final = (
    ("gen_ai.operation.name", "execute_tool"),
    ("openinference.span.kind", "TOOL"),
    ("langsmith.span.kind", "tool"),
    ("ai.operationId", "ai.toolCall"),
)
_TOOL_NAMES: Final = ("gen_ai.tool.name", "tool.name", "ai.toolCall.name")
_CALL_IDS: Final = ("gen_ai.tool.call.id", "ai.toolCall.id", "tool_call.id")
_ARGS: Final = (
    "gen_ai.tool.call.arguments", "tool_arguments", "gcp.vertex.agent.tool_call_args",
    "ai.toolCall.args", "tool.parameters", "input.value",
)  # fmt: skip
_RESULTS: Final = (
    "gen_ai.tool.call.result", "tool_response", "gcp.vertex.agent.tool_response",
    "ai.toolCall.result", "output.value",
)  # fmt: skip
#: How the JSON texts begin that are read: objects, lists, texts, null.
_JSON: Final = ("{", "[", '"', "n")

#: Where what has no time is put.
LATE: Final = datetime.max.replace(tzinfo=UTC)


class Observation(NamedTuple):
    """What is read of an observation; ``given`` and ``returned`` are its input and output."""

    id: str | None
    parent: str | None
    kind: str
    name: str
    begun: datetime | None
    ended: datetime | None
    attributes: dict[str, Any]
    given: Any
    returned: Any
    record: dict[str, Any]

    def first(self, names: tuple[str, ...]) -> Any:
        """Return the first attribute that is there."""
        return next((self.attributes[n] for n in names if self.attributes.get(n) is not None), None)


def observations_of(records: list[Any]) -> Iterator[Observation]:
    """Read observations in the order in which they began."""
    read: list[tuple[datetime, int, Observation]] = []
    for position, record in enumerate(records):
        if not isinstance(record, dict) or kind_of(record) is None:
            raise WrongShape(
                f"observations[{position}]: expected an observation with a `type`, "
                f"found {described(record)}"
            )
        metadata = value_of(record.get("metadata"))
        attributes = dig(metadata, "attributes")
        begun = time_of(record.get("startTime"))
        observation = Observation(
            id=id_of(record.get("id")),
            parent=id_of(record.get("parentObservationId")),
            kind=record["type"],
            name=id_of(record.get("name")) or "",
            begun=begun,
            ended=time_of(record.get("endTime")),
            attributes=attributes if isinstance(attributes, dict) else {},
            given=value_of(record.get("input")),
            returned=value_of(record.get("output")),
            record=record,
        )
        read.append((begun or LATE, position, observation))
    yield from (observation for _, _, observation in sorted(read, key=lambda item: item[:2]))


def kind_of(record: dict[str, Any]) -> str | None:
    """Return the type of an observation, None where it is none."""
    kind = record.get("type")
    return kind if isinstance(kind, str) and kind in _KINDS else None


def value_of(stored: Any) -> Any:
    """Return an input, output or metadata; Langfuse stores them as JSON texts."""
    if not isinstance(stored, str) or stored.lstrip()[:1] not in _JSON:
        return stored
    try:
        value = parse(stored.encode("utf-8", "replace")).value
    except InvalidEvent:
        return stored
    return value if value is None or isinstance(value, dict | list | str) else stored


def is_tool(observation: Observation) -> bool:
    """Tell whether an observation is the execution of a tool."""
    if observation.kind == "TOOL":
        return True
    if observation.kind != "SPAN":
        return False
    attributes = observation.attributes
    if any(attributes.get(name) == value for name, value in _TOOL_MARKS):
        return True
    # Koog names the tool and nothing else; LangGraph's tools answer with a tool's message.
    return (
        attributes.get("gen_ai.tool.name") is not None
        or answer_of_message(observation.returned) is not None
    )


def step_of(observation: Observation) -> dict[str, Any]:
    """Return the fields of the step that the execution of a tool is."""
    answer = answer_of_message(observation.returned)
    result = observation.returned
    if answer is not None:
        result = answer.content
    elif result in (None, {}):
        result = _first_value(observation, _RESULTS, result)
    elif isinstance(result, dict) and set(result) <= {"content", "isError", "is_error"}:
        result = content_of(result.get("content"))
    given = observation.given
    args = _first_value(observation, _ARGS, given) if given in (None, {}) else given
    return {
        "tool": id_of(observation.first(_TOOL_NAMES)) or observation.name or NO_TOOL,
        "args": args_of(args),
        "result": result,
        "error": _error(observation) or (answer.error if answer is not None else None),
        "call_id": id_of(observation.first(_CALL_IDS)) or (answer.call_id if answer else None),
        "time": observation.begun,
        "started_at": observation.begun,
        "ended_at": observation.ended,
    }


def _first_value(observation: Observation, names: tuple[str, ...], otherwise: Any) -> Any:
    """Return the first attribute that says something, as a value."""
    values = (value_of(observation.attributes.get(name)) for name in names)
    return next((value for value in values if value not in (None, {}, "")), otherwise)


def _error(observation: Observation) -> dict[str, Any] | None:
    said = observation.record.get("statusMessage")
    message = said if isinstance(said, str) and said else None
    kind = id_of(observation.attributes.get("error.type"))
    if observation.record.get("level") == "ERROR" or kind is not None:
        return failure(message, kind or "error")
    returned = observation.returned
    if dig(returned, "isError") is True or dig(returned, "is_error") is True:
        return failure(text_of(dig(returned, "content")))
    return None
