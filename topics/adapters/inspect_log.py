"""Logs of Inspect evaluations: a run a sample (and epoch).

The record is the log as in its ``.json``: ``{eval, status, samples: […]}``; what an ``.eval``
archive holds is brought into the same form, a record a sample. A step is a ``tool`` event, nested
ones included; where a log keeps no events, a tool call of the messages. The task is
``task/sample``, so that epochs and models of one sample are compared with each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ontrack.topics.adapters.parts import (
    Origin,
    args_of,
    content_of,
    dig,
    id_of,
    list_of,
    number_of,
)
from ontrack.topics.adapters.traces import Run, Runs, all_events, assembled, time_of
from ontrack.topics.errors import WrongShape
from ontrack.topics.events import Event, Outcome
from ontrack.topics.jsontext import described

NAME = "inspect"

#: How a value that stands elsewhere in the sample is written, now and in older logs.
_ELSEWHERE = ("attachment://", "tc://")
_PASSED = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}


def recognise(head: object) -> bool:
    """Tell whether a parsed file is an Inspect log."""
    return (
        isinstance(head, dict)
        and isinstance(head.get("eval"), dict)
        and "task" in head["eval"]
        and ("samples" in head or "plan" in head)
    )


def runs() -> Runs:
    """Start reading a file."""
    return _Log()


def events(record: object, origin: Origin) -> Iterator[Event]:
    """Yield the events of all samples. Raises :class:`WrongShape` where it is no such log."""
    return all_events(runs(), record, origin)


class _Log:
    """Every record holds whole samples: nothing is held."""

    def add(self, record: object, origin: Origin, place: int) -> Iterator[Run]:
        if not recognise(record) or not isinstance(record, dict):
            raise WrongShape(f"expected an Inspect log, found {described(record)}")
        samples = record.get("samples")
        if not isinstance(samples, list):
            raise WrongShape(
                f"expected `samples`, found {described(samples)}: a log without samples holds no "
                "runs; write it with log_samples"
            )
        yield from [
            _run(record["eval"], sample, f"samples[{number}]", place)
            for number, sample in enumerate(samples)
        ]

    def rest(self) -> Iterator[Run]:
        yield from ()


class _Call(NamedTuple):
    """A tool call as an event or a message states it."""

    fields: dict[str, Any]
    outer: int | None = None


def _run(evaluation: dict[str, Any], sample: Any, where: str, place: int) -> Run:
    sample_id = id_of(sample.get("id")) if isinstance(sample, dict) else None
    if not isinstance(sample, dict) or sample_id is None:
        raise WrongShape(f"{where}: expected a sample with an `id`, found {described(sample)}")
    attachments = sample.get("attachments")
    try:
        calls = _calls(sample, attachments if isinstance(attachments, dict) else {})
        steps = [
            call.fields | {"parents": None if call.outer is None else (call.outer,)}
            for call in calls
        ]
        outcome, reward = _judged(sample.get("scores"))
        model = id_of(evaluation.get("model"))
        return assembled(
            id_of(sample.get("uuid")) or _run_id(evaluation, sample, sample_id),
            steps,
            place=place,
            started={
                "time": time_of(sample.get("started_at")),
                "task_id": f"{id_of(evaluation.get('task')) or '?'}/{sample_id}",
                "agent": {"id": model} if model is not None else None,
            },
            ended_at=time_of(sample.get("completed_at")),
            outcome=outcome,
            reward=reward,
            reason=_reason(sample),
        )
    except WrongShape as error:
        raise WrongShape(f"{where}: {error}") from None


def _run_id(evaluation: dict[str, Any], sample: dict[str, Any], sample_id: str) -> str:
    log = id_of(evaluation.get("eval_id")) or id_of(evaluation.get("run_id")) or "inspect"
    return f"{log}/{sample_id}@{id_of(sample.get('epoch')) or '1'}"


def _calls(sample: dict[str, Any], attachments: dict[str, Any]) -> list[_Call]:
    calls: list[_Call] = []
    _from_events(list_of(sample.get("events")), attachments, calls, None)
    return calls or list(_from_messages(list_of(sample.get("messages")), attachments))


def _from_events(
    items: list[Any], attachments: dict[str, Any], calls: list[_Call], outer: int | None
) -> None:
    """Add the tool events of a list and, at any depth, of the events that they hold."""
    for item in items:
        within = outer
        if dig(item, "event") == "tool":
            within = len(calls)
            calls.append(_Call(_of_event(item, attachments), outer))
        _from_events(list_of(dig(item, "events")), attachments, calls, within)


def _of_event(item: dict[str, Any], attachments: dict[str, Any]) -> dict[str, Any]:
    error = _error(item.get("error"), attachments)
    if error is None and item.get("failed") is True:
        error = {"type": "error", "message": None}
    started = time_of(item.get("timestamp"))
    return {
        "time": started,
        "started_at": started,
        "ended_at": time_of(item.get("completed")),
        "tool": item.get("function"),
        "args": args_of(_resolved(item.get("arguments"), attachments)),
        "result": _result(item.get("result"), error, attachments),
        "error": error,
        "call_id": id_of(item.get("id")),
    }


def _from_messages(messages: list[Any], attachments: dict[str, Any]) -> Iterator[_Call]:
    answers: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for index, message in enumerate(messages):
        call_id = id_of(dig(message, "tool_call_id"))
        if dig(message, "role") == "tool" and call_id is not None:
            answers.setdefault(call_id, []).append((index, message))
    for index, message in enumerate(messages):
        if dig(message, "role") != "assistant":
            continue
        for call in list_of(message.get("tool_calls")):
            call_id = id_of(dig(call, "id"))
            waiting = answers.get(call_id, []) if call_id is not None else []
            while waiting and waiting[0][0] < index:
                waiting.pop(0)
            answer = waiting.pop(0)[1] if waiting else {}
            error = _error(answer.get("error"), attachments)
            yield _Call(
                {
                    "tool": dig(call, "function"),
                    "args": args_of(_resolved(dig(call, "arguments"), attachments)),
                    "result": _result(answer.get("content"), error, attachments),
                    "error": error,
                    "call_id": call_id,
                }
            )


def _result(value: Any, error: dict[str, Any] | None, attachments: dict[str, Any]) -> Any:
    """Return what came back; the empty text beside an error stands for nothing."""
    result = content_of(_resolved(value, attachments))
    if error is not None and result in ("", error["message"]):
        return None
    return result


def _error(error: Any, attachments: dict[str, Any]) -> dict[str, Any] | None:
    if not isinstance(error, dict):
        return None
    message = _resolved(error.get("message"), attachments)
    kind = error.get("type")
    return {
        "type": kind if isinstance(kind, str) else None,
        "message": message if isinstance(message, str) else None,
    }


def _resolved(value: Any, attachments: dict[str, Any]) -> Any:
    """Put long texts back where the log only names them; one that it lacks stays a name."""
    if isinstance(value, dict):
        return {name: _resolved(item, attachments) for name, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, attachments) for item in value]
    if isinstance(value, str) and value.startswith(_ELSEWHERE):
        text = attachments.get(value.partition("://")[2])
        return text if isinstance(text, str) else value
    return value


def _judged(scores: Any) -> tuple[Outcome, float | None]:
    """Return the outcome if all scorers agree on it, and the first score as a reward."""
    if not isinstance(scores, dict):
        return "unknown", None
    values = [
        value for score in scores.values() if (value := _number(dig(score, "value"))) is not None
    ]
    reward = values[0] if values else None
    if values and all(value == 1 for value in values):
        return "success", reward
    if values and all(value == 0 for value in values):
        return "failure", reward
    return "unknown", reward


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return float(value)
    return _PASSED.get(value) if isinstance(value, str) else number_of(value)


def _reason(sample: dict[str, Any]) -> str | None:
    limit = dig(sample, "limit", "type")
    if isinstance(limit, str):
        return f"limit: {limit}"
    error = dig(sample, "error", "message")
    return error if isinstance(error, str) else None
