"""Gemini CLI: ``BeforeTool`` and ``AfterTool``, and the session's start and end.

Source: Gemini CLI's hooks reference. Requests have neither an id of the call nor of a subagent.
``ask`` is a decision since March 2026 (google-gemini/gemini-cli 21146) that the reference does not
list yet; older versions show the message and go by their own rules. A call that is allowed has no
field for the model, so context waits for ``AfterTool``.
"""

from __future__ import annotations

from typing import Any, Final

from ontrack.pipeline.serving.hooks.fields import (
    REASON_CHARACTERS_MAX,
    TOOL_CHARACTERS_MAX,
    Fields,
    agent_of,
    denial,
    error_of,
    flagged,
    spoken,
)
from ontrack.pipeline.serving.hooks.model import HookCall, HookReply, Moment
from ontrack.topics.adapters.parts import dig
from ontrack.topics.events import ErrorInfo

NAME = "gemini"

CONTEXT_EVENTS: Final = frozenset({"AfterTool", "SessionStart", "BeforeAgent"})
_HALTING_EVENTS: Final = frozenset(
    {"BeforeTool", "AfterTool", "BeforeAgent", "AfterAgent", "AfterModel"}
)
_MOMENTS: Final[dict[str, Moment]] = {
    "BeforeTool": "before",
    "AfterTool": "after",
    "SessionStart": "started",
    "SessionEnd": "ended",
}


def read(body: dict[str, Any]) -> HookCall:
    """Return what a request says; the result is what the model gets (``llmContent``).

    Raises
    ------
    WrongShape
        A field is missing or of the wrong type; the message names it.
    """
    fields = Fields(body)
    event = fields.need("hook_event_name")
    moment = _MOMENTS.get(event, "other")
    call = moment in ("before", "after")
    response = fields.value("tool_response") if moment == "after" else None
    llm_content = dig(response, "llmContent")
    return HookCall(
        moment=moment,
        run_id=fields.need("session_id"),
        agent=agent_of(NAME),
        tool=fields.need("tool_name", limit=TOOL_CHARACTERS_MAX) if call else None,
        args=fields.object("tool_input") if call else {},
        result=response if llm_content is None else llm_content,
        error=_error(response),
        event=event,
        reason=fields.prose("reason") if moment == "ended" else None,
        hears=event in CONTEXT_EVENTS,
    )


def _error(response: Any) -> ErrorInfo | None:
    error = dig(response, "error")
    if error is None or error is False:
        return flagged(response)
    message = error if isinstance(error, str) else dig(error, "message")
    kind = dig(error, "type")
    return error_of(
        message if isinstance(message, str) else None, kind if isinstance(kind, str) else "error"
    )


def answer(call: HookCall, reply: HookReply) -> dict[str, Any]:
    """Return the answer; a halt also denies the call it comes with."""
    out: dict[str, Any] = {}
    halts = reply.halt is not None and call.event in _HALTING_EVENTS
    if halts and reply.halt is not None:
        out = {"continue": False, "stopReason": reply.halt[:REASON_CHARACTERS_MAX]}
    if call.moment == "before":
        if halts or reply.decision == "deny":
            out |= {"decision": "deny", "reason": denial(reply)}
        elif reply.decision == "ask":
            out |= {"decision": "ask", "systemMessage": denial(reply)}
        elif reply.decision == "allow":
            out["decision"] = "allow"
        return out
    context = reply.context if halts else spoken(reply)
    if context and call.event in CONTEXT_EVENTS:
        out["hookSpecificOutput"] = {"hookEventName": call.event, "additionalContext": context}
    return out
