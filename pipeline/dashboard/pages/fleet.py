"""Fleet page: which runs go wrong now, why, and what it costs."""

from __future__ import annotations

import json
from typing import Any, get_args
from urllib.parse import urlencode

from nicegui import context, events, ui

from ontrack.pipeline.dashboard.fleet.model import GroupKind, RunStateName, SortKey, View
from ontrack.pipeline.dashboard.pages import sparks
from ontrack.pipeline.dashboard.pages.desk import Desk
from ontrack.pipeline.dashboard.pages.fleet_cells import (
    FILTERS,
    SINCE_MIN,
    UNSAID,
    Asked,
    cells,
    cost_facts,
    filter_of,
    offender_cells,
    orders,
    recent_cells,
    run_facts,
)
from ontrack.pipeline.dashboard.pages.text import TONES, shown
from ontrack.pipeline.dashboard.pages.theme import frame, toggle
from ontrack.pipeline.dashboard.pages.widgets import (
    Column,
    Facts,
    Filters,
    Grid,
    Spark,
    Words,
    pager,
)

TICK_S = 0.25  # four times a second at most is anything sent to a browser
SLOW_TICKS = 4  # sums, charts and menus: once a second
ROWS_A_PAGE = 50
MINUTES = 60
OFFENDERS = 5
RECENT = 12

_COLUMNS = (
    Column("Run", "link", "run_id"),
    Column("Status", "verdict", "worst"),
    Column("Last steps", "trail"),
    Column("State", "text"),
    Column("Heard", "time", "last"),
    Column("Agent", "text", "agent"),
    Column("Task", "text", "task"),
    Column("Tenant", "text", "tenant", minor=True),
    Column("Last tool", "text", minor=True),
    Column("Steps", "number", "steps"),
    Column("Coverage", "number", "coverage", minor=True),
    Column("Cost", "number", "cost"),
)
_EMPTY = {
    "connecting": ("Connecting …", "Runs appear here as soon as the monitor says something."),
    "down": ("No news", "The note above says what is wrong and what to do."),
    "live": (
        "No runs yet",
        "Nothing has been judged since this page's memory begins. Send events: "
        "`ontrack send PATH`, POST /v1/events to `ontrack serve`, or `ontrack demo --dashboard`.",
    ),
}
_NO_MATCH = ("No run matches", "“Clear filters” shows all of them.")


