"""Text: what agents wrote made fit to be shown, and how readings and verdicts are put."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal
from urllib.parse import quote

from ontrack.pipeline.terminal import printable

TEXT_MAX = 240  # characters of a name or a sentence that a page shows

Tone = Literal["ok", "info", "warn", "bad", "other"]

#: Tones from the mildest to the worst; ``other`` stands for what is neither.
TONES_BY_WEIGHT: tuple[Tone, ...] = ("other", "ok", "info", "warn", "bad")

#: How each verdict is coloured; its word and its sign stand in ``assets/shared.js``.
TONES: dict[str, Tone] = {
    "OK": "ok",
    "EXPLORING": "info",
    "WARN": "warn",
    "LOOP": "bad",
    "STALLED": "bad",
    "CAUSAL_INVERSION": "bad",
    "OFF_TRACK": "bad",
    "BLOCK": "bad",
}


def shown(text: str, limit: int = TEXT_MAX) -> str:
    """Return text of an agent as one line for a page: no controls, no overrides, not too long."""
    cut = text[: limit + 1]
    line = printable(" ".join(cut.split()) if cut.strip() else cut)
    return line if len(text) <= limit else line[:limit] + "…"


def run_href(run_id: str) -> str:
    """Return the link to a run's page.

    As a query where a path would not do: browsers take a dot for a folder, and the routes of the
    web framework end at a line's end.
    """
    name = quote(run_id, safe="", errors="replace")
    is_odd = run_id in {".", ".."} or "\n" in run_id
    return f"/run?id={name}" if is_odd else f"/run/{name}"


def moment(ms: int) -> str:
    """Return milliseconds since 1970 as text, in UTC; what no calendar has stays a number."""
    try:
        return f"{datetime.fromtimestamp(ms / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def money(usd: float | None) -> str | None:
    """Return an amount as text: cents, or what is left of them."""
    if usd is None:
        return None
    return f"${usd:,.2f}" if usd >= 0.1 or usd == 0 else f"${usd:.4f}"


def number(value: float | None, digits: int = 2) -> str | None:
    """Return a reading as text."""
    return None if value is None else f"{value:.{digits}f}"
