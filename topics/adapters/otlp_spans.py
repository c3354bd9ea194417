"""One span of an OTLP document in JSON: ids, times, attributes and what they say of a tool call.

Attribute names, the current ones first (OpenTelemetry GenAI conventions), then older ones and those
of OpenInference, OpenLLMetry, the AI SDK and ADK, stand in the tables below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from ontrack.topics.adapters.otlp_values import (
    attributes_of,
    checked_objects,
    count_of,
    field_of,
    first_of,
    hex_id,
    integer_of,
    name_of,
    objects_of,
)
from ontrack.topics.adapters.parts import args_of, built, dig, id_of, list_of, number_of
from ontrack.topics.adapters.traces import SPAN_BYTES, bytes_of
from ontrack.topics.errors import WrongShape
from ontrack.topics.events import RunStarted, Step
from ontrack.topics.jsontext import described, shown

_TOOL: Final = ("gen_ai.tool.name", "tool.name", "tool_name", "ai.toolCall.name")
_CALL_ID: Final = ("gen_ai.tool.call.id", "tool_call.id", "ai.toolCall.id")
_ARGS: Final = (
    "gen_ai.tool.call.arguments",
    "gen_ai.tool.arguments",
    "gen_ai.tool.input",
    "tool_arguments",
    "tool.parameters",
    "ai.toolCall.args",
    "gcp.vertex.agent.tool_call_args",
    "traceloop.entity.input",
    "input.value",
)
_RESULT: Final = (
    "gen_ai.tool.call.result",
    "gen_ai.tool.result",
    "gen_ai.tool.output",
    "tool_response",
    "ai.toolCall.result",
    "gcp.vertex.agent.tool_response",
    "traceloop.entity.output",
    "output.value",
)
_CONVERSATION: Final = "gen_ai.conversation.id"
#: On a span that is of an agent's run at all; elsewhere it is a visitor's of a web site.
_SESSION: Final = "session.id"
_TASK: Final = ("ontrack.task_id",)
_INPUT_TOKENS: Final = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT_TOKENS: Final = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_COST: Final = ("gen_ai.usage.cost", "operation.cost", "llm.cost.total")
_AGENT_OPERATIONS: Final = ("invoke_agent", "invoke_workflow")
_AGENT_KINDS: Final = ("AGENT", "agent", "workflow")
_KINDS: Final = ("openinference.span.kind", "traceloop.span.kind")
#: How a tool's span was named before it had an operation.
_NAMED: Final = ("execute_tool ", "running tool: ")
#: An event of a span, the field that holds the content, and what it is of the call.
_CONTENT_EVENTS: Final = (
    ("gen_ai.tool.message", "content", "args"),
    ("gen_ai.choice", "message", "result"),
)
_ERROR_STATUS: Final = (2, "2", "STATUS_CODE_ERROR", "ERROR", "Error")
_OK_STATUS: Final = (1, "1", "STATUS_CODE_OK", "OK", "Ok")


class Key(NamedTuple):
    """What names a span."""

    trace: str
    span: str


class Span(NamedTuple):
    """What is kept of a span.

    Parameters
    ----------
    key, parent : Key
        Its name and that of the span above it.
    place : int
        The number of the record it came in.
    start, end : int or None
        Nanoseconds since 1970.
    links : tuple of Key
        Spans that it follows from.
    is_agentic, is_agent : bool
        Whether it is of an agent's run at all; whether it is the agent's own span.
    tool : dict or None
        The fields of a step, for a span of a tool call.
    size : int
        About how many bytes it takes.
    """

    key: Key
    parent: Key | None
    place: int
    start: int | None
    end: int | None
    links: tuple[Key, ...]
    is_agentic: bool
    is_agent: bool
    conversation: str | None
    agent: dict[str, Any] | None
    task_id: str | None
    error: dict[str, Any] | None
    tool: dict[str, Any] | None
    size: int


def is_document(value: object) -> bool:
    """Tell whether a value is a document of spans."""
    return isinstance(value, dict) and isinstance(field_of(value, "resourceSpans"), list)


def span_count(document: object) -> int:
    """Return how many spans a document holds, good ones and others."""
    return sum(
        len(list_of(field_of(scope, "spans")))
        for resource in list_of(field_of(document, "resourceSpans"))
        for scope in list_of(field_of(resource, "scopeSpans", "instrumentationLibrarySpans"))
    )


def spans_of(
    document: object, place: int, on_bad: Callable[[WrongShape], None] | None = None
) -> Iterator[Span]:
    """Yield the spans of a document.

    Parameters
    ----------
    on_bad : callable, optional
        Called with what is wrong with a span, which is then passed over.

    Raises
    ------
    WrongShape
        Naming the span, or where it stands; a span only without ``on_bad``.
    """
    for number, resource in enumerate(objects_of(document, "resourceSpans")):
        attributes = attributes_of(dig(resource, "resource", "attributes"))
        service = _of_service(attributes)
        scopes = field_of(resource, "scopeSpans", "instrumentationLibrarySpans")
        for scope in checked_objects(scopes, f"resourceSpans[{number}].scopeSpans"):
            for item in objects_of(scope, "spans"):
                try:
                    span = _span(item, attributes, service, place)
                except WrongShape as error:
                    if on_bad is None:
                        raise
                    on_bad(error)
                    continue
                if span is not None:
                    yield span


def _span(
    item: dict[str, Any], resource: dict[str, Any], service: dict[str, Any] | None, place: int
) -> Span | None:
    trace, own = hex_id(field_of(item, "traceId")), hex_id(field_of(item, "spanId"))
    if trace is None or own is None:
        raise WrongShape(
            f"a span {described(item.get('name'))}: `traceId` or `spanId` is missing or no id"
        )
    attributes = attributes_of(item.get("attributes"))
    if attributes.get("logfire.span_type") == "pending_span":
        return None  # announces a span that follows under an id of its own
    operation = attributes.get("gen_ai.operation.name")
    kinds = [attributes.get(name) for name in _KINDS]
    tool = _tool(item, attributes) if _is_tool(item, attributes, operation, kinds) else None
    start = integer_of(field_of(item, "startTimeUnixNano"))
    end = integer_of(field_of(item, "endTimeUnixNano"))
    above = hex_id(field_of(item, "parentSpanId"))
    conversation = id_of(attributes.get(_CONVERSATION))
    is_agent = operation in _AGENT_OPERATIONS or any(kind in _AGENT_KINDS for kind in kinds)
    is_agentic = tool is not None or operation is not None or any(kinds)
    is_agentic = is_agentic or conversation is not None
    if is_agentic and conversation is None:
        conversation = id_of(attributes.get(_SESSION))
    span = Span(
        key=Key(trace, own),
        parent=Key(trace, above) if above is not None else None,
        place=place,
        start=start or None,
        end=end or None,
        links=tuple(_links(item)),
        is_agentic=is_agentic,
        is_agent=is_agent,
        conversation=conversation,
        agent=_agent(attributes) or (service if is_agent else None),
        task_id=id_of(first_of(attributes, _TASK)) or id_of(first_of(resource, _TASK)),
        error=_error(item, attributes),
        tool=tool,
        size=SPAN_BYTES + (bytes_of(tool["args"], tool["result"]) if tool else 0),
    )
    _check(span)
    return span


def _check(span: Span) -> None:
    """Refuse here what no event can hold, where the record that holds it can be named."""
    run_id = span.conversation or span.key.trace
    try:
        built(RunStarted, run_id=run_id, agent=span.agent, task_id=span.task_id)
        if span.tool is not None:
            built(Step, run_id=run_id, error=span.error, **span.tool)
    except WrongShape as error:
        raise WrongShape(f"span {shown(span.key.span)}: {error}") from None


def _is_tool(item: dict[str, Any], attributes: dict[str, Any], operation: Any, kinds: Any) -> bool:
    if operation is not None and operation != "ai.toolCall":
        return bool(operation == "execute_tool")
    if any(kind in ("TOOL", "tool") for kind in kinds) or "ai.toolCall.name" in attributes:
        return True
    name = item.get("name")
    named = isinstance(name, str) and (name.startswith(_NAMED) or name == "running tool")
    return named and any(field in attributes for field in (*_TOOL, *_CALL_ID))


def _tool(item: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a step that the span's attributes and events give."""
    given = {"args": first_of(attributes, _ARGS), "result": first_of(attributes, _RESULT)}
    call_id = id_of(first_of(attributes, _CALL_ID))
    for event in list_of(item.get("events")):
        for name, field, what in _CONTENT_EVENTS:
            if dig(event, "name") == name and given[what] is None:
                said = attributes_of(dig(event, "attributes"))
                given[what] = said.get(field)
                call_id = call_id or id_of(said.get("id"))
    tokens = {
        "input": count_of(first_of(attributes, _INPUT_TOKENS)),
        "output": count_of(first_of(attributes, _OUTPUT_TOKENS)),
    }
    cost = number_of(first_of(attributes, _COST))
    return {
        "tool": _tool_name(item, attributes),
        "args": args_of(given["args"]),
        "result": given["result"],
        "call_id": call_id,
        "tokens": tokens if any(count is not None for count in tokens.values()) else None,
        "cost_usd": cost if cost is not None and cost >= 0 else None,
    }


