"""Fleet model: the runs of a board as rows, views of them, and what they sum up to.

Pure: no clock, no I/O; times are told in milliseconds since 1970. What a new output costs does not
depend on how many runs there are.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ontrack.pipeline.board import Board, RunView
from ontrack.pipeline.dashboard.fleet.groups import Group, GroupKind, Groups
from ontrack.pipeline.dashboard.fleet.minutes import MinuteCounts, Minutes
from ontrack.pipeline.dashboard.fleet.rows import (
    TRAIL_MAX,
    Query,
    RunRow,
    RunStateName,
    SortKey,
    Unsaid,
    matches,
)
from ontrack.pipeline.dashboard.fleet.view import Page, View
from ontrack.topics.verdicts import (
    DeadLetter,
    Decision,
    Intervention,
    Output,
    Scorecard,
    Verdict,
    was_halted,
)

__all__ = [
    "FleetModel",
    "Group",
    "GroupKind",
    "Minutes",
    "Page",
    "Query",
    "RunRow",
    "RunStateName",
    "SortKey",
    "Totals",
    "Unsaid",
    "View",
    "filled",
    "matches",
]

RECENT_MAX: Final = 100
OUTPUTS_KEPT_MAX: Final = 1  # a run's page folds the run again, so nobody reads them here


@dataclass(frozen=True, slots=True)
class Totals:
    """What all known runs sum up to, and what was heard of all runs, forgotten ones too."""

    group: Group
    verdicts: dict[str, int]
    outputs: int
    repeated: int
    dead_letters: int


@dataclass(slots=True)
class _Seen:
    """Of one run, what its :class:`~ontrack.pipeline.board.RunView` does not keep."""

    started_ms: int
    last_ms: int
    last: Verdict | None = None
    worst: int = 0
    trail: deque[int] = field(default_factory=lambda: deque(maxlen=TRAIL_MAX))
    scorecard: Scorecard | None = None

    def note(self, verdict: Verdict) -> None:
        """Note a verdict."""
        self.last = verdict
        self.worst = max(self.worst, verdict.severity)
        self.trail.append(verdict.severity)


class FleetModel:
    """All that the fleet page shows.

    Parameters
    ----------
    runs_max
        Beyond it the run that was silent for the longest is forgotten, an ended one first.
    minutes_max
        Minutes that are counted.

    Attributes
    ----------
    version
        Grows with every output that changed something: a page need not draw otherwise.
    built
        Rows made so far: one for each output about a run.
    """

    def __init__(self, runs_max: int = 5000, minutes_max: int = 120) -> None:
        self._board = Board(runs_max, OUTPUTS_KEPT_MAX, self._forgotten)
        self._seen: dict[str, _Seen] = {}
        self._rows: dict[str, RunRow] = {}
        self._groups = Groups()
        self._minutes = MinuteCounts(minutes_max)
        self._verdicts: Counter[str] = Counter()
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT_MAX)
        self._outputs = self._repeated = self._dead_letters = 0
        # By run, the version of its last change, oldest first; forgotten runs stay for a while.
        self._changes: OrderedDict[str, int] = OrderedDict()
        self._changes_max = 2 * runs_max
        self._changes_from = 0
        self.version = 0
        self.built = 0

    def __len__(self) -> int:
        """How many runs are known."""
        return len(self._rows)

    def said(self, output: Output, time_ms: int) -> None:
        """Note an output; the same id again changes nothing."""
        if self._board.knows(output):
            self._repeated += 1
            return
        self.version += 1
        self._outputs += 1
        self._minutes.said(output, time_ms)
        self._board.said(output)
        if isinstance(output, DeadLetter):
            self._dead_letters += 1
            return
        seen = self._seen.setdefault(output.run_id, _Seen(time_ms, time_ms))
        seen.started_ms = min(seen.started_ms, time_ms)
        seen.last_ms = max(seen.last_ms, time_ms)
        if isinstance(output, Verdict):
            self._verdicts[output.verdict.value] += 1
            seen.note(output)
        elif isinstance(output, Scorecard):
            seen.scorecard = output
        else:
            self._note_recent(output, time_ms)
        self._build(output.run_id, seen)

    def row(self, run_id: str) -> RunRow | None:
        """Return one run."""
        return self._rows.get(run_id)

    def rows(self) -> Iterable[RunRow]:
        """Return all known runs, in no order."""
        return self._rows.values()

    def view(self, query: Query) -> View:
        """Return a view that keeps up with the model; one for each open page."""
        return View(self, query)

    def totals(self) -> Totals:
        """Return what all known runs sum up to."""
        return Totals(
            self._groups.total,
            dict(sorted(self._verdicts.items())),
            self._outputs,
            self._repeated,
            self._dead_letters,
        )

    def offenders(self, kind: GroupKind, count: int = 5) -> list[Group]:
        """Return the groups with the most flagged runs, most first; those without are left out."""
        return self._groups.worst(kind, count)

    def names(self, kind: GroupKind, count: int = 200) -> list[str]:
        """Return the names of a kind among known runs, sorted: for a filter's menu."""
        return self._groups.names(kind, count)

    def minutes(self, now_ms: int, count: int = 60) -> Minutes:
        """Return the last ``count`` minutes up to ``now_ms``, empty ones as zeros."""
        return self._minutes.read(now_ms, count)

    def recent(self, count: int = 20) -> list[dict[str, Any]]:
        """Return the latest interventions and blocks, latest first.

        ``{time_ms, kind, run_id, seq, agent, task_id, tenant, verdict, reason}``, where ``kind`` is
        ``warn``, ``replan``, ``halt`` or ``block``.
        """
        return list(self._recent)[: max(0, count)]

    def changed_since(self, version: int) -> list[str] | None:
        """Return the runs that changed or were forgotten since; None: too long ago to tell."""
        if version < self._changes_from:
            return None
        changed: list[str] = []
        for run_id, at in reversed(self._changes.items()):
            if at <= version:
                break
            changed.append(run_id)
        return changed

    def _note_recent(self, output: Intervention | Decision, time_ms: int) -> None:
        if isinstance(output, Intervention):
            kind, verdict, reason = output.intervention.value, output.verdict.value, output.reason
        elif output.decision == "block":
            kind, verdict = "block", "BLOCK"
            reason = output.reasons[0].text if output.reasons else ""
        else:
            return
        self._recent.appendleft(
            {
                "time_ms": time_ms,
                "kind": kind,
                "run_id": output.run_id,
                "seq": output.seq,
                "agent": _agent_of(self._board.get(output.run_id)),
                "task_id": output.task_id,
                "tenant": output.tenant,
                "verdict": verdict,
                "reason": reason,
            }
        )

    def _build(self, run_id: str, seen: _Seen) -> None:
        view = self._board.get(run_id)
        assert view is not None, "the board has just been told of it"
        row = _row(view, seen)
        self.built += 1
        before = self._rows.get(run_id)
        if before is not None:
            self._groups.take(before)
        self._rows[run_id] = row
        self._groups.add(row)
        self._change(run_id)

    def _forgotten(self, view: RunView) -> None:
        self._groups.take(self._rows.pop(view.run_id))
        del self._seen[view.run_id]
        self._change(view.run_id)

    def _change(self, run_id: str) -> None:
        self._changes[run_id] = self.version
        self._changes.move_to_end(run_id)
        while len(self._changes) > self._changes_max:
            _, self._changes_from = self._changes.popitem(last=False)


