"""OpenHands: one shape of request for all events, and ``allow`` or ``deny``.

Source: OpenHands' hooks documentation and the ``HookEvent`` of its SDK. Without a ``session_id``
the folder is the run. Nothing asks, and nothing halts: a halt denies. The SDK reads
``additionalContext`` everywhere but hands it to the model only with prompts.
"""

from __future__ import annotations

from typing import Any, Final

from ontrack.pipeline.serving.hooks.fields import (
    TOOL_CHARACTERS_MAX,
    Fields,
    agent_of,
    denial,
    flagged,
    joined,
    session_of,
    spoken,
    warned,
)
from ontrack.pipeline.serving.hooks.model import HookCall, HookReply, Moment

NAME = "openhands"

CONTEXT_EVENTS: Final = frozenset({"UserPromptSubmit"})
_MOMENTS: Final[dict[str, Moment]] = {
    "PreToolUse": "before",
    "PostToolUse": "after",
    "SessionStart": "started",
    "SessionEnd": "ended",
}


def read(body: dict[str, Any]) -> HookCall:
    """Return what a request says.

    Raises
    ------
    WrongShape
        A field is missing or of the wrong type; the message names it.
    """
    fields = Fields(body)
    event = fields.need("event_type", "hook_event_name")
    if event.islower():  # the settings file's spelling: pre_tool_use
        event = "".join(word.capitalize() for word in event.split("_"))
    moment = _MOMENTS.get(event, "other")
    call = moment in ("before", "after")
    result = fields.value("tool_response", "tool_output") if moment == "after" else None
    return HookCall(
        moment=moment,
        run_id=session_of(fields, ("session_id",), "working_dir"),
        agent=agent_of(NAME),
        tool=fields.need("tool_name", limit=TOOL_CHARACTERS_MAX) if call else None,
        args=fields.object("tool_input") if call else {},
        result=result,
        error=flagged(result),
        event=event,
        hears=event in CONTEXT_EVENTS,
    )


def answer(call: HookCall, reply: HookReply) -> dict[str, Any]:
    """Return the answer: ``decision`` and ``reason`` before a call, context everywhere."""
    out: dict[str, Any] = {}
    context = spoken(reply)
    if call.moment == "before":
        context = warned(reply)
        if reply.halt is not None or reply.decision == "deny":
            out = {"decision": "deny", "reason": joined(denial(reply), reply.context)}
            context = None
        elif reply.decision == "allow":
            out = {"decision": "allow"}
    if context:
        out["additionalContext"] = context
    return out
