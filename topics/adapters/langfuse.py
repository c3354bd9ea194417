"""Langfuse's exports: a trace with its observations, from any framework that reports to it.

``{trace, observations}`` as the page downloads it, a trace of the API with its ``observations``, or
an observation a record, as the export to blob storage writes them (:mod:`.langfuse_rows`).
A step is a TOOL observation, or a SPAN that the attributes or the output of its framework mark as a
tool's execution; a call that only a generation's answer states is a step as well, with the result
that a later generation was given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from ontrack.topics.adapters import beeai
from ontrack.topics.adapters.langfuse_observations import (
    LATE,
    Observation,
    is_tool,
    kind_of,
    observations_of,
    step_of,
)
from ontrack.topics.adapters.langfuse_rows import Group, Rows, is_row
from ontrack.topics.adapters.messages import Stated, answers_in, calls_in
from ontrack.topics.adapters.parts import Origin, args_of, dig, id_of, number_of
from ontrack.topics.adapters.traces import Run, Runs, all_events, assembled, time_of
from ontrack.topics.errors import WrongShape
from ontrack.topics.events import Event
from ontrack.topics.jsontext import described

NAME = "langfuse"


def recognise(head: object) -> bool:
    """Tell whether a parsed record is a trace with observations, or a row of one."""
    return _is_trace(head) or is_row(head)


def _is_trace(head: object) -> bool:
    observations = head.get("observations") if isinstance(head, dict) else None
    if not isinstance(head, dict) or not isinstance(observations, list):
        return False
    first = observations[0] if observations else {"type": "SPAN", "startTime": ""}
    return (isinstance(head.get("trace"), dict) or id_of(head.get("id")) is not None) and (
        isinstance(first, dict) and kind_of(first) is not None and "startTime" in first
    )


def runs() -> Runs:
    """Start reading a file."""
    return _Traces()


def events(record: object, origin: Origin) -> Iterator[Event]:
    """Yield the events of a trace. Raises :class:`WrongShape` where the record is none."""
    return all_events(runs(), record, origin)


class _Traces:
    """A record is a whole trace and handed out at once, or a row, and held to the file's end."""

    def __init__(self) -> None:
        self._rows = Rows(_of_group)

    def add(
        self, record: object, origin: Origin, place: int, flags: tuple[str, ...] = ()
    ) -> Iterator[Run]:
        if is_row(record):
            # Built before any is handed out, so that what is wrong is told of this record.
            yield from [_of_group(group) for group in self._rows.add(record, place, flags)]
            return
        if not _is_trace(record):
            raise WrongShape(
                f"expected an object with `trace` and `observations`, or a row of an observation, "
                f"found {described(record)}"
            )
        whole: dict[str, Any] = record  # type: ignore[assignment]
        trace = whole["trace"] if isinstance(whole.get("trace"), dict) else whole
        run_id = id_of(trace.get("id")) or origin.run_id
        yield _run(run_id, trace, whole["observations"], place, flags, None)

    def rest(self) -> Iterator[Run]:
        for group in self._rows.rest():
            yield _of_group(group)


def _of_group(group: Group) -> Run:
    trace, observations = group.trace, group.observations
    return _run(trace["id"], trace, observations, group.place, group.flags, group.missing)


def _run(
    run_id: str,
    trace: dict[str, Any],
    records: list[Any],
    place: int,
    flags: tuple[str, ...],
    missing: str | None,
) -> Run:
    observations = list(observations_of(records))
    begun = [o.begun for o in observations if o.begun is not None]
    ended = [o.ended for o in observations if o.ended is not None]
    tools = [o for o in observations if is_tool(o) and not beeai.is_notice(o)]
    open_ones = sum(o.ended is None for o in tools)
    agent = {"name": trace.get("name"), "version": trace.get("version") or trace.get("release")}
    return assembled(
        run_id,
        _steps(observations, tools),
        place=place,
        started={
            "time": time_of(trace.get("timestamp")) or min(begun, default=None),
            "agent": {name: id_of(value) for name, value in agent.items()},
        },
        ended_at=max(ended, default=None),
        missing=missing or (f"the ends of {open_ones} tool observations" if open_ones else None),
        flags=flags,
    )


def _steps(observations: list[Observation], tools: list[Observation]) -> list[dict[str, Any]]:
    """Return the fields of the steps, in the order in which they began."""
    steps = list(_innermost(tools, observations))
    steps += beeai.steps_of(observations)
    executions = _Executions(steps)
    results = {
        answer.call_id: answer
        for o in observations
        if o.kind == "GENERATION"
        for answer in answers_in(o.given)
    }
    for generation, calls in _stated(observations):
        spent = _spent(generation)
        for call in calls:
            step = executions.claim(call)
            if step is None:
                answer = results.get(call.call_id) if call.call_id is not None else None
                step = {
                    "tool": call.name,
                    "args": args_of(call.args),
                    "result": answer.content if answer is not None else None,
                    "error": answer.error if answer is not None else None,
                    "call_id": call.call_id,
                    "time": generation.ended or generation.begun,
                }
                steps.append(step)
            step.update(spent)
            spent = {}
    return sorted(steps, key=_begun)


