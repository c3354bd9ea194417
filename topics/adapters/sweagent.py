"""Trajectories of SWE-agent (``.traj``, old and new) and mini-SWE-agent (``.traj.json``).

The agent's tool is a shell: the first word of a command is taken as the tool's name, the whole
command is its argument. Files are named after the task they belong to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ontrack.topics.adapters.parts import (
    NO_TOOL,
    Origin,
    args_of,
    built,
    content_of,
    dig,
    id_of,
    list_of,
    outcome_of,
    text_of,
)
from ontrack.topics.errors import WrongShape
from ontrack.topics.events import Event, RunEnded, RunStarted, Step
from ontrack.topics.jsontext import described

NAME = "sweagent"

_TOOL_CHARACTERS_MAX = 256
_QUOTED = r"""'[^']*'|"[^"]*\""""
_BEFORE_COMMAND = re.compile(
    rf"""\s+|\#[^\n]*(?:\n|$)|\(
    |[A-Za-z_]\w*=(?:{_QUOTED}|[^\s'"])*\s+
    |cd\s+(?:{_QUOTED}|[^\s;&|'"])+\s*(?:&&|;|\n)""",
    re.VERBOSE,
)
_WORD = re.compile(r"[^\s;&|()<>]+")
_FENCED = re.compile(r"```(?:bash|sh|mswea_bash_command)[ \t]*\n(.*?)\n?```", re.DOTALL)


class _Action(NamedTuple):
    thought: str | None
    command: str
    observation: Any
    call_id: str | None = None


def recognise(head: object) -> bool:
    """Tell whether a parsed file is a trajectory of one of the two agents."""
    if not isinstance(head, dict):
        return False
    if isinstance(head.get("trajectory"), list):
        return all(isinstance(entry, dict) and "action" in entry for entry in head["trajectory"])
    if isinstance(head.get("history"), list):
        return all(isinstance(entry, dict) and "role" in entry for entry in head["history"])
    return isinstance(head.get("messages"), list) and (
        str(head.get("trajectory_format", "")).startswith("mini-swe-agent")
        or any(dig(head, "info", name) is not None for name in ("exit_status", "model_stats"))
    )


def tool_of(command: str) -> str:
    """Return the first word of a shell command, after assignments and changes of directory.

    >>> tool_of("cd /testbed && PYTHONPATH=. python -m pytest -q")
    'python'
    """
    position = 0
    while (before := _BEFORE_COMMAND.match(command, position)) is not None:
        position = before.end()
    word = _WORD.match(command, position) or _WORD.search(command)
    return word[0][:_TOOL_CHARACTERS_MAX] if word else NO_TOOL


def events(record: object, origin: Origin) -> Iterator[Event]:
    """Yield the run's start, a step a command, and its end with the exit status as the reason.

    An entry of ``trajectory`` without a command is a step of ``(no tool)``; among messages, a turn
    without a command is no step. An exit status says how the agent
    stopped, not whether the task was solved, so the outcome stays unknown unless it is stated.

    Raises
    ------
    WrongShape
        The record is not of this format.
    """
    if not recognise(record):
        raise WrongShape(
            f"expected a trajectory, a history or mini-SWE messages, found {described(record)}"
        )
    run: dict[str, Any] = record  # type: ignore[assignment]
    model = _model(run)
    yield built(
        RunStarted,
        run_id=origin.run_id,
        task_id=_task_id(run) or origin.instance,
        agent={"id": model} if model else None,
    )
    for seq, action in enumerate(_actions(run)):
        yield built(
            Step,
            run_id=origin.run_id,
            seq=seq,
            action=action.thought,
            tool=tool_of(action.command),
            args={"command": action.command},
            result=action.observation,
            call_id=action.call_id,
        )
    yield built(
        RunEnded,
        run_id=origin.run_id,
        outcome=outcome_of(run.get("outcome"), run.get("success"), dig(run, "info", "resolved")),
        reason=dig(run, "info", "exit_status"),
    )


def _actions(run: dict[str, Any]) -> Iterator[_Action]:
    for name in ("trajectory", "history"):
        if not isinstance(run.get(name), list | None):
            raise WrongShape(f"{name}: expected a list, found {described(run[name])}")
    if run.get("trajectory") is not None:
        for index, entry in enumerate(run["trajectory"]):
            command = entry["action"]
            if not isinstance(command, str | None):
                raise WrongShape(
                    f"trajectory[{index}].action: expected a text, found {described(command)}"
                )
            yield _Action(text_of(entry.get("thought")), command or "", entry.get("observation"))
        return
    messages: list[Any] = run["history"] if run.get("history") is not None else run["messages"]
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise WrongShape(f"messages[{index}]: expected an object, found {described(message)}")
        if message.get("role") == "assistant" and not message.get("is_demo"):
            yield from _turn(message, _answers(messages, index))


def _turn(message: dict[str, Any], answers: list[dict[str, Any]]) -> Iterator[_Action]:
    by_id = {call: answer for answer in answers for call in _answered(answer)}
    for position, (command, call_id) in enumerate(_commands(message)):
        answer = by_id.get(call_id) if call_id in by_id else None
        if answer is None and position < len(answers) and not by_id:
            answer = answers[position]
        yield _Action(_thought(message), command, content_of(dig(answer, "content")), call_id)


def _answers(messages: list[Any], index: int) -> list[dict[str, Any]]:
    """Return what came back for the turn at ``index``: the messages before the next turn."""
    answers = []
    for message in messages[index + 1 :]:
        if not isinstance(message, dict) or message.get("role") not in ("tool", "user"):
            break
        answers.append(message)
    return answers


def _answered(message: dict[str, Any]) -> list[str]:
    ids = list_of(message.get("tool_call_ids")) or [message.get("tool_call_id")]
    return [call_id for call_id in ids if isinstance(call_id, str)]


def _commands(message: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Find the commands of a turn, in the order of how exactly they are stated."""
    calls = [call for call in list_of(message.get("tool_calls")) if isinstance(call, dict)]
    if _is_command(message.get("action")):
        return [(message["action"], id_of(calls[0].get("id")) if calls else None)]
    actions = list_of(dig(message, "extra", "actions"))
    stated = [(dig(action, "command"), id_of(dig(action, "tool_call_id"))) for action in actions]
    if not stated:
        stated = [
            (args_of(dig(call, "function", "arguments")).get("command"), id_of(call.get("id")))
            for call in calls
        ]
    if not stated:
        fenced = _FENCED.findall(text_of(message.get("content")) or "")
        stated = [(fenced[0], None)] if len(fenced) == 1 else []
    return [(command, call_id) for command, call_id in stated if _is_command(command)]


def _thought(message: dict[str, Any]) -> str | None:
    """Return the stated thought, or the text around the command."""
    if "thought" in message:
        return text_of(message["thought"])
    text = text_of(message.get("content"))
    return None if text is None else _FENCED.sub("", text).strip() or None


def _is_command(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _replayed(run: dict[str, Any]) -> Any:
    config = run.get("replay_config")
    return args_of(config) if isinstance(config, str) else config


def _task_id(run: dict[str, Any]) -> str | None:
    return (
        id_of(run.get("instance_id"))
        or id_of(dig(run, "info", "instance_id"))
        or id_of(dig(_replayed(run), "problem_statement", "id"))
    )


def _model(run: dict[str, Any]) -> str | None:
    return id_of(dig(run, "info", "config", "model", "model_name")) or id_of(
        dig(_replayed(run), "agent", "model", "name")
    )
