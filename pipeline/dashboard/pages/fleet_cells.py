"""Fleet cells: what the fleet page is asked for, and runs as the rows and figures that it shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args
from urllib.parse import urlencode

from ontrack.pipeline.dashboard.fleet.model import (
    Group,
    Query,
    RunRow,
    RunStateName,
    SortKey,
    Totals,
    Unsaid,
)
from ontrack.pipeline.dashboard.pages.text import (
    TONES,
    TONES_BY_WEIGHT,
    Tone,
    money,
    number,
    run_href,
    shown,
)
from ontrack.pipeline.dashboard.pages.widgets import Row

SINCE_MIN = (("5", "last 5 minutes"), ("15", "last 15 minutes"), ("60", "last hour"))
FILTERS = ("text", "verdict", "state", "agent", "task", "tenant", "since")
UNSAID = "-"  # the filter for runs of which nobody said a name; names that begin so get one more

#: What to sort by, in a menu: as the address says it, and in words. "" is the first.
ORDERS = (
    ("", "worst first"),
    ("-last", "last heard of"),
    ("-started", "started last"),
    ("-steps", "most steps"),
    ("-cost", "highest cost"),
    ("run_id", "run"),
    ("agent", "agent"),
    ("task", "task"),
    ("tenant", "tenant"),
)
_OUTCOMES: dict[str, tuple[str, Tone]] = {
    "success": ("succeeded", "ok"),
    "failure": ("failed", "bad"),
    "cancelled": ("cancelled", "info"),
    "unknown": ("ended", "info"),
}
_HALTED: tuple[str, Tone] = ("halted", "bad")


@dataclass(slots=True)
class Asked:
    """What a page was asked to show: the address's query, and back again."""

    filters: dict[str, str] = field(default_factory=dict)
    sort: SortKey = "worst"
    descending: bool = True
    page: int = 0

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Asked:
        """Read an address's query; what makes no sense there is left out."""
        filters = {name: query[name][:512] for name in FILTERS if query.get(name)}
        page = query.get("page", "1")
        number = int(page) - 1 if page.isascii() and page.isdigit() and len(page) < 6 else 0
        asked = cls(filters, page=max(0, number))
        asked.order(query.get("sort", ""))
        return asked

    def order(self, text: str) -> None:
        """Sort as the address says: a key, with "-" before it from the greatest down."""
        known: tuple[SortKey, ...] = get_args(SortKey)
        found = next((key for key in known if key == text.removeprefix("-")), None)
        self.sort = found or "worst"
        self.descending = found is None or text.startswith("-")

    @property
    def ordered(self) -> str:
        """What the address says of the order; empty for the one that nobody need ask for."""
        if (self.sort, self.descending) == ("worst", True):
            return ""
        return ("-" if self.descending else "") + self.sort

    def address(self) -> str:
        """Return the query that leads back here."""
        items = {name: value for name, value in self.filters.items() if value}
        if self.ordered:
            items["sort"] = self.ordered
        if self.page:
            items["page"] = str(self.page + 1)
        return "/" + ("?" + urlencode(items, errors="replace") if items else "")

    def query(self, now_ms: int) -> Query:
        """Return what the model is asked."""
        found = {name: self.filters.get(name) or None for name in FILTERS}
        states: tuple[RunStateName, ...] = get_args(RunStateName)
        state = next((name for name in states if name == found["state"]), None)
        minutes = found["since"] or ""
        since = now_ms - int(minutes) * 60_000 if minutes in dict(SINCE_MIN) else None
        return Query(
            text=found["text"] or "",
            verdict=found["verdict"],
            agent=_named(found["agent"]),
            task_id=_named(found["task"]),
            tenant=_named(found["tenant"]),
            state=state,
            since_ms=since,
            sort=self.sort,
            descending=self.descending,
        )


def orders(asked: Asked) -> list[tuple[str, str]]:
    """Return what a menu of orders offers: also one that a link or a column's head asks for."""
    now = asked.ordered
    if now in dict(ORDERS):
        return list(ORDERS)
    way = "descending" if asked.descending else "ascending"
    return [*ORDERS, (now, f"{asked.sort.removesuffix('_id')}, {way}")]


