"""An agent that meets faults and reacts: it retries, looks elsewhere, or gives up.

World and agent have dice of their own. The world answers by its state, whatever the agent hopes
for: a tool that is down stays down for a while, an artifact that is gone is gone until its producer
is called again, and a wrong id that was believed is not found by the tool it is handed to. So a
retry may fail, and what looks like success may rest on a wrong answer. Neither knows how the run is
scored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, NamedTuple

from ontrack.pipeline.workplace.execution import Draft, consumed_by, draft, produced_by
from ontrack.pipeline.workplace.faults import with_id_swapped
from ontrack.pipeline.workplace.injection import (
    TIMEOUT_S,
    FaultKind,
    FaultPlan,
    Strikes,
    Wrong,
    can_be_wrong,
    failure,
    wrong_result,
)
from ontrack.pipeline.workplace.world import Desk
from ontrack.topics.events import ErrorInfo, Outcome
from ontrack.topics.knowledge import Effect, ToolContract

#: Chance that a tool that was down at its last call is down at the next one too.
STILL_DOWN: Final = 0.35
#: Calls that an agent makes at most, as a multiple of those of the run without faults.
CALLS_MAX: Final = 3
_NOT_FOUND = failure("missing_artifact", Random(0))


@dataclass(frozen=True, slots=True)
class Temper:
    """How an agent takes what goes wrong.

    Parameters
    ----------
    patience
        Failures of one step that it takes; at the next one it gives up.
    elsewhere
        Chance that it looks elsewhere rather than retries.
    attention
        Chance that it sees that a result is wrong.
    """

    patience: int
    elsewhere: float
    attention: float

    @classmethod
    def drawn(cls, rng: Random) -> Temper:
        """Draw an agent's temper, from one that gives up at once to a stubborn one."""
        return cls(rng.randint(0, 3), rng.uniform(0.1, 0.6), rng.uniform(0.2, 0.9))


@dataclass(frozen=True, slots=True)
class Reaction:
    """What a run came to: its calls, the faults put into them by place, and how it ended."""

    drafts: list[Draft]
    faults: dict[int, FaultKind]
    outcome: Outcome
    reason: str | None


class _Answer(NamedTuple):
    """What a call brings; ``fault`` if one was put into it, ``wrong`` if it is a wrong result."""

    result: Any
    error: ErrorInfo | None = None
    fault: FaultKind | None = None
    wrong: Wrong | None = None


def react(desk: Desk, drafts: Sequence[Draft], plan: FaultPlan | None, seed: str) -> Reaction:
    """Let an agent work through a valid execution in a world with faults.

    Parameters
    ----------
    drafts
        What it would do if nothing went wrong; without a fault it does just that.
    seed
        Of the world's and the agent's dice.
    """
    agent = _Agent(desk, drafts, Random(f"{seed}|agent"))
    world = _World(desk, drafts, plan, Random(f"{seed}|world"))
    made: list[Draft] = []
    faults: dict[int, FaultKind] = {}
    while (call := agent.next_call()) is not None:
        if len(made) >= CALLS_MAX * len(drafts):
            return Reaction(made, faults, "failure", "the step limit was reached")
        answer = world.answer(len(made), agent.intended, call)
        if answer.fault is not None:
            faults[len(made)] = answer.fault
        waits = TIMEOUT_S if answer.error is not None and answer.error.type == "timeout" else 0.0
        made.append(replace(call, result=answer.result, error=answer.error, waits_s=waits))
        if not agent.take(answer):
            why = answer.error.message if answer.error is not None else "the result was wrong"
            return Reaction(made, faults, "failure", f"{call.tool}: {why}")
    return Reaction(made, faults, "success", None)


