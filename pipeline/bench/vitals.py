"""``bench vital``: the vital signs alone, beside online alignments of the same events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from random import Random

from ontrack.operators import repeats
from ontrack.operators.repeats import RepeatParams, RepeatSignal, RepeatState
from ontrack.pipeline.bench.clock import Contestant
from ontrack.pipeline.bench.online import OnlineAlignments, streaming_alignments
from ontrack.pipeline.evaluation.corpus import Recording
from ontrack.pipeline.making import profile_of
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import InvalidInput, InvalidSettings
from ontrack.topics.events import Step

VITAL, ALIGNED = "vital", "pm4py"


class Stream:
    """The steps of runs, one run after the other in a shuffled order, for as long as asked.

    Parameters
    ----------
    runs
        At least one; each has steps.
    begin
        Called with a run before its first step, each time that it comes round.
    """

    def __init__(self, runs: Sequence[Recording], begin: Callable[[Recording], None]) -> None:
        self._steps = self._forever(runs, begin)

    def step(self) -> Step:
        """Return the next step."""
        return next(self._steps)

    @staticmethod
    def _forever(runs: Sequence[Recording], begin: Callable[[Recording], None]) -> Iterator[Step]:
        shuffled = list(runs)
        Random(0).shuffle(shuffled)  # a short measurement sees runs of all kinds
        while True:
            for run in shuffled:
                begin(run)
                yield from run.steps


class VitalSigns:
    """Loops and stalls (L1) on a bare stream: no contracts, no references, no vectors.

    One call canonicalises and hashes a step's arguments and result, compares them with those
    remembered of its run and judges the streak.
    """

    def __init__(self, params: RepeatParams, runs: Sequence[Recording]) -> None:
        self._params = params
        self._state = RepeatState()
        self.stream = Stream(runs, self._begin)

    def apply(self, event: Step) -> RepeatSignal:
        """Take one step."""
        self._state, signal = repeats.step(self._params, self._state, event.seq or 0, event)
        return signal

    def _begin(self, run: Recording) -> None:
        self._state = RepeatState()


def contestants(settings: Settings, recordings: Sequence[Recording]) -> list[Contestant]:
    """Return what is timed, corpus after corpus; ``pm4py`` only where PM4Py is installed.

    Both get the same events: those of runs whose task has a success that a model can be discovered
    from.

    Raises
    ------
    InvalidSettings
        The profile has no vital signs.
    InvalidInput
        In no corpus is there a task with a success.
    """
    params = profile_of(settings, settings.encoder).repeats
    if params is None:
        raise InvalidSettings(
            f"profile {settings.profile!r} has no vital signs to time; set ONTRACK_PROFILE=default"
        )
    make = streaming_alignments()
    found: list[Contestant] = []
    for corpus, members in groupby(recordings, key=lambda run: run.corpus):
        runs = with_successes(list(members))
        if not runs:
            continue
        vital = VitalSigns(params, runs)
        ratio_to = None if make is None else ALIGNED
        found.append(Contestant(VITAL, corpus, vital.stream.step, vital.apply, ratio_to))
        if make is not None:
            aligned = OnlineAlignments(make, runs)
            stream = Stream(runs, aligned.begin)
            found.append(Contestant(ALIGNED, corpus, _event(aligned, stream), aligned.apply))
    if not found:
        raise InvalidInput(
            "no task of the corpora has a successful run, so there is no model to align with; "
            "give recorded runs that end with an outcome"
        )
    return found


def with_successes(runs: Sequence[Recording]) -> list[Recording]:
    """Return the runs whose task somebody did successfully."""
    done = {run.key for run in runs if run.succeeded}
    return [run for run in runs if run.key in done]


def _event(aligned: OnlineAlignments, stream: Stream) -> Callable[[], dict[str, str]]:
    # The step first: where it is the first of its run, this begins the case.
    return lambda: aligned.event(stream.step())
