"""Claude Code transcripts: a session's lines, with its subagents as runs of their own.

A transcript is a log of messages: a call and its result stand on different lines. The lines that
``claude -p --output-format stream-json`` prints are read as well; they write ``session_id`` and
``parent_tool_use_id``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from ontrack.topics.adapters.messages import (
    Answer,
    Stated,
    answer_of_block,
    call_of_block,
    failure,
)
from ontrack.topics.adapters.parts import Origin, args_of, built, dig, id_of, text_of
from ontrack.topics.adapters.traces import (
    HELD_BYTES_MAX,
    SPAN_BYTES,
    Run,
    Runs,
    all_events,
    assembled,
    bytes_of,
    time_of,
)
from ontrack.topics.errors import WrongShape
from ontrack.topics.events import Event, RunStarted, Step
from ontrack.topics.jsontext import described

NAME = "claude-code"

#: The type of the error of a call that a person refused or broke off.
CANCELLED: Final = "cancelled"

_AGENT: Final = "claude-code"
_INTERRUPTED: Final = "[Request interrupted by user"
_REJECTED: Final = "User rejected tool use"
_TOKENS_IN: Final = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def recognise(head: object) -> bool:
    """Tell whether a parsed line is one of a transcript."""
    return (
        isinstance(head, dict)
        and isinstance(head.get("type"), str)
        and _session(head) is not None
        and ("uuid" in head or isinstance(head.get("message"), dict))
    )


def runs() -> Runs:
    """Start reading a file."""
    return Transcript()


def events(record: object, origin: Origin) -> Iterator[Event]:
    """Yield the events of a single line. Raises :class:`WrongShape` where no run is in it."""
    found = list(all_events(runs(), record, origin))
    if not found:
        raise WrongShape("expected a line with a `sessionId`, found none")
    yield from found


@dataclass
class _Run:
    place: int
    parent: str | None
    started: dict[str, Any]
    ended_at: datetime | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    by_call: dict[str, dict[str, Any]] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    message_id: str | None = None
    action: str | None = None
    first: dict[str, Any] | None = None
    lacks: Counter[str] = field(default_factory=Counter)
    flags: set[str] = field(default_factory=set)


class Transcript:
    """The runs of a transcript that is read line by line; implements ``Runs``.

    A session is a run under its session id; a subagent is one under ``session:agent id``, with the
    session as parent. Steps come in the order of the calls. A transcript does not say where its
    session ends or whether the task was solved: runs are handed out with the end of the file, their
    outcome unknown. One that lacks something (results of calls, calls of results, its first lines)
    is flagged as partial.
    """

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._sidechains: dict[str, str] = {}
        self._held = 0

    def add(
        self, record: object, origin: Origin, place: int, flags: tuple[str, ...] = ()
    ) -> Iterator[Run]:
        """Take a line; nothing is over before the file is.

        Raises
        ------
        WrongShape
            The line is no object, a message is none, a call names no tool or has no id, or more is
            held than a transcript may have. Nothing of the line was taken.
        """
        if not isinstance(record, dict) or not isinstance(record.get("type"), str):
            raise WrongShape(
                f"expected a transcript's line with a `type`, found {described(record)}"
            )
        line, session = record, _session(record)
        message = _message(line) if line["type"] in ("user", "assistant") else {"content": []}
        blocks = _blocks(message)
        calls = _calls(blocks) if line["type"] == "assistant" else {}
        answers = [answer for answer in map(answer_of_block, blocks) if answer is not None]
        if session is not None:
            self._hold(line, blocks)
            for call in calls.values():
                built(Step, run_id=session, tool=call.name, args=args_of(call.args))
            run = self._run(line, session, place)
            run.flags.update(flags)
            run.ended_at = time_of(line.get("timestamp")) or run.ended_at
            if line["type"] == "assistant":
                _called(run, line, message, calls)
            _answered(run, line, answers)
            if line["type"] == "user" and not answers:
                _interrupted(run, next(filter(None, map(_text_of_block, blocks)), ""))
        yield from ()

    def rest(self) -> Iterator[Run]:
        """Yield the runs, each session before its subagents."""
        for run_id, run in sorted(self._runs.items(), key=lambda item: item[1].parent is not None):
            run.lacks["result"] += sum(
                call_id not in run.answered and "error" not in step
                for call_id, step in run.by_call.items()
            )
            yield assembled(
                run_id,
                run.steps,
                place=run.place,
                started=run.started,
                ended_at=run.ended_at,
                missing=_lacking(run.lacks),
                flags=run.flags,
            )
        self._runs.clear()

    def _hold(self, line: dict[str, Any], blocks: list[Any]) -> None:
        self._held += SPAN_BYTES + bytes_of(blocks)
        if self._held > HELD_BYTES_MAX:
            raise WrongShape(
                f"expected a transcript of at most {HELD_BYTES_MAX} bytes of messages; "
                "split the file by sessions"
            )

    def _run(self, line: dict[str, Any], session: str, place: int) -> _Run:
        agent = self._agent(line)
        run_id, parent = (session, None) if agent is None else (f"{session}:{agent}", session)
        run = self._runs.get(run_id)
        if run is None:
            started = {
                "parent_run_id": parent,
                "time": time_of(line.get("timestamp")),
                "agent": {"id": _AGENT, "version": id_of(line.get("version"))},
            }
            # What does not hold is told with its line, not at the end of the file.
            built(RunStarted, run_id=run_id, **started)
            run = self._runs[run_id] = _Run(place, parent, started)
            run.lacks["beginning"] = int(id_of(line.get("parentUuid")) is not None)
        return run

    def _agent(self, line: dict[str, Any]) -> str | None:
        """Return which subagent a line belongs to, None for the session itself."""
        agent = id_of(line.get("agentId")) or id_of(line.get("parent_tool_use_id"))
        if agent is not None or line.get("isSidechain") is not True:
            return agent
        # Older transcripts: a subagent's lines stand in the session's file, chained by parents.
        uuid, before = id_of(line.get("uuid")), id_of(line.get("parentUuid"))
        agent = self._sidechains.get(before or "", uuid or "sidechain")
        if uuid is not None:
            self._sidechains[uuid] = agent
        return agent


def _session(line: dict[str, Any]) -> str | None:
    return id_of(line.get("sessionId")) or id_of(line.get("session_id"))


def _message(line: dict[str, Any]) -> dict[str, Any]:
    message = line.get("message")
    if not isinstance(message, dict) or not isinstance(message.get("content"), list | str):
        raise WrongShape(
            f"{line['type']}.message: expected an object with `content`, found {described(message)}"
        )
    if _session(line) is None:
        raise WrongShape("expected a message with a `sessionId`, found none")
    return message


def _blocks(message: dict[str, Any]) -> list[Any]:
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _calls(blocks: list[Any]) -> dict[int, Stated]:
    """Return the calls among a message's blocks, by position."""
    calls: dict[int, Stated] = {}
    for position, block in enumerate(blocks):
        where = f"message.content[{position}]"
        call = call_of_block(block, where)
        if call is not None and call.call_id is None:
            raise WrongShape(f"{where}: expected a call with an `id`, found {described(block)}")
        if call is not None:
            calls[position] = call
    return calls


