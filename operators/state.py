"""What the monitor keeps of an open run: the run's own facts, and one state an operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from rpds import HashTrieMap

from ontrack.operators import (
    abort,
    exploration,
    gain,
    ledger,
    loop,
    orphans,
    prefix,
    ranking,
    repeats,
    stall,
    strategy,
    transport,
)
from ontrack.operators.knowledge import Knowledge
from ontrack.operators.report import Stamp
from ontrack.operators.scoring import ScoringState
from ontrack.operators.seen import SeenSteps
from ontrack.operators.sightings import SeenValues
from ontrack.topics.events import Agent


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything the monitor keeps of an open run. Immutable; each event makes a new one.

    Parameters
    ----------
    started_ms
        Broker's time of the first event: the knowledge is the one published by then.
    seen
        Digest of each admitted step by sequence number (at most ``steps_max``).
    highest
        Highest sequence number admitted, -1 before the first.
    episode
        What the last verdict was about.
    shadow
        Judged as ever, told nothing.
    transport
        None without references; stands still once the prefix graph is full.
    """

    run_id: str
    stamp: Stamp
    knowledge: Knowledge
    task_id: str | None = None
    agent: Agent | None = None
    tenant: str | None = None
    parent_run_id: str | None = None
    started_ms: int | None = None
    seen: SeenSteps = field(default_factory=SeenSteps)
    highest: int = -1
    errors: int = 0
    cost_usd: float | None = None
    verdicts: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    interventions: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    flags: tuple[str, ...] = ()
    episode: tuple[str, ...] = ()
    ledger: ledger.LedgerState = field(default_factory=ledger.LedgerState)
    prefix: prefix.PrefixState = field(default_factory=prefix.PrefixState)
    transport: transport.TransportState | None = None
    ranking: ranking.RankState | None = None
    orphans: orphans.OrphanState = field(default_factory=orphans.OrphanState)
    values: SeenValues = field(default_factory=SeenValues)
    scoring: ScoringState = field(default_factory=ScoringState)
    loop: loop.LoopState = field(default_factory=loop.LoopState)
    gain: gain.GainState = field(default_factory=gain.GainState)
    stall: stall.StallState = field(default_factory=stall.StallState)
    repeats: repeats.RepeatState = field(default_factory=repeats.RepeatState)
    exploration: exploration.ExplorationState = field(default_factory=exploration.ExplorationState)
    strategy: strategy.StrategyState = field(default_factory=strategy.StrategyState)
    abort: abort.AbortState = field(default_factory=abort.AbortState)
    shadow: bool = False

    @property
    def identity(self) -> tuple[str, str | None, Agent | None, str | None]:
        """Who it is, in every record: run, task, agent, tenant."""
        return self.run_id, self.task_id, self.agent, self.tenant


_NAMES = RunState.__match_args__
_VALUES = attrgetter(*_NAMES)


def changed(state: RunState, **changes: Any) -> RunState:
    """Return a run's state with some fields changed: ``replace`` in half the time.

    Raises
    ------
    TypeError
        A name is no field.
    """
    kept: dict[str, Any] = dict(zip(_NAMES, _VALUES(state), strict=True))
    kept.update(changes)
    return RunState(**kept)


def counted(counts: HashTrieMap[str, int], name: str) -> HashTrieMap[str, int]:
    """Return counts by name with one more of a name."""
    return counts.insert(name, (counts.get(name) or 0) + 1)
