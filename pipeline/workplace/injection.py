"""Injected faults: which calls they hit, and what a call answers then; all by seeded dice.

They serve simulated runs, whose agent meets the answer and reacts to it, and recorded ones, where
one answer is replaced by another and nothing else changes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal, NamedTuple, get_args

from ontrack.pipeline.workplace.faults import ERRORS
from ontrack.topics.errors import InvalidSettings, UnknownName
from ontrack.topics.events import ErrorInfo, Step

FaultKind = Literal["tool_error", "timeout", "wrong_result", "missing_artifact", "flaky"]
FAULT_KINDS: Final[tuple[FaultKind, ...]] = get_args(FaultKind)
FLAKY_RATE: Final = 0.3
TIMEOUT_S: Final = 30.0

_TIMEOUT, *_BROKEN = ERRORS
_NOT_FOUND = ErrorInfo(type="not_found", message="There is no object of this id any more.")
_LAST_DIGIT = re.compile(r"[0-9](?![0-9])")
_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What goes wrong, and when; by default once a run, at a random call.

    Parameters
    ----------
    kind
        ``flaky`` breaks one tool, which the run's seed chooses; the others any call they fit.
    at
        Number of the call, from 0.
    rate
        Share of calls, 0 to 1, instead; for ``flaky`` of the tool's calls, by default 0.3.

    Raises
    ------
    UnknownName
        No such kind.
    InvalidSettings
        Both are given, one is out of range, or ``flaky`` is to happen at one call.
    """

    kind: FaultKind
    at: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS:
            raise UnknownName(f"no fault {self.kind!r}; expected one of {', '.join(FAULT_KINDS)}")
        if self.at is not None and (self.rate is not None or self.at < 0):
            raise InvalidSettings(
                f"at is {self.at} and rate {self.rate}; give the number of a call, or a rate"
            )
        if self.rate is not None and not 0 <= self.rate <= 1:
            raise InvalidSettings(f"rate is {self.rate}; expected a share from 0 to 1")
        if self.kind == "flaky" and self.at is not None:
            raise InvalidSettings("a flaky tool fails at a rate, not at one call; give a rate")


class Strikes:
    """Tells which calls of one run are hit.

    Parameters
    ----------
    tools
        Of the calls as they would be without a fault.
    fits
        Places among them where a fault of this kind can happen.
    """

    def __init__(
        self, plan: FaultPlan, tools: Sequence[str], fits: Collection[int], rng: Random
    ) -> None:
        self._rng, self._rate, self._at, self._tool = rng, plan.rate, plan.at, None
        if plan.kind == "flaky":
            usable = sorted({tools[place] for place in fits})
            self._tool = rng.choice(usable) if usable else None
            self._rate = FLAKY_RATE if plan.rate is None else plan.rate
        elif plan.at is None and plan.rate is None and fits:
            self._at = rng.choice(sorted(fits))

    def hit(self, place: int, tool: str, fits: bool) -> bool:
        """Tell whether this call is hit; to be asked once a call, in order."""
        if not fits or (self._tool is not None and tool != self._tool):
            return False
        return place == self._at if self._rate is None else self._rng.random() < self._rate


class Wrong(NamedTuple):
    """A result in which one value is another; which it was, and what it became."""

    result: Any
    before: Any
    after: Any


def failure(kind: FaultKind, rng: Random) -> ErrorInfo:
    """Return the error that a fault answers with; ``wrong_result`` has none."""
    if kind == "timeout":
        return _TIMEOUT
    return _NOT_FOUND if kind == "missing_artifact" else rng.choice(_BROKEN)


def wrong_result(value: Any, rng: Random) -> Wrong | None:
    """Change one text, number or truth value inside a result; None where it holds none.

    A text with digits keeps its form and gets another digit, so that ids and amounts stay
    plausible; any other text becomes ``unknown``.
    """
    places = list(_leaves(value, ()))
    if not places:
        return None
    path = rng.choice(places)
    before = value
    for part in path:
        before = before[part]
    after = _other(before, rng)
    return Wrong(_replaced(value, path, after), before, after)


def can_be_wrong(value: Any) -> bool:
    """Tell whether a result holds anything that :func:`wrong_result` could change."""
    return next(_leaves(value, ()), None) is not None


def _leaves(value: Any, path: _Path) -> Iterator[_Path]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    elif value is not None:
        yield path


def _other(value: Any, rng: Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        # Far from the limits of what events may hold, and never the same float again.
        return rng.randint(1, 9) if abs(value) > 1e12 else value + rng.randint(1, 9)
    numbers = list(_LAST_DIGIT.finditer(value))
    if not numbers:
        return "none" if value == "unknown" else "unknown"
    at = rng.choice(numbers).start()
    return f"{value[:at]}{(int(value[at]) + rng.randint(1, 9)) % 10}{value[at + 1 :]}"


def _replaced(value: Any, path: _Path, new: Any) -> Any:
    if not path:
        return new
    first, *rest = path
    if isinstance(value, list):
        return [
            _replaced(item, tuple(rest), new) if index == first else item
            for index, item in enumerate(value)
        ]
    return {
        key: _replaced(item, tuple(rest), new) if key == first else item
        for key, item in value.items()
    }


def inject_recorded(plan: FaultPlan, steps: Sequence[Step], rng: Random) -> dict[int, Step]:
    """Return the steps of a recorded run that are hit, by place, with their new answers.

    Calls with an error of their own are left alone, and so are results in which nothing can be
    wrong. What follows a fault is as it was recorded: that agent never saw it.
    """
    fits = {
        place
        for place, step in enumerate(steps)
        if step.error is None and (plan.kind != "wrong_result" or can_be_wrong(step.result))
    }
    strikes = Strikes(plan, [step.tool for step in steps], fits, rng)
    return {
        place: _changed(plan.kind, step, rng)
        for place, step in enumerate(steps)
        if strikes.hit(place, step.tool, place in fits)
    }


def _changed(kind: FaultKind, step: Step, rng: Random) -> Step:
    produced = step.produced
    if kind == "wrong_result":
        wrong = wrong_result(step.result, rng)
        assert wrong is not None
        if produced is not None and isinstance(wrong.before, str):
            produced = tuple(wrong.after if each == wrong.before else each for each in produced)
        return step.model_copy(update={"result": wrong.result, "produced": produced})
    none = None if produced is None else ()
    return step.model_copy(update={"result": None, "error": failure(kind, rng), "produced": none})
