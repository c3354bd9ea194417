"""Chat messages with tool calls: OpenAI's, and Anthropic's with their content blocks.

A run is a list of messages, or an object with ``messages`` and, where known, ``run_id`` (or
``id``), ``task_id``, ``model``, ``success`` or ``outcome``, and ``reward``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from ontrack.topics.adapters.messages import Answer, answer_of_block, call_of_block
from ontrack.topics.adapters.parts import (
    Origin,
    args_of,
    built,
    content_of,
    dig,
    id_of,
    list_of,
    number_of,
    outcome_of,
    text_of,
)
from ontrack.topics.errors import WrongShape
from ontrack.topics.events import Event, RunEnded, RunStarted, Step
from ontrack.topics.jsontext import described

NAME = "chat"


def recognise(head: object) -> bool:
    """Tell whether a parsed record is a conversation."""
    messages = head.get("messages") if isinstance(head, dict) else head
    if not isinstance(messages, list) or not messages:
        return False
    return isinstance(messages[0], dict) and "role" in messages[0]


def events(record: object, origin: Origin) -> Iterator[Event]:
    """Yield the run's start, a step a tool call, and its end.

    A result belongs to the call whose id it names; a call without a result becomes a step without
    one. The assistant's text is the ``action`` of every call in the same message.

    Raises
    ------
    WrongShape
        The record, a message or a call is not of this format.
    """
    if not recognise(record):
        raise WrongShape(f"expected chat messages with roles, found {described(record)}")
    run: dict[str, Any] = record if isinstance(record, dict) else {"messages": record}
    run_id = id_of(run.get("run_id")) or id_of(run.get("id")) or origin.run_id
    messages = run["messages"]
    yield built(
        RunStarted,
        run_id=run_id,
        task_id=id_of(run.get("task_id")),
        agent=run.get("agent") or ({"id": run["model"]} if run.get("model") else None),
    )
    results = _Results(messages)
    seq = 0
    for index, message in enumerate(messages):
        for call in _calls(message, index):
            answer = results.take(call["id"], index, call["by_server"])
            yield built(
                Step,
                run_id=run_id,
                seq=seq,
                action=_said(message.get("content")),
                tool=call["name"],
                args=args_of(call["args"]),
                result=answer.content,
                error=answer.error,
                call_id=call["id"],
            )
            seq += 1
    yield built(
        RunEnded,
        run_id=run_id,
        outcome=outcome_of(run.get("outcome"), run.get("success")),
        reward=number_of(run.get("reward")),
        reason=run.get("reason"),
    )


def _said(content: Any) -> str | None:
    """Return a message's text; beside blocks that are none, the text blocks count."""
    texts = [block for block in list_of(content) if dig(block, "type") == "text"]
    return text_of(texts) or text_of(content)


class _Results:
    """Results of tools in a conversation, each handed out once.

    An id that a conversation uses again is answered in order; a call without an id is answered by
    the next tool message without one. Only what a server ran for the model is answered within the
    message that calls it.
    """

    def __init__(self, messages: list[Any]) -> None:
        self._waiting: dict[str | None, deque[tuple[int, Answer]]] = {}
        for index, message in enumerate(messages):
            for answer in _answers(message):
                self._waiting.setdefault(answer.call_id, deque()).append((index, answer))

    def take(self, call_id: str | None, index: int, same_message: bool) -> Answer:
        waiting = self._waiting.get(call_id, deque())
        while waiting:
            position, answer = waiting.popleft()
            if position > index or (same_message and position == index):
                return answer
        return Answer(call_id, None)


def _answers(message: Any) -> Iterator[Answer]:
    if not isinstance(message, dict):
        return
    content = message.get("content")
    if message.get("role") in ("tool", "function"):
        call_id = id_of(message.get("tool_call_id"))
        yield Answer(call_id, content_of(content), message.get("error"))
        return
    for block in content if isinstance(content, list) else []:
        answer = answer_of_block(block)
        if answer is not None and answer.call_id is not None:
            yield answer


def _calls(message: Any, index: int) -> Iterator[dict[str, Any]]:
    if not isinstance(message, dict):
        raise WrongShape(f"messages[{index}]: expected an object, found {described(message)}")
    if message.get("role") != "assistant":
        return
    calls = message.get("tool_calls") or []
    if not calls and message.get("function_call"):
        calls = [{"function": message["function_call"]}]
    if not isinstance(calls, list):
        raise WrongShape(f"messages[{index}].tool_calls: expected a list, found {described(calls)}")
    for position, call in enumerate(calls):
        called = call.get("function", call.get("custom")) if isinstance(call, dict) else None
        if not isinstance(called, dict) or not called.get("name"):
            raise WrongShape(
                f"messages[{index}].tool_calls[{position}]: expected `function` with a `name`, "
                f"found {described(call)}"
            )
        yield {
            "id": id_of(call.get("id")),
            "name": called["name"],
            "args": called.get("arguments", called.get("input")),
            "by_server": False,
        }
    yield from _block_calls(message.get("content"), index)


def _block_calls(content: Any, index: int) -> Iterator[dict[str, Any]]:
    for position, block in enumerate(content if isinstance(content, list) else []):
        call = call_of_block(block, f"messages[{index}].content[{position}]")
        if call is not None:
            by_server = block.get("type") != "tool_use"
            yield {"id": call.call_id, "name": call.name, "args": call.args, "by_server": by_server}
