"""Board: what is going on in each run, for whoever looks: a bounded memory of the latest."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from ontrack.topics.events import Agent, Event, RunEnded, RunResumed, RunStarted, Step
from ontrack.topics.verdicts import (
    DeadLetter,
    Decision,
    Intervention,
    Output,
    Scorecard,
    Verdict,
    as_plain,
)

OUTPUTS_KEPT_MAX = 50  # of each run: enough to see how it came to where it is


@dataclass(slots=True)
class RunView:
    """One run, as far as it was seen from here."""

    run_id: str
    agent: Agent | None = None
    task_id: str | None = None
    tenant: str | None = None
    parent_run_id: str | None = None
    steps: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    interventions: dict[str, int] = field(default_factory=dict)
    blocked: int = 0
    last_verdict: str | None = None
    halted: str | None = None  # why
    outcome: str | None = None
    last_event: datetime | None = None
    notes: dict[str, int] = field(default_factory=dict)
    latest: deque[Output] = field(default_factory=lambda: deque(maxlen=OUTPUTS_KEPT_MAX))

    @property
    def state(self) -> Literal["open", "halted", "ended"]:
        """Where it stands."""
        if self.outcome is not None:
            return "ended"
        return "open" if self.halted is None else "halted"

    def summary(self) -> dict[str, Any]:
        """Return the line that a list of runs shows."""
        return {
            "run_id": self.run_id,
            "agent": None if self.agent is None else self.agent.model_dump(mode="json"),
            "task_id": self.task_id,
            "tenant": self.tenant,
            "parent_run_id": self.parent_run_id,
            "state": self.state,
            "outcome": self.outcome,
            "steps": self.steps,
            "last_verdict": self.last_verdict,
            "verdicts": dict(sorted(self.verdicts.items())),
            "interventions": dict(sorted(self.interventions.items())),
            "blocked": self.blocked,
            "notes": dict(sorted(self.notes.items())),
            "last_event": None if self.last_event is None else self.last_event.isoformat(),
        }

    def details(self) -> dict[str, Any]:
        """Return the summary and the latest that was said."""
        return self.summary() | {"outputs": [as_plain(output) for output in self.latest]}


class Board:
    """The runs that were heard of lately.

    Parameters
    ----------
    runs_max
        Beyond it the run that was silent for the longest is forgotten, an ended one first.
    outputs_kept_max
        The latest outputs that are kept of each run.
    forgotten
        Told of each run that is forgotten.
    """

    def __init__(
        self,
        runs_max: int,
        outputs_kept_max: int = OUTPUTS_KEPT_MAX,
        forgotten: Callable[[RunView], None] = lambda _view: None,
    ) -> None:
        self._runs_max = runs_max
        self._outputs_kept_max = outputs_kept_max
        self._tell_forgotten = forgotten
        self._open: OrderedDict[str, RunView] = OrderedDict()
        self._ended: OrderedDict[str, RunView] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open) + len(self._ended)

    @property
    def open_runs(self) -> int:
        """How many runs have not ended."""
        return len(self._open)

    def get(self, run_id: str) -> RunView | None:
        """Return one run."""
        return self._open.get(run_id) or self._ended.get(run_id)

    def __iter__(self) -> Iterator[RunView]:
        """Yield the runs, those that were heard of last first; ended ones behind all others."""
        yield from reversed(self._open.values())
        yield from reversed(self._ended.values())

    def heard(self, event: Event, now: datetime) -> None:
        """Note an event that was taken."""
        if not isinstance(event, RunStarted | Step | RunEnded | RunResumed):
            return
        view = self._view(event.run_id)
        if isinstance(event, RunResumed):
            view.halted = None
        view.agent = event.agent or view.agent
        view.task_id = event.task_id or view.task_id
        view.tenant = event.tenant or view.tenant
        view.parent_run_id = event.parent_run_id or view.parent_run_id
        view.last_event = now

    def said(self, output: Output) -> None:
        """Note what the monitor said."""
        if isinstance(output, DeadLetter):
            return
        view = self._view(output.run_id)
        view.latest.append(output)
        view.agent = output.agent or view.agent
        view.task_id = output.task_id or view.task_id
        view.tenant = output.tenant or view.tenant
        if isinstance(output, Verdict):
            name = output.verdict.value
            view.steps = max(view.steps, output.seq + 1)
            view.verdicts[name] = view.verdicts.get(name, 0) + 1
            view.last_verdict = name
        elif isinstance(output, Intervention):
            name = output.intervention.value
            view.interventions[name] = view.interventions.get(name, 0) + 1
            if name == "halt":
                view.halted = output.reason
        elif isinstance(output, Decision):
            view.blocked += output.decision == "block"
        elif isinstance(output, Scorecard):
            view.outcome = output.outcome
            view.steps = output.steps
            self._end(view)

    def note(self, run_id: str, what: str) -> None:
        """Count something unusual about a run, such as a call that passed by the hook."""
        view = self._view(run_id)
        view.notes[what] = view.notes.get(what, 0) + 1

    def _view(self, run_id: str) -> RunView:
        ended = self._ended.get(run_id)
        if ended is not None:
            return ended
        view = self._open.get(run_id)
        if view is None:
            view = self._open[run_id] = RunView(run_id, latest=deque(maxlen=self._outputs_kept_max))
            self._forget()
        self._open.move_to_end(run_id)
        return view

    def _end(self, view: RunView) -> None:
        self._open.pop(view.run_id, None)
        self._ended[view.run_id] = view
        self._forget()

    def _forget(self) -> None:
        while len(self) > self._runs_max:
            _, view = (self._ended or self._open).popitem(last=False)
            self._tell_forgotten(view)
