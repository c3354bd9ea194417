"""Run page: one run, step by step: what was said, why, and what it was compared with."""

from __future__ import annotations

import asyncio

from nicegui import ui

from ontrack.pipeline.dashboard.feeds.feed import Unavailable
from ontrack.pipeline.dashboard.pages import charts
from ontrack.pipeline.dashboard.pages.desk import Desk
from ontrack.pipeline.dashboard.pages.run_cells import (
    decision_cells,
    event_text,
    reason_text,
    run_facts,
    score_facts,
    step_cells,
    step_facts,
)
from ontrack.pipeline.dashboard.pages.text import shown
from ontrack.pipeline.dashboard.pages.theme import frame
from ontrack.pipeline.dashboard.pages.widgets import Chart, Column, Facts, Grid, Words, pager
from ontrack.pipeline.dashboard.run.model import RunPicture

LOOK_S = 0.5  # how often a page asks whether something was said about its run
AGAIN_S, AGAIN_S_MAX = 2.0, 60.0  # after a refusal, if nothing new was said
STEPS_A_PAGE = 100

_STEPS = (
    Column("Step", "button"),
    Column("Verdict", "verdict"),
    Column("Tool", "text"),
    Column("Intent", "lines"),
    Column("Why, and what was done", "lines"),
    Column("Builds on", "text"),
    Column("Took", "number"),
    Column("Cost", "number"),
    Column("Time", "text"),
)
_NO_READINGS = "Without references there is nothing to be near to: no score, no coverage."
_LOADING = ("Loading …", "The run is being folded again from its events.")


