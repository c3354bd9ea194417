"""Fleet cells: what the fleet page is asked for, and runs as the rows and figures that it shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args
from urllib.parse import urlencode

from ontrack.pipeline.dashboard.fleet_model import (
    Group,
    Query,
    RunRow,
    RunStateName,
    SortKey,
    Totals,
)
from ontrack.pipeline.dashboard.text import money, number, run_href, shown
from ontrack.pipeline.dashboard.widgets import Row

SINCE_MIN = (("5", "last 5 minutes"), ("15", "last 15 minutes"), ("60", "last hour"))
FILTERS = ("text", "verdict", "state", "agent", "task", "tenant", "since")


@dataclass(slots=True)
class Asked:
    """What a page was asked to show: the address's query, and back again."""

    filters: dict[str, str] = field(default_factory=dict)
    sort: SortKey = "last"
    descending: bool = True
    page: int = 0

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Asked:
        """Read an address's query; what makes no sense there is left out."""
        filters = {name: query[name][:512] for name in FILTERS if query.get(name)}
        sort, down = query.get("sort", "last").removeprefix("-"), True
        if "sort" in query:
            down = query["sort"].startswith("-")
        known = sort if sort in get_args(SortKey) else "last"
        page = query.get("page", "1")
        number = int(page) - 1 if page.isascii() and page.isdigit() and len(page) < 6 else 0
        return cls(filters, known, down, max(0, number))  # type: ignore[arg-type]

    def address(self) -> str:
        """Return the query that leads back here."""
        items = {name: value for name, value in self.filters.items() if value}
        if (self.sort, self.descending) != ("last", True):
            items["sort"] = ("-" if self.descending else "") + self.sort
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
            agent=found["agent"],
            task_id=found["task"],
            tenant=found["tenant"],
            state=state,
            since_ms=since,
            sort=self.sort,
            descending=self.descending,
        )


def cells(row: RunRow) -> Row:
    """Return a run as a row of the table."""
    state = row.state if row.outcome is None else f"{row.state}: {row.outcome}"
    if row.halted and row.state == "ended":
        state += ", halted"
    return row.run_id, [
        [shown(row.run_id), run_href(row.run_id)],
        row.verdict,
        list(row.trail),
        state,
        row.last_ms,
        _name(row.agent),
        _name(row.task_id),
        _name(row.tenant),
        _name(row.tool),
        str(row.steps),
        number(row.coverage),
        money(row.cost_usd),
    ]


def _name(text: str | None) -> str | None:
    return None if text is None else shown(text)


def totals_facts(totals: Totals) -> list[list[str]]:
    """Return the figures at the head of the page."""
    group = totals.group
    facts = [
        ["Open runs", f"{group.open_runs:,}"],
        ["Known runs", f"{group.runs:,}"],
        ["Flagged runs", f"{group.flagged:,}"],
        ["Halted", f"{group.halted:,}"],
        ["Failed", f"{group.failed:,}"],
        ["Cost", money(group.cost_usd) or ""],
        ["Cost lost", money(group.lost_usd) or ""],
        ["Steps saved, about", f"{group.saved_steps:,.0f}"],
        ["Cost saved, about", money(group.saved_usd) or ""],
    ]
    if totals.dead_letters:
        facts.append(["Dead letters", f"{totals.dead_letters:,}", "link", "/letters"])
    return facts


def offender_cells(group: Group) -> Row:
    """Return a group as a row."""
    name = "not said" if group.name is None else shown(group.name)
    return group.name or "", [name, f"{group.flagged} of {group.runs}", money(group.lost_usd)]


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
