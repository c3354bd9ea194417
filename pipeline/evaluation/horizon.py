"""What collapsing the old steps of long runs changes: the monitor against itself without it.

The same events go through two monitors: one that keeps a row for each step, so that nothing is left
out and each step costs more than the one before, and one that collapses (operators/collapse.py).
What both publish is compared, step by step and at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import numpy as np

from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.evaluation.corpus import Recording
from ontrack.pipeline.evaluation.measures import Estimate, Measure
from ontrack.pipeline.evaluation.watching import Watcher
from ontrack.pipeline.workplace.long_runs import long_references, long_run
from ontrack.topics.events import Event, RunEnded, Step
from ontrack.topics.knowledge import Reference
from ontrack.topics.verdicts import Scorecard, Verdict

EXPERIMENT: Final = "horizon"
REPEATING, WANDERING = "(repeating)", "(wandering)"
UNBOUNDED: Final = {"active_max": 16_000, "exact_max": 16_000}
"""The prefix graph of whoever never collapses."""

SMALL: Final = {"active_max": 16, "chunk": 8, "merged_max": 8, "exact_max": 24}
"""So little that recorded runs, which are short, are collapsed nevertheless."""

PRODUCT: Final[Mapping[str, Mapping[str, int]]] = {"product": {}}

_REPEATED_STEPS, _WANDERED_STEPS = 40, 128  # of the references of generated runs


@dataclass(frozen=True, slots=True)
class HorizonJob:
    """One run to compare.

    Parameters
    ----------
    corpus
        Of the figures; :data:`REPEATING` and :data:`WANDERING` are generated.
    run_id, references
        Ids of a recorded run and its references; empty where the run is generated.
    number, steps
        Of the generated run.
    graphs
        Settings of the prefix graph to compare, by name, where they are other than the profile's.
    """

    corpus: str
    run_id: str = ""
    references: tuple[str, ...] = ()
    number: int = 0
    steps: int = 0
    graphs: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: PRODUCT)


@dataclass(frozen=True, slots=True)
class Course:
    """What was published of one run."""

    verdicts: tuple[Verdict, ...]
    card: Scorecard


@dataclass(frozen=True, slots=True)
class Gaps:
    """How far a run that was collapsed is from the same run that was not.

    Parameters
    ----------
    leakage, coverage, score, rank_score
        By step from the first that can differ; leakage and coverage only of steps for which both
        name the same reference.
    same_best, same_verdict, same_place
        How many of those steps name the same reference, have the same verdict, and lie on the same
        side of theta_leak.
    steps
        How many there are.
    final_score, final_loss, final_coverage, final_best
        At the end.
    """

    leakage: tuple[float, ...]
    coverage: tuple[float, ...]
    score: tuple[float, ...]
    rank_score: tuple[float, ...]
    same_best: int
    same_verdict: int
    same_place: int
    steps: int
    final_score: float
    final_loss: float
    final_coverage: float
    final_best: bool


def recorded_jobs(
    recordings: Sequence[Recording],
    chosen: Mapping[str, Sequence[Recording]],
    shortest: int,
    most: int | None,
) -> list[HorizonJob]:
    """Return the longest runs of each corpus that have references, with :data:`SMALL` limits."""
    jobs: list[HorizonJob] = []
    for corpus in sorted({run.corpus for run in recordings}):
        runs = [
            run
            for run in recordings
            if run.corpus == corpus and chosen.get(run.run_id) and len(run.steps) >= shortest
        ]
        runs.sort(key=lambda run: (-len(run.steps), run.run_id))
        jobs += [
            HorizonJob(
                corpus,
                run.run_id,
                tuple(each.run_id for each in chosen[run.run_id]),
                graphs={"16+8": SMALL},
            )
            for run in runs[:most]
        ]
    return jobs


def generated_jobs(
    count: int, steps: int, graphs: Mapping[str, Mapping[str, int]] = PRODUCT
) -> list[HorizonJob]:
    """Return as many runs of both kinds."""
    return [
        HorizonJob(kind, number=number, steps=steps, graphs=graphs)
        for kind in (REPEATING, WANDERING)
        for number in range(count)
    ]


def compare(watcher: Watcher, job: HorizonJob) -> dict[str, Gaps]:
    """Fold a run without collapsing, then under each of the job's settings."""
    if job.run_id:
        run = watcher.recordings[job.run_id]
        events: Sequence[Event] = run.events
        references = [each.as_reference_of(run.task) for each in watcher.named(job.references)]
    else:
        make = repeating if job.corpus == REPEATING else wandering
        events, references = make(job.number, job.steps)
    whole = _course(watcher, events, references, UNBOUNDED)
    found = {}
    limits = watcher.profile.prefix
    for name, graph in job.graphs.items():
        first = graph.get("active_max", limits.active_max) + graph.get("chunk", limits.chunk)
        other = _course(watcher, events, references, graph)
        found[name] = gaps_between(whole, other, first, watcher.profile.transport.leak_threshold)
    return found


def repeating(number: int, steps: int) -> tuple[list[Step], list[Reference]]:
    """Return one task of the workplace over and over, and references of 40 steps."""
    return long_run(number, steps), long_references(_REPEATED_STEPS)


