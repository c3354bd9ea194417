"""Plots as inline SVG: text in, text out; every label is escaped here."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from ontrack.pipeline.terminal import printable

_WIDTH: Final = 640
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 14, 10, 34
_BINS_MAX = 32
_LABEL_CHARACTERS = 30


class Series(NamedTuple):
    """A distribution: its name, its colour class, and runs by value."""

    name: str
    style: str
    counts: dict[float, int]


class Bar(NamedTuple):
    """A horizontal bar of one or several parts, each (value, colour class, what it is)."""

    label: str
    parts: tuple[tuple[float, str, str], ...]


def escape(text: str) -> str:
    """Return text of agents as text of a page: no control characters, no markup."""
    return html.escape(printable(text))


def histograms(
    series: Sequence[Series], what: str, marks: Sequence[tuple[float, str]] = (), top: float = 0
) -> str:
    """Draw one panel a series over a common axis, each in shares of its own runs.

    Parameters
    ----------
    what
        The axis.
    marks
        Lines at values, with their labels.
    top
        The axis ends there at least.
    """
    shown = [each for each in series if each.counts]
    if not shown:
        return _empty("no runs to show")
    highest = max(max(each.counts) for each in shown)
    highest = max(highest, top, *(at for at, _ in marks)) if marks else max(highest, top)
    whole = all(float(value).is_integer() for each in shown for value in each.counts)
    width = _bin_width(highest, whole)
    bins = max(1, math.floor(highest / width + 1e-9) + 1)
    panel, height = 104, _TOP + 104 * len(shown) + _BOTTOM
    scale = (_WIDTH - _LEFT - _RIGHT) / bins
    parts = []
    for row, each in enumerate(shown):
        base = _TOP + panel * (row + 1) - 6
        parts += _panel(each, base, panel - 30, width, bins, scale, whole)
    for at, label in marks:
        x = _LEFT + (at / width) * scale
        parts.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - _BOTTOM}"/>'
            f'<text class="note" x="{x + 4:.1f}" y="{_TOP + 8}">{escape(label)}</text>'
        )
    ticks = [(place, _number(place * width)) for place in _ticks(bins)]
    parts += _axis([(_LEFT + place * scale, text) for place, text in ticks], height, what)
    return _svg(height, parts, what)


def bars(rows: Sequence[Bar], what: str) -> str:
    """Draw horizontal bars, longest value full width, with their sums beside them."""
    largest = max((sum(part[0] for part in row.parts) for row in rows), default=0)
    if not largest:
        return _empty("nothing was found")
    left, height = 210, _TOP + 26 * len(rows) + 8
    scale = (_WIDTH - left - 70) / largest
    parts = []
    for place, row in enumerate(rows):
        y, x = _TOP + 26 * place, float(left)
        label = row.label if len(row.label) <= _LABEL_CHARACTERS else f"{row.label[:28]}…"
        parts.append(
            f'<text class="label" x="{left - 8}" y="{y + 14}">{escape(label)}'
            f"<title>{escape(row.label)}</title></text>"
        )
        for value, style, told in row.parts:
            length = value * scale
            parts.append(
                f'<rect class="{style}" x="{x:.1f}" y="{y}" width="{length:.1f}" height="18" '
                f'rx="2"><title>{escape(told)}</title></rect>'
            )
            x += length
        total = sum(part[0] for part in row.parts)
        parts.append(f'<text class="value" x="{x + 6:.1f}" y="{y + 14}">{total:,.0f}</text>')
    return _svg(height, parts, what)


def exceeding(counts: dict[float, int], marks: Sequence[tuple[float, str]], what: str) -> str:
    """Draw the share of runs above each value: what a budget there would flag."""
    total = sum(counts.values())
    if not total:
        return _empty("no passing runs")
    highest, height = max(max(counts), 1), 220
    wide, tall = _WIDTH - _LEFT - _RIGHT, height - _TOP - _BOTTOM
    above, x, path = total, float(_LEFT), [f"M{_LEFT} {_TOP}"]
    for value, count in sorted(counts.items()):
        above -= count
        x = _LEFT + value / highest * wide
        path.append(f"H{x:.1f} V{_TOP + (1 - above / total) * tall:.1f}")
    parts = [f'<path class="curve" d="{" ".join(path)}"/>']
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = _TOP + (1 - share) * tall
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="label" x="{_LEFT - 6}" y="{y + 4:.1f}">{share:.0%}</text>'
        )
    for place, (at, label) in enumerate(marks):
        x = _LEFT + at / highest * wide
        share = sum(count for value, count in counts.items() if value > at) / total
        y = _TOP + (1 - share) * tall
        is_last = x > _WIDTH - 60
        parts.append(
            f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4">'
            f"<title>{escape(f'{label}: {at:g} steps flag {share:.0%}')}</title></circle>"
            f'<text class="{"label" if is_last else "note"}" x="{x + (2 if is_last else 7):.1f}" '
            f'y="{y - 6 - 3 * (place % 2):.1f}">'
            f"{escape(label)}</text>"
        )
    width = _bin_width(highest, whole=True)
    bins = max(1, math.floor(highest / width))
    ticks = [
        (_LEFT + place * width / highest * wide, _number(place * width)) for place in _ticks(bins)
    ]
    return _svg(height, parts + _axis(ticks, height, what), what)


def _panel(
    series: Series, base: float, tall: float, width: float, bins: int, scale: float, whole: bool
) -> list[str]:
    """Draw one histogram that stands on ``base``."""
    binned = [0] * bins
    for value, count in series.counts.items():
        binned[min(bins - 1, math.floor(value / width + 1e-9))] += count
    total, most = sum(binned), max(binned)
    parts = [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>',
        f'<text class="title" x="{_LEFT}" y="{base - tall - 6}">'
        f"{escape(series.name)}, {total:,} {'run' if total == 1 else 'runs'}</text>",
        f'<text class="label" x="{_LEFT - 6}" y="{base - tall + 8:.1f}">{most / total:.0%}</text>',
    ]
    for place, count in enumerate(binned):
        if count:
            high = count / most * tall
            low, top = place * width, (place + 1) * width
            is_single = whole and width == 1
            span = _number(low) if is_single else f"{_number(low)} to below {_number(top)}"
            parts.append(
                f'<rect class="{series.style}" x="{_LEFT + place * scale + 0.5:.1f}" '
                f'y="{base - high:.1f}" width="{max(1.0, scale - 1):.1f}" height="{high:.1f}">'
                f"<title>{span}: {count:,} ({count / total:.1%})</title></rect>"
            )
    return parts


def _bin_width(highest: float, whole: bool) -> float:
    """Return a round width that gives no more than the most bins."""
    if not whole:
        return 0.05 if highest <= 1 else math.pow(10, math.ceil(math.log10(highest / _BINS_MAX)))
    widths = (factor * 10.0**power for power in range(12) for factor in (1, 2, 5))
    return next((width for width in widths if highest / width < _BINS_MAX), highest)


def _ticks(bins: int) -> range:
    step = next(each for each in (1, 2, 4, 5, 8, 10, 20) if bins / each <= 8 or each == 20)
    return range(0, bins + 1, step)


def _axis(ticks: Sequence[tuple[float, str]], height: float, what: str) -> list[str]:
    parts = [
        f'<text class="tick" x="{x:.1f}" y="{height - _BOTTOM + 12}">{text}</text>'
        for x, text in ticks
    ]
    return [*parts, f'<text class="axis" x="{_WIDTH / 2}" y="{height - 4}">{escape(what)}</text>']


def _number(value: float) -> str:
    return f"{value:g}"


def _svg(height: float, parts: Sequence[str], what: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-label="{escape(what)}">'
        + "".join(parts)
        + "</svg>"
    )


def _empty(text: str) -> str:
    return f'<p class="empty">{escape(text)}</p>'
