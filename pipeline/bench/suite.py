"""All benches in one run, each with its share of the time: ``ontrack bench all``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from ontrack.pipeline.bench.row import LeftOut, Row
from ontrack.topics.errors import OnTrackError

Outcome = Row | LeftOut
Clock = Callable[[], float]

TOTAL_S: Final = 480.0
"""Of all parts together; below ten minutes, as a part may take longer than it should."""


@dataclass(frozen=True, slots=True)
class Part:
    """One bench of the suite.

    Parameters
    ----------
    bench
        Its name.
    share
        Of the time that all parts have, in any unit.
    measure
        Given its seconds, preparation included, returns rows and what takes no part.
    """

    bench: str
    share: float
    measure: Callable[[float], Sequence[Outcome]]


class Unavailable(Exception):
    """A part cannot run here; the message says why."""


def run(
    parts: Sequence[Part],
    seconds: float,
    tell: Callable[[str], object] = lambda _: None,
    clock: Clock = perf_counter,
) -> Iterator[Outcome]:
    """Run one part after the other and yield what each comes to.

    What a part leaves of its time, or takes beyond it, is the others': at each part's begin, the
    seconds that are left are divided among those still to come.

    Parameters
    ----------
    seconds
        For all parts together.
    tell
        Takes a line about what is done next.
    clock
        Seconds of a steady clock.
    """
    end = clock() + seconds
    for place, part in enumerate(parts):
        shares = sum(each.share for each in parts[place:])
        left = max(0.0, end - clock())
        own = left * part.share / shares
        if own <= 0.0:
            yield LeftOut(part.bench, part.bench, f"no time was left of {seconds:g} s")
            continue
        tell(f"{part.bench}: {own:.0f} s")
        try:
            yield from part.measure(own)
        except (Unavailable, OnTrackError) as error:
            # What was measured before, and what comes after, must not be lost with it.
            yield LeftOut(part.bench, part.bench, str(error))