def wandering(number: int, steps: int) -> tuple[list[Step], list[Reference]]:
    """Return a run that gets on slowly, and references of 128 steps.

    One step in eight is the next of its task; a third repeat one of the last; all others are of
    another task.
    """
    rng = Random(number)
    own, foreign = long_run(number, _WANDERED_STEPS), long_run(number + 1, steps)
    made: list[Step] = []
    done = 0
    for seq in range(steps):
        draw = rng.random()
        if draw < 0.125 and done < len(own):
            step, done = own[done], done + 1
        elif draw < 0.5 and done:
            step = own[rng.randrange(max(0, done - 5), done)]
        else:
            step = foreign[seq]
        named = {"run_id": own[0].run_id, "task_id": own[0].task_id}
        numbered = {"seq": seq, "call_id": f"call-{seq}", "parents": None}
        made.append(step.model_copy(update={**named, **numbered}))
    return made, long_references(_WANDERED_STEPS)


def _course(
    watcher: Watcher,
    events: Sequence[Event],
    references: Sequence[Reference],
    graph: Mapping[str, int],
) -> Course:
    monitor = _monitor(watcher, references, graph)
    outputs = [said for event in events for said in monitor.feed(event)]
    outputs += monitor.feed(RunEnded(run_id=events[0].run_id))
    card = next(each for each in outputs if isinstance(each, Scorecard))
    return Course(tuple(each for each in outputs if isinstance(each, Verdict)), card)


def _monitor(
    watcher: Watcher, references: Sequence[Reference], graph: Mapping[str, int]
) -> EmbeddedMonitor:
    operators: dict[str, Any] = {**watcher.settings.operators}
    operators["prefix"] = {**operators.get("prefix", {}), **graph}
    changed = watcher.settings.model_copy(update={"operators": operators})
    contracts = watcher.contracts.values()
    return EmbeddedMonitor(changed, references, contracts, encoder=watcher.encoder)


def gaps_between(whole: Course, other: Course, first: int, theta_leak: float) -> Gaps:
    """Compare two courses of one run from the first step on that can differ."""
    pairs = list(zip(whole.verdicts, other.verdicts, strict=True))[first:]
    alike = [(one, two) for one, two in pairs if one.best_reference == two.best_reference]
    return Gaps(
        leakage=tuple(_gap(one.leakage, two.leakage) for one, two in alike),
        coverage=tuple(_gap(one.coverage, two.coverage) for one, two in alike),
        score=tuple(_gap(one.score, two.score) for one, two in pairs),
        rank_score=tuple(_gap(one.rank_score, two.rank_score) for one, two in pairs),
        same_best=len(alike),
        same_verdict=sum(one.verdict == two.verdict for one, two in pairs),
        same_place=sum(_leaks(one, theta_leak) == _leaks(two, theta_leak) for one, two in pairs),
        steps=len(pairs),
        final_score=_gap(whole.card.final_score, other.card.final_score),
        final_loss=_gap(whole.card.final_loss, other.card.final_loss),
        final_coverage=_gap(whole.card.final_coverage, other.card.final_coverage),
        final_best=whole.card.best_reference == other.card.best_reference,
    )


def _gap(one: float | None, two: float | None) -> float:
    return abs((one or 0.0) - (two or 0.0))


def _leaks(verdict: Verdict, theta_leak: float) -> bool:
    return verdict.leakage is not None and verdict.leakage > theta_leak


def summarise(
    jobs: Sequence[HorizonJob], found: Sequence[Mapping[str, Gaps]], profile: str
) -> list[Measure]:
    """Return the figures of every corpus and setting: p50, p95 and the largest gap, and shares."""
    together: dict[tuple[str, str], list[Gaps]] = {}
    for job, by_graph in zip(jobs, found, strict=True):
        for name, gaps in by_graph.items():
            if gaps.steps:
                together.setdefault((job.corpus, name), []).append(gaps)
    measures: list[Measure] = []
    for (corpus, name), runs in together.items():
        for measure, value, n in _figures(runs):
            estimate = Estimate(value, None, None, n)
            measures.append(Measure(EXPERIMENT, corpus, profile, name, measure, estimate))
    return measures


def _figures(runs: Sequence[Gaps]) -> Iterator[tuple[str, float, int]]:
    """Yield name, value and how many it rests on."""
    for reading in ("leakage", "coverage", "score", "rank_score"):
        gaps = np.array([gap for run in runs for gap in getattr(run, reading)])
        if len(gaps):
            yield f"{reading}_gap_p50", float(np.quantile(gaps, 0.5)), len(gaps)
            yield f"{reading}_gap_p95", float(np.quantile(gaps, 0.95)), len(gaps)
            yield f"{reading}_gap_max", float(gaps.max()), len(gaps)
    steps = sum(run.steps for run in runs)
    for share in ("same_best", "same_verdict", "same_place"):
        yield share, sum(getattr(run, share) for run in runs) / steps, steps
    yield "final_score_gap_max", max(run.final_score for run in runs), len(runs)
    yield "final_loss_gap_max", max(run.final_loss for run in runs), len(runs)
    yield "final_coverage_gap_max", max(run.final_coverage for run in runs), len(runs)
    yield "final_same_best", sum(run.final_best for run in runs) / len(runs), len(runs)
