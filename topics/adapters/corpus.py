"""Recorded benchmark runs: one run a line, with its calls.

``{task_id, run_id, model, success, calls: [{id, name, args, ts, result, error}]}`` and, where
known, ``reward`` and ``termination`` or ``exit_status``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ontrack.topics.adapters.parts import (
    NO_TOOL,
    Origin,
    args_of,
    built,
    id_of,
    number_of,
    outcome_of,
)
from ontrack.topics.adapters.traces import time_of
from ontrack.topics.errors import WrongShape
from ontrack.topics.events import Event, RunEnded, RunStarted, Step
from ontrack.topics.jsontext import described

NAME = "corpus"
_MODEL_UNKNOWN = "?"


def recognise(head: object) -> bool:
    """Tell whether a parsed line is a recorded run."""
    return isinstance(head, dict) and isinstance(head.get("calls"), list) and "run_id" in head


def events(record: object, origin: Origin) -> Iterator[Event]:
    """Yield the run's start, a step a call (numbered from 0), and its end.

    A call with an empty name becomes a step of ``(no tool)``. A time without an offset is taken as
    UTC: durations within the run stay right.

    Raises
    ------
    WrongShape
        The record or a call is not of this format.
    """
    if not recognise(record):
        raise WrongShape(f"expected an object with `run_id` and `calls`, found {described(record)}")
    run: dict[str, Any] = record  # type: ignore[assignment]
    run_id = id_of(run["run_id"]) or origin.run_id
    model = run.get("model")
    yield built(
        RunStarted,
        run_id=run_id,
        task_id=id_of(run.get("task_id")),
        agent=None if model in (None, "", _MODEL_UNKNOWN) else {"id": model},
    )
    for seq, call in enumerate(run["calls"]):
        yield _step(run_id, seq, call)
    yield built(
        RunEnded,
        run_id=run_id,
        outcome=outcome_of(run.get("outcome"), run.get("success")),
        reward=number_of(run.get("reward")),
        reason=run.get("termination") or run.get("exit_status"),
    )


def _step(run_id: str, seq: int, call: Any) -> Step:
    if not isinstance(call, dict):
        raise WrongShape(f"calls[{seq}]: expected an object, found {described(call)}")
    return built(
        Step,
        run_id=run_id,
        seq=seq,
        time=time_of(call.get("ts")),
        tool=NO_TOOL if call.get("name") == "" else call.get("name"),
        args=args_of(call.get("args")),
        result=call.get("result"),
        error=call.get("error"),
        call_id=id_of(call.get("id")),
    )