def _tool_name(item: dict[str, Any], attributes: dict[str, Any]) -> str | None:
    stated = first_of(attributes, _TOOL)
    name = item.get("name")
    if stated is None and isinstance(name, str):
        # Without the attribute, the span's name is all there is to go by.
        prefix = next((prefix for prefix in _NAMED if name.startswith(prefix)), "")
        stated = attributes.get("traceloop.entity.name") or name.removeprefix(prefix)
    return stated if isinstance(stated, str) and stated else None


def _error(item: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Any] | None:
    """Return what a span failed with, as its status, ``error.type`` and exceptions say."""
    status = item.get("status")
    code = dig(status, "code")
    if isinstance(code, int | str) and not isinstance(code, bool) and code in _OK_STATUS:
        return None
    exception: dict[str, Any] = {}
    for event in list_of(item.get("events")):
        if dig(event, "name") == "exception":
            said = attributes_of(dig(event, "attributes"))
            if said.get("exception.escaped") not in (False, "False", "false"):
                exception = said
    kind = attributes.get("error.type")
    failed = isinstance(code, int | str) and not isinstance(code, bool) and code in _ERROR_STATUS
    if not failed and kind is None and not exception:
        return None
    message = dig(status, "message") or exception.get("exception.message")
    kind = kind or exception.get("exception.type")
    if message is None and kind is None:
        return {"type": "error", "message": None}
    return {"type": name_of(kind), "message": name_of(message)}


def _agent(attributes: dict[str, Any]) -> dict[str, Any] | None:
    own = name_of(attributes.get("gen_ai.agent.id"))
    name = name_of(first_of(attributes, ("gen_ai.agent.name", "agent.name", "agent_name")))
    if own is None and name is None:
        return None
    version = name_of(attributes.get("gen_ai.agent.version"))
    return {"id": own or name, "name": name, "version": version}


def _of_service(resource: dict[str, Any]) -> dict[str, Any] | None:
    name = name_of(resource.get("service.name"))
    if name is None or name.startswith("unknown_service"):
        return None
    return {"id": name, "name": name, "version": name_of(resource.get("service.version"))}


def _links(item: dict[str, Any]) -> Iterator[Key]:
    for link in list_of(item.get("links")):
        if isinstance(link, dict):
            trace, own = hex_id(field_of(link, "traceId")), hex_id(field_of(link, "spanId"))
            if trace is not None and own is not None:
                yield Key(trace, own)
