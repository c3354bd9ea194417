"""Ranking: do runs that will succeed score higher, after k steps, than runs that will fail?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ontrack.pipeline.evaluation.baselines import BASELINES, Case, Trace
from ontrack.pipeline.evaluation.corpus import Recording, by_corpus
from ontrack.pipeline.evaluation.measures import Measure
from ontrack.pipeline.evaluation.statistics import Grouped, Resampled
from ontrack.pipeline.evaluation.watching import Watched, Watcher

OURS: Final = ("rank_score", "paper")
METHODS: Final = (*OURS, *BASELINES)
#: What the first method is compared with, interval and all.
RIVALS: Final = ("paper", "cosine", "edit_distance", "n_steps")
#: A method that scores every run with references and no other.
NEEDS_REFERENCES: Final = "cosine"
WHOLE_RUN: Final = 0

Scores = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class RankingJob:
    """One run, its references by run id, and the prefixes to score (0: the whole run)."""

    run_id: str
    references: tuple[str, ...]
    ks: tuple[int, ...]


def score_run(watcher: Watcher, job: RankingJob) -> dict[int, Scores]:
    """Score every prefix of a run by every method; higher is better aligned throughout."""
    run = watcher.recordings[job.run_id]
    references = watcher.named(job.references)
    watched = watcher.watch(run.events, run.task, references, end=WHOLE_RUN in job.ks)
    trace = Trace.of(run.steps, watcher.encoder)
    known = tuple(Trace.of(reference.steps, watcher.encoder) for reference in references)
    found: dict[int, Scores] = {}
    for k in job.ks:
        prefix = trace.first(k) if k else trace
        case = Case(prefix, known, watcher.profile.transport.solver)
        scores = {name: baseline(case) for name, baseline in BASELINES.items()}
        found[k] = {**_ours(watched, k), **scores}
    return found


def _ours(watched: Watched, k: int) -> Scores:
    """Take the newest published scores of a prefix; a step may have none."""
    seen = [each for each in watched.seen if not k or each.seq < k]
    rank = [each.rank_score for each in seen if each.rank_score is not None]
    paper = [each.score for each in seen if each.score is not None]
    final = watched.final_score if not k else None
    last = paper[-1] if paper else None
    return {"rank_score": rank[-1] if rank else None, "paper": last if final is None else final}


def eligible(
    recordings: Sequence[Recording], references: dict[str, tuple[Recording, ...]]
) -> list[Recording]:
    """Return the runs to rank: with an outcome, and with references where the corpus has any.

    All methods are judged on the same runs, those that need no references too.
    """
    rated = [
        run
        for run in recordings
        if run.outcome in ("success", "failure") and run.run_id in references
    ]
    served = {run.corpus for run in rated if references[run.run_id]}
    return [run for run in rated if run.corpus not in served or references[run.run_id]]


def summarise(
    recordings: Sequence[Recording],
    scored: dict[str, dict[int, Scores]],
    profile: str,
    seed: int,
    full_prefixes: bool = False,
) -> list[Measure]:
    """Return AUROC within tasks and pooled, by corpus, k and method, and differences to rivals.

    Parameters
    ----------
    full_prefixes
        Leave out runs shorter than k; otherwise they count with all their steps.
    """
    measures: list[Measure] = []
    for corpus, runs in by_corpus(recordings).items():
        ks = next(iter(scored.values())) if scored else ()
        for k in ks:
            long_enough = [run for run in runs if not full_prefixes or len(run.steps) >= k]
            chosen = _comparable(long_enough, scored, k)
            if chosen:
                measures += _of_prefix(corpus, chosen, k, scored, profile, seed)
    return measures


def _comparable(
    runs: Sequence[Recording], scored: dict[str, dict[int, Scores]], k: int
) -> list[Recording]:
    """Return the runs that have references, unless none has: all methods see the same runs."""
    served = [run for run in runs if scored[run.run_id][k][NEEDS_REFERENCES] is not None]
    return served or list(runs)


def _of_prefix(
    corpus: str,
    runs: Sequence[Recording],
    k: int,
    scored: dict[str, dict[int, Scores]],
    profile: str,
    seed: int,
) -> list[Measure]:
    grouped = Grouped([run.key for run in runs], [run.succeeded for run in runs], seed)
    more = {
        "tasks": grouped.mixed_tasks,
        "tasks_left_out": grouped.tasks - grouped.mixed_tasks,
    }
    length = k or None
    measures: list[Measure] = []
    within: dict[str, Resampled] = {}
    for method in METHODS:
        column = [scored[run.run_id][k][method] for run in runs]
        if any(score is None for score in column):
            if all(score is None for score in column):
                continue
            # No rule or no pair to look at is no sign of failure: such runs stand in the middle.
            present = sorted(score for score in column if score is not None)
            column = [present[len(present) // 2] if each is None else each for each in column]
        scores = [score for score in column if score is not None]
        within[method] = grouped.within_task(scores)
        for name, found in (
            ("auroc_within_task", within[method]),
            ("auroc_pooled", grouped.pooled(scores)),
        ):
            if found.value is not None:
                notes = more if name == "auroc_within_task" else {}
                measures.append(
                    Measure("ranking", corpus, profile, method, name, found.estimate, length, notes)
                )
    for rival in RIVALS:
        if {"rank_score", rival} <= within.keys() and within[rival].value is not None:
            measures.append(
                Measure(
                    "ranking",
                    corpus,
                    profile,
                    "rank_score",
                    "auroc_within_task_difference",
                    within["rank_score"].minus(within[rival]),
                    length,
                    {"against": rival},
                )
            )
    return measures
