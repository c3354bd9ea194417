"""References page: what runs are compared with: references, tasks and tool contracts."""

from __future__ import annotations

from nicegui import context, ui

from ontrack.pipeline.dashboard.feeds.feed import Known, Unavailable
from ontrack.pipeline.dashboard.pages.desk import Desk
from ontrack.pipeline.dashboard.pages.text import money, shown
from ontrack.pipeline.dashboard.pages.theme import frame
from ontrack.pipeline.dashboard.pages.widgets import Column, Facts, Filters, Grid, Row, Words, pager
from ontrack.topics.knowledge import Reference, ReferenceStep, Task, ToolContract

ROWS_A_PAGE = 50
AGAIN_S = 15.0

_LOADING = ("Loading …", "References, tasks and contracts are being read.")
_NONE = (
    "No references",
    "Runs are watched for loops and stalls only. `ontrack references mine PATH` makes references "
    "of recorded successes.",
)
_NO_MATCH = ("No reference matches", "“Clear filters” shows all of them.")


class ReferencesPage:
    """One browser's view of the knowledge."""

    def __init__(self, desk: Desk, wanted: str, text: str) -> None:
        self._desk = desk
        self._wanted = wanted
        self._text = text
        self._at = 0
        self._known: Known | None = None

    def build(self) -> None:
        """Lay the page out; what it shows is asked for once the browser is there."""
        with frame("References", self._desk.feed, self._desk.has_login):
            Words("h1", "References")
            self._fault = Words("div", "", "ot-note").props("role=alert data-tone=bad")
            self._fault.set_visibility(False)
            with ui.element("section").classes("ot-card").props("aria-label=References"):
                field = {
                    "key": "text",
                    "label": "Search",
                    "kind": "search",
                    "value": self._text,
                    "hint": "reference, task, tool",
                }
                Filters("Filter references", [field], self._filter)
                columns = [
                    Column("Reference", "button"),
                    Column("Task", "text"),
                    Column("From", "text"),
                    Column("Steps", "number"),
                    Column("Way", "lines"),
                ]
                self._references = Grid("References", columns, _LOADING, on_press=self._open)
                self._stand = pager(self._turn, "references")
                self._detail = ui.element("div").props("aria-live=polite").classes("ot-stack")
            with ui.element("div").classes("ot-halves"):
                self._build_tasks()
                self._build_contracts()
            ui.timer(AGAIN_S, self._read)

    def _build_tasks(self) -> None:
        with ui.element("section").classes("ot-card").props("aria-label=Tasks"):
            Words("h2", "Tasks")
            columns = [
                Column("Task", "text"),
                Column("Step budget", "text"),
                Column("Allowed effects", "text"),
                Column("Cost at most", "number"),
            ]
            empty = ("No task files", "A task says its budget and what it allows: docs/scoring.md.")
            self._tasks = Grid("Tasks", columns, empty).classes("ot-tall")

    def _build_contracts(self) -> None:
        with ui.element("section").classes("ot-card").props('aria-label="Tool contracts"'):
            Words("h2", "Tool contracts")
            columns = [Column("Tool", "text"), Column("Effect", "text"), Column("About", "text")]
            empty = (
                "No contracts",
                "`ontrack contracts import` reads what tools can do from their MCP server.",
            )
            self._contracts = Grid("Tool contracts", columns, empty).classes("ot-tall")

    async def _read(self) -> None:
        try:
            known = await self._desk.feed.known()
        except Unavailable as reason:
            self._fault.set_visibility(True)
            self._fault.say(shown(str(reason), 600))
            return
        self._fault.set_visibility(False)
        if known == self._known:
            return
        first, self._known = self._known is None, known
        self._draw()
        self._tasks.show([task_cells(task) for task in known.tasks[:500]])
        self._contracts.show([contract_cells(tool) for tool in known.contracts[:500]])
        if first and self._wanted:
            self._open(self._wanted)

    def _draw(self) -> None:
        if self._known is None:
            return
        found = [item for item in self._known.references if matches(item, self._text)]
        pages = max(1, -(-len(found) // ROWS_A_PAGE))
        self._at = min(max(self._at, 0), pages - 1)
        part = found[self._at * ROWS_A_PAGE : (self._at + 1) * ROWS_A_PAGE]
        self._references.set_empty(*(_NO_MATCH if self._known.references else _NONE))
        self._references.show([reference_cells(reference) for reference in part])
        self._stand(self._at, pages, f"{len(found)} of {len(self._known.references)}")

    def _filter(self, values: dict[str, str]) -> None:
        self._text, self._at = values.get("text", ""), 0
        self._draw()

    def _turn(self, number: int) -> None:
        self._at = number
        self._draw()

    def _open(self, reference_id: str) -> None:
        known = () if self._known is None else self._known.references
        reference = next((item for item in known if item.reference_id == reference_id), None)
        self._detail.clear()
        with self._detail:
            if reference is None:
                Words("div", "That reference is not known (any more).", "ot-note")
                return
            title = Words("h2", shown(reference.reference_id)).props("tabindex=-1 dir=auto")
            Facts(compact=True).show(reference_facts(reference))
            columns = [
                Column("Step", "number"),
                Column("Tool", "text"),
                Column("Intent", "text"),
                Column("Builds on", "text"),
            ]
            rows = [_step(index, step) for index, step in enumerate(reference.steps)]
            Grid("Steps of the reference", columns, ("No steps", ""), rows)
        ui.run_javascript(f"getHtmlElement({title.id})?.focus()")


def matches(reference: Reference, text: str) -> bool:
    """Tell whether a text stands, in any case, in a reference's id, task or tools."""
    wanted = text.casefold()
    names = (reference.reference_id, reference.task_id, *(step.tool for step in reference.steps))
    return any(wanted in name.casefold() for name in names)


def reference_cells(reference: Reference) -> Row:
    """Return a reference as a row."""
    return reference.reference_id, [
        shown(reference.reference_id),
        shown(reference.task_id),
        reference.provenance.value,
        str(len(reference.steps)),
        [shown(" → ".join(step.tool for step in reference.steps[:12]))],
    ]


def reference_facts(reference: Reference) -> list[list[str]]:
    """Return what is known of a reference besides its steps."""
    facts = [["Task", shown(reference.task_id)], ["From", reference.provenance.value]]
    if reference.run_id is not None:
        facts.append(["Recorded run", shown(reference.run_id)])
    mined = reference.mined
    if mined is not None:
        facts.append(["Mined from", shown(mined.source)])
        facts.append(["Among successes", str(mined.successes)])
        left_out = len(mined.retries) + len(mined.dead_ends)
        facts.append(["Steps left out", str(left_out)])
    if mined is not None and mined.set_test is not None:
        facts.append(["Members its set's gate would stop", str(mined.set_test.blocked)])
    return facts


def _step(index: int, step: ReferenceStep) -> Row:
    parents = None if not step.parents else ", ".join(map(str, step.parents))
    action = None if not step.action else shown(step.action)
    return str(index), [str(index), shown(step.tool), action, parents]


def task_cells(task: Task) -> Row:
    """Return a task as a row."""
    budget, allowed = task.step_budget, task.allowed
    return task.id, [
        shown(task.id),
        None if budget is None else f"{budget.value:g} ({budget.rule})",
        None if allowed is None else shown(", ".join(item.tool for item in allowed) or "none"),
        money(task.cost_usd_max),
    ]


def contract_cells(tool: ToolContract) -> Row:
    """Return a tool contract as a row."""
    about = None if not tool.description else shown(tool.description)
    return tool.name, [shown(tool.name), tool.effect.value, about]


def build(desk: Desk) -> None:
    """Build the references page for one browser."""
    query = context.client.request.query_params
    ReferencesPage(desk, query.get("id", ""), query.get("text", "")[:512]).build()
