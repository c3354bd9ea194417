"""Many references: is the best one still found where only some of them are aligned?

The same steps are taken with all references and with those that are chosen for it
(:mod:`ontrack.operators.pooling`), side by side: who is best, by how much is the loss of another
higher, what do leakage and score differ by, and what does it cost? A best reference counts as the
same where its loss, as the full computation has it, is that of the best one within ``TIE``: runs
that went exactly alike are references that nobody can tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from time import perf_counter
from typing import Final, NamedTuple

import numpy as np

from ontrack.operators import pooling, transport
from ontrack.operators.candidates import CandidateParams
from ontrack.operators.transport import Alignment, TransportState
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.evaluation.controlled import random_task, valid_order
from ontrack.pipeline.evaluation.controlled_scenarios import BENIGN, FAULTY, staged
from ontrack.pipeline.evaluation.corpus import EVERYTHING, Recording, each_corpus, spread
from ontrack.pipeline.evaluation.measures import Estimate, Measure
from ontrack.pipeline.evaluation.statistics import ratio_of_sums, wilson
from ontrack.pipeline.evaluation.tracking import TIE
from ontrack.pipeline.evaluation.tracking_runs import CONTROLLED, gather, with_own_rows
from ontrack.pipeline.evaluation.watching import Watcher
from ontrack.topics.events import Event

STEPS_MAX: Final = 128
"""Longer runs are no references."""
_ALL: Final = CandidateParams(all_max=1000)


@dataclass(frozen=True, slots=True)
class CandidatesJob:
    """One run and the references it is compared with.

    Parameters
    ----------
    references
        Ids of recorded runs; of a controlled run nothing: it has ``count`` wordings of its task.
    count
        References K.
    condition, seed
        Of a controlled run; empty and 0 where the run is recorded.
    """

    corpus: str
    task: str
    count: int
    run_id: str = ""
    references: tuple[str, ...] = ()
    condition: str = ""
    seed: int = 0


class StepPair(NamedTuple):
    """One step, taken with some and with all references.

    Parameters
    ----------
    excess
        Loss of the best reference of the pruned computation above the lowest one; both losses are
        those of the full computation.
    leak_differs
        Whether one leaks beyond the threshold and the other does not.
    score
        Difference of the paper's scores.
    seconds, all_seconds
        Of both, taken in turns.
    pruned
        Whether not all references were aligned.
    """

    excess: float
    leak_differs: bool
    score: float
    seconds: float
    all_seconds: float
    pruned: bool


def recorded_jobs(
    recordings: Sequence[Recording], counts: Sequence[int], runs_max: int, seed: int
) -> list[CandidatesJob]:
    """Return jobs for runs of every corpus, evenly spread over it.

    A run's candidates are the successes of its own task, and of others up to the number asked for.
    """
    jobs: list[CandidatesJob] = []
    for corpus, runs in each_corpus(recordings).items():
        good = [run for run in runs if run.succeeded and len(run.steps) <= STEPS_MAX]
        for run in spread(runs, runs_max):
            rng = Random(f"{seed}|candidates|{run.run_id}")
            own = [each for each in good if each.key == run.key and each.run_id != run.run_id]
            others = [each for each in good if each.key != run.key]
            pool = own + rng.sample(others, len(others))
            for count in counts:
                names = sorted(each.run_id for each in pool[:count])
                if len(names) > 1:
                    jobs.append(CandidatesJob(corpus, run.key, count, run.run_id, tuple(names)))
    return jobs


def controlled_jobs(tasks: int, counts: Sequence[int]) -> list[CandidatesJob]:
    """Return every condition of the campaign on its random tasks."""
    return [
        CandidatesJob(CONTROLLED, f"task{seed}", count, condition=name, seed=seed)
        for seed in range(tasks)
        for name in (*BENIGN, *FAULTY)
        for count in counts
    ]


def follow(watcher: Watcher, job: CandidatesJob) -> list[StepPair]:
    """Take one run with all of its references and with those that are chosen, in turns."""
    monitor, events = _staged(watcher, job)
    profile = monitor.fold.profile
    monitor.fold.profile = replace(with_own_rows(profile), ranking=None)
    references, taken = gather(monitor, events)
    if references is None:
        return []
    pruned = profile.transport
    whole = replace(pruned, candidates=_ALL)
    both, states = (whole, pruned), [transport.start(references)] * 2
    found: list[StepPair] = []
    for place, each in enumerate(taken):
        seconds = [0.0, 0.0]
        made: dict[int, tuple[TransportState, Alignment]] = {}
        for which in _turns(place):
            begun = perf_counter()
            made[which] = pooling.step(
                both[which], references, states[which], each.hops, each.age, each.row
            )
            seconds[which] = perf_counter() - begun
        (before, every), (after, some) = made[0], made[1]
        states = [before, after]
        limit = pruned.leak_threshold
        found.append(
            StepPair(
                float(every.losses[some.best] - every.losses.min()),
                (some.leakage > limit) != (every.leakage > limit),
                some.score - every.score,
                seconds[1],
                seconds[0],
                after.candidates is not None,
            )
        )
    return found


def _turns(place: int) -> tuple[int, ...]:
    """Return who takes a step first, all references (0) or some (1): the second finds warm caches.

    A run's first step is taken once by each before it counts.
    """
    if place == 0:
        return 1, 0, 0, 1
    return (0, 1) if place % 2 == 0 else (1, 0)


def summarise(
    jobs: Sequence[CandidatesJob],
    found: Sequence[Sequence[StepPair]],
    profile: str,
    seed: int,
) -> list[Measure]:
    """Return the figures of every corpus by number of references, and of all together."""
    groups: dict[tuple[str, int], list[tuple[str, StepPair]]] = {}
    for job, pairs in zip(jobs, found, strict=True):
        names = [job.corpus] if job.corpus == CONTROLLED else [job.corpus, EVERYTHING]
        for name in names:
            groups.setdefault((name, job.count), []).extend((job.task, each) for each in pairs)
    measures: list[Measure] = []
    for (corpus, count), members in sorted(groups.items()):
        if members:
            measures += _figures(corpus, profile, f"K={count}", members, seed)
    return measures


def _figures(
    corpus: str, profile: str, method: str, members: Sequence[tuple[str, StepPair]], seed: int
) -> list[Measure]:
    tasks, pairs = [task for task, _ in members], [each for _, each in members]
    count, excess = len(pairs), np.array([each.excess for each in pairs])
    same = [float(each.excess <= TIE) for each in pairs]
    low, high = _interval(tasks, same, [1.0] * count, seed)
    cost = [each.seconds for each in pairs], [each.all_seconds for each in pairs]
    cost_low, cost_high = _interval(tasks, *cost, seed)
    figures: Mapping[str, Estimate] = {
        "same_best": Estimate(sum(same) / count, low, high, count),
        "excess_loss_p99": Estimate(float(np.quantile(excess, 0.99)), None, None, count),
        "excess_loss_max": Estimate(float(excess.max()), None, None, count),
        "leak_differs": wilson(sum(each.leak_differs for each in pairs), count),
        "score_gap_max": Estimate(max(abs(each.score) for each in pairs), None, None, count),
        "pruned_steps": wilson(sum(each.pruned for each in pairs), count),
        "time_ratio": Estimate(sum(cost[0]) / sum(cost[1]), cost_low, cost_high, count),
    }
    return [
        Measure("candidates", corpus, profile, method, name, estimate)
        for name, estimate in figures.items()
    ]


def _interval(
    tasks: Sequence[str], upper: Sequence[float], lower: Sequence[float], seed: int
) -> tuple[float | None, float | None]:
    estimate = ratio_of_sums(tasks, upper, lower, seed).estimate
    return estimate.low, estimate.high


def _staged(watcher: Watcher, job: CandidatesJob) -> tuple[EmbeddedMonitor, Sequence[Event]]:
    changed = {**watcher.settings.operators, "references_max": job.count}
    settings = watcher.settings.model_copy(update={"operators": changed})
    if not job.condition:
        run = watcher.recordings[job.run_id]
        named = [each.as_reference_of(run.task) for each in watcher.named(job.references)]
        return EmbeddedMonitor(settings, named, watcher.contracts.values()), run.events
    task = random_task(job.seed)
    rng = np.random.default_rng(job.seed)
    references = [
        task.reference(f"{task.name}-{index:02d}", valid_order(task, rng), f"ref{index}")
        for index in range(job.count)
    ]
    return staged(settings, task, references, job.condition, job.seed)
