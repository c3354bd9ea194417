"""What the figures are to be: aims as ratios within one run, and whether they are met."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ontrack.pipeline.bench.row import Row

MIB: Final = 2.0**20
LONGEST: Final = "longest_on_loop"
_MAIN: Final = "t=m=40,K=3"
_SHORT, _LONG = "t=200,m=40,K=3", "t=2000,m=40,K=3"

Rows = Mapping[tuple[str, str], Row]
"""Rows by bench and name; ``name size`` where a bench has several sizes of a name."""


@dataclass(frozen=True, slots=True)
class Aim:
    """One aim.

    Parameters
    ----------
    name
        What is aimed at, in a line.
    limit
        Of the figure.
    at_least
        Whether the figure must reach the limit; otherwise it must not exceed it.
    figure
        Reads it off the rows; raises KeyError where one is missing.
    note
        How it is read, where the name does not tell.
    by_p20
        Whether the same figure of 20 % quantiles means anything: on a busy machine a long call is
        interrupted more often than a short one, and a ratio of medians flatters the short one.
    """

    name: str
    limit: float
    at_least: bool
    figure: Callable[[Rows], float]
    note: str = ""
    by_p20: bool = False

    @property
    def aim(self) -> str:
        """The limit as people write it."""
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Judged:
    """An aim beside the figure of this run; None where it was not measured.

    ``quiet`` is the figure of 20 % quantiles, where it means anything.
    """

    aim: Aim
    figure: float | None
    quiet: float | None = None

    @property
    def verdict(self) -> str:
        """``met``, ``missed`` or ``not measured``."""
        if self.figure is None:
            return "not measured"
        met = self.figure >= self.aim.limit if self.aim.at_least else self.figure <= self.aim.limit
        return "met" if met else "missed"

    def as_record(self) -> dict[str, Any]:
        """Return the fields of the JSON line."""
        return {
            "type": "aim",
            "name": self.aim.name,
            "aim": self.aim.aim,
            "figure": None if self.figure is None else round(self.figure, 3),
            "by_p20": None if self.quiet is None else round(self.quiet, 3),
            "verdict": self.verdict,
            "note": self.aim.note,
        }


def _read(rows: Rows, bench: str, name: str, field: str = "p50_us") -> float:
    found: float | None = getattr(rows[bench, name], field)
    if found is None:
        raise KeyError(f"{bench} {name} has no {field}")
    return found


def _ratio(bench: str, upper: str, lower: str, field: str = "p50_us") -> Callable[[Rows], float]:
    return lambda rows: _read(rows, bench, upper, field) / _read(rows, bench, lower, field)


def _tail(rows: Rows) -> float:
    row = "step", f"monitor_cached {_MAIN}"
    return _read(rows, *row, "p99_us") / _read(rows, *row)


def _escalated(rows: Rows) -> float:
    engine = _read(rows, "step", f"engine {_MAIN}")
    return _read(rows, "step", f"converged {_MAIN}") / max(10_000.0, 40 * engine)


AIMS: Final = (
    Aim(
        "textbook numpy : engine step, t=m=40, K=3",
        10,
        True,
        _ratio("step", f"textbook {_MAIN}", f"engine {_MAIN}"),
        by_p20=True,
    ),
    Aim(
        "POT's re-solve : engine step",
        300,
        True,
        _ratio("step", f"pot {_MAIN}", f"engine {_MAIN}"),
        by_p20=True,
    ),
    Aim(
        "whole monitor step : engine step",
        2.5,
        False,
        _ratio("step", f"monitor_cached {_MAIN}", f"engine {_MAIN}"),
        "texts known to the encoder's cache",
        by_p20=True,
    ),
    Aim("whole monitor step, p99 : p50", 4, False, _tail, "texts known to the encoder's cache"),
    Aim(
        "transport alone, step 2,000 : step 200",
        1.5,
        False,
        _ratio("horizon", f"transport {_LONG}", f"transport {_SHORT}"),
        "m=40, K=3",
        by_p20=True,
    ),
    Aim(
        "whole monitor step 2,000 : step 200",
        1.5,
        False,
        _ratio("horizon", f"monitor {_LONG}", f"monitor {_SHORT}"),
        "m=40, K=3",
        by_p20=True,
    ),
    Aim(
        "memory of the run of 2,000 steps, MiB",
        2,
        False,
        lambda rows: _read(rows, "horizon", f"held {_LONG}", "held_bytes") / MIB,
    ),
    Aim(
        "escalated solve : the larger of 10 ms and 40 engine steps",
        1,
        False,
        _escalated,
        by_p20=True,
    ),
    Aim(
        "an event of another run waits for it, ms",
        20,
        False,
        lambda rows: _read(rows, "step", LONGEST, "p99_us") / 1000,
        "p99 of the largest solve that holds the loop; what is larger goes to a thread",
    ),
    Aim(
        "worker on Kafka : embedded driver, events/s",
        0.6,
        True,
        _ratio("pipeline", "worker", "embedded", "events_per_s"),
    ),
    Aim(
        "end to end at half of that rate, p50 in ms",
        10,
        False,
        lambda rows: _read(rows, "pipeline", "end_to_end") / 1000,
        "0.3 of the embedded driver's events/s; end_to_end_half: half of what this worker sustains",
    ),
)


def judge(rows: Iterable[Row]) -> list[Judged]:
    """Hold every aim against the rows of a run."""
    rows = list(rows)
    known = _named(rows)
    quiet = _named([replace(row, p50_us=row.p20_us) for row in rows])
    return [
        Judged(aim, _figure(aim, known), _figure(aim, quiet) if aim.by_p20 else None)
        for aim in AIMS
    ]


def _named(rows: Iterable[Row]) -> dict[tuple[str, str], Row]:
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        found[row.bench, row.name] = row
        found[row.bench, f"{row.name} {row.size}"] = row
    return found


def _figure(aim: Aim, rows: Rows) -> float | None:
    try:
        return aim.figure(rows)
    except KeyError:
        return None
