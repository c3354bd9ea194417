"""Fleet aggregates: what the runs of a group did in a minute (``ontrack.fleet``).

A line is a partial: of one minute, one group and one partition of the output topics. Every count
of it is a sum over runs, so that lines of a minute are added up over partitions (:func:`merge`)
and over groups. Over minutes all but ``open_runs`` may be added, which is a level.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from ontrack.topics.verdicts import Output

MINUTE_MS: Final = 60_000
#: Stands for every group beyond the limit of groups.
OTHERS: Final = "(others)"
#: Characters of an agent, task or tenant that count.
NAME_MAX: Final = 512
_COST_DIGITS: Final = 6
_SAVED_DIGITS: Final = 3


class GroupKey(NamedTuple):
    """Whose runs: a plain, hashable :class:`FleetGroup`."""

    agent: str | None = None
    task_id: str | None = None
    tenant: str | None = None

    @property
    def text(self) -> str:
        """The key of the group's messages: a JSON array of the three names."""
        return json.dumps(self, ensure_ascii=False, separators=(",", ":"))


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="null")


class FleetGroup(_Model):
    """Whose runs; null where nobody said."""

    agent: str | None = None
    task_id: str | None = None
    tenant: str | None = None

    @property
    def key(self) -> GroupKey:
        """The same, to compare and to sort by."""
        return GroupKey(self.agent, self.task_id, self.tenant)


class FleetAggregate(_Model):
    """What a group of runs did in a minute. ``id`` is ``minute|partition|group``.

    Of several with one id the last one on the topic counts. The maps have the names that occurred
    and no others. ``partition`` is null where partitions were added up.
    """

    type: Literal["fleet"] = "fleet"
    id: str
    minute: AwareDatetime = Field(description="when the minute begins, UTC")
    group: FleetGroup
    partition: int | None = None
    open_runs: int = Field(0, description="begun and not ended when the minute ends")
    started: int = Field(0, description="runs whose first output is of this minute")
    finished: dict[str, int] = Field(default_factory=dict, description="scorecards by outcome")
    verdicts: dict[str, int] = Field(default_factory=dict)
    interventions: dict[str, int] = Field(default_factory=dict)
    blocks: int = Field(0, description="calls that the gate blocked")
    unsafe_runs: int = Field(0, description="finished runs with an unsafe call")
    unsafe_checked: int = Field(0, description="finished runs whose task says what it allows")
    over_budget_runs: int = Field(0, description="finished runs with more steps than their budget")
    budgeted_runs: int = Field(0, description="finished runs that had a budget of steps")
    steps: dict[str, int] = Field(
        default_factory=dict, description="sum over finished runs, by outcome"
    )
    cost_usd: dict[str, float] = Field(
        default_factory=dict, description="sum over finished runs, by outcome"
    )
    saved_steps: float = Field(
        0.0,
        description="how many steps halted runs that ended are shorter than runs of the group that "
        "failed without a halt, on average",
    )
    late: int = Field(0, description="outputs that came too late for their own minute")
    revision: int = Field(1, description="how often the line was written")
    final: bool = Field(False, description="no later line has this id")


def group_of(output: Output) -> GroupKey:
    """Return whose run an output is about; of an agent the id, or else the name.

    No event may have a longer name than ``NAME_MAX``. Whoever else writes to an output topic may,
    and a line with it would be refused by the broker, again and again.
    """
    agent = getattr(output, "agent", None)
    names = (
        None if agent is None else agent.id or agent.name,
        getattr(output, "task_id", None),
        getattr(output, "tenant", None),
    )
    return GroupKey(*(None if name is None else name[:NAME_MAX] for name in names))


def minute_at(number: int) -> datetime:
    """Return when a minute begins, from its number since 1970."""
    return datetime.fromtimestamp(number * 60, UTC)


def line_id(minute: datetime, partition: int | None, group: GroupKey) -> str:
    """Return the id of a line; without a partition that of the sum over all."""
    where = "all" if partition is None else str(partition)
    return f"{minute:%Y-%m-%dT%H:%M:%SZ}|{where}|{group.text}"


def merge(aggregates: Iterable[FleetAggregate]) -> list[FleetAggregate]:
    """Add up the partials of each minute and group; sorted by minute and group.

    Of several lines with one id only the last counts. A sum is final when all of its parts are,
    and its revision is the sum of theirs: it grows whenever one of them is revised.
    """
    latest = {line.id: line for line in aggregates}
    parts: dict[tuple[datetime, GroupKey], list[FleetAggregate]] = {}
    for line in latest.values():
        parts.setdefault((line.minute, line.group.key), []).append(line)
    # Some names are null, which cannot be compared with text.
    ordered = sorted(parts.items(), key=lambda item: (item[0][0], item[0][1].text))
    return [_sum(minute, group, lines) for (minute, group), lines in ordered]


def _sum(minute: datetime, group: GroupKey, lines: list[FleetAggregate]) -> FleetAggregate:
    sums: dict[str, Any] = {}
    for name in FleetAggregate.model_fields:
        values = [getattr(line, name) for line in lines]
        if isinstance(values[0], dict):
            total: Counter[str] = Counter()
            for value in values:
                total.update(value)
            sums[name] = dict(sorted(total.items()))
        elif isinstance(values[0], int | float) and name not in ("partition", "final"):
            sums[name] = sum(values)
    sums["cost_usd"] = {name: round(cost, _COST_DIGITS) for name, cost in sums["cost_usd"].items()}
    sums["saved_steps"] = round(sums["saved_steps"], _SAVED_DIGITS)
    return FleetAggregate(
        id=line_id(minute, None, group),
        minute=minute,
        group=lines[0].group,
        final=all(line.final for line in lines),
        **sums,
    )