def filled(outputs: Iterable[tuple[Output, int]]) -> FleetModel:
    """Return a model that was told of outputs, for tests and examples."""
    model = FleetModel()
    for output, time_ms in outputs:
        model.said(output, time_ms)
    return model


def _agent_of(view: RunView | None) -> str | None:
    if view is None or view.agent is None:
        return None
    return view.agent.name or view.agent.id


def _row(view: RunView, seen: _Seen) -> RunRow:
    last, card = seen.last, seen.scorecard
    # A scorecard counts what was said before this dashboard began, too.
    acts = Counter(view.interventions) | Counter({} if card is None else card.interventions)
    if "halt" not in view.interventions and card is not None and not was_halted(card):
        del acts["halt"]  # a monitor in shadow mode kept it to itself
    return RunRow(
        run_id=view.run_id,
        agent=_agent_of(view),
        task_id=view.task_id,
        tenant=view.tenant,
        state=view.state,
        outcome=view.outcome,
        steps=view.steps,
        verdict=view.last_verdict,
        severity=0 if last is None else last.severity,
        worst=seen.worst,
        tool=None if last is None else last.tool,
        verdicts=dict(sorted(view.verdicts.items())),
        interventions=dict(sorted(acts.items())),
        halted=view.is_halted,
        would_halt=view.would_have_halted is not None,
        blocked=view.blocked,
        trail=tuple(seen.trail),
        coverage=None if last is None else last.coverage,
        rank_score=None if last is None else last.rank_score,
        best_reference=None if last is None else last.best_reference,
        cost_usd=None if card is None else card.cost_usd,
        started_ms=seen.started_ms,
        last_ms=seen.last_ms,
    )