class _World:
    """The tools of a desk, through the faults of a plan."""

    def __init__(
        self, desk: Desk, drafts: Sequence[Draft], plan: FaultPlan | None, rng: Random
    ) -> None:
        self._contracts = {contract.name: contract for contract in desk.tools}
        self._plan, self._rng = plan, rng
        self._made_by_a_call = {name for item in drafts for name in self._produced(item)}
        self._down: dict[str, ErrorInfo] = {}
        self._gone: set[str] = set()
        self._strikes: Strikes | None = None
        if plan is not None:
            fits = {place for place, item in enumerate(drafts) if self._fits(item)}
            self._strikes = Strikes(plan, [item.tool for item in drafts], fits, rng)

    def answer(self, place: int, intended: Draft, call: Draft) -> _Answer:
        """Answer a call.

        Parameters
        ----------
        place
            Number of the call in the run.
        intended
            The call as it would be with the right ids, with its right result.
        """
        if self._strikes is not None and self._strikes.hit(
            place, call.tool, self._fits(intended) and call.args == intended.args
        ):
            return self._struck(intended)
        error = self._down.get(call.tool)
        if error is not None:
            if self._rng.random() < STILL_DOWN:
                return _Answer(None, error)
            del self._down[call.tool]
        if call.args != intended.args or self._gone.intersection(self._consumed(intended)):
            return _Answer(None, _NOT_FOUND)
        self._gone.difference_update(self._produced(intended))
        return _Answer(intended.result)

    def _struck(self, item: Draft) -> _Answer:
        assert self._plan is not None
        kind = self._plan.kind
        if kind == "wrong_result":
            wrong = wrong_result(item.result, self._rng)
            assert wrong is not None
            return _Answer(wrong.result, None, kind, wrong)
        error = failure(kind, self._rng)
        if kind in ("tool_error", "timeout"):
            self._down[item.tool] = error
        elif kind == "missing_artifact":
            self._gone.add(self._rng.choice(self._losable(item)))
        return _Answer(None, error, kind)

    def _fits(self, item: Draft) -> bool:
        kind = None if self._plan is None else self._plan.kind
        if kind == "missing_artifact":
            return bool(self._losable(item))
        return kind != "wrong_result" or can_be_wrong(item.result)

    def _losable(self, item: Draft) -> list[str]:
        """Return the artifacts that a call uses and that another one has made."""
        return [name for name in self._consumed(item) if name in self._made_by_a_call]

    def _consumed(self, item: Draft) -> tuple[str, ...]:
        return consumed_by(item, self._contracts.get(item.tool))

    def _produced(self, item: Draft) -> tuple[str, ...]:
        return produced_by(item, self._contracts.get(item.tool))


class _Agent:
    """Works off its plan; what went wrong changes the order of it, and adds to it."""

    def __init__(self, desk: Desk, drafts: Sequence[Draft], rng: Random) -> None:
        self._contracts = {contract.name: contract for contract in desk.tools}
        self._aside = desk.side_branch[0]
        self._rng, self._temper = rng, Temper.drawn(rng)
        self._waiting = list(drafts)
        self._done: dict[str, Draft] = {}
        self._failures: Counter[str] = Counter()
        #: What it takes an id for: by the right one, the wrong one and the step it has it from.
        self._believed: dict[str, tuple[Any, str]] = {}

    @property
    def intended(self) -> Draft:
        """The step it is at, as it would be with the right ids."""
        return self._waiting[0]

    def next_call(self) -> Draft | None:
        """Return the call it makes now, by what it believes; None when all is done."""
        if not self._waiting:
            return None
        args: Mapping[str, Any] = self.intended.args
        for right, (wrong, _) in self._believed.items():
            args = with_id_swapped(args, right, wrong)
        return replace(self.intended, args=args)

    def take(self, answer: _Answer) -> bool:
        """Take an answer to the call it made; False says that it gives up."""
        item = self.intended
        seen = answer.wrong is not None and self._rng.random() < self._temper.attention
        if answer.error is None and not seen:
            self._done[item.key] = self._waiting.pop(0)
            self._believe(item, answer.wrong)
            return True
        self._failures[item.key] += 1
        if self._failures[item.key] > self._temper.patience:
            return False
        odds, is_not_found = self._temper.elsewhere, answer.error == _NOT_FOUND
        if is_not_found:
            # Whoever is told that there is no such thing is twice as ready to look elsewhere.
            odds = 1 - (1 - odds) ** 2
        if self._rng.random() < odds:
            self._look_elsewhere(item, is_not_found)
        return True

    def _believe(self, item: Draft, wrong: Wrong | None) -> None:
        self._believed = {
            right: belief for right, belief in self._believed.items() if belief[1] != item.key
        }
        if wrong is not None and isinstance(wrong.before, str):
            self._believed[wrong.before] = (wrong.after, item.key)

    def _look_elsewhere(self, item: Draft, is_not_found: bool) -> None:
        """Fetch again what was not found; else do something else first, and come back."""
        if is_not_found:
            self._waiting[:0] = [
                self._done[key]
                for key in item.after
                if key in self._done and not self._is_destructive(self._done[key])
            ]
            return
        ahead = {each.key for each in self._waiting}
        for place, other in enumerate(self._waiting):
            if other.key != item.key and ahead.isdisjoint(other.after):
                self._waiting.insert(0, self._waiting.pop(place))
                return
        if self._aside.key not in self._done:
            self._waiting.insert(0, replace(draft(self._aside, {}, self._rng), after=()))

    def _is_destructive(self, item: Draft) -> bool:
        contract: ToolContract | None = self._contracts.get(item.tool)
        return contract is None or contract.effect is Effect.DESTRUCTIVE
