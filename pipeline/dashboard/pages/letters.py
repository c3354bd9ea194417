"""Dead letters page: what could not be used, and why."""

from __future__ import annotations

import base64
import binascii

from nicegui import ui

from ontrack.pipeline.dashboard.feeds.feed import Letter, Unavailable
from ontrack.pipeline.dashboard.pages.desk import Desk
from ontrack.pipeline.dashboard.pages.text import moment, shown
from ontrack.pipeline.dashboard.pages.theme import frame
from ontrack.pipeline.dashboard.pages.widgets import Column, Facts, Grid, Row, Words
from ontrack.pipeline.terminal import printable

LETTERS_MAX = 200
AGAIN_S = 5.0
BYTES_SHOWN_MAX = 4_096

_LOADING = ("Loading …", "The latest dead letters are being read.")
_NONE = ("No dead letters", "Everything that came could be used.")
_COLUMNS = (
    Column("Where", "button"),
    Column("Error", "text"),
    Column("What is wrong", "lines"),
    Column("Key", "text"),
    Column("Bytes", "number"),
    Column("When", "time"),
)


class LettersPage:
    """One browser's view of the dead letters."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._letters: list[Letter] | None = None

    def build(self) -> None:
        """Lay the page out; the letters are asked for once the browser is there."""
        with frame("Dead letters", self._desk.feed, self._desk.has_login):
            Words("h1", "Dead letters")
            text = (
                f"The latest {LETTERS_MAX} messages that could not be used, as they came. "
                "`ontrack dead-letters` sends them again once their fault is mended."
            )
            Words("p", text, "ot-muted")
            self._fault = Words("div", "", "ot-note").props("role=alert data-tone=bad")
            self._fault.set_visibility(False)
            with ui.element("section").classes("ot-card").props('aria-label="Dead letters"'):
                self._grid = Grid("Dead letters", _COLUMNS, _LOADING, on_press=self._open)
                self._detail = ui.element("div").props("aria-live=polite").classes("ot-stack")
            ui.timer(AGAIN_S, self._read)

    async def _read(self) -> None:
        try:
            letters = await self._desk.feed.dead_letters(LETTERS_MAX)
        except Unavailable as reason:
            self._fault.set_visibility(True)
            self._fault.say(shown(str(reason), 600))
            return
        self._fault.set_visibility(False)
        if letters != self._letters:
            self._letters = letters
            self._grid.set_empty(*_NONE)
            self._grid.show([letter_cells(letter) for letter in letters])

    def _open(self, letter_id: str) -> None:
        letter = next((item for item in self._letters or () if item.said.id == letter_id), None)
        if letter is None:
            return
        said = letter.said
        self._detail.clear()
        with self._detail:
            title = Words("h2", shown(said.id)).props("tabindex=-1 dir=auto")
            Facts(compact=True).show(letter_facts(letter))
            Words("p", shown(said.error.text, 2_000)).props("dir=auto")
            Words("p", f"Its first {BYTES_SHOWN_MAX:,} bytes as text:", "ot-muted")
            Words("pre", bytes_text(said.value_base64), "ot-pre").props("tabindex=0 dir=auto")
        ui.run_javascript(f"getHtmlElement({title.id})?.focus()")


def letter_cells(letter: Letter) -> Row:
    """Return a dead letter as a row."""
    said = letter.said
    key = None if said.key_base64 is None else shown(bytes_text(said.key_base64))
    return said.id, [
        shown(f"{said.topic} · {said.partition} · {said.offset}"),
        said.error.name,
        [shown(said.error.text)],
        key,
        f"{said.value_bytes:,}",
        letter.time_ms,
    ]


def letter_facts(heard: Letter) -> list[list[str]]:
    """Return where a dead letter comes from and when it was written, and its headers."""
    letter = heard.said
    facts = [
        ["Written", moment(heard.time_ms)],
        ["Topic or file", shown(letter.topic)],
        ["Partition", str(letter.partition)],
        ["Offset or line", str(letter.offset)],
        ["Error", letter.error.name],
        ["Bytes", f"{letter.value_bytes:,}"],
    ]
    for name, value in letter.headers[:20]:
        facts.append([f"header {shown(name, 60)}", "–" if value is None else shown(value)])
    return facts


def bytes_text(base64_text: str | None) -> str:
    """Return bytes as text to be read: what is no UTF-8, or could steer, is replaced."""
    if base64_text is None:
        return "(no bytes)"
    # Four characters are three bytes: no more is decoded than is shown.
    head = base64_text[: (BYTES_SHOWN_MAX // 3 + 1) * 4]
    try:
        raw = base64.b64decode(head)
    except binascii.Error:
        return "(not readable)"
    text = printable(raw[:BYTES_SHOWN_MAX].decode("utf-8", "replace"), keep="\n\t")
    return text + (" …" if len(raw) > BYTES_SHOWN_MAX else "")


def build(desk: Desk) -> None:
    """Build the dead letters page for one browser."""
    LettersPage(desk).build()
