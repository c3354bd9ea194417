"""Tool calls and their results as messages state them, whichever provider's shape they have."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ontrack.topics.adapters.parts import content_of, dig, id_of, text_of
from ontrack.topics.errors import WrongShape
from ontrack.topics.jsontext import described

#: Anthropic's content blocks that call a tool: of the client, the server, an MCP server.
CALL_BLOCKS: Final = ("tool_use", "server_tool_use", "mcp_tool_use")
_RESULT_BLOCK: Final = "tool_result"
#: Beyond this, an error's message is cut: the result beside it holds all of it.
ERROR_CHARACTERS_MAX: Final = 2_000
_DATA_CHARACTERS_MAX: Final = 256

# Where messages hold other messages or their parts. Nothing else is entered: what looks like a call
# inside a text, an argument or a result is none.
_CONTAINERS: Final = (
    "choices", "candidates", "generations", "messages", "message", "content", "parts", "output",
    "kwargs", "additional_kwargs", "tool_calls",
)  # fmt: skip


class Stated(NamedTuple):
    """A tool call that a message states."""

    call_id: str | None
    name: Any
    args: Any


class Answer(NamedTuple):
    """A tool's result that a message states; ``error`` as an event takes it."""

    call_id: str | None
    content: Any
    error: Any = None


def call_of_block(block: Any, where: str) -> Stated | None:
    """Return the call that an Anthropic content block makes, None for other blocks.

    Raises
    ------
    WrongShape
        The block calls a tool without naming it.
    """
    if not isinstance(block, dict) or block.get("type") not in CALL_BLOCKS:
        return None
    if not isinstance(block.get("name"), str) or not block["name"]:
        raise WrongShape(
            f"{where}: expected the call of a tool with a `name`, found {described(block)}"
        )
    return Stated(id_of(block.get("id")), block["name"], block.get("input"))


def answer_of_block(block: Any) -> Answer | None:
    """Return the result that an Anthropic content block carries, None for other blocks."""
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str) or not kind.endswith(_RESULT_BLOCK):
        return None
    content = block.get("content")
    code = dig(content, "error_code")
    failed = block.get("is_error") is True or code is not None
    error = failure(text_of(content) or id_of(code)) if failed else None
    return Answer(id_of(block.get("tool_use_id")), content_of(_light(content)), error)


def failure(message: str | None, kind: str = "error") -> dict[str, Any]:
    """Return an error as an event takes it."""
    return {"type": kind, "message": message and message[:ERROR_CHARACTERS_MAX]}


def calls_in(value: Any) -> Iterator[Stated]:
    """Find the calls that a model's answer states, in any of the usual shapes.

    OpenAI ``tool_calls`` and Responses items, Anthropic blocks, parts of the OpenTelemetry GenAI
    conventions, Gemini ``function_call``, LangChain messages, the AI SDK's ``toolName``. A call
    without a name is none. Results, and whatever they hold, are not entered.
    """
    if isinstance(value, list):
        for item in value:
            yield from calls_in(item)
    if not isinstance(value, dict) or value.get("role") in ("tool", "function"):
        return
    if answer_of(value) is not None:
        return
    call = _call(value)
    if call is not None:
        if isinstance(call.name, str) and call.name:
            yield call
        return
    for name in ("function_call", "functionCall"):
        inner = value.get(name)
        if isinstance(inner, dict) and isinstance(inner.get("name"), str) and inner["name"]:
            args = inner.get("args", inner.get("arguments"))
            yield Stated(id_of(inner.get("id")), inner["name"], args)
    for name in _CONTAINERS:
        if isinstance(value.get(name), dict | list):
            yield from calls_in(value[name])


def answers_in(value: Any) -> Iterator[Answer]:
    """Find the results of tools that messages state, where they name the call's id."""
    if isinstance(value, list):
        for item in value:
            yield from answers_in(item)
    if not isinstance(value, dict):
        return
    answer = answer_of(value)
    if answer is not None:
        yield answer
        return
    for name in _CONTAINERS:
        if isinstance(value.get(name), dict | list):
            yield from answers_in(value[name])


def answer_of(value: Any) -> Answer | None:
    """Return the result of a tool that an object is: a tool's message, a part or a block."""
    answer = answer_of_message(value)
    if answer is not None or not isinstance(value, dict):
        return answer
    kind = value.get("type")
    if kind == "tool_call_response" and id_of(value.get("id")):
        return Answer(id_of(value["id"]), value.get("result", value.get("response")))
    if kind == "function_call_output" and id_of(value.get("call_id")):
        return Answer(id_of(value["call_id"]), content_of(value.get("output")))
    if kind == "tool-result" and id_of(value.get("toolCallId")):
        return Answer(id_of(value["toolCallId"]), value.get("output", value.get("result")))
    return answer_of_block(value)


def answer_of_message(value: Any) -> Answer | None:
    """Return the result that a tool's message carries, LangChain's serialised ones included."""
    inner = dig(value, "kwargs") if dig(value, "type") == "constructor" else value
    if not isinstance(inner, dict) or not id_of(inner.get("tool_call_id")):
        return None
    if "content" not in inner:
        return None
    content = content_of(inner["content"])
    failed = inner.get("status") == "error"
    error = failure(text_of(content)) if failed else None
    return Answer(id_of(inner["tool_call_id"]), content, error)


def _light(content: Any) -> Any:
    """Put digests for the data of images and documents: equal ones stay equal, none is carried."""
    if not isinstance(content, list):
        return content
    return [_without_data(part) for part in content]


def _without_data(part: Any) -> Any:
    source = dig(part, "source")
    data = dig(source, "data")
    if not isinstance(data, str) or len(data) <= _DATA_CHARACTERS_MAX:
        return part
    digest = hashlib.sha256(data.encode("utf-8", "replace")).hexdigest()
    rest = {name: value for name, value in source.items() if name != "data"}
    return part | {"source": rest | {"data_sha256": digest}}


def _call(value: dict[str, Any]) -> Stated | None:
    kind, function = value.get("type"), value.get("function")
    if isinstance(function, dict):
        return Stated(id_of(value.get("id")), function.get("name"), function.get("arguments"))
    if kind in CALL_BLOCKS:
        return Stated(id_of(value.get("id")), value.get("name"), value.get("input"))
    if kind == "tool_call":
        args = value.get("arguments", value.get("args"))
        return Stated(id_of(value.get("id")), value.get("name"), args)
    if kind == "function_call":
        return Stated(id_of(value.get("call_id")), value.get("name"), value.get("arguments"))
    if "toolName" in value and "toolCallId" in value:
        args = value.get("input", value.get("args"))
        return Stated(id_of(value["toolCallId"]), value["toolName"], args)
    return None
