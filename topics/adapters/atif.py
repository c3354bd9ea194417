"""ATIF, the Agent Trajectory Interchange Format: versions 1.0 to 1.8, with subagents.

``{schema_version: "ATIF-v…", session_id, trajectory_id, agent, steps, subagent_trajectories}``. A
step of the format is a turn; each of its ``tool_calls`` is a step of the run, with the result in
its ``observation`` that names the call as ``source_call_id``. Trajectories of subagents are runs of
their own, whether embedded or in files that a result refers to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ontrack.topics.adapters.messages import failure
from ontrack.topics.adapters.parts import (
    Origin,
    args_of,
    content_of,
    dig,
    id_of,
    list_of,
    number_of,
    text_of,
)
from ontrack.topics.adapters.traces import Run, Runs, all_events, assembled, time_of
from ontrack.topics.errors import InvalidEvent, WrongShape
from ontrack.topics.events import Event
from ontrack.topics.jsontext import described

NAME = "atif"

_VERSION: Final = "ATIF"
#: Subagents within subagents; a document nests no deeper than its parser allows anyway.
_DEPTH_MAX: Final = 64


def recognise(head: object) -> bool:
    """Tell whether a parsed record is a trajectory."""
    return (
        isinstance(head, dict)
        and str(head.get("schema_version", "")).startswith(_VERSION)
        and isinstance(head.get("steps"), list)
    )


def runs() -> Runs:
    """Start reading a file."""
    return _Trajectories()


def events(record: object, origin: Origin) -> Iterator[Event]:
    """Yield the events of a trajectory. Raises :class:`WrongShape` where the record is none."""
    return all_events(runs(), record, origin)


class _Trajectories:
    """Trajectories of a file: every record is a whole one, with its subagents.

    ``_parents`` knows what results of trajectories read before refer to, for subagents that stand
    in records of their own.
    """

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def add(
        self, record: object, origin: Origin, place: int, flags: tuple[str, ...] = ()
    ) -> Iterator[Run]:
        if not recognise(record):
            raise WrongShape(
                f"expected a trajectory with `schema_version` ATIF-v… and `steps`, "
                f"found {described(record)}"
            )
        whole: dict[str, Any] = record  # type: ignore[assignment]
        known = self._parents.copy()
        try:
            found = list(self._runs(whole, origin.run_id, None, place, flags, 0))
        except InvalidEvent:
            self._parents = known
            raise
        yield from found

    def rest(self) -> Iterator[Run]:
        yield from ()

    def _runs(
        self,
        trajectory: dict[str, Any],
        fallback: str,
        parent: str | None,
        place: int,
        flags: tuple[str, ...],
        depth: int,
    ) -> Iterator[Run]:
        """Yield the run of a trajectory, then those of its subagents."""
        if depth > _DEPTH_MAX:
            raise WrongShape(f"expected at most {_DEPTH_MAX} subagents within one another")
        ids = [id_of(trajectory.get(name)) for name in ("trajectory_id", "session_id")]
        # Embedded trajectories may share the session's id, so there the other one tells them apart.
        named = ids if parent is not None else ids[::-1]
        run_id = next((name for name in named if name is not None), fallback)
        if run_id == parent:
            run_id = fallback
        above = parent or next((self._parents[i] for i in ids if i in self._parents), None)
        turns = list(_turns(trajectory["steps"]))
        for index, turn in turns:
            for reference in _references(turn, index):
                self._parents.setdefault(reference, run_id)
        steps = [step | {"parent_run_id": above} for i, turn in turns for step in _steps(turn, i)]
        times = [time for _, turn in turns if (time := time_of(turn.get("timestamp"))) is not None]
        yield assembled(
            run_id,
            steps,
            place=place,
            started={
                "parent_run_id": above,
                "time": times[0] if times else None,
                "agent": _agent(trajectory.get("agent")),
            },
            ended_at=times[-1] if times else None,
            missing=_missing(trajectory),
            flags=flags,
        )
        for position, child in enumerate(list_of(trajectory.get("subagent_trajectories"))):
            if not isinstance(child, dict) or not isinstance(child.get("steps"), list):
                raise WrongShape(
                    f"subagent_trajectories[{position}]: expected a trajectory with `steps`, "
                    f"found {described(child)}"
                )
            name = f"{run_id}:{position}"
            yield from self._runs(child, name, run_id, place, flags, depth + 1)


def _turns(steps: list[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the turns with their positions; what was copied from another trajectory is not run."""
    for index, turn in enumerate(steps):
        if not isinstance(turn, dict):
            raise WrongShape(f"steps[{index}]: expected an object, found {described(turn)}")
        if turn.get("is_copied_context") is not True:
            yield index, turn


