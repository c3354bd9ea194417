"""Tables of the report: headings, rows of text, protocol and notes, written as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ontrack.pipeline.evaluation.measures import Estimate

NONE: Final = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the report.

    Parameters
    ----------
    title, protocol
        What it is, and how it was measured.
    rows
        Texts, as many as there are headings.
    notes
        Among these: which corpora cannot carry the table, and why.
    """

    title: str
    protocol: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """Return the section."""
        parts = [f"## {self.title}", self.protocol]
        if self.rows:
            parts.append(grid(self.headings, self.rows))
        else:
            parts.append("No row: the notes say why.")
        if self.notes:
            parts.append("\n".join(f"* {note}" for note in self.notes))
        return "\n\n".join(parts)


def grid(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is text, the others are figures."""
    lines = [headings, ["---", *("---:" for _ in headings[1:])], *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def number(value: float | None, digits: int = 3) -> str:
    """Write a figure; a dash where there is none."""
    return NONE if value is None else f"{value:.{digits}f}"


def signed(value: float | None) -> str:
    """Write a difference."""
    return NONE if value is None else f"{value:+.3f}"


def interval(estimate: Estimate, is_difference: bool = False) -> str:
    """Write a value with its interval."""
    write = signed if is_difference else number
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return write(estimate.value)
    return f"{write(estimate.value)} [{write(estimate.low)}, {write(estimate.high)}]"


def percent(estimate: Estimate) -> str:
    """Write a share with its interval in per cent."""
    if estimate.value is None:
        return NONE
    text = f"{100 * estimate.value:.1f} %"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"
