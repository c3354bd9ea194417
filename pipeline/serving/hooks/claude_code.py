"""Claude Code: its HTTP hooks post what command hooks read on standard input.

Source: the hooks reference of Claude Code. A subagent's calls carry ``agent_id`` and
``agent_type`` beside the session's id. ``Stop`` ends a turn, not the session.
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
    run_of,
    spoken,
)
from ontrack.pipeline.serving.hooks.model import HookCall, HookReply, Moment
from ontrack.topics.adapters.claude_code import CANCELLED
from ontrack.topics.events import ErrorInfo

NAME = "claude-code"

#: Events whose answer may hold ``additionalContext`` for the model.
CONTEXT_EVENTS: Final = frozenset(
    {
        "PreToolUse",
        "PostToolUse",
        "PostToolUseFailure",
        "SessionStart",
        "SubagentStart",
        "UserPromptSubmit",
    }
)

MOMENTS: Final[dict[str, Moment]] = {
    "PreToolUse": "before",
    "PostToolUse": "after",
    "PostToolUseFailure": "after",
    "SessionStart": "started",
    "SubagentStart": "started",
    "SessionEnd": "ended",
    "SubagentStop": "ended",
}
_OF_SUBAGENTS: Final = frozenset({"SubagentStart", "SubagentStop"})


def read(body: dict[str, Any]) -> HookCall:
    """Return what a request says; an event that is not about calls or sessions is ``other``.

    Raises
    ------
    WrongShape
        A field is missing or of the wrong type; the message names it.
    """
    fields = Fields(body)
    event = fields.need("hook_event_name")
    agent_id = fields.text("agent_id")
    moment = MOMENTS.get(event, "other")
    if event in _OF_SUBAGENTS and agent_id is None:
        moment = "other"  # older versions do not say which subagent: not the session's end
    run_id, parent = run_of(fields.need("session_id"), agent_id)
    call = moment in ("before", "after")
    result = fields.value("tool_response") if moment == "after" else None
    return HookCall(
        moment=moment,
        run_id=run_id,
        parent_run_id=parent,
        agent=agent_of(fields.text("agent_type") or NAME, fields.text("model")),
        tool=fields.need("tool_name", limit=TOOL_CHARACTERS_MAX) if call else None,
        args=fields.object("tool_input") if call else {},
        result=result,
        error=_error(fields, event, result) if moment == "after" else None,
        call_id=fields.text("tool_use_id") if call else None,
        event=event,
        reason=fields.prose("reason") if moment == "ended" else None,
        hears=event in CONTEXT_EVENTS,
    )


def _error(fields: Fields, event: str, result: Any) -> ErrorInfo | None:
    if event != "PostToolUseFailure":
        return flagged(result)
    message = fields.text("error", limit=2**31)
    return error_of(message, CANCELLED if fields.flag("is_interrupt") else "error")


def answer(call: HookCall, reply: HookReply) -> dict[str, Any]:
    """Return the answer: ``continue`` and ``stopReason`` halt, the rest is the event's own.

    A halt also denies the call it comes with. After a call nothing can be denied any more: a
    denial's reason is then context.
    """
    out: dict[str, Any] = {}
    own: dict[str, Any] = {}
    if reply.halt is not None:
        out = {"continue": False, "stopReason": reply.halt[:REASON_CHARACTERS_MAX]}
    if call.moment == "before":
        if reply.decision in ("deny", "ask") or reply.halt is not None:
            own["permissionDecision"] = "deny" if reply.halt is not None else reply.decision
            own["permissionDecisionReason"] = denial(reply)
        elif reply.decision == "allow":
            own["permissionDecision"] = "allow"
    context = reply.context if call.moment == "before" or reply.halt else spoken(reply)
    if context and call.event in CONTEXT_EVENTS:
        own["additionalContext"] = context
    if own:
        out["hookSpecificOutput"] = {"hookEventName": call.event, **own}
    return out