def _begun(step: dict[str, Any]) -> datetime:
    time: datetime | None = step["time"]
    return LATE if time is None else time


def _innermost(
    tools: list[Observation], observations: list[Observation]
) -> Iterator[dict[str, Any]]:
    """Yield the steps that observations are, without what wraps another one of the same call."""
    parents = {o.id: o.parent for o in observations if o.id is not None}
    steps = [step_of(tool) for tool in tools]
    within = {
        (above, step["call_id"])
        for tool, step in zip(tools, steps, strict=True)
        if step["call_id"] is not None
        for above in _above(tool, parents)
    }
    for tool, step in zip(tools, steps, strict=True):
        if (tool.id, step["call_id"]) not in within:
            yield step


def _above(observation: Observation, parents: dict[str, str | None]) -> Iterator[str]:
    above, seen = observation.parent, {observation.id}
    while above is not None and above not in seen:
        yield above
        seen.add(above)
        above = parents.get(above)


def _stated(observations: list[Observation]) -> Iterator[tuple[Observation, list[Stated]]]:
    """Yield the generations with the calls they state, each call once.

    Where generations are nested, the innermost counts; a call id counts once.
    """
    parents = {o.id: o.parent for o in observations if o.id is not None}
    stating = [(o, list(calls_in(o.returned))) for o in observations if o.kind == "GENERATION"]
    outer = {above for o, calls in stating if calls for above in _above(o, parents)}
    seen: set[str] = set()
    for generation, calls in stating:
        if generation.id in outer:
            continue
        fresh = []
        for call in calls:
            if call.call_id is None or call.call_id not in seen:
                fresh.append(call)
                seen |= {call.call_id} if call.call_id is not None else set()
        yield generation, fresh


class _Executions:
    """Executions of tools that no stated call has claimed yet, in the order they began."""

    def __init__(self, steps: list[dict[str, Any]]) -> None:
        self._by_id: dict[str, deque[dict[str, Any]]] = {}
        self._by_name: dict[str, list[dict[str, Any]]] = {}
        for step in sorted(steps, key=_begun):
            if step.get("call_id") is not None:
                self._by_id.setdefault(step["call_id"], deque()).append(step)
            self._by_name.setdefault(step["tool"], []).append(step)

    def claim(self, call: Stated) -> dict[str, Any] | None:
        """Take the execution of a call: by its id, else by name and arguments, else by name."""
        args = args_of(call.args)
        step = self._with_id(call.call_id) or self._named(call, args)
        if step is None:
            return None
        # The model's arguments count where the observation wraps them or has them as other text.
        if step["args"] == {"input": args} or ("_raw" in step["args"] and "_raw" not in args):
            step["args"] = args
        step["call_id"] = step.get("call_id") or call.call_id
        return step

    def _with_id(self, call_id: str | None) -> dict[str, Any] | None:
        waiting = self._by_id.get(call_id) if call_id is not None else None
        if not waiting:
            return None
        step = waiting.popleft()
        named = self._by_name[step["tool"]]
        del named[next(i for i, other in enumerate(named) if other is step)]
        return step

    def _named(self, call: Stated, args: Any) -> dict[str, Any] | None:
        """Take the first execution that may be meant: one of the two lacks an id."""
        named = self._by_name.get(call.name, [])
        may = [i for i, s in enumerate(named) if None in (call.call_id, s.get("call_id"))]
        same = (i for i in may if named[i]["args"] in (args, {"input": args}))
        index = next(same, may[0] if may else None)
        if index is None:
            return None
        step = named.pop(index)
        if step.get("call_id") is not None:
            waiting = self._by_id[step["call_id"]]
            del waiting[next(i for i, other in enumerate(waiting) if other is step)]
        return step


def _spent(generation: Observation) -> dict[str, Any]:
    """Return what a generation cost; the first step that it led to carries it."""
    usage = generation.record.get("usageDetails")
    counts = {name: dig(usage, name) for name in ("input", "output")}
    tokens = {n: count for n, count in counts.items() if type(count) is int and count >= 0}
    cost = number_of(generation.record.get("totalCost"))
    spent: dict[str, Any] = {"tokens": tokens} if tokens else {}
    return spent | ({"cost_usd": cost} if cost is not None and cost >= 0 else {})