def _steps(turn: dict[str, Any], index: int) -> Iterator[dict[str, Any]]:
    """Yield the fields of a turn's steps; the first one carries what the turn cost."""
    calls = turn.get("tool_calls") or []
    if not isinstance(calls, list):
        raise WrongShape(f"steps[{index}].tool_calls: expected a list, found {described(calls)}")
    results = _results(turn, index)
    spent = _spent(turn.get("metrics"))
    for position, call in enumerate(calls):
        name = dig(call, "function_name")
        if not isinstance(name, str) or not name:
            raise WrongShape(
                f"steps[{index}].tool_calls[{position}]: expected a call with a `function_name`, "
                f"found {described(call)}"
            )
        result = _result_of(call, results, len(calls))
        yield {
            "action": text_of(turn.get("message")),
            "tool": name,
            "args": args_of(call.get("arguments")),
            "result": content_of(result.get("content")),
            "error": _error(result, turn if len(calls) == 1 else {}),
            "call_id": id_of(call.get("tool_call_id")),
            "time": time_of(turn.get("timestamp")),
            **spent,
        }
        spent = {}


def _results(turn: dict[str, Any], index: int) -> list[dict[str, Any]]:
    results = list_of(dig(turn, "observation", "results"))
    for position, result in enumerate(results):
        if not isinstance(result, dict):
            raise WrongShape(
                f"steps[{index}].observation.results[{position}]: expected an object, "
                f"found {described(result)}"
            )
    return results


def _result_of(call: dict[str, Any], results: list[dict[str, Any]], calls: int) -> dict[str, Any]:
    """Return the result that names the call; an only result without a name is an only call's."""
    call_id = id_of(call.get("tool_call_id"))
    for result in results:
        if call_id is not None and id_of(result.get("source_call_id")) == call_id:
            return result
    only = calls == 1 and len(results) == 1 and id_of(results[0].get("source_call_id")) is None
    return results[0] if only else {}


def _error(result: dict[str, Any], turn: dict[str, Any]) -> Any:
    """Return the error of a call. The format has no field for it; what writes it uses ``extra``."""
    told = [
        result.get("is_error"),
        dig(result, "extra", "is_error"),
        dig(turn, "extra", "tool_result_is_error"),
    ]
    stated = dig(result, "extra", "error") or result.get("error")
    if isinstance(stated, str):
        return failure(stated)
    if True in told:
        return failure(text_of(result.get("content")))
    return None


def _references(turn: dict[str, Any], index: int) -> Iterator[str]:
    for result in _results(turn, index):
        for reference in list_of(result.get("subagent_trajectory_ref")):
            for name in ("trajectory_id", "session_id"):
                referred = id_of(dig(reference, name))
                if referred is not None:
                    yield referred


def _spent(metrics: Any) -> dict[str, Any]:
    counts = {"input": dig(metrics, "prompt_tokens"), "output": dig(metrics, "completion_tokens")}
    tokens = {name: n for name, n in counts.items() if type(n) is int and n >= 0}
    cost = number_of(dig(metrics, "cost_usd"))
    spent: dict[str, Any] = {"tokens": tokens} if tokens else {}
    return spent | ({"cost_usd": cost} if cost is not None and cost >= 0 else {})


def _agent(agent: Any) -> dict[str, Any] | None:
    if not isinstance(agent, dict):
        return None
    return {"id": id_of(agent.get("name")), "version": id_of(agent.get("version"))}


def _missing(trajectory: dict[str, Any]) -> str | None:
    """Tell what the record lacks: a trajectory may go on in another file."""
    goes_on = id_of(trajectory.get("continued_trajectory_ref"))
    return f"it goes on in {goes_on}" if goes_on is not None else None