class RunPage:
    """One browser's view of one run."""

    def __init__(self, desk: Desk, run_id: str) -> None:
        self._desk = desk
        self._run_id = run_id
        self._picture: RunPicture | None = None
        self._seen: object = None
        self._at: int | None = None  # page of the timeline; None: the last
        self._busy = False
        self._pause_s, self._again_ms = AGAIN_S, 0

    def build(self) -> None:
        """Lay the page out; the run itself comes once the browser is there."""
        with frame(f"Run {shown(self._run_id, 60)}", self._desk.feed, self._desk.has_login):
            with ui.element("div"):
                Words("span", "Run", "ot-muted")
                Words("h1", shown(self._run_id, 512)).props("dir=auto")
            self._fault = Words("div", "", "ot-note").props("role=alert data-tone=bad")
            self._fault.set_visibility(False)
            self._notes = ui.element("div").classes("ot-stack")
            self._head = ui.element("section").classes("ot-card").props('aria-label="This run"')
            with self._head:
                self._facts = Facts(compact=True)
            self._build_timeline()
            self._rest = ui.element("div").classes("ot-stack")
            with self._rest:
                self._build_pictures()
                with ui.element("div").classes("ot-halves"):
                    self._build_score()
                    self._build_gate()
            for part in (self._head, self._rest):
                part.set_visibility(False)
            ui.timer(LOOK_S, self._look)
            ui.timer(LOOK_S, self._tell_reading)

    def _build_timeline(self) -> None:
        with ui.element("section").classes("ot-card").props("aria-label=Timeline"):
            Words("h2", "Timeline")
            self._grid = Grid("Steps of the run", _STEPS, _LOADING, on_press=self._open_step)
            self._stand = pager(self._turn, "steps")
            self._detail = ui.element("div").props("aria-live=polite").classes("ot-stack")

    def _build_pictures(self) -> None:
        with ui.element("section").classes("ot-card").props('aria-label="Prefix graph"'):
            Words("h2", "Prefix graph")
            text = (
                "What each step builds on. Dashed edges were found late, after their step had been "
                "judged. A step's shape is its severity: circle 0, square 1, diamond 2, triangle 3."
            )
            Words("p", text, "ot-muted")
            self._graph = Chart(200, self._open_step)
            self._late = ui.element("ul").classes("ot-list")
        with ui.element("div").classes("ot-halves"):
            with ui.element("section").classes("ot-card").props("aria-label=Coupling"):
                Words("h2", "Coupling with the best reference")
                self._coupling_words = Words("p", "", "ot-muted").props("dir=auto")
                self._heat = Chart(300)
            with ui.element("section").classes("ot-card").props("aria-label=Readings"):
                Words("h2", "Score, coverage and leakage")
                self._series_words = Words("p", "", "ot-muted")
                self._series = Chart(320)

    def _build_score(self) -> None:
        with ui.element("section").classes("ot-card").props("aria-label=Scorecard"):
            self._score_title = Words("h2", "Scorecard")
            self._score = Facts(compact=True)

    def _build_gate(self) -> None:
        with ui.element("section").classes("ot-card").props('aria-label="Decisions of the gate"'):
            Words("h2", "Decisions of the gate")
            columns = [
                Column("Step", "number"),
                Column("Decision", "text"),
                Column("Tool", "text"),
                Column("Why", "lines"),
            ]
            empty = ("None known", "The gate was not asked, or its answers are not kept here.")
            self._decisions = Grid("Decisions of the gate", columns, empty)

    async def _look(self) -> None:
        """Fold what is new, if something was said about the run since the last look."""
        row = self._desk.model.row(self._run_id)
        seen = None if row is None else (row.last_ms, row.steps, row.state, row.verdicts)
        now = seen, self._desk.feed.state.status
        if self._busy or (self._seen == now and not self._is_time_again()):
            return
        if self._seen != now:
            self._pause_s = AGAIN_S
        self._busy, self._seen = True, now
        try:
            picture = await self._desk.feed.picture(self._run_id)
        except Unavailable as reason:
            self._fail(str(reason))
        else:
            self._pause_s = AGAIN_S
            self._fault.set_visibility(False)
            self._fault.say("")
            if picture != self._picture:
                self._picture = picture
                self._draw(picture)
        finally:
            self._busy = False

    def _is_time_again(self) -> bool:
        """Tell whether to ask again although nothing was said: seldom, as a misspelt id stays so.

        Somebody else's broker looks through its whole topic for it.
        """
        is_refused = self._fault.text != "" and self._desk.feed.state.status == "live"
        return is_refused and self._desk.clock_ms() >= self._again_ms

    def _tell_reading(self) -> None:
        """Say how far the first look has come: a large partition takes a while."""
        if self._busy and self._picture is None:
            so_far = self._desk.feed.reading(self._run_id)
            title, text = _LOADING
            self._grid.set_empty(title, f"{text} Now {so_far}." if so_far else text)

    def _fail(self, reason: str) -> None:
        self._again_ms = self._desk.clock_ms() + int(self._pause_s * 1_000)
        self._pause_s = min(AGAIN_S_MAX, 2 * self._pause_s)
        self._fault.set_visibility(True)
        self._fault.say(shown(reason, 600))
        if self._picture is None:
            self._grid.set_empty("Nothing to show", "The note above says why, and what to do.")

    def _draw(self, picture: RunPicture) -> None:
        for part in (self._head, self._rest):
            part.set_visibility(True)
        self._notes.clear()
        with self._notes:
            for note in picture.notes:
                Words("div", shown(note, 600), "ot-note").props("data-tone=info")
        self._facts.show(run_facts(picture))
        self._draw_steps(picture)
        self._draw_graph(picture)
        self._draw_coupling(picture)
        options, label = charts.series(picture.series)
        self._series.set_visibility(bool(options["series"]))
        self._series.show(options, label)
        self._series_words.say(label if options["series"] else _NO_READINGS)
        so_far = "" if picture.final else ", if the run ended now"
        self._score_title.say(f"Scorecard{so_far}")
        self._score.show(score_facts(picture.scorecard))
        self._decisions.show([decision_cells(i, d) for i, d in enumerate(picture.decisions)])

    def _draw_steps(self, picture: RunPicture) -> None:
        pages = max(1, -(-len(picture.timeline) // STEPS_A_PAGE))
        at = pages - 1 if self._at is None else min(max(self._at, 0), pages - 1)
        part = picture.timeline[at * STEPS_A_PAGE : (at + 1) * STEPS_A_PAGE]
        self._grid.set_empty("No step yet", "The run has begun; its first step appears here.")
        self._grid.show([step_cells(step) for step in part])
        first, last = at * STEPS_A_PAGE + 1, at * STEPS_A_PAGE + len(part)
        where = f"{first} to {last} of {len(picture.timeline)} steps" if pages > 1 else ""
        self._stand(at, pages, where)

    def _turn(self, number: int) -> None:
        if self._picture is None:
            return
        pages = max(1, -(-len(self._picture.timeline) // STEPS_A_PAGE))
        self._at = None if number >= pages - 1 else max(0, number)  # the last one goes on
        self._draw_steps(self._picture)

    def _draw_graph(self, picture: RunPicture) -> None:
        options, label, width, height = charts.graph(picture)
        self._graph.show(options, label, width, height)
        late = [edge for edge in picture.edges if edge.retroactive]
        self._late.clear()
        with self._late:
            for edge in late[-20:]:
                way = f"Step {edge.target} builds on step {edge.source}"
                Words("li", f"{way}: found at step {edge.found_at}")
            if not late:
                Words("li", "No edge was found late.", "ot-muted")

    def _draw_coupling(self, picture: RunPicture) -> None:
        coupling = picture.coupling
        if coupling is None or not coupling.rows:
            words = "There is no reference for this run's task; add some with `ontrack references`."
            if coupling is not None:
                words = "No step is coupled: the run has none, or more than the graph's limit."
            self._coupling_words.say(words)
            self._heat.set_visibility(False)
            return
        options, label, width, height = charts.heat_map(coupling)
        self._heat.set_visibility(True)
        self._heat.show(options, label, width, height)
        name = shown(coupling.reference_id, 120)
        self._coupling_words.say(
            f"Reference {name} ({coupling.provenance}). Darker (in the dark: lighter) is a larger "
            "share. ✓ satisfied, ▸ active: the frontier once that step had been judged."
        )

    async def _open_step(self, key: str) -> None:
        if self._picture is None or not key.isdigit():
            return
        step = next((s for s in self._picture.timeline if s.seq == int(key)), None)
        if step is None:
            return
        self._detail.clear()
        with self._detail:
            with ui.element("div").classes("ot-line-up"):
                title = Words("h3", f"Step {step.seq}").props("tabindex=-1")
                close = Words("button", "Close", "ot-button ot-push").props("type=button")
                close.on("click", self._detail.clear)
            Facts(compact=True).show(step_facts(step))
            for reason in step.reasons:
                Words("p", reason_text(reason, 2_000)).props("dir=auto")
            Words("p", "The event as its source holds it:", "ot-muted")
            event = Words("pre", "Loading …", "ot-pre").props("tabindex=0 dir=auto")
        ui.run_javascript(f"getHtmlElement({title.id})?.focus()")
        event.say(await self._event(step.seq))

    async def _event(self, seq: int) -> str:
        try:
            raw = await self._desk.feed.run_events(self._run_id)
        except Unavailable as reason:
            return str(reason)
        return await asyncio.to_thread(event_text, raw, seq)


def build(desk: Desk, run_id: str) -> None:
    """Build the page of one run for one browser."""
    RunPage(desk, run_id).build()
