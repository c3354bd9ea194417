"""Cursor: the generic tool events, and the older ones for shell, MCP and reading files.

Source: Cursor's hooks reference. ``conversation_id`` is the session. Results, and arguments of MCP
tools, are JSON text. ``ask`` is obeyed for shell and MCP, taken but not obeyed by ``preToolUse``,
and unknown to ``beforeReadFile``. Nothing halts: a halt denies. A call that is allowed has no field
for the model: context waits for ``postToolUse``. Subagents' calls are not marked, so they count for
their conversation.
"""

from __future__ import annotations

from typing import Any, Final

from ontrack.pipeline.serving.hooks.fields import (
    TOOL_CHARACTERS_MAX,
    Fields,
    agent_of,
    denial,
    error_of,
    flagged,
    from_text,
    joined,
    spoken,
)
from ontrack.pipeline.serving.hooks.model import HookCall, HookReply, Moment
from ontrack.topics.adapters.claude_code import CANCELLED
from ontrack.topics.adapters.parts import args_of, dig
from ontrack.topics.errors import WrongShape
from ontrack.topics.events import ErrorInfo

NAME = "cursor"

CONTEXT_EVENTS: Final = frozenset({"postToolUse", "sessionStart"})
_MOMENTS: Final[dict[str, Moment]] = {
    "preToolUse": "before",
    "beforeShellExecution": "before",
    "beforeMCPExecution": "before",
    "beforeReadFile": "before",
    "postToolUse": "after",
    "postToolUseFailure": "after",
    "afterShellExecution": "after",
    "afterMCPExecution": "after",
    "sessionStart": "started",
    "sessionEnd": "ended",
}
#: The names that the generic events give to what these are about.
_TOOLS: Final = {
    "beforeShellExecution": ("Shell", "command"),
    "afterShellExecution": ("Shell", "command"),
    "beforeReadFile": ("Read", "file_path"),
}
_RESULTS: Final = {
    "postToolUse": "tool_output",
    "afterShellExecution": "output",
    "afterMCPExecution": "result_json",
}


def read(body: dict[str, Any]) -> HookCall:
    """Return what a request says.

    Raises
    ------
    WrongShape
        A field is missing or of the wrong type; the message names it.
    """
    fields = Fields(body)
    event = fields.need("hook_event_name")
    moment = _MOMENTS.get(event, "other")
    tool, args = _call(fields, event) if moment in ("before", "after") else (None, {})
    result = fields.value(_RESULTS[event]) if event in _RESULTS else None
    if event != "afterShellExecution":  # a command's own output, which need not be JSON
        result = from_text(result)
    return HookCall(
        moment=moment,
        run_id=fields.need("conversation_id", "session_id"),
        agent=agent_of(NAME, fields.text("model")),
        tool=tool,
        args=args,
        result=result,
        error=_error(fields, event, result) if moment == "after" else None,
        call_id=fields.text("tool_use_id"),
        event=event,
        reason=fields.prose("reason") if moment == "ended" else None,
        hears=event in CONTEXT_EVENTS,
    )


def _call(fields: Fields, event: str) -> tuple[str, dict[str, Any]]:
    if event not in _TOOLS:
        tool = fields.need("tool_name", limit=TOOL_CHARACTERS_MAX)
        args: dict[str, Any] = args_of(fields.value("tool_input"))
        return tool, args
    tool, argument = _TOOLS[event]
    value = fields.value(argument)
    if not isinstance(value, str):
        raise WrongShape(f"`{argument}`: expected text; the field is missing or of another type")
    return tool, {argument: value}


def _error(fields: Fields, event: str, result: Any) -> ErrorInfo | None:
    if event == "postToolUseFailure":
        message = fields.text("error_message", limit=2**31)
        kind = fields.text("failure_type") or "error"
        return error_of(message, CANCELLED if fields.flag("is_interrupt") else kind)
    code = dig(result, "exitCode")
    if isinstance(code, int) and not isinstance(code, bool) and code != 0:
        return error_of(f"exit code {code}", "exit_code")
    return flagged(result)


def answer(call: HookCall, reply: HookReply) -> dict[str, Any]:
    """Return the answer: ``permission`` before a call, ``additional_context`` after it."""
    if call.moment != "before":
        context = spoken(reply)
        return {"additional_context": context} if context and call.event in CONTEXT_EVENTS else {}
    if reply.halt is None and reply.decision not in ("deny", "ask"):
        return {"permission": "allow"} if reply.decision == "allow" else {}
    asks = reply.halt is None and reply.decision == "ask"
    if call.event == "beforeReadFile":  # which neither asks nor has a field for the model
        return {} if asks else {"permission": "deny", "user_message": denial(reply)}
    return {
        "permission": "ask" if asks else "deny",
        "user_message": denial(reply),
        "agent_message": joined(denial(reply), reply.context),
    }
