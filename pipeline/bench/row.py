"""One row of the suite's table, from whichever bench."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ontrack.pipeline.bench import clock, pipeline

    AnyFigure = clock.Figure | pipeline.Figure


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: times of a call, events a second, or bytes held; None where it has none.

    Parameters
    ----------
    bench
        Part of the suite, and the subcommand that measures it for longer.
    ratio
        To the row named ``ratio_to`` of the same bench: of medians, or of events a second.
    samples
        What it rests on.
    p20_us
        Of what takes turns in this process: pauses of a busy machine hardly reach it.
    """

    bench: str
    name: str
    size: str
    p50_us: float | None = None
    p95_us: float | None = None
    p99_us: float | None = None
    events_per_s: float | None = None
    ratio_to: str | None = None
    ratio: float | None = None
    samples: int = 0
    held_bytes: int | None = None
    p20_us: float | None = None

    @classmethod
    def of(cls, bench: str, figure: AnyFigure) -> Row:
        """Take a bench's own figure."""
        return cls(
            bench,
            figure.name,
            figure.size,
            figure.p50_us,
            figure.p95_us,
            figure.p99_us,
            figure.events_per_s,
            figure.ratio_to,
            figure.ratio,
            figure.samples,
            p20_us=getattr(figure, "p20_us", None),
        )

    def as_record(self) -> dict[str, Any]:
        """Return the fields of the JSON line."""
        return {"type": "figure"} | rounded(self)


def rounded(figure: AnyFigure | Row) -> dict[str, Any]:
    """Return a figure's fields; more digits than these mean nothing."""
    digits = {"ratio": 3}
    return {
        name: round(value, digits.get(name, 1)) if isinstance(value, float) else value
        for name, value in asdict(figure).items()
    }


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What does not take part in a run of the suite, and why."""

    bench: str
    name: str
    reason: str

    def as_record(self) -> dict[str, Any]:
        """Return the fields of the JSON line."""
        return {"type": "left_out"} | asdict(self)