def filter_of(name: str | None) -> str:
    """Return what a filter says for a name, or for the runs of which nobody said one."""
    if name is None:
        return UNSAID
    return UNSAID + name if name.startswith(UNSAID) else name


def _named(said: str | None) -> str | Unsaid | None:
    if said == UNSAID:
        return Unsaid.UNSAID
    return None if said is None else said.removeprefix(UNSAID)


def status(row: RunRow) -> tuple[str, Tone] | None:
    """Return how a run stands, in a word and a tone; None before anything was said.

    While it is open, the last verdict. Then what became of it, as bad as the worse of both looks: a
    run that failed is no green OK because its last step was fine.
    """
    said = None if row.verdict is None else (row.verdict, TONES.get(row.verdict, "info"))
    if row.state == "open":
        return said
    word, tone = _HALTED
    if row.outcome is not None and not (row.halted and row.outcome in ("cancelled", "unknown")):
        word, tone = _OUTCOMES.get(row.outcome, _OUTCOMES["unknown"])
    tones = (tone,) if said is None else (tone, said[1])
    return word, max(tones, key=TONES_BY_WEIGHT.index)


def cells(row: RunRow) -> Row:
    """Return a run as a row of the table."""
    now = status(row)
    return row.run_id, [
        [shown(row.run_id), run_href(row.run_id)],
        None if now is None else list(now),
        list(row.trail),
        _state(row),
        row.last_ms,
        _name(row.agent),
        _name(row.task_id),
        _name(row.tenant),
        _name(row.tool),
        str(row.steps),
        number(row.coverage),
        money(row.cost_usd),
    ]


def _state(row: RunRow) -> str:
    """Return its state, and the last verdict where the chip beside it says something else."""
    state = f"{row.state}, halted" if row.halted and row.state == "ended" else row.state
    if row.would_halt:
        return f"{state}, would have halted"
    if row.state == "open" or row.verdict is None:
        return state
    return f"{state} after {row.verdict.replace('_', ' ')}"


def _name(text: str | None) -> str | None:
    return None if text is None else shown(text)


def run_facts(totals: Totals) -> list[list[str]]:
    """Return the figures at the head of the page: how many runs are in which way."""
    group = totals.group
    facts = [
        ["Open runs", f"{group.open_runs:,}"],
        ["Flagged", f"{group.flagged:,}"],
        ["Halted", f"{group.halted:,}"],
        ["Failed", f"{group.failed:,}"],
    ]
    if totals.dead_letters:
        facts.append(["Dead letters", f"{totals.dead_letters:,}", "link", "/letters"])
    return facts


def cost_facts(totals: Totals) -> list[list[str]]:
    """Return what runs cost, and what halts saved: an estimate, or why there is none."""
    group = totals.group
    return [
        ["Cost", money(group.cost_usd) or ""],
        ["Lost on failed and halted", money(group.lost_usd) or ""],
        ["Saved by halts, about", *_saved(group)],
    ]


def _saved(group: Group) -> list[str]:
    if not group.compared and not group.uncompared:
        return ["no halted run has ended yet", "words"]
    if not group.compared:
        return ["too few runs to estimate", "words"]
    steps = f"{group.saved_steps:,.0f} steps"
    return [f"{steps}, {money(group.saved_usd)}" if group.saved_usd else steps]


def offender_cells(group: Group) -> Row:
    """Return a group as a row."""
    name = "not said" if group.name is None else shown(group.name)
    return filter_of(group.name), [name, f"{group.flagged} of {group.runs}", money(group.lost_usd)]


def recent_cells(item: dict[str, Any]) -> Row:
    """Return an intervention or a block as a row; the same call's have the same key."""
    run_id, kind, seq = str(item["run_id"]), str(item["kind"]), item["seq"]
    reason = shown(str(item["reason"]))
    link = [shown(run_id, 60), run_href(run_id)]
    return json.dumps([run_id, kind, seq]), [
        link,
        f"{kind} at step {seq}",
        [reason] if reason else None,
        item["time_ms"],
    ]
