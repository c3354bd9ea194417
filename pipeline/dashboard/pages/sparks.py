"""Sparks: counts by minute as the small charts of the fleet page, and in words."""

from __future__ import annotations

from typing import Any

from ontrack.pipeline.dashboard.fleet.model import Minutes
from ontrack.pipeline.dashboard.pages.text import TONES

Bars = dict[str, Any]


def sparks(minutes: Minutes) -> list[tuple[str, list[Bars], str, str]]:
    """Return what the small charts of the fleet page show.

    Returns
    -------
    list
        Label, series ``{name, tone, values}``, the latest in words, and what a screen reader says.
    """
    events = [sum(column) for column in zip(*minutes.verdicts.values(), strict=True)]
    events = events or [0] * len(minutes.starts_ms)
    wrong = {name: values for name, values in minutes.verdicts.items() if name != "OK"}
    verdicts = [
        _bars("explore", "info", minutes, *_of(wrong, "EXPLORING")),
        _bars("warn", "warn", minutes, *_of(wrong, "WARN")),
        _bars("wrong", "bad", minutes, *[v for k, v in wrong.items() if TONES.get(k) == "bad"]),
    ]
    ended = [
        _bars("success", "ok", minutes, *_of(minutes.ended, "success")),
        _bars("failure", "bad", minutes, *_of(minutes.ended, "failure")),
        _bars("other", "other", minutes, *_of(minutes.ended, "cancelled", "unknown")),
    ]
    acted = [
        _bars("warn, replan", "warn", minutes, *_of(minutes.interventions, "warn", "replan")),
        _bars("halt", "bad", minutes, *_of(minutes.interventions, "halt")),
        _bars("block", "other", minutes, minutes.blocks),
    ]
    every = [{"name": "verdicts", "tone": "info", "values": events}]
    return [
        _spark("Events a minute", every),
        _spark("Verdicts that are not OK", verdicts),
        _spark("Interventions and blocks", acted),
        _spark("Runs that ended", ended),
    ]


def _of(counts: dict[str, tuple[int, ...]], *names: str) -> list[tuple[int, ...]]:
    return [counts[name] for name in names if name in counts]


def _bars(name: str, tone: str, minutes: Minutes, *parts: tuple[int, ...]) -> Bars:
    values = [sum(column) for column in zip(*parts, strict=True)]
    return {"name": name, "tone": tone, "values": values or [0] * len(minutes.starts_ms)}


def _spark(label: str, bars: list[Bars]) -> tuple[str, list[Bars], str, str]:
    def now(one: Bars) -> int:
        values: list[int] = one["values"]
        return values[-1] if values else 0

    total = sum(sum(one["values"]) for one in bars)
    value = f"{sum(map(now, bars))} this minute"
    parts = ", ".join(f"{one['name']} {sum(one['values'])}" for one in bars)
    minutes = len(bars[0]["values"])
    return label, bars, value, f"{label}: {total} in the last {minutes} minutes: {parts}; {value}"