class FleetPage:
    """One browser's view of the fleet."""

    def __init__(self, desk: Desk, asked: Asked) -> None:
        self._desk = desk
        self._asked = asked
        self._kind: GroupKind = "agent"
        self._paused = False
        self._ticks = 0
        self._seen: tuple[int, str] | None = None
        self._query = asked.query(desk.clock_ms())
        self._view: View = desk.model.view(self._query)

    def build(self) -> None:
        """Lay the page out, with what is known now, and keep it up to date."""
        with frame("Fleet", self._desk.feed, self._desk.has_login):
            Words("h1", "Fleet")
            self._build_sums()
            with ui.element("div").classes("ot-split"):
                with ui.element("section").classes("ot-card").props("aria-label=Runs"):
                    self._build_runs()
                with ui.element("div").classes("ot-aside"):
                    self._build_offenders()
                    self._build_recent()
            self._draw()
            self._draw_sums()
            ui.timer(TICK_S, self._tick)

    def _build_sums(self) -> None:
        """Lay out the sums; on a phone only the first of them stand before the runs."""
        with ui.element("div").classes("ot-sums"):
            with ui.element("section").classes("ot-card").props('aria-label="Sums"'):
                self._facts = Facts()
            with ui.element("section").classes("ot-card ot-later").props("aria-label=Cost"):
                self._costs = Facts()
            minutes = ui.element("section").classes("ot-card ot-later")
            with minutes.props('aria-label="By minute"'), ui.element("div").classes("ot-sparks"):
                self._sparks = [Spark(label) for label, *_ in self._spark_data()]

    def _build_runs(self) -> None:
        with ui.element("div").classes("ot-line-up"):
            Words("h2", "Runs")
            self._count = Words("span", "", "ot-muted")
            order = _menu("order", "Order", orders(self._asked), self._asked.ordered)
            self._order = Filters("Order of runs", [order], self._reorder, reset=False)
            self._order.classes("ot-order ot-push")
            toggle("Pause", "Paused: go on", self._pause)
        self._filters = Filters("Filter runs", self._fields(), self._filter, folds=True)
        self._grid = Grid("Runs", _COLUMNS, _EMPTY["connecting"]).classes("ot-dense")
        self._grid.on("sort", self._sort)
        self._grid.set_sort(self._asked.sort, self._asked.descending)
        self._stand = pager(self._turn, "runs")

    def _build_offenders(self) -> None:
        with ui.element("section").classes("ot-card").props('aria-label="Top offenders"'):
            Words("h2", "Top offenders")
            kinds = [(kind, f"by {kind}") for kind in get_args(GroupKind)]
            menu = {
                "key": "kind",
                "label": "Runs",
                "kind": "select",
                "options": kinds,
                "value": "agent",
            }
            Filters("Group offenders", [menu], self._group, reset=False)
            columns = [
                Column("Name", "button"),
                Column("Flagged", "number"),
                Column("Lost", "number"),
            ]
            empty = ("None", "No run has had a verdict of severity 2 or 3.")
            self._offenders = Grid("Top offenders", columns, empty, on_press=self._pick_offender)

    def _build_recent(self) -> None:
        with ui.element("section").classes("ot-card").props('aria-label="Latest interventions"'):
            Words("h2", "Latest interventions")
            columns = [
                Column("Run", "link"),
                Column("What", "text"),
                Column("Why", "lines"),
                Column("Heard", "time"),
            ]
            empty = ("None", "Warnings, replans, halts and blocks appear here.")
            self._recent = Grid("Latest interventions", columns, empty)

    def _fields(self) -> list[dict[str, Any]]:
        def menu(key: str, label: str, options: list[tuple[str, str]]) -> dict[str, Any]:
            return _menu(key, label, options, self._asked.filters.get(key, ""))

        states = [("", "any"), *((name, name) for name in get_args(RunStateName))]
        text = self._asked.filters.get("text", "")
        hint = "run, agent, task, tenant, tool"
        return [
            {"key": "text", "label": "Search", "kind": "search", "value": text, "hint": hint},
            menu("verdict", "Verdict", [("", "any"), *((name, name) for name in TONES)]),
            menu("state", "State", states),
            menu("agent", "Agent", self._names("agent")),
            menu("task", "Task", self._names("task")),
            menu("tenant", "Tenant", self._names("tenant")),
            menu("since", "Heard of", [("", "any time"), *SINCE_MIN]),
        ]

    def _names(self, kind: GroupKind) -> list[tuple[str, str]]:
        names = self._desk.model.names(kind)
        said = ((filter_of(name), shown(name, 60)) for name in names)
        return [("", "any"), *said, (UNSAID, "not said")]

    # What the person does.

    def _filter(self, values: dict[str, str]) -> None:
        self._asked.filters = {name: values.get(name, "") for name in FILTERS}
        self._asked.page = 0
        self._ask()

    def _sort(self, event: events.GenericEventArguments) -> None:
        if event.args not in get_args(SortKey):
            return
        turned = self._asked.sort == event.args and self._asked.descending
        self._reorder({"order": event.args if turned else f"-{event.args}"})
        self._order.set_options("order", orders(self._asked))
        self._order.put("order", self._asked.ordered)

    def _reorder(self, values: dict[str, str]) -> None:
        self._asked.order(values.get("order", ""))
        self._grid.set_sort(self._asked.sort, self._asked.descending)
        self._ask()

    def _turn(self, page: int) -> None:
        self._asked.page = max(0, page)
        self._ask()

    def _ask(self) -> None:
        self._query = self._asked.query(self._desk.clock_ms())
        self._view = self._desk.model.view(self._query)
        self._draw()
        ui.run_javascript(f"history.replaceState(null, '', {json.dumps(self._asked.address())})")

    def _pause(self, paused: bool) -> None:
        self._paused = paused

    def _group(self, values: dict[str, str]) -> None:
        kinds: tuple[GroupKind, ...] = get_args(GroupKind)
        self._kind = next((kind for kind in kinds if kind == values.get("kind")), "agent")
        self._draw_offenders()

    def _pick_offender(self, name: str) -> None:
        key = {"agent": "agent", "task": "task", "tenant": "tenant"}.get(self._kind)
        if key is None:
            ui.navigate.to("/references?" + urlencode({"id": name}, errors="replace"))
        else:
            self._filters.set_value(key, name)

    # What is drawn.

    def _tick(self) -> None:
        self._ticks += 1
        if self._paused:
            return
        if self._ticks % SLOW_TICKS == 0:
            self._draw_sums()
            if self._query.since_ms is not None:  # the window moves on
                self._query = self._asked.query(self._desk.clock_ms())
                self._view = self._desk.model.view(self._query)
                self._seen = None
        seen = self._desk.model.version, self._desk.feed.state.status
        if seen != self._seen:
            self._draw()

    def _draw(self) -> None:
        status = self._desk.feed.state.status
        self._seen = self._desk.model.version, status
        page = self._view.page(self._asked.page, ROWS_A_PAGE)
        self._grid.set_empty(*(_NO_MATCH if page.known else _EMPTY[status]))
        self._grid.show([cells(row) for row in page.rows])
        self._count.say(f"{page.matching:,} of {page.known:,}")
        where = f"page {page.number + 1} of {page.pages}" if page.pages > 1 else ""
        self._stand(page.number, page.pages, where)

    def _spark_data(self) -> list[tuple[str, list[dict[str, Any]], str, str]]:
        return sparks.sparks(self._desk.model.minutes(self._desk.clock_ms(), MINUTES))

    def _draw_sums(self) -> None:
        totals = self._desk.model.totals()
        self._facts.show(run_facts(totals))
        self._costs.show(cost_facts(totals))
        for spark, (_, bars, value, summary) in zip(self._sparks, self._spark_data(), strict=True):
            spark.show(bars, value, summary)
        self._draw_offenders()
        # The gate's block and the monitor's of the same call are one.
        recent = dict(recent_cells(item) for item in self._desk.model.recent(2 * RECENT))
        self._recent.show(list(recent.items())[:RECENT])
        for kind in ("agent", "task", "tenant"):
            self._filters.set_options(kind, self._names(kind))

    def _draw_offenders(self) -> None:
        groups = self._desk.model.offenders(self._kind, OFFENDERS)
        self._offenders.show([offender_cells(group) for group in groups])


def _menu(key: str, label: str, options: list[tuple[str, str]], value: str) -> dict[str, Any]:
    return {"key": key, "label": label, "kind": "select", "options": options, "value": value}


def build(desk: Desk) -> None:
    """Build the fleet page for one browser."""
    asked = Asked.of(context.client.request.query_params)
    FleetPage(desk, asked).build()
