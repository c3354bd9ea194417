"""GitHub Copilot CLI and coding agent: camelCase events, and the VS Code spelling of them.

Source: GitHub's hooks reference. In camelCase a request does not say which event it is: its fields
do. Early versions send no ``sessionId``, and the arguments as JSON text; the folder is then the
run. Subagents' calls are not marked, so they count for the session. Nothing halts: a halt denies.
"""

from __future__ import annotations

from typing import Any, Final

from ontrack.pipeline.serving.hooks.fields import (
    TOOL_CHARACTERS_MAX,
    Fields,
    agent_of,
    denial,
    error_of,
    session_of,
    spoken,
)
from ontrack.pipeline.serving.hooks.model import HookCall, HookReply, Moment
from ontrack.topics.adapters.parts import args_of, dig
from ontrack.topics.events import ErrorInfo

NAME = "copilot"

#: Where ``additionalContext`` certainly reaches the model; before a call it depends on the version.
CONTEXT_EVENTS: Final = frozenset(
    {"postToolUse", "postToolUseFailure", "sessionStart", "subagentStart"}
)
_MOMENTS: Final[dict[str, Moment]] = {
    "preToolUse": "before",
    "postToolUse": "after",
    "postToolUseFailure": "after",
    "sessionStart": "started",
    "sessionEnd": "ended",
}
_OTHER_NAMES: Final = {"UserPromptSubmit": "userPromptSubmitted", "Stop": "agentStop"}


def read(body: dict[str, Any]) -> HookCall:
    """Return what a request says, its event in camelCase.

    Raises
    ------
    WrongShape
        A field is missing or of the wrong type; the message names it.
    """
    fields = Fields(body)
    event = _event(fields)
    moment = _MOMENTS.get(event, "other")
    call = moment in ("before", "after")
    result = fields.object("toolResult", "tool_result") if event == "postToolUse" else {}
    text = dig(result, "textResultForLlm") or dig(result, "text_result_for_llm")
    return HookCall(
        moment=moment,
        run_id=session_of(fields, ("sessionId", "session_id"), "cwd"),
        agent=agent_of(NAME),
        tool=fields.need("toolName", "tool_name", limit=TOOL_CHARACTERS_MAX) if call else None,
        args=args_of(fields.value("toolArgs", "tool_input")) if call else {},
        result=(result or None) if text is None else text,
        error=_error(fields, event, result, text),
        event=event,
        reason=fields.prose("reason") if moment == "ended" else None,
        hears=event in CONTEXT_EVENTS,
    )


def _event(fields: Fields) -> str:
    """Return the event's camelCase name, from the fields where it is not said."""
    stated = fields.text("hook_event_name")
    if stated is not None:
        return _OTHER_NAMES.get(stated, stated[:1].lower() + stated[1:])
    if "toolName" in fields:
        if "toolResult" in fields:
            return "postToolUse"
        if "error" in fields:
            return "postToolUseFailure"
        return "other" if "toolInput" in fields else "preToolUse"  # permissionRequest has no args
    if "agentName" in fields:
        return "subagentStop" if "agentId" in fields else "subagentStart"
    for field, event in (
        ("source", "sessionStart"),
        ("errorContext", "errorOccurred"),
        ("reason", "sessionEnd"),
        ("stopReason", "agentStop"),
        ("prompt", "userPromptSubmitted"),
    ):
        if field in fields:
            return event
    return "other"


def _error(fields: Fields, event: str, result: dict[str, Any], text: Any) -> ErrorInfo | None:
    message = text if isinstance(text, str) else None
    if event == "postToolUseFailure":
        return error_of(fields.text("error", limit=2**31))
    kind = dig(result, "resultType") or dig(result, "result_type")
    if not isinstance(kind, str) or kind == "success":
        return None
    return error_of(message, kind[:TOOL_CHARACTERS_MAX])


def answer(call: HookCall, reply: HookReply) -> dict[str, Any]:
    """Return the answer: ``permissionDecision`` before a call, ``additionalContext`` elsewhere."""
    if call.moment != "before":
        context = spoken(reply)
        return {"additionalContext": context} if context and call.event in CONTEXT_EVENTS else {}
    out: dict[str, Any] = {}
    if reply.halt is not None or reply.decision in ("deny", "ask"):
        out["permissionDecision"] = "deny" if reply.halt is not None else reply.decision
        out["permissionDecisionReason"] = denial(reply)
    elif reply.decision == "allow":
        out["permissionDecision"] = "allow"
    if reply.context:
        out["additionalContext"] = reply.context
    return out
