"""Board: what is going on in each run, for whoever looks: a bounded memory of the latest.

Whether a run is open, halted or ended is decided here, and nowhere else outside of the monitor.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from itertools import islice
from typing import Any, Final, Literal, get_args

from ontrack.topics import codecs
from ontrack.topics.events import Agent, Event, RunEnded, RunResumed, RunStarted, Step
from ontrack.topics.verdicts import (
    AFTER_HALT,
    SHADOW,
    WOULD_HALT,
    DeadLetter,
    Decision,
    Intervention,
    InterventionName,
    Output,
    Scorecard,
    Verdict,
    as_plain,
    was_halted,
)

OUTPUTS_KEPT_MAX: Final = 50  # of each run: enough to see how it came to where it is
HALTED_KEPT_MAX: Final = 1_000  # open runs that are silent for longer than others, and halted
IDS_KEPT_MAX: Final = 50_000  # of outputs: what comes twice comes soon after

_HALTED_BEFORE: Final = "it was halted before anybody listened here"
_UNSAID_BEFORE: Final = "it came to a halt in shadow mode before anybody listened here"

State = Literal["open", "halted", "ended"]
STATES: Final = get_args(State)


@dataclass(slots=True)
class RunView:
    """One run, as far as it was seen from here.

    Parameters
    ----------
    halted
        Why it was halted, as long as nobody is known to have let it go on.
    would_halt
        Why it would have been halted, had it not been in shadow mode.
    shadow
        It was in shadow mode at its last verdict: judged as ever, told nothing.
    unheeded
        Its hooks only watch: what the monitor says is not handed on to it.
    """

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
    halted: str | None = None
    halted_at: int = -1
    would_halt: str | None = None
    shadow: bool = False
    unheeded: bool = False
    outcome: str | None = None
    last_event: datetime | None = None
    notes: dict[str, int] = field(default_factory=dict)
    latest: deque[Output] = field(default_factory=lambda: deque(maxlen=OUTPUTS_KEPT_MAX))

    @property
    def is_watched_only(self) -> bool:
        """Whether nobody stops it, whatever is said."""
        return self.shadow or self.unheeded

    @property
    def is_halted(self) -> bool:
        """Whether it was halted, ended since or not, and nobody has let it go on."""
        return self.halted is not None and not self.is_watched_only

    @property
    def would_have_halted(self) -> str | None:
        """Why a run that is only watched would have been halted; None: it would not."""
        return self.would_halt or (self.halted if self.is_watched_only else None)

    @property
    def state(self) -> State:
        """Where it stands."""
        if self.outcome is not None:
            return "ended"
        return "halted" if self.is_halted else "open"

    def heard(self, event: Event) -> None:
        """Note an event."""
        if isinstance(event, RunResumed):
            self.halted = self.would_halt = None

    def said(self, output: Output) -> None:
        """Note an output that was not heard before."""
        if isinstance(output, Verdict):
            self._judged(output)
        elif isinstance(output, Intervention):
            name = output.intervention.value
            self.interventions[name] = self.interventions.get(name, 0) + 1
            if output.intervention is InterventionName.HALT:
                self.halted, self.halted_at = output.reason, output.seq
        elif isinstance(output, Decision):
            self.blocked += output.decision == "block"
        elif isinstance(output, Scorecard):
            self._scored(output)

    def _judged(self, verdict: Verdict) -> None:
        name = verdict.verdict.value
        self.steps = max(self.steps, verdict.seq + 1)
        self.verdicts[name] = self.verdicts.get(name, 0) + 1
        self.last_verdict = name
        self.shadow = SHADOW in verdict.flags
        if not self.shadow:
            self.would_halt = None
        elif WOULD_HALT in verdict.flags:
            self.would_halt = verdict.reasons[0].text if verdict.reasons else name
        if verdict.seq > self.halted_at and AFTER_HALT not in verdict.flags:
            self.halted = None  # let go on, where we did not hear it

    def _scored(self, card: Scorecard) -> None:
        self.outcome = card.outcome
        self.steps = card.steps
        if WOULD_HALT in card.flags:
            self.would_halt = self.would_halt or _UNSAID_BEFORE
        elif was_halted(card) and "halt" not in self.interventions:
            self.halted, self.halted_at = _HALTED_BEFORE, card.steps

    def summary(self) -> dict[str, Any]:
        """Return the line that a list of runs shows."""
        return {
            "run_id": self.run_id,
            "agent": None if self.agent is None else self.agent.model_dump(mode="json"),
            "task_id": self.task_id,
            "tenant": self.tenant,
            "parent_run_id": self.parent_run_id,
            "state": self.state,
            "shadow": self.is_watched_only,
            "would_have_halted": self.would_have_halted,
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
        self._ids: OrderedDict[tuple[str, bytes], None] = OrderedDict()

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
        view.heard(event)
        view.agent = event.agent or view.agent
        view.task_id = event.task_id or view.task_id
        view.tenant = event.tenant or view.tenant
        view.parent_run_id = event.parent_run_id or view.parent_run_id
        view.last_event = now

    def knows(self, output: Output) -> bool:
        """Tell whether an output was noted lately: Kafka may bring one twice, with the same id.

        A call that is asked about again is another matter: it may have another answer of that id.
        """
        return _key(output) in self._ids

    def said(self, output: Output) -> None:
        """Note what the monitor said; the same id again changes nothing."""
        if self.knows(output):
            return
        self._ids[_key(output)] = None
        if len(self._ids) > IDS_KEPT_MAX:
            self._ids.popitem(last=False)
        if isinstance(output, DeadLetter):
            return
        view = self._view(output.run_id)
        view.latest.append(output)
        view.agent = output.agent or view.agent
        view.task_id = output.task_id or view.task_id
        view.tenant = output.tenant or view.tenant
        view.said(output)
        if isinstance(output, Scorecard):
            self._end(view)

    def heeded(self, run_id: str, is_heeded: bool) -> None:
        """Note whether a run is told what the monitor says of it, as it is without a word."""
        view = self.get(run_id)
        if view is not None:
            view.unheeded = not is_heeded

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
            if self._ended:
                _, view = self._ended.popitem(last=False)
            else:
                # A halt is said once: whoever asks later must still find it here.
                others = len(self._open) - 1  # the latest is about to be noted
                oldest = islice(self._open.values(), min(others, HALTED_KEPT_MAX))
                view = next((each for each in oldest if each.halted is None), None) or next(
                    iter(self._open.values())
                )
                del self._open[view.run_id]
            self._tell_forgotten(view)


def _key(output: Output) -> tuple[str, bytes]:
    """Return what tells an output from the others: its id, and of an answer what it says."""
    if not isinstance(output, Decision):
        return output.id, b""
    return output.id, blake2b(codecs.encode(output), digest_size=16).digest()
