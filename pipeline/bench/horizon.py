"""Does a step of a long run cost what one of a short run does, and what does the run hold?"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from ontrack.operators import prefix, transport
from ontrack.operators.profiles import Profile
from ontrack.operators.state import RunState
from ontrack.pipeline.bench.clock import Contestant
from ontrack.pipeline.bench.deepsize import deep_size
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, task_ids
from ontrack.pipeline.workplace.long_runs import long_run
from ontrack.topics import codecs
from ontrack.topics.events import Step
from ontrack.topics.knowledge import Provenance, Reference, ReferenceStep

SHORT, LONG = 200, 2000
WIDTH, REFERENCES = 40, 3
WINDOW = 32
MONITOR, TRANSPORT = "monitor", "transport"
_FIRST_REFERENCE = 5_000_000  # numbers the run does not have


@dataclass(frozen=True, slots=True)
class Moment:
    """A run before and after one of its steps, and that step."""

    message: bytes
    before: RunState
    after: RunState

    @property
    def is_aligned(self) -> bool:
        """Whether the step moved the coupling: beyond the graph's limit it does not."""
        return self.after.transport is not self.before.transport

    @property
    def is_plain(self) -> bool:
        """Whether the step did nothing but add a row; in some, older rows become one."""
        old, new = self.before.transport, self.after.transport
        if old is None or new is None:
            return False
        return int(new.cost.shape[1]) == int(old.cost.shape[1]) + 1


class LongRun:
    """A run of the workplace that goes on and on, against three references of 40 steps.

    Parameters
    ----------
    settings
        Profile, encoder and kernel are measured as set.
    lengths
        Steps after which the run is looked at, in ascending order.

    Attributes
    ----------
    moments
        By length: the last :data:`WINDOW` steps up to there.
    held_bytes
        By length: what the run holds, without what it shares with other runs.
    """

    def __init__(self, settings: Settings, lengths: Sequence[int] = (SHORT, LONG)) -> None:
        self._monitor = EmbeddedMonitor(settings, _references(), contracts())
        self.profile: Profile = self._monitor.fold.profile
        self.moments: dict[int, tuple[Moment, ...]] = {}
        self.held_bytes: dict[int, int] = {}
        self._live(lengths)

    def _live(self, lengths: Sequence[int]) -> None:
        latest: deque[Moment] = deque(maxlen=WINDOW)
        before: RunState | None = None
        for place, step in enumerate(long_run(0, lengths[-1]), 1):
            self._monitor.feed(step)
            after: RunState = self._monitor.state.runs[step.run_id]
            if before is not None:
                latest.append(Moment(codecs.encode(step), before, after))
            if place in lengths:
                self.moments[place] = tuple(latest)
                self.held_bytes[place] = deep_size(after, without=[after.knowledge, after.stamp])
            before = after

    def apply(self, moment: Moment) -> list[bytes]:
        """Take a moment's step once more; return what the monitor says, as bytes."""
        monitor = self._monitor
        monitor.state.runs[moment.before.run_id] = moment.before
        outputs = monitor.fold.apply(monitor.state, Record(moment.message))
        return [codecs.encode(output) for output in outputs]

    def align(self, moment: Moment) -> Any:
        """Take the transport's part of a plain step alone; cost row and hops are there."""
        references = moment.after.knowledge.references
        assert references is not None
        assert moment.before.transport is not None
        assert moment.after.transport is not None
        graph = moment.after.prefix
        return transport.step(
            self.profile.transport,
            references,
            moment.before.transport,
            graph.hops,
            prefix.age_weights(self.profile.prefix, graph),
            moment.after.transport.cost[:, -1, :],
        )


def contestants(run: LongRun) -> list[Contestant]:
    """Return the steps around each length: whole, and the transport alone.

    Steps that are no longer aligned do not take part. The whole steps are some in a row, so that
    now and then one is among them in which older rows become one.
    """
    found: list[Contestant] = []
    for length, moments in run.moments.items():
        aligned = [each for each in moments if each.is_aligned]
        for name, apply, taken in (
            (MONITOR, run.apply, aligned),
            (TRANSPORT, run.align, [each for each in aligned if each.is_plain]),
        ):
            if taken:
                found.append(Contestant(name, label(length), cycle(taken).__next__, apply))
    return found


def label(steps: int) -> str:
    """Return the size as it stands in a figure."""
    return f"t={steps},m={WIDTH},K={REFERENCES}"


def _references() -> list[Reference]:
    made = []
    for index in range(REFERENCES):
        name = f"long-reference-{index}"
        # A multiple of the tasks' number is of the first task, as the run is.
        number = (_FIRST_REFERENCE + index) * len(task_ids())
        steps: list[Step] = long_run(number, WIDTH, run_id=name)
        made.append(
            Reference(
                reference_id=name,
                task_id=steps[0].task_id or "",
                provenance=Provenance.GOLD,
                run_id=name,
                steps=tuple(ReferenceStep.of(step) for step in steps),
            )
        )
    return made
