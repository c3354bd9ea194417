"""Loops: are those found that are there, and are successful runs left in peace?

The runs are monitored as bare streams, without references, so that every warning is one of the
vital signs (L1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ontrack.operators.canonical import call_key
from ontrack.pipeline.evaluation.corpus import Recording, by_corpus
from ontrack.pipeline.evaluation.measures import Estimate, Measure
from ontrack.pipeline.evaluation.statistics import wilson
from ontrack.pipeline.evaluation.watching import Watched, Watcher
from ontrack.topics.codecs import explain
from ontrack.topics.errors import InvalidFile
from ontrack.topics.events import Event, Step
from ontrack.topics.verdicts import VerdictName

#: Consecutive identical calls that make a natural loop.
NATURAL: Final = 4
WARNINGS: Final = frozenset({VerdictName.WARN, VerdictName.LOOP, VerdictName.STALLED})
_LOOPS: Final = frozenset({VerdictName.LOOP, VerdictName.STALLED})
METHOD: Final = "monitor"


class Pattern(BaseModel):
    """One row of a loop matrix: steps, and the step (from 1) by which a loop must be found."""

    model_config = ConfigDict(extra="ignore")

    what: str = ""
    loop_by_step: int | None = None
    steps: list[dict[str, object]] = Field(min_length=1)

    def events(self, name: str) -> list[Event]:
        """Return the pattern as a run."""
        return [
            Step.model_validate(
                {**step, "run_id": name, "seq": place, "action": step.get("action") or None}
            )
            for place, step in enumerate(self.steps)
        ]


_MATRIX = TypeAdapter(dict[str, Pattern])


def read_matrix(path: str) -> dict[str, Pattern]:
    """Read a loop matrix: an object of patterns by name.

    Raises
    ------
    InvalidFile
        It is no JSON, or a pattern lacks its steps.
    """
    try:
        matrix = _MATRIX.validate_json(Path(path).read_bytes())
        for name, pattern in matrix.items():
            pattern.events(name)
    except OSError as error:
        raise InvalidFile(path, None, f"cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        problem = explain(error.errors(), quote=True)
        raise InvalidFile(
            path, None, f"expected {{name: {{loop_by_step, steps: [...]}}}}: {problem}"
        ) from error
    return matrix


@dataclass(frozen=True, slots=True)
class LoopJob:
    """A recorded run, or a pattern of the matrix."""

    run_id: str
    pattern: Pattern | None = None


class LoopSigns(NamedTuple):
    """First step (from 0) with a warning or more, with a loop or stall, and of a halt."""

    warned: tuple[int, ...]
    loop: int | None
    halt: int | None

    @property
    def alarm(self) -> int | None:
        """First step at which the run was called a loop, or halted."""
        return min((each for each in (self.loop, self.halt) if each is not None), default=None)


def watch(watcher: Watcher, job: LoopJob) -> LoopSigns:
    """Monitor one run without references."""
    if job.pattern is not None:
        return _signs(watcher.watch(job.pattern.events(job.run_id), job.run_id, ()))
    run = watcher.recordings[job.run_id]
    return _signs(watcher.watch(run.events, run.task, ()))


def _signs(watched: Watched) -> LoopSigns:
    return LoopSigns(
        tuple(each.seq for each in watched.seen if each.verdict in WARNINGS),
        next((each.seq for each in watched.seen if each.verdict in _LOOPS), None),
        watched.first_halt(),
    )


def streaks(steps: Sequence[Step], with_results: bool) -> list[tuple[int, int]]:
    """Return first and last place of each series of at least four identical calls in a row.

    Parameters
    ----------
    with_results
        The results must be identical as well: otherwise it may be waiting for something.
    """
    found, start = [], 0
    keys = [_key(step, with_results) for step in steps]
    for place in range(1, len(keys) + 1):
        if place == len(keys) or keys[place] != keys[start]:
            if place - start >= NATURAL:
                found.append((start, place - 1))
            start = place
    return found


def _key(step: Step, with_results: bool) -> bytes:
    result = [step.result, step.error and step.error.model_dump()] if with_results else None
    return call_key(step.tool, {"args": step.args, "result": result})


def summarise_matrix(
    corpus: str, matrix: Mapping[str, Pattern], signs: Mapping[str, LoopSigns], profile: str
) -> list[Measure]:
    """Return each pattern's verdict, loops found in time, and legitimate patterns disturbed.

    A loop is found by a warning or more no later than its step; a legitimate pattern is disturbed
    by a loop verdict or a halt, and a mere warning is counted apart.
    """
    measures, in_time, alarms, warnings = [], [], [], []
    for name, pattern in matrix.items():
        sign = signs[name]
        first = sign.warned[0] + 1 if sign.warned else None
        alarm = None if sign.alarm is None else sign.alarm + 1
        if pattern.loop_by_step is not None:
            hit = first is not None and first <= pattern.loop_by_step
            in_time.append(hit)
        else:
            hit = alarm is not None
            alarms.append(hit)
            warnings.append(first is not None)
        measures.append(
            Measure(
                "loops",
                corpus,
                profile,
                name,
                "found" if pattern.loop_by_step is not None else "false_loop",
                Estimate(float(hit), None, None, 1),
                more={"warned_at": first, "loop_at": alarm, "by_step": pattern.loop_by_step},
            )
        )
    for name, hits in (
        ("found", in_time),
        ("false_loop", alarms),
        ("warned_legitimate", warnings),
    ):
        if hits:
            estimate = wilson(sum(hits), len(hits))
            measures.append(Measure("loops", corpus, profile, METHOD, name, estimate))
    return measures


def summarise(
    recordings: Sequence[Recording], signs: Mapping[str, LoopSigns], profile: str
) -> list[Measure]:
    """Return shares of runs warned and halted by outcome, and of natural loops found."""
    measures: list[Measure] = []
    for corpus, runs in by_corpus(recordings).items():
        figures: list[tuple[str, Estimate]] = []
        for outcome in ("success", "failure"):
            of_outcome = [signs[run.run_id] for run in runs if run.outcome == outcome]
            warned = sum(bool(sign.warned) for sign in of_outcome)
            halted = sum(sign.halt is not None for sign in of_outcome)
            figures.append((f"warned_{outcome}", wilson(warned, len(of_outcome))))
            figures.append((f"halted_{outcome}", wilson(halted, len(of_outcome))))
        for name, with_results in (("natural_found", True), ("natural_calls_found", False)):
            hits = [
                any(start <= seq <= end for seq in signs[run.run_id].warned)
                for run in runs
                for start, end in streaks(run.steps, with_results)
            ]
            figures.append((name, wilson(sum(hits), len(hits))))
        measures += [
            Measure("loops", corpus, profile, METHOD, name, estimate)
            for name, estimate in figures
            if estimate.n
        ]
    return measures
