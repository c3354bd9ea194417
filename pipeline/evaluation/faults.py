"""Faults: known faults put into clean runs; which are found, how soon, at what price?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from ontrack.pipeline.evaluation.corpus import EVERYTHING, Recording
from ontrack.pipeline.evaluation.inject import FAULTS
from ontrack.pipeline.evaluation.injected import Herd, clean_runs
from ontrack.pipeline.evaluation.measures import Estimate, Measure
from ontrack.pipeline.evaluation.statistics import wilson
from ontrack.pipeline.evaluation.watching import Watcher

CLEAN: Final = "clean"
#: Harmless: a step that fails once and is tried again should raise no alarm.
HARMLESS: Final = frozenset({CLEAN, "tool_error"})
#: Verdicts by which a fault is called what it is.
NAMED: Final = {
    "loop": ("LOOP",),
    "stall": ("STALLED", "LOOP"),
    "foreign_tool": ("OFF_TRACK",),
    "splice": ("OFF_TRACK",),
    "inversion": ("CAUSAL_INVERSION",),
    "missing_artifact": ("CAUSAL_INVERSION", "BLOCK"),
}


@dataclass(frozen=True, slots=True)
class FaultJob:
    """One run, clean or with a fault."""

    corpus: str
    run_id: str
    references: tuple[str, ...]
    kind: str
    seed: int


class Alarms(NamedTuple):
    """Alarms from the fault's first step on: steps since then, and names of the verdicts."""

    latencies: tuple[int, ...]
    names: tuple[str, ...]


def plan(
    recordings: Sequence[Recording],
    references: Mapping[str, Sequence[Recording]],
    herd: Herd,
    seed: int,
    runs_max: int | None,
) -> list[FaultJob]:
    """Return the jobs: in each corpus as many runs of each fault, each run's first in its order.

    A run that offers no place for a fault is passed over for the next.
    """
    jobs = []
    for corpus, runs in clean_runs(recordings, references, seed).items():
        for kind in (CLEAN, *FAULTS):
            taken = 0
            for run in runs:
                if taken == runs_max:
                    break
                if kind == CLEAN or herd.inject(kind, run, seed) is not None:
                    names = tuple(each.run_id for each in references[run.run_id])
                    jobs.append(FaultJob(corpus, run.run_id, names, kind, seed))
                    taken += 1
    return jobs


def watch(watcher: Watcher, job: FaultJob) -> Alarms:
    """Monitor one run; an alarm before the fault begins is not the fault's."""
    run, references = watcher.recordings[job.run_id], watcher.named(job.references)
    events, first = run.events, 0
    if job.kind != CLEAN:
        made = watcher.herd.inject(job.kind, run, job.seed)
        assert made is not None, "planned from the same seed"
        events, first = made
    watched = watcher.watch(events, run.task, references)
    raised = [each for each in watched.seen if each.is_alarm and each.seq >= first]
    return Alarms(
        tuple(each.seq - first for each in raised), tuple(each.verdict.value for each in raised)
    )


def summarise(jobs: Sequence[FaultJob], alarms: Sequence[Alarms], profile: str) -> list[Measure]:
    """Return shares found, and found by name, with latencies; false alarms of clean runs."""
    corpora = list(dict.fromkeys(job.corpus for job in jobs))
    measures: list[Measure] = []
    for corpus in [*corpora, *([EVERYTHING] if len(corpora) > 1 else [])]:
        for kind in (*FAULTS, CLEAN):
            found = [
                alarm
                for job, alarm in zip(jobs, alarms, strict=True)
                if job.kind == kind and corpus in (job.corpus, EVERYTHING)
            ]
            if found:
                measures += [
                    Measure("faults", corpus, profile, kind, name, estimate)
                    for name, estimate in _figures(kind, found)
                ]
    return measures


def _figures(kind: str, alarms: Sequence[Alarms]) -> list[tuple[str, Estimate]]:
    hits = sum(bool(alarm.latencies) for alarm in alarms)
    if kind in HARMLESS:
        return [("false_positive_runs", wilson(hits, len(alarms)))]
    named = sum(bool(set(alarm.names) & set(NAMED[kind])) for alarm in alarms)
    figures = [
        ("found", wilson(hits, len(alarms))),
        ("found_by_name", wilson(named, len(alarms))),
    ]
    if hits:
        latencies = [alarm.latencies[0] for alarm in alarms if alarm.latencies]
        figures += [
            ("latency_median", Estimate(float(median(latencies)), None, None, hits)),
            ("latency_max", Estimate(float(max(latencies)), None, None, hits)),
        ]
    return figures
