"""Widgets: what the pages are made of, each a file of JavaScript in ``assets`` with its data.

Data travels as values of properties, or as JSON text that the browser parses: NiceGUI evaluates
properties whose *names* begin with a colon, so what agents wrote is never a name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nicegui import events, ui
from nicegui.element import Element
from nicegui.elements.echart import EChart
from nicegui.elements.mixins.text_element import TextElement

CellKind = Literal["text", "number", "link", "verdict", "time", "trail", "lines", "button"]

#: A row's key and its cells, one for each column; None is a dash.
Row = tuple[str, list[Any]]

assert EChart.component is not None  # importing it puts ECharts on the page's import map


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Parameters
    ----------
    sort
        What the server is asked to sort by; None where it cannot.
    minor
        Left out where there is little room, as on a phone.
    """

    label: str
    kind: CellKind = "text"
    sort: str | None = None
    minor: bool = False


class Words(TextElement):
    """An HTML element of text alone."""

    def __init__(self, tag: str, text: str = "", classes: str = "") -> None:
        super().__init__(tag=tag, text=text)
        self.classes(classes)

    def say(self, text: str) -> None:
        """Change the text."""
        if self.text != text:
            self.text = text


class Grid(Element, component="assets/grid.js"):
    """A table whose rows may change while somebody looks; only what has changed is sent."""

    def __init__(
        self,
        label: str,
        columns: Sequence[Column],
        empty: tuple[str, str],
        rows: Sequence[Row] = (),
        on_press: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__()
        self._sent = dict(rows)
        self._order = [key for key, _ in rows]
        self.props["label"] = label
        self.props["columns"] = [asdict(column) for column in columns]
        self.props["initial"] = {"order": self._order, "rows": list(rows)}
        self.set_empty(*empty)
        if on_press is not None:
            self.on("press", lambda event: on_press(_text(event.args)))

    def set_empty(self, title: str, text: str) -> None:
        """Say what stands in place of no rows, and what to do then."""
        empty = {"title": title, "text": text}
        if self.props.get("empty") != empty:
            self.props["empty"] = empty

    def set_sort(self, key: str, descending: bool) -> None:
        """Say what the rows are sorted by."""
        self.props["sort"] = {"key": key, "descending": descending}

    def show(self, rows: Sequence[Row]) -> None:
        """Show these rows in this order."""
        order = [key for key, _ in rows]
        changed = [(key, cells) for key, cells in rows if self._sent.get(key) != cells]
        change: dict[str, Any] = {"rows": changed}
        if order != self._order:
            change["order"] = order
        elif not changed:
            return
        self._sent = dict(rows)
        self._order = order
        with self.props.suspend_updates():  # for a browser that has to draw it anew
            self.props["initial"] = {"order": order, "rows": list(rows)}
        self.run_method("apply", json.dumps(change))


class Filters(Element, component="assets/filters.js"):
    """Search field and menus; ``on_change`` is told of all values, "" is any.

    Where it ``folds``, a phone shows them only when somebody opens them.
    """

    def __init__(
        self,
        label: str,
        fields: list[dict[str, Any]],
        on_change: Callable[[dict[str, str]], None],
        reset: bool = True,
        folds: bool = False,
    ) -> None:
        super().__init__()
        self.props["reset"] = reset
        self.props["folds"] = folds
        self.props["label"] = label
        self.props["fields"] = fields

        def changed(event: events.GenericEventArguments) -> None:
            if isinstance(event.args, dict):
                on_change({str(name): _text(value) for name, value in event.args.items()})

        self.on("change", changed)

    def set_value(self, key: str, value: str) -> None:
        """Choose a value, as if the person had."""
        self.run_method("set", key, value, 0)

    def put(self, key: str, value: str) -> None:
        """Show a value that stands already; nobody is told."""
        self.run_method("put", key, value)

    def set_options(self, key: str, options: list[tuple[str, str]]) -> None:
        """Change what a menu offers: pairs of value and name."""
        for field in self.props["fields"]:
            if field["key"] == key and field["options"] != options:
                field["options"] = options


class Spark(Element, component="assets/spark.js"):
    """Counts by minute: ``series`` are ``{name, tone, values}``."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self.props["label"] = label
        self.show([], "", "nothing yet")

    def show(self, series: list[dict[str, Any]], value: str, summary: str) -> None:
        """Draw; ``summary`` is what a screen reader says."""
        new = {"series": series, "value": value, "summary": summary}
        if any(self.props.get(name) != item for name, item in new.items()):
            self.props.update(new)


class Chart(Element, component="assets/chart.js"):
    """An ECharts chart: ``options`` as ``pages/charts.py`` makes them."""

    def __init__(self, height: int, on_pick: Callable[[str], object] | None = None) -> None:
        super().__init__()
        self.props["height"] = height
        self.props["options"] = {}
        if on_pick is not None:
            self.on("pick", lambda event: on_pick(_text(event.args)))

    def show(
        self, options: dict[str, Any], label: str, width: int = 0, height: int | None = None
    ) -> None:
        """Draw; ``label`` is what a screen reader says, ``width`` the least in pixels."""
        new: dict[str, Any] = {"options": options, "label": label, "width": width}
        if height is not None:
            new["height"] = height
        if any(self.props.get(name) != item for name, item in new.items()):
            self.props.update(new)


class Facts(Element, component="assets/facts.js"):
    """Names and values.

    An item is ``[name, value]``, ``[name, value, "verdict"]``, ``[name, value, "words"]`` for a
    text in place of a figure, or ``[name, value, "link", path]``.
    """

    def __init__(self, compact: bool = False) -> None:
        super().__init__()
        self.props["items"] = []
        self.props["compact"] = compact

    def show(self, items: list[list[str]]) -> None:
        """Show these."""
        if self.props["items"] != items:
            self.props["items"] = items


def _text(value: object) -> str:
    """Whatever a browser sends is text, and not too much of it."""
    return value[:1024] if isinstance(value, str) else ""


def pager(on_turn: Callable[[int], None], what: str) -> Callable[[int, int, str], None]:
    """Add buttons to turn pages; return what tells them where they stand.

    It takes the page's number from 0, how many there are, and the text between the buttons.
    """
    at = {"number": 0}
    with ui.element("nav").classes("ot-line-up").props(f'aria-label="Pages of {what}"'):
        back = Words("button", "← Previous", "ot-button").props("type=button")
        text = Words("span", "", "ot-muted").props("role=status")
        forth = Words("button", "Next →", "ot-button").props("type=button")
    back.on("click", lambda: on_turn(at["number"] - 1))
    forth.on("click", lambda: on_turn(at["number"] + 1))

    def stand(number: int, pages: int, words: str) -> None:
        at["number"] = number
        for button, stops in ((back, number <= 0), (forth, number >= pages - 1)):
            if button.props.get("disabled") != stops:
                button.props["disabled"] = stops
            button.set_visibility(pages > 1)
        text.say(words)

    return stand
