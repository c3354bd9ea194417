"""BeeAI's observations: one for each notice that its emitter gave, several of them for one call.

An iteration of its ReAct agent tells the tool, then the arguments, then the result, each time with
all that is known so far; the tool itself tells of its start, its success or error and its end.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ontrack.topics.adapters.langfuse_observations import Observation, value_of
from ontrack.topics.adapters.messages import failure
from ontrack.topics.adapters.parts import args_of, id_of, text_of

_REACT: Final = "agent.react."
_TOOL: Final = "tool."


class _Phase(NamedTuple):
    key: tuple[str | None, str]
    tool: str
    args: Any
    done: bool
    failed: bool
    observation: Observation


def is_notice(observation: Observation) -> bool:
    """Tell whether an observation is one of the emitter's notices about a tool."""
    return _target(observation).startswith((_REACT, _TOOL))


def steps_of(observations: list[Observation]) -> list[dict[str, Any]]:
    """Return the steps that notices add up to, in the order in which their calls began."""
    notices = [o for o in observations if is_notice(o)]
    react = [p for p in map(_of_agent, notices) if p is not None]
    agents = {phase.observation.id for phase in react}
    tools = [p for p in map(_of_tool, notices) if p is not None]
    failed = {p.observation.parent for p in tools if p.failed}
    # The tool's own notices count where no iteration tells of the call.
    phases = react + [p for p in tools if p.observation.parent not in agents]
    groups: dict[tuple[str | None, str], list[_Phase]] = {}
    for phase in sorted(phases, key=lambda p: str(p.observation.begun)):
        groups.setdefault(phase.key, []).append(phase)
    return [
        _step(group, any(p.failed or p.observation.id in failed for p in group))
        for group in groups.values()
    ]


def _target(observation: Observation) -> str:
    target = observation.attributes.get("target")
    return target if isinstance(target, str) else ""


def _of_agent(observation: Observation) -> _Phase | None:
    """Read a notice of an iteration, once it tells the tool with its arguments."""
    tool = id_of(observation.attributes.get("tool.name"))
    args = value_of(observation.attributes.get("tool.parameters"))
    if not _target(observation).startswith(_REACT) or tool is None or args is None:
        return None
    done = observation.returned is not None
    return _Phase((observation.parent, tool), tool, args, done, False, observation)


def _of_tool(observation: Observation) -> _Phase | None:
    name, _, phase = _target(observation).removeprefix(_TOOL).rpartition(".")
    if not _target(observation).startswith(_TOOL) or not name:
        return None
    args = value_of(observation.attributes.get("tool.parameters"))
    done = phase in ("success", "error")
    return _Phase((observation.parent, name), name, args, done, phase == "error", observation)


def _step(phases: list[_Phase], failed: bool) -> dict[str, Any]:
    told = next((p for p in phases if p.done), None)
    result = told.observation.returned if told is not None else None
    begun = phases[0].observation.begun
    args = [p.args for p in phases if p.args is not None]
    return {
        "action": text_of(phases[-1].observation.attributes.get("thought")),
        "tool": phases[0].tool,
        "args": args_of(args[-1]) if args else {},
        "result": result,
        "error": failure(text_of(result)) if failed else None,
        "time": begun,
        "started_at": begun,
        "ended_at": told.observation.begun if told is not None else None,
    }
