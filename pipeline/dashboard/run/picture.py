"""Run picture: what there is to see of a run, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Place = Literal["dormant", "ahead", "active", "satisfied"]


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """One step and what was said to it.

    Parameters
    ----------
    reasons
        ``{signal, value, threshold, text}`` each.
    interventions
        ``{intervention, reason, evidence}`` each.
    error
        What the call failed with: the error's type, with its message only where the settings let
        texts quote arguments; None where it did not fail.
    time
        RFC 3339: when it was called, else the event's time; None where nobody said.
    duration_s
        From start to end of the call; None where it is not known.
    parents, late_parents
        Sequence numbers of the steps it builds on; of those, the ones found only after it was
        judged.
    """

    seq: int
    tool: str
    action: str | None
    verdict: str
    severity: int
    reasons: tuple[dict[str, Any], ...]
    interventions: tuple[dict[str, Any], ...]
    evidence: tuple[int, ...]
    flags: tuple[str, ...]
    confirmed: bool | None
    error: str | None
    time: str | None
    duration_s: float | None
    cost_usd: float | None
    parents: tuple[int, ...]
    late_parents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A step of the prefix graph; ``depth`` is the longest way from a root, for a layout."""

    seq: int
    tool: str
    verdict: str
    severity: int
    depth: int


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """``target`` builds on ``source`` (sequence numbers).

    ``retroactive``: found only at the step ``found_at``, after the target was judged; otherwise
    ``found_at`` is the target.
    """

    source: int
    target: int
    retroactive: bool
    found_at: int


@dataclass(frozen=True, slots=True)
class ReferenceColumn:
    """A step of the reference: its place in it, tool, intent, and the columns it builds on."""

    index: int
    tool: str
    action: str | None
    parents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Coupling:
    """The transport plan against one reference.

    Parameters
    ----------
    reference_id, provenance
        The one that the run is nearest to now.
    rows
        Sequence numbers, in order of arrival; beyond the graph's limit there are no rows. The
        oldest steps of a long run share rows: then it is the last of them.
    labels
        What to call each row: its number, or the first and the last of its steps and how many.
    columns
        The reference's steps.
    shares
        ``shares[i][j]``: which part of row i's mass lies on column j; what a row lacks to 1 is its
        leakage, where steps share a row their mean. Unbalanced transport may also put more on a
        row than its mass: then it exceeds 1.
    costs
        ``costs[i][j]``: attribute cost of matching them, 0 to 1; where steps share a row, the mean
        of what they match.
    frontier
        ``frontier[i][j]``: where column j stood once row i, the last step of it, had been judged.
    """

    reference_id: str
    provenance: str
    rows: tuple[int, ...]
    columns: tuple[ReferenceColumn, ...]
    shares: tuple[tuple[float, ...], ...]
    costs: tuple[tuple[float, ...], ...]
    frontier: tuple[tuple[Place, ...], ...]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Series:
    """Readings by step, one for each of ``seqs``; None where there was nothing to read."""

    seqs: tuple[int, ...] = ()
    score: tuple[float | None, ...] = ()
    rank_score: tuple[float | None, ...] = ()
    coverage: tuple[float | None, ...] = ()
    leakage: tuple[float | None, ...] = ()
    match_cost: tuple[float | None, ...] = ()
    information_gain: tuple[float | None, ...] = ()
    best_reference: tuple[str | None, ...] = ()
    severity: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RunPicture:
    """A run, as plain data.

    Parameters
    ----------
    agent
        ``{id, name, version}`` or None.
    state
        ``open``, ``halted`` (and nobody has let it go on) or ``ended``.
    shadow
        The run was watched only.
    scorecard
        As it would be published if the run ended now; ``final`` tells whether it has.
    coupling
        None without references.
    notes
        What a reader must know: events that are missing, other settings than the monitor's,
        events that could not be used.
    decisions
        The gate's, where the events' source has them: as published.
    settings
        ``{profile, settings, engine}`` that the run was folded with.
    """

    run_id: str
    agent: dict[str, Any] | None
    task_id: str | None
    tenant: str | None
    parent_run_id: str | None
    state: Literal["open", "halted", "ended"]
    outcome: str | None
    shadow: bool
    timeline: tuple[TimelineStep, ...]
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    coupling: Coupling | None
    series: Series
    scorecard: dict[str, Any]
    final: bool
    settings: dict[str, str]
    notes: tuple[str, ...] = ()
    decisions: tuple[dict[str, Any], ...] = field(default=())

    def plain(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return asdict(self)
