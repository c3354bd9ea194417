"""Fleet groups: what the runs of an agent, task, tenant or reference sum up to."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from ontrack.operators.savings import Part, part_of, steps_saved
from ontrack.pipeline.dashboard.fleet.rows import FLAGGED, RunRow

GroupKind = Literal["agent", "task", "tenant", "reference"]
_Key = tuple[str, str | None]

# Sums are kept in whole nano-dollars: what is added and taken away again leaves exactly nothing.
_NANO: Final = 1_000_000_000
_USD_MAX: Final = 1e12
_MILLI: Final = 1000
_OF_RUN: Final = 7  # parts of a group that are sums over runs
_PARTS: Final = _OF_RUN + 4
_Whose = tuple[str | None, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Group:
    """What the known runs of one agent, task, tenant or reference sum up to.

    Parameters
    ----------
    flagged
        Runs with a verdict of severity 2 or 3.
    lost_usd
        Cost of ended runs that failed or were halted.
    saved_steps, saved_usd
        What halts saved by the estimate of :mod:`ontrack.operators.savings`, as on
        ``ontrack.fleet``; and that at the mean cost of a step of the runs compared with.
    compared, uncompared
        Halted runs that ended without success, and could be compared with enough others or not.
    """

    name: str | None
    runs: int = 0
    open_runs: int = 0
    flagged: int = 0
    halted: int = 0
    failed: int = 0
    cost_usd: float = 0.0
    lost_usd: float = 0.0
    saved_steps: float = 0.0
    saved_usd: float = 0.0
    compared: int = 0
    uncompared: int = 0


@dataclass(slots=True)
class _Savings:
    """Of one agent, task and tenant: runs that failed unhalted, and halted ones by their steps."""

    runs: int = 0
    lost_runs: int = 0
    lost_steps: int = 0
    lost_nano: int = 0
    halted: Counter[int] = field(default_factory=Counter)

    def count(self, row: RunRow, sign: int) -> None:
        self.runs += sign
        if row.state != "ended":
            return
        part = part_of(row.outcome or "unknown", "halt" in row.interventions)
        if part is Part.STOPPED:
            self.halted[row.steps] += sign
            if not self.halted[row.steps]:
                del self.halted[row.steps]
        elif part is Part.LOST:
            self.lost_runs += sign
            self.lost_steps += sign * row.steps
            self.lost_nano += sign * _nano(row.cost_usd or 0.0)

    def worth(self) -> tuple[int, int, int, int]:
        """Return thousandths of steps, nano-dollars, and the halted runs compared and not.

        Whole numbers: they are added and taken away.
        """
        halted_runs = self.halted.total()
        shorter = steps_saved(self.halted.items(), self.lost_runs, self.lost_steps)
        if shorter is None:
            return 0, 0, 0, halted_runs
        return (
            shorter * _MILLI // self.lost_runs,
            shorter * self.lost_nano // (self.lost_runs * self.lost_steps),
            halted_runs,
            0,
        )


class Groups:
    """Sums by group; a run's change costs the same however many there are."""

    def __init__(self) -> None:
        self._sums: dict[_Key, list[int]] = {}
        self._savings: dict[_Whose, _Savings] = {}

    def add(self, row: RunRow) -> None:
        """Count a run in."""
        self._count(row, 1)

    def take(self, row: RunRow) -> None:
        """Count a run out that was counted in as it is here."""
        self._count(row, -1)

    def _count(self, row: RunRow, sign: int) -> None:
        parts = (*_parts(row), *self._saved(row, sign))
        for key in _keys(row):
            sums = self._sums.setdefault(key, [0] * len(parts))
            for index, part in enumerate(parts[:_OF_RUN]):
                sums[index] += sign * part
            if key[0] != "reference":  # runs of one group may follow different ones
                for index, part in enumerate(parts[_OF_RUN:], start=_OF_RUN):
                    sums[index] += part
            if sums[0] == 0:
                del self._sums[key]

    def _saved(self, row: RunRow, sign: int) -> tuple[int, ...]:
        """Return by how much the savings of the run's group change, as they are worth."""
        whose = row.agent, row.task_id, row.tenant
        savings = self._savings.setdefault(whose, _Savings())
        before = savings.worth()
        savings.count(row, sign)
        after = savings.worth()
        if savings.runs == 0:
            del self._savings[whose]
        return tuple(now - then for now, then in zip(after, before, strict=True))

    @property
    def total(self) -> Group:
        """All runs."""
        return _group(None, self._sums.get(("", None), [0] * _PARTS))

    def of(self, kind: GroupKind) -> Iterator[Group]:
        """Yield the groups of a kind; the runs of which nobody said are one without a name."""
        for (of_kind, name), sums in self._sums.items():
            if of_kind == kind:
                yield _group(name, sums)

    def worst(self, kind: GroupKind, count: int) -> list[Group]:
        """Return the groups with the most flagged runs, then those that lost most."""
        flagged = (group for group in self.of(kind) if group.flagged)
        return heapq.nsmallest(
            count, flagged, lambda one: (-one.flagged, -one.lost_usd, one.name or "")
        )

    def names(self, kind: GroupKind, count: int) -> list[str]:
        """Return names of a kind, sorted."""
        return heapq.nsmallest(count, (one.name for one in self.of(kind) if one.name is not None))


def _keys(row: RunRow) -> list[_Key]:
    keys: list[_Key] = [("", None), ("agent", row.agent), ("task", row.task_id)]
    keys.append(("tenant", row.tenant))
    if row.best_reference is not None:
        keys.append(("reference", row.best_reference))
    return keys


def _parts(row: RunRow) -> tuple[int, ...]:
    cost = _nano(row.cost_usd or 0.0)
    is_lost = row.failed or (row.state == "ended" and row.halted)
    return (
        1,
        row.state != "ended",
        row.worst >= FLAGGED,
        row.halted,
        row.failed,
        cost,
        cost if is_lost else 0,
    )


def _nano(usd: float) -> int:
    return round(min(usd, _USD_MAX) * _NANO) if math.isfinite(usd) else 0


def _group(name: str | None, sums: list[int]) -> Group:
    runs, still_open, flagged, halted, failed, cost, lost, steps, saved, *compared = sums
    return Group(
        name,
        runs,
        still_open,
        flagged,
        halted,
        failed,
        cost / _NANO,
        lost / _NANO,
        steps / _MILLI,
        saved / _NANO,
        *compared,
    )
