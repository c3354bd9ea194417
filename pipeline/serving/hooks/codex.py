"""Codex CLI: Claude Code's requests with ``turn_id`` and ``model``; its answers allow less.

Source: Codex' hooks reference and the JSON schemas it generates. Before a call only a denial with
a reason decides anything: ``allow``, ``ask`` and ``continue: false`` make Codex drop the whole
answer, and versions before it took ``additionalContext`` drop a denial that has one. So what halts
denies; allowing is saying nothing; what asks tells the model; a denial's context is in its reason.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from ontrack.pipeline.serving.hooks import claude_code
from ontrack.pipeline.serving.hooks.fields import (
    REASON_CHARACTERS_MAX,
    Fields,
    agent_of,
    denial,
    joined,
    spoken,
    warned,
)
from ontrack.pipeline.serving.hooks.model import HookCall, HookReply
from ontrack.topics.adapters.parts import args_of

NAME = "codex"

CONTEXT_EVENTS: Final = frozenset(
    {"PreToolUse", "PostToolUse", "SessionStart", "SubagentStart", "UserPromptSubmit"}
)
_HALTING_EVENTS: Final = CONTEXT_EVENTS - {"PreToolUse"} | {"Stop", "SubagentStop"}


def read(body: dict[str, Any]) -> HookCall:
    """Return what a request says.

    Raises
    ------
    WrongShape
        A field is missing or of the wrong type; the message names it.
    """
    fields = Fields(body)
    raw = fields.value("tool_input")  # any JSON, says the schema; objects in practice
    call = claude_code.read({**body, "tool_input": args_of(raw)})
    name = fields.text("agent_type") or NAME
    hears = call.event in CONTEXT_EVENTS
    return replace(call, agent=agent_of(name, fields.text("model")), hears=hears)


def answer(call: HookCall, reply: HookReply) -> dict[str, Any]:
    """Return the answer: a denial before a call; a halt and context after it."""
    if call.moment == "before":
        if reply.halt is None and reply.decision != "deny":
            context = warned(reply)
            return _own(call, {"additionalContext": context}) if context else {}
        reason = joined(denial(reply), reply.context)
        return _own(call, {"permissionDecision": "deny", "permissionDecisionReason": reason})
    out: dict[str, Any] = {}
    context = spoken(reply)
    if reply.halt is not None and call.event in _HALTING_EVENTS:
        out = {"continue": False, "stopReason": reply.halt[:REASON_CHARACTERS_MAX]}
        context = reply.context
    if context and call.event in CONTEXT_EVENTS:
        out |= _own(call, {"additionalContext": context})
    return out


def _own(call: HookCall, fields: dict[str, Any]) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": call.event, **fields}}
