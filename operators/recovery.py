"""Recoverability: whether a run got back on course after an injected fault, when, at what cost.

A run is *back on course* at the first later call that is sound (it did not fail, and no fault was
put into it) and either

* makes the faulted call again: the same tool with the same canonical arguments; or
* is the step that comes next on a given reference: where the best reference stood before the fault,
  one further where the faulted call was that very step. Names only, as in coverage.

A fault is *recovered* if the run got back on course and ended well: with success, or, where nobody
says how it ended, with a reference covered by sound calls. What is counted are the calls after the
faulted one, up to and with the one that is back on course.

Nothing is said of a fault that the agent never met, as in a recording that was changed afterwards.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from ontrack.operators import scoring_coverage, scoring_extras
from ontrack.operators.scoring_coverage import Pointers, ReferencePath
from ontrack.operators.scoring_extras import CallMemory
from ontrack.operators.scoring_plan import ScoringParams, TaskPlan
from ontrack.topics.events import Outcome, Step
from ontrack.topics.knowledge import ToolContract

Way = Literal["same_call", "reference"]
Unmeasured = Literal["not_seen", "no_outcome"]


class Fault(NamedTuple):
    """What was done to a call.

    Parameters
    ----------
    kind
        Such as ``timeout``.
    seen_by_agent
        The agent that made the call got this answer; False where a recording was changed.
    """

    kind: str
    seen_by_agent: bool


class MadeCall(NamedTuple):
    """A call of a run with its number and the fault that was put into it, if any."""

    seq: int
    step: Step
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """What became of one fault.

    Parameters
    ----------
    seq, tool, kind
        The faulted call and the fault.
    recovered
        None where it cannot be told; ``unmeasured`` then says why: the agent did not see the
        fault, or nothing says how the run ended.
    way
        How the run got back on course. This and what follows is None unless it recovered.
    calls
        After the faulted one, up to and with the one that is back on course; at least 1.
    cost_usd
        Of these calls; None where none of them says.
    seconds
        From the end of the faulted call to the end of the last of these; None without timestamps.
    """

    seq: int
    tool: str
    kind: str
    recovered: bool | None
    unmeasured: Unmeasured | None = None
    way: Way | None = None
    calls: int | None = None
    cost_usd: float | None = None
    seconds: float | None = None


def recoveries(
    params: ScoringParams,
    plan: TaskPlan,
    contracts: Mapping[str, ToolContract],
    calls: Sequence[MadeCall],
    outcome: Outcome,
) -> tuple[Recovery, ...]:
    """Return what became of each fault of a run, in the order of its calls.

    Parameters
    ----------
    plan
        Its references count where they are reviewed: passing runs that stand in for references
        hold detours of their own.
    calls
        The whole run, in order.
    """
    if not any(call.fault for call in calls):
        return ()
    paths = plan.paths if plan.reviewed else ()
    course = _Course(params, contracts, calls)
    end = _ended_well(paths, course, outcome)
    pointers, found = scoring_coverage.start(paths), []
    for place, call in enumerate(calls):
        if call.fault is not None:
            ahead = _next_tools(paths, pointers, call.step.tool)
            found.append(_recovery(course, place, call.fault, ahead, end))
        if course.is_sound(place):
            pointers = scoring_coverage.step(paths, pointers, call.step.tool)
    return tuple(found)


class _Course:
    """The sound calls of a run, by what they ask and by tool."""

    def __init__(
        self,
        params: ScoringParams,
        contracts: Mapping[str, ToolContract],
        calls: Sequence[MadeCall],
    ) -> None:
        self.calls = calls
        self._asked: list[tuple[str, bytes]] = []
        self._sound: list[bool] = []
        self._places: dict[tuple[str, bytes] | str, list[int]] = {}
        for place, (_, step, fault) in enumerate(calls):
            written = scoring_extras.canonical(
                step, contracts.get(step.tool), params.text_bytes_max
            )
            # The one place that says what a failed call is, asked about this call alone.
            memory, _ = scoring_extras.step(CallMemory(), step, written, 1)
            asked, sound = (step.tool, written.arguments), fault is None and not memory.after_error
            self._asked.append(asked)
            self._sound.append(sound)
            if sound:
                self._places.setdefault(asked, []).append(place)
                self._places.setdefault(step.tool, []).append(place)

    def is_sound(self, place: int) -> bool:
        """Tell whether a call brought what it was made for."""
        return self._sound[place]

    def same_call(self, place: int) -> int | None:
        """Return where this call is next made soundly."""
        return self._after(place, self._asked[place])

    def one_of(self, place: int, tools: Iterable[str]) -> int | None:
        """Return where one of these tools is next called soundly."""
        found = [at for tool in tools if (at := self._after(place, tool)) is not None]
        return min(found, default=None)

    def _after(self, place: int, key: tuple[str, bytes] | str) -> int | None:
        places = self._places.get(key, [])
        at = bisect_right(places, place)
        return places[at] if at < len(places) else None


def _next_tools(paths: Sequence[ReferencePath], pointers: Pointers, faulted: str) -> set[str]:
    """Return what comes after the faulted call on the references that were followed best."""
    shares = [at / len(path.tools) for path, at in zip(paths, pointers, strict=True)]
    found: set[str] = set()
    for path, at, share in zip(paths, pointers, shares, strict=True):
        if share == max(shares):
            rest = path.tools[at:]
            rest = rest[1:] if rest[:1] == (faulted,) else rest
            found.update(rest[:1])
    return found


def _ended_well(paths: Sequence[ReferencePath], course: _Course, outcome: Outcome) -> bool | None:
    if outcome != "unknown":
        return outcome == "success"
    if not paths:
        return None
    pointers = scoring_coverage.start(paths)
    for place, call in enumerate(course.calls):
        if course.is_sound(place):
            pointers = scoring_coverage.step(paths, pointers, call.step.tool)
    covered = scoring_coverage.best(paths, pointers)
    return covered is not None and not covered.missing


def _recovery(
    course: _Course, place: int, fault: Fault, ahead: set[str], ended_well: bool | None
) -> Recovery:
    seq, step, _ = course.calls[place]
    if not fault.seen_by_agent:
        return Recovery(seq, step.tool, fault.kind, None, "not_seen")
    if ended_well is None:
        return Recovery(seq, step.tool, fault.kind, None, "no_outcome")
    again, onward = course.same_call(place), course.one_of(place, ahead)
    if not ended_well or (again is None and onward is None):
        return Recovery(seq, step.tool, fault.kind, False)
    at = min(found for found in (again, onward) if found is not None)
    spent = [call.step for call in course.calls[place + 1 : at + 1]]
    costs = [each.cost_usd for each in spent if each.cost_usd is not None]
    return Recovery(
        seq,
        step.tool,
        fault.kind,
        True,
        None,
        "same_call" if at == again else "reference",
        at - place,
        sum(costs) if costs else None,
        _seconds(step, spent[-1]),
    )


def _seconds(step: Step, last: Step) -> float | None:
    began, ended = _end(step), _end(last)
    if began is None or ended is None:
        return None
    # Clocks of different machines may disagree; time does not run backwards.
    return max(0.0, (ended - began).total_seconds())


def _end(step: Step) -> datetime | None:
    return step.ended_at or step.time
