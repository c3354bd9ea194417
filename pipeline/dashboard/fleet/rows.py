"""Fleet rows: one run in the list, and which runs are asked for in which order."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final, Literal

RunStateName = Literal["open", "halted", "ended"]
SortKey = Literal[
    "worst",
    "last",
    "started",
    "run_id",
    "agent",
    "task",
    "tenant",
    "steps",
    "severity",
    "coverage",
    "cost",
]

TRAIL_MAX: Final = 24
FLAGGED: Final = 2  # the severity from which on a step is an alarm
CALM_MS: Final = 60_000  # runs that are equally bad change places once in so long at most


class Unsaid(Enum):
    """In place of a name: the runs of which nobody said it."""

    UNSAID = "unsaid"


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run in the list.

    Parameters
    ----------
    agent
        Its name, else its id; None where nobody said.
    verdict, severity, tool
        The last verdict, its severity 0 to 3 and its step's tool; None, 0 and None before it.
    worst
        Highest severity so far.
    verdicts, interventions
        How many by name.
    halted
        It was halted, ended or not, and nobody has let it go on.
    would_halt
        It is only watched, in shadow mode, and would have been halted.
    trail
        Severities of the last steps, oldest first, at most :data:`TRAIL_MAX`.
    coverage, rank_score, best_reference
        Of the last verdict; None without references.
    cost_usd
        From the scorecard, so None while the run is open.
    started_ms, last_ms
        First and last time that something was said about it, in milliseconds since 1970.
    """

    run_id: str
    agent: str | None
    task_id: str | None
    tenant: str | None
    state: RunStateName
    outcome: str | None
    steps: int
    verdict: str | None
    severity: int
    worst: int
    tool: str | None
    verdicts: dict[str, int]
    interventions: dict[str, int]
    halted: bool
    would_halt: bool
    blocked: int
    trail: tuple[int, ...]
    coverage: float | None
    rank_score: float | None
    best_reference: str | None
    cost_usd: float | None
    started_ms: int
    last_ms: int

    @property
    def failed(self) -> bool:
        """Whether it ended in failure."""
        return self.outcome == "failure"

    def plain(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Query:
    """Which runs, in which order; None: any.

    Runs without a value to sort by come last, in both directions; equal ones go by run id.

    Parameters
    ----------
    text
        Stands, in any case, in run id, agent, task, tenant or last tool.
    verdict
        Was given to the run at least once.
    agent, task_id, tenant
        Exactly; ``UNSAID`` is those of which nobody said it.
    state
        ``open``, ``halted`` (and not ended) or ``ended``.
    since_ms
        Something was said about it at this time or later.
    sort
        ``severity`` is that of the last verdict, then the worst. ``worst`` is open runs by the
        severity of their last verdict, a halted one as an alarm at least, and the ended ones behind
        them; equal ones by the minute in which they were heard of last, so that a list does not
        jump at each message.
    """

    text: str = ""
    verdict: str | None = None
    agent: str | Unsaid | None = None
    task_id: str | Unsaid | None = None
    tenant: str | Unsaid | None = None
    state: RunStateName | None = None
    since_ms: int | None = None
    sort: SortKey = "last"
    descending: bool = True


def matches(row: RunRow, query: Query) -> bool:
    """Tell whether a run is asked for."""
    exact = (
        (query.agent, row.agent),
        (query.task_id, row.task_id),
        (query.tenant, row.tenant),
        (query.state, row.state),
    )
    for wanted, found in exact:
        if wanted is not None and (None if wanted is Unsaid.UNSAID else wanted) != found:
            return False
    if query.verdict is not None and query.verdict not in row.verdicts:
        return False
    if query.since_ms is not None and row.last_ms < query.since_ms:
        return False
    needle = query.text.strip().casefold()
    texts = (row.run_id, row.agent, row.task_id, row.tenant, row.tool)
    return not needle or any(needle in text.casefold() for text in texts if text is not None)


def place(row: RunRow, query: Query) -> tuple[Any, ...]:
    """Return what a run is sorted by: ascending, to be read backwards where descending."""
    value: Any = {
        "worst": (_urgency(row), row.last_ms // CALM_MS),
        "last": row.last_ms,
        "started": row.started_ms,
        "run_id": row.run_id,
        "agent": row.agent,
        "task": row.task_id,
        "tenant": row.tenant,
        "steps": row.steps,
        "severity": (row.severity, row.worst),
        "coverage": row.coverage,
        "cost": row.cost_usd,
    }[query.sort]
    if value is None:
        return (0 if query.descending else 2, row.run_id)
    return (1, value, row.run_id)


def _urgency(row: RunRow) -> int:
    """Return how much a run needs somebody now: more is worse, ended ones are past that."""
    if row.state == "ended":
        return -1
    return max(row.severity, FLAGGED) if row.halted else row.severity
