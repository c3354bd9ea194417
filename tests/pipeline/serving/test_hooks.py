"""What each host posts and is answered, field by field, and that nothing it posts breaks us."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ontrack.pipeline.serving.hooks import HOSTS
from ontrack.pipeline.serving.hooks.model import HookCall, HookReply
from ontrack.topics.errors import WrongShape
from ontrack.topics.events import Agent, ErrorInfo, Proposal, RunEnded, RunStarted, Step

DENY = HookReply(decision="deny", reason="it needs an order first")
ASK = HookReply(decision="ask", reason="a person must say so")
ALLOW = HookReply(decision="allow")
NUDGE = HookReply(context="you have done this three times")
HALT = HookReply(halt="the run loops")
NOTHING = HookReply()

CLAUDE = {
    "session_id": "s-1",
    "transcript_path": "/home/ada/.claude/projects/x/s-1.jsonl",
    "cwd": "/home/ada/x",
    "permission_mode": "default",
    "hook_event_name": "PreToolUse",
    "tool_name": "mcp__shop__issue_refund",
    "tool_input": {"order": "A-17"},
    "tool_use_id": "toolu_01",
}
CODEX = {
    "session_id": "s-1",
    "turn_id": "t-1",
    "transcript_path": None,
    "cwd": "/home/ada/x",
    "hook_event_name": "PreToolUse",
    "model": "gpt-6",
    "permission_mode": "default",
    "tool_name": "Bash",
    "tool_input": {"command": "make test"},
    "tool_use_id": "call-1",
}
GEMINI = {
    "session_id": "s-1",
    "transcript_path": "/tmp/t.json",
    "cwd": "/home/ada/x",
    "hook_event_name": "BeforeTool",
    "timestamp": "2026-11-30T10:00:00Z",
    "tool_name": "run_shell_command",
    "tool_input": {"command": "make test"},
    "mcp_context": None,
}
COPILOT = {
    "sessionId": "s-1",
    "timestamp": 1764496800000,
    "cwd": "/home/ada/x",
    "toolName": "bash",
    "toolArgs": {"command": "make test"},
}
CURSOR = {
    "conversation_id": "s-1",
    "generation_id": "g-1",
    "model": "sonnet",
    "hook_event_name": "preToolUse",
    "cursor_version": "3.6",
    "workspace_roots": ["/home/ada/x"],
    "user_email": None,
    "transcript_path": None,
    "tool_name": "Shell",
    "tool_input": {"command": "make test"},
    "tool_use_id": "call-1",
    "cwd": "/home/ada/x",
}
OPENHANDS = {
    "event_type": "PreToolUse",
    "tool_name": "terminal",
    "tool_input": {"command": "make test"},
    "tool_response": None,
    "message": None,
    "session_id": "s-1",
    "working_dir": "/home/ada/x",
    "metadata": {},
}
BEFORE = {
    "claude-code": CLAUDE,
    "codex": CODEX,
    "gemini": GEMINI,
    "copilot": COPILOT,
    "cursor": CURSOR,
    "openhands": OPENHANDS,
}
AFTER = {
    "claude-code": CLAUDE | {"hook_event_name": "PostToolUse", "tool_response": {"ok": True}},
    "codex": CODEX | {"hook_event_name": "PostToolUse", "tool_response": {"ok": True}},
    "gemini": GEMINI | {"hook_event_name": "AfterTool", "tool_response": {"llmContent": "fine"}},
    "copilot": COPILOT
    | {"toolResult": {"resultType": "success", "textResultForLlm": "All tests passed"}},
    "cursor": CURSOR | {"hook_event_name": "postToolUse", "tool_output": '{"exitCode":0}'},
    "openhands": OPENHANDS | {"event_type": "PostToolUse", "tool_response": {"text": "fine"}},
}
ENDED = {
    "claude-code": {"session_id": "s-1", "hook_event_name": "SessionEnd", "reason": "logout"},
    "codex": {"session_id": "s-1", "hook_event_name": "SessionEnd", "reason": "logout"},
    "gemini": {"session_id": "s-1", "hook_event_name": "SessionEnd", "reason": "logout"},
    "copilot": {"sessionId": "s-1", "timestamp": 1, "cwd": "/x", "reason": "logout"},
    "cursor": {"conversation_id": "s-1", "hook_event_name": "sessionEnd", "reason": "logout"},
    "openhands": {"session_id": "s-1", "event_type": "SessionEnd"},
}
STARTED = {
    "claude-code": {"session_id": "s-1", "hook_event_name": "SessionStart", "source": "startup"},
    "codex": {"session_id": "s-1", "hook_event_name": "SessionStart", "source": "startup"},
    "gemini": {"session_id": "s-1", "hook_event_name": "SessionStart", "source": "startup"},
    "copilot": {"sessionId": "s-1", "timestamp": 1, "cwd": "/x", "source": "new"},
    "cursor": {"session_id": "s-1", "hook_event_name": "sessionStart", "composer_mode": "agent"},
    "openhands": {"session_id": "s-1", "event_type": "SessionStart"},
}
PROMPTED = {
    "claude-code": {"session_id": "s-1", "hook_event_name": "UserPromptSubmit", "prompt": "x"},
    "codex": {"session_id": "s-1", "hook_event_name": "UserPromptSubmit", "prompt": "x"},
    "gemini": {"session_id": "s-1", "hook_event_name": "BeforeAgent", "prompt": "x"},
    "copilot": {"sessionId": "s-1", "timestamp": 1, "cwd": "/x", "prompt": "x"},
    "cursor": {"conversation_id": "s-1", "hook_event_name": "beforeSubmitPrompt", "prompt": "x"},
    "openhands": {"session_id": "s-1", "event_type": "UserPromptSubmit", "message": "x"},
}
HEARD = {
    "claude-code": ["PreToolUse", "PostToolUse", "SessionStart", "UserPromptSubmit"],
    "codex": ["PreToolUse", "PostToolUse", "SessionStart", "UserPromptSubmit"],
    "gemini": ["AfterTool", "SessionStart", "BeforeAgent"],
    "copilot": ["postToolUse", "sessionStart"],
    "cursor": ["postToolUse", "sessionStart"],
    "openhands": ["UserPromptSubmit"],
}
HOST_NAMES = sorted(HOSTS)


def asked(host: str, body: dict[str, Any], reply: HookReply) -> dict[str, Any]:
    """What a host is answered to a request."""
    return HOSTS[host].answer(HOSTS[host].read(body), reply)


def own(event: str, **fields: str) -> dict[str, Any]:
    """The part of an answer that Claude Code, Codex and Gemini CLI nest."""
    return {"hookSpecificOutput": {"hookEventName": event, **fields}}


def claude_decides(decision: str, reason: str) -> dict[str, Any]:
    return own("PreToolUse", permissionDecision=decision, permissionDecisionReason=reason)


@pytest.mark.parametrize("host", HOST_NAMES)
def test_a_call_before_it_runs_is_read_with_tool_arguments_and_session(host: str) -> None:
    call = HOSTS[host].read(BEFORE[host])
    assert (call.moment, call.run_id, call.parent_run_id) == ("before", "s-1", None)
    assert call.tool == BEFORE[host].get("tool_name", "bash")
    assert call.args in ({"command": "make test"}, {"order": "A-17"})
    assert (call.result, call.error) == (None, None)
    assert call.agent is not None
    assert call.agent.id == host


def test_claude_code_reads_every_field_of_a_call() -> None:
    assert HOSTS["claude-code"].read(AFTER["claude-code"]) == HookCall(
        moment="after",
        run_id="s-1",
        agent=Agent(id="claude-code"),
        tool="mcp__shop__issue_refund",
        args={"order": "A-17"},
        result={"ok": True},
        call_id="toolu_01",
        event="PostToolUse",
    )


@pytest.mark.parametrize(
    ("host", "result"),
    [
        ("claude-code", {"ok": True}),
        ("codex", {"ok": True}),
        ("gemini", "fine"),
        ("copilot", "All tests passed"),
        ("cursor", {"exitCode": 0}),
        ("openhands", {"text": "fine"}),
    ],
)
def test_a_call_after_it_ran_is_read_with_its_result(host: str, result: Any) -> None:
    call = HOSTS[host].read(AFTER[host])
    assert (call.moment, call.result, call.error) == ("after", result, None)
    assert call.args == HOSTS[host].read(BEFORE[host]).args


@pytest.mark.parametrize("host", HOST_NAMES)
def test_the_end_of_a_session_is_read_with_its_reason(host: str) -> None:
    call = HOSTS[host].read(ENDED[host])
    assert (call.moment, call.run_id, call.tool) == ("ended", "s-1", None)
    assert call.reason == (None if host == "openhands" else "logout")


@pytest.mark.parametrize("host", HOST_NAMES)
def test_the_start_of_a_session_is_read(host: str) -> None:
    call = HOSTS[host].read(STARTED[host])
    assert (call.moment, call.run_id, call.parent_run_id) == ("started", "s-1", None)


@pytest.mark.parametrize(
    ("host", "body"),
    [
        ("claude-code", {"session_id": "s-1", "hook_event_name": "Stop"}),
        (
            "claude-code",
            {"session_id": "s-1", "hook_event_name": "UserPromptSubmit", "prompt": "x"},
        ),
        ("claude-code", {"session_id": "s-1", "hook_event_name": "OfTomorrow", "tool_input": 3}),
        ("codex", {"session_id": "s-1", "hook_event_name": "PermissionRequest"}),
        ("gemini", {"session_id": "s-1", "hook_event_name": "BeforeModel", "llm_request": {}}),
        ("copilot", {"sessionId": "s-1", "prompt": "x"}),
        ("copilot", {"sessionId": "s-1", "stopReason": "end_turn", "transcriptPath": "/t"}),
        ("copilot", {"sessionId": "s-1", "agentName": "explore"}),
        ("copilot", {"sessionId": "s-1", "agentName": "explore", "agentId": "a"}),
        ("copilot", {"sessionId": "s-1", "error": {"message": "x"}, "errorContext": "system"}),
        ("copilot", {"sessionId": "s-1", "toolName": "bash", "toolInput": {}}),
        ("cursor", {"conversation_id": "s-1", "hook_event_name": "stop", "status": "completed"}),
        ("cursor", {"conversation_id": "s-1", "hook_event_name": "subagentStart"}),
        ("openhands", {"session_id": "s-1", "event_type": "Stop"}),
    ],
)
def test_an_event_that_is_not_about_calls_or_sessions_is_other(
    host: str, body: dict[str, Any]
) -> None:
    call = HOSTS[host].read(body)
    assert (call.moment, call.run_id, call.tool, call.args) == ("other", "s-1", None, {})
    assert asked(host, body, NOTHING) == {}


@pytest.mark.parametrize("host", ["claude-code", "codex"])
def test_calls_of_a_subagent_are_a_run_of_their_own_below_the_session(host: str) -> None:
    mark = {"agent_id": "a-7", "agent_type": "Explore"}
    call = HOSTS[host].read(BEFORE[host] | mark)
    assert (call.run_id, call.parent_run_id) == ("s-1:a-7", "s-1")
    assert call.agent is not None
    assert call.agent.id == "Explore"
    for event, moment in (("SubagentStart", "started"), ("SubagentStop", "ended")):
        body = {"session_id": "s-1", "hook_event_name": event, **mark}
        assert HOSTS[host].read(body).moment == moment
        assert HOSTS[host].read(body).run_id == "s-1:a-7"


def test_a_subagent_that_old_versions_do_not_name_does_not_end_its_session() -> None:
    body = {"session_id": "s-1", "hook_event_name": "SubagentStop", "stop_hook_active": False}
    assert HOSTS["claude-code"].read(body).moment == "other"


def test_a_subagent_with_a_session_of_its_own_is_one_run() -> None:
    call = HOSTS["codex"].read(CODEX | {"session_id": "a-7", "agent_id": "a-7"})
    assert (call.run_id, call.parent_run_id) == ("a-7", None)


@pytest.mark.parametrize(
    ("host", "body", "error"),
    [
        (
            "claude-code",
            CLAUDE | {"hook_event_name": "PostToolUseFailure", "error": "exit code 2"},
            ErrorInfo(type="error", message="exit code 2"),
        ),
        (
            "claude-code",
            CLAUDE | {"hook_event_name": "PostToolUseFailure", "error": "x", "is_interrupt": True},
            ErrorInfo(type="cancelled", message="x"),
        ),
        (
            "claude-code",
            AFTER["claude-code"]
            | {"tool_response": {"isError": True, "content": [{"type": "text", "text": "no"}]}},
            ErrorInfo(type="error", message="no"),
        ),
        (
            "codex",
            AFTER["codex"] | {"tool_response": {"isError": True, "content": "no"}},
            ErrorInfo(type="error", message="no"),
        ),
        (
            "gemini",
            AFTER["gemini"]
            | {"tool_response": {"llmContent": "x", "error": {"message": "no", "type": "io"}}},
            ErrorInfo(type="io", message="no"),
        ),
        (
            "copilot",
            COPILOT | {"error": "no such file"},
            ErrorInfo(type="error", message="no such file"),
        ),
        (
            "copilot",
            COPILOT | {"toolResult": {"resultType": "denied", "textResultForLlm": "no"}},
            ErrorInfo(type="denied", message="no"),
        ),
        (
            "cursor",
            AFTER["cursor"] | {"tool_output": '{"exitCode":2,"stdout":""}'},
            ErrorInfo(type="exit_code", message="exit code 2"),
        ),
        (
            "cursor",
            CURSOR
            | {
                "hook_event_name": "postToolUseFailure",
                "error_message": "slow",
                "failure_type": "timeout",
            },
            ErrorInfo(type="timeout", message="slow"),
        ),
        (
            "openhands",
            AFTER["openhands"] | {"tool_response": {"is_error": True, "content": "no"}},
            ErrorInfo(type="error", message="no"),
        ),
    ],
)
def test_a_failed_call_is_read_with_its_error(
    host: str, body: dict[str, Any], error: ErrorInfo
) -> None:
    call = HOSTS[host].read(body)
    assert (call.moment, call.error) == ("after", error)


def test_copilots_other_spelling_is_the_same_call() -> None:
    body = {
        "hook_event_name": "PostToolUse",
        "session_id": "s-1",
        "timestamp": "2026-11-30T10:00:00Z",
        "cwd": "/home/ada/x",
        "tool_name": "bash",
        "tool_input": {"command": "make test"},
        "tool_result": {"result_type": "success", "text_result_for_llm": "All tests passed"},
    }
    assert HOSTS["copilot"].read(body) == HOSTS["copilot"].read(AFTER["copilot"])


def test_an_early_copilot_sends_no_session_and_arguments_as_text() -> None:
    body = {
        "timestamp": 1,
        "cwd": "/home/ada/x",
        "toolName": "bash",
        "toolArgs": '{"command":"ls"}',
    }
    call = HOSTS["copilot"].read(body)
    assert (call.run_id, call.args) == ("cwd:/home/ada/x", {"command": "ls"})


def test_openhands_without_a_session_is_one_run_a_folder() -> None:
    call = HOSTS["openhands"].read(OPENHANDS | {"session_id": None, "event_type": "pre_tool_use"})
    assert (call.moment, call.run_id) == ("before", "cwd:/home/ada/x")


@pytest.mark.parametrize(
    ("body", "moment", "tool", "args", "result"),
    [
        (
            {"hook_event_name": "beforeShellExecution", "command": "ls", "cwd": "/x"},
            "before",
            "Shell",
            {"command": "ls"},
            None,
        ),
        (
            {"hook_event_name": "afterShellExecution", "command": "ls", "output": "[1]"},
            "after",
            "Shell",
            {"command": "ls"},
            "[1]",
        ),
        (
            {
                "hook_event_name": "beforeMCPExecution",
                "tool_name": "query",
                "tool_input": '{"sql":"select 1"}',
            },
            "before",
            "query",
            {"sql": "select 1"},
            None,
        ),
        (
            {
                "hook_event_name": "afterMCPExecution",
                "tool_name": "query",
                "tool_input": '{"sql":"select 1"}',
                "result_json": '{"rows":[1]}',
            },
            "after",
            "query",
            {"sql": "select 1"},
            {"rows": [1]},
        ),
        (
            {"hook_event_name": "beforeReadFile", "file_path": "/x/a.py", "content": "secret"},
            "before",
            "Read",
            {"file_path": "/x/a.py"},
            None,
        ),
    ],
)
def test_cursors_older_events_name_tools_as_the_generic_ones_do(
    body: dict[str, Any], moment: str, tool: str, args: dict[str, Any], result: Any
) -> None:
    call = HOSTS["cursor"].read({"conversation_id": "s-1", **body})
    assert (call.moment, call.tool, call.args, call.result) == (moment, tool, args, result)


@pytest.mark.parametrize("host", HOST_NAMES)
def test_no_opinion_is_an_empty_answer(host: str) -> None:
    for body in (BEFORE[host], AFTER[host], STARTED[host], ENDED[host]):
        assert asked(host, body, NOTHING) == {}


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("claude-code", own("PreToolUse", permissionDecision="allow")),
        ("codex", {}),
        ("gemini", {"decision": "allow"}),
        ("copilot", {"permissionDecision": "allow"}),
        ("cursor", {"permission": "allow"}),
        ("openhands", {"decision": "allow"}),
    ],
)
def test_a_call_is_allowed_in_the_hosts_words(host: str, answer: dict[str, Any]) -> None:
    assert asked(host, BEFORE[host], ALLOW) == answer


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("claude-code", claude_decides("deny", "it needs an order first")),
        ("codex", claude_decides("deny", "it needs an order first")),
        ("gemini", {"decision": "deny", "reason": "it needs an order first"}),
        (
            "copilot",
            {
                "permissionDecision": "deny",
                "permissionDecisionReason": "it needs an order first",
            },
        ),
        (
            "cursor",
            {
                "permission": "deny",
                "user_message": "it needs an order first",
                "agent_message": "it needs an order first",
            },
        ),
        ("openhands", {"decision": "deny", "reason": "it needs an order first"}),
    ],
)
def test_a_call_is_denied_in_the_hosts_words(host: str, answer: dict[str, Any]) -> None:
    assert asked(host, BEFORE[host], DENY) == answer


@pytest.mark.parametrize("host", HOST_NAMES)
def test_a_denial_always_has_a_reason_since_hosts_ignore_one_without(host: str) -> None:
    text = json.dumps(asked(host, BEFORE[host], HookReply(decision="deny")))
    assert "OnTrack denied this call." in text


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("claude-code", claude_decides("ask", "a person must say so")),
        ("codex", own("PreToolUse", additionalContext="a person must say so")),
        ("gemini", {"decision": "ask", "systemMessage": "a person must say so"}),
        (
            "copilot",
            {"permissionDecision": "ask", "permissionDecisionReason": "a person must say so"},
        ),
        (
            "cursor",
            {
                "permission": "ask",
                "user_message": "a person must say so",
                "agent_message": "a person must say so",
            },
        ),
        ("openhands", {"additionalContext": "a person must say so"}),
    ],
)
def test_a_person_is_asked_and_where_the_host_cannot_the_model_is_told(
    host: str, answer: dict[str, Any]
) -> None:
    assert asked(host, BEFORE[host], ASK) == answer


def test_cursor_can_ask_about_shell_commands_but_not_about_reading_a_file() -> None:
    shell = {"conversation_id": "s", "hook_event_name": "beforeShellExecution", "command": "ls"}
    assert asked("cursor", shell, ASK)["permission"] == "ask"
    read = {"conversation_id": "s", "hook_event_name": "beforeReadFile", "file_path": "a"}
    assert asked("cursor", read, ASK) == {}
    assert asked("cursor", read, HALT) == {"permission": "deny", "user_message": "the run loops"}


@pytest.mark.parametrize(
    ("host", "before", "after"),
    [
        (
            "claude-code",
            {
                "continue": False,
                "stopReason": "the run loops",
                **claude_decides("deny", "the run loops"),
            },
            {"continue": False, "stopReason": "the run loops"},
        ),
        (
            "codex",
            claude_decides("deny", "the run loops"),
            {"continue": False, "stopReason": "the run loops"},
        ),
        (
            "gemini",
            {
                "continue": False,
                "stopReason": "the run loops",
                "decision": "deny",
                "reason": "the run loops",
            },
            {"continue": False, "stopReason": "the run loops"},
        ),
        (
            "copilot",
            {"permissionDecision": "deny", "permissionDecisionReason": "the run loops"},
            {"additionalContext": "the run loops"},
        ),
        (
            "cursor",
            {
                "permission": "deny",
                "user_message": "the run loops",
                "agent_message": "the run loops",
            },
            {"additional_context": "the run loops"},
        ),
        (
            "openhands",
            {"decision": "deny", "reason": "the run loops"},
            {"additionalContext": "the run loops"},
        ),
    ],
)
def test_the_agent_is_halted_or_told_where_it_cannot_be(
    host: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    assert asked(host, BEFORE[host], HALT) == before
    assert asked(host, AFTER[host], HALT) == after


@pytest.mark.parametrize(
    ("host", "before", "after"),
    [
        (
            "claude-code",
            own("PreToolUse", additionalContext="you have done this three times"),
            own("PostToolUse", additionalContext="you have done this three times"),
        ),
        (
            "codex",
            own("PreToolUse", additionalContext="you have done this three times"),
            own("PostToolUse", additionalContext="you have done this three times"),
        ),
        ("gemini", {}, own("AfterTool", additionalContext="you have done this three times")),
        (
            "copilot",
            {"additionalContext": "you have done this three times"},
            {"additionalContext": "you have done this three times"},
        ),
        ("cursor", {}, {"additional_context": "you have done this three times"}),
        (
            "openhands",
            {"additionalContext": "you have done this three times"},
            {"additionalContext": "you have done this three times"},
        ),
    ],
)
def test_a_nudge_is_answered_where_the_host_has_a_field_for_it(
    host: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    assert asked(host, BEFORE[host], NUDGE) == before
    assert asked(host, AFTER[host], NUDGE) == after


def test_a_nudge_comes_with_an_allowed_call_and_after_a_failed_one() -> None:
    allowed = asked("claude-code", CLAUDE, replace(NUDGE, decision="allow"))
    assert allowed == own(
        "PreToolUse",
        permissionDecision="allow",
        additionalContext="you have done this three times",
    )
    failed = CLAUDE | {"hook_event_name": "PostToolUseFailure", "error": "no"}
    assert asked("claude-code", failed, NUDGE) == own(
        "PostToolUseFailure", additionalContext="you have done this three times"
    )


def test_a_denial_for_codex_carries_its_context_in_the_reason() -> None:
    answer = asked("codex", CODEX, replace(DENY, context="look it up"))
    assert answer == claude_decides("deny", "it needs an order first\nlook it up")


@pytest.mark.parametrize("host", HOST_NAMES)
def test_where_a_nudge_is_heard_is_where_the_answer_has_it(host: str) -> None:
    heard = []
    for bodies in (BEFORE, AFTER, STARTED, PROMPTED):
        call = HOSTS[host].read(bodies[host])
        if call.hears:
            assert str(NUDGE.context) in json.dumps(HOSTS[host].answer(call, NUDGE))
            heard.append(call.event)
    assert heard == HEARD[host]
    assert not HOSTS[host].read(ENDED[host]).hears


@pytest.mark.parametrize(
    ("host", "field"),
    [
        ("claude-code", "session_id"),
        ("claude-code", "hook_event_name"),
        ("claude-code", "tool_name"),
        ("codex", "session_id"),
        ("codex", "tool_name"),
        ("gemini", "session_id"),
        ("gemini", "tool_name"),
        ("copilot", "sessionId"),
        ("cursor", "conversation_id"),
        ("cursor", "hook_event_name"),
        ("openhands", "event_type"),
        ("openhands", "tool_name"),
    ],
)
def test_a_missing_or_wrong_field_is_named(host: str, field: str) -> None:
    if host != "copilot":
        missing = {name: value for name, value in BEFORE[host].items() if name != field}
        with pytest.raises(WrongShape, match=f"`{field}`"):
            HOSTS[host].read(missing)
    with pytest.raises(WrongShape, match=f"`{field}`: expected text, found an array"):
        HOSTS[host].read(BEFORE[host] | {field: ["x"]})
    with pytest.raises(WrongShape, match=f"`{field}`: expected at most"):
        HOSTS[host].read(BEFORE[host] | {field: "x" * 600})


@pytest.mark.parametrize("host", ["claude-code", "gemini", "openhands"])
def test_arguments_that_are_no_object_are_refused_by_name(host: str) -> None:
    with pytest.raises(WrongShape, match="`tool_input`: expected an object, found an array"):
        HOSTS[host].read(BEFORE[host] | {"tool_input": [1]})


def test_an_error_never_quotes_what_was_sent() -> None:
    with pytest.raises(WrongShape) as refused:
        HOSTS["claude-code"].read(CLAUDE | {"session_id": {"password": "hunter2"}})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("host", HOST_NAMES)
@pytest.mark.parametrize("body", [None, [], "x", 3])
def test_a_body_that_is_no_object_is_refused(host: str, body: Any) -> None:
    with pytest.raises(WrongShape, match="expected a hook's request as an object"):
        HOSTS[host].read(body)


# ---- properties: whatever is posted, and whatever we have to say

_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
REPLIES = st.builds(
    HookReply,
    decision=st.sampled_from(["none", "allow", "deny", "ask"]),
    reason=st.none() | st.text(),
    context=st.none() | st.text(),
    halt=st.none() | st.text(),
)
EXAMPLES = {host: [BEFORE[host], AFTER[host], STARTED[host], ENDED[host]] for host in HOST_NAMES}
EXAMPLES["claude-code"].append(
    CLAUDE | {"hook_event_name": "PostToolUseFailure", "error": "x", "agent_id": "a"}
)
EXAMPLES["cursor"].append(CURSOR | {"hook_event_name": "beforeShellExecution", "command": "ls"})
_NESTED = {
    "hookSpecificOutput": {
        "hookEventName",
        "permissionDecision",
        "permissionDecisionReason",
        "additionalContext",
    }
}
DOCUMENTED = {
    "claude-code": {"continue", "stopReason", "hookSpecificOutput"},
    "codex": {"continue", "stopReason", "hookSpecificOutput"},
    "gemini": {
        "continue",
        "stopReason",
        "decision",
        "reason",
        "systemMessage",
        "hookSpecificOutput",
    },
    "copilot": {"permissionDecision", "permissionDecisionReason", "additionalContext"},
    "cursor": {"permission", "user_message", "agent_message", "additional_context"},
    "openhands": {"decision", "reason", "additionalContext"},
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, Any]:
    """A host and a request of its own, with some fields replaced or gone, or anything at all."""
    host = draw(st.sampled_from(HOST_NAMES))
    if draw(st.integers(0, 9)) == 0:
        return host, draw(JSON)
    body: dict[str, Any] = dict(draw(st.sampled_from(EXAMPLES[host])))
    for name in draw(st.lists(st.sampled_from(sorted(body)), max_size=3)):
        if draw(st.booleans()):
            body[name] = draw(JSON)
        else:
            body.pop(name, None)
    body.update(draw(st.dictionaries(st.text(), JSON, max_size=2)))
    return host, body


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(requests(), REPLIES)
def test_any_request_is_read_or_refused_and_answered_in_documented_fields_only(
    request_: tuple[str, Any], reply: HookReply
) -> None:
    host, body = request_
    before = json.dumps(body)
    try:
        call = HOSTS[host].read(body)
    except WrongShape:
        return
    finally:
        assert json.dumps(body) == before  # pure: the request stays as it was
    an_event_can_be_made_of(call)
    answer = HOSTS[host].answer(call, reply)
    assert json.loads(json.dumps(answer)) == answer
    assert set(answer) <= DOCUMENTED[host]
    assert set(answer.get("hookSpecificOutput", {})) <= _NESTED["hookSpecificOutput"]
    if call.moment == "before" and (reply.halt is not None or reply.decision == "deny"):
        assert '"deny"' in json.dumps(answer)
    if reply.halt is None:
        assert "continue" not in answer


def an_event_can_be_made_of(call: HookCall) -> None:
    """What was read fits the events that the daemon makes of it."""
    common = {
        "run_id": call.run_id,
        "parent_run_id": call.parent_run_id,
        "agent": call.agent,
    }
    if call.moment == "before":
        assert call.tool is not None
        Proposal(tool=call.tool, args=call.args, call_id=call.call_id, **common)
    elif call.moment == "after":
        assert call.tool is not None
        Step(
            tool=call.tool,
            args=call.args,
            result=call.result,
            error=call.error,
            call_id=call.call_id,
            **common,
        )
    elif call.moment == "ended":
        RunEnded(reason=call.reason, **common)
    else:
        assert call.tool is None
        RunStarted(**common)
