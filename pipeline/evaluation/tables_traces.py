"""What Tables 5-9 look at: each run's scores after k steps and its flags, under each profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from ontrack.pipeline.evaluation.abort import running_cosine, spent
from ontrack.pipeline.evaluation.baselines import BASELINES, Case, Trace
from ontrack.pipeline.evaluation.policies import Course
from ontrack.pipeline.evaluation.ranking import WHOLE_RUN, Scores
from ontrack.pipeline.evaluation.tables_variants import Variant, watcher_of
from ontrack.pipeline.evaluation.watching import SEVERE_FROM, Watcher
from ontrack.topics.events import RunEnded
from ontrack.topics.verdicts import (
    Intervention,
    InterventionName,
    Output,
    Scorecard,
    Verdict,
)

KS: Final = (5, 8, 10, 15, 20)


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One run under one variant; ``rivals`` adds the baselines, which no profile changes."""

    run_id: str
    references: tuple[str, ...]
    variant: Variant
    ks: tuple[int, ...] = (*KS, WHOLE_RUN)
    rivals: bool = False
    end: bool = True


@dataclass(frozen=True, slots=True)
class Facts:
    """Scores by k (0: the whole run), higher is better aligned; and what policies see."""

    scores: dict[int, Scores]
    course: Course


def trace(watcher: Watcher, job: TraceJob) -> Facts:
    """Monitor one run from beginning to end."""
    run, references = watcher.recordings[job.run_id], watcher.named(job.references)
    outputs: list[Output] = []
    monitor = watcher_of(watcher, job.variant).monitor(run.task, references)
    for event in run.events:
        outputs += monitor.feed(event)
    if job.end:
        outputs += monitor.feed(RunEnded(run_id=run.run_id))
    verdicts = [each for each in outputs if isinstance(each, Verdict)]
    final = next((each.final_score for each in outputs if isinstance(each, Scorecard)), None)
    scores = {k: _own([each for each in verdicts if not k or each.seq < k]) for k in job.ks}
    if WHOLE_RUN in scores and final is not None:
        scores[WHOLE_RUN]["score"] = final
    cosine: tuple[float, ...] = ()
    if job.rivals:
        steps = Trace.of(run.steps, watcher.encoder)
        known = tuple(Trace.of(each.steps, watcher.encoder) for each in references)
        solver = watcher_of(watcher, job.variant).profile.transport.solver
        for k in job.ks:
            case = Case(steps.first(k) if k else steps, known, solver)
            scores[k] |= {name: baseline(case) for name, baseline in BASELINES.items()}
        cosine = running_cosine(steps, [each.calls.mean(axis=0) for each in known])
    halts = [
        each.seq
        for each in outputs
        if isinstance(each, Intervention) and each.intervention is InterventionName.HALT
    ]
    severe = {each.seq for each in verdicts if each.severity >= SEVERE_FROM}
    course = Course(
        tuple(place in severe for place in range(len(run.steps))),
        halts[0] if halts else None,
        cosine,
        spent(run),
    )
    scores.setdefault(WHOLE_RUN, {})["cost"] = -course.spent[-1]
    return Facts(scores, course)


def _own(verdicts: Sequence[Verdict]) -> Scores:
    """Return what the verdicts on a prefix say; flags and leakage are negated, less is better."""
    score = [each.score for each in verdicts if each.score is not None]
    rank = [each.rank_score for each in verdicts if each.rank_score is not None]
    leaks = [each.leakage for each in verdicts if each.leakage is not None]
    return {
        "score": score[-1] if score else None,
        "rank_score": rank[-1] if rank else None,
        "leak": -fmean(leaks) if leaks else None,
        "flags": -float(sum(each.severity >= SEVERE_FROM for each in verdicts)),
    }