def _called(
    run: _Run, line: dict[str, Any], message: dict[str, Any], calls: dict[int, Stated]
) -> None:
    """Take an assistant's line: some blocks of a message that may go on on the next lines."""
    message_id = id_of(message.get("id")) or id_of(line.get("uuid"))
    if message_id is None or message_id != run.message_id:
        run.message_id, run.action, run.first = message_id, None, None
    time = time_of(line.get("timestamp"))
    for position, block in enumerate(_blocks(message)):
        run.action = _text_of_block(block) or run.action
        call = calls.get(position)
        if call is None or call.call_id is None or call.call_id in run.by_call:
            continue
        step = {
            "parent_run_id": run.parent,
            "action": run.action,
            "tool": call.name,
            "args": args_of(call.args),
            "call_id": call.call_id,
            "time": time,
            "started_at": time,
        }
        run.by_call[call.call_id] = step
        run.steps.append(step)
        run.first = run.first or step
    _count_tokens(run, message)


def _count_tokens(run: _Run, message: dict[str, Any]) -> None:
    """Write a message's tokens to its first step; later lines of it repeat or raise them."""
    usage = message.get("usage")
    tokens = _tokens(usage) if isinstance(usage, dict) else None
    if tokens is not None and run.first is not None:
        run.first["tokens"] = tokens


def _answered(run: _Run, line: dict[str, Any], answers: list[Answer]) -> None:
    told = line.get("toolUseResult") if len(answers) == 1 else None
    for answer in answers:
        step = run.by_call.get(answer.call_id or "")
        if step is None:
            run.lacks["call"] += 1
        elif answer.call_id not in run.answered:
            run.answered.add(step["call_id"])
            step["result"] = answer.content
            step["error"] = _error(answer, told)
            step["ended_at"] = time_of(line.get("timestamp"))


def _error(answer: Answer, told: Any) -> Any:
    """Tell a call that a person refused or broke off from one that failed."""
    refused = answer.error is not None and told == _REJECTED
    if refused or dig(told, "interrupted") is True:
        return failure(text_of(answer.content), CANCELLED)
    return answer.error


def _interrupted(run: _Run, said: str) -> None:
    """Mark the calls that wait for a result as broken off, if the user did that."""
    if said.startswith(_INTERRUPTED):
        for call_id in run.by_call.keys() - run.answered:
            run.by_call[call_id]["error"] = failure(said, CANCELLED)


def _lacking(lacks: Counter[str]) -> str | None:
    texts = {
        "beginning": "its first lines",
        "result": f"the results of {lacks['result']} calls",
        "call": f"the calls of {lacks['call']} results",
    }
    return ", ".join(text for name, text in texts.items() if lacks[name]) or None


def _tokens(usage: dict[str, Any]) -> dict[str, int] | None:
    parts = [usage.get(name) for name in _TOKENS_IN]
    counted = [part for part in parts if type(part) is int and part >= 0]
    output = usage.get("output_tokens")
    tokens = {"input": sum(counted)} if counted else {}
    return (tokens | ({"output": output} if type(output) is int and output >= 0 else {})) or None


def _text_of_block(block: Any) -> str | None:
    return text_of(dig(block, "text")) if dig(block, "type") == "text" else None
