"""What is tracked: recorded runs against references of their task, and the controlled campaign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ontrack.operators import prefix
from ontrack.operators.profiles import Profile
from ontrack.operators.references import ReferenceSet
from ontrack.operators.state import RunState
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.evaluation.controlled import random_task
from ontrack.pipeline.evaluation.controlled_scenarios import BENIGN, FAULTY, staged
from ontrack.pipeline.evaluation.corpus import Recording, each_corpus, spread
from ontrack.pipeline.evaluation.tracking import LeakThresholds, StepGap, Taken, track, track_solve
from ontrack.pipeline.evaluation.watching import Watcher
from ontrack.topics.events import Event, Step

FAST: Final = "fast_path"
CONVERGED: Final = "converged"
CONTROLLED: Final = "(controlled)"

VARIANTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "inner_iterations=1": {"inner_iterations": 1},
    "inner_iterations=5": {"inner_iterations": 5},
    "inner_iterations=20": {"inner_iterations": 20},
    "gamma=0.3": {"gamma": 0.3},
    "gamma=0.5": {"gamma": 0.5},
    "gamma=1.0": {"gamma": 1.0},
}
"""Other settings of the fast path; the solve that it is compared with keeps the profile's."""


@dataclass(frozen=True, slots=True)
class TrackingJob:
    """One run to track.

    Parameters
    ----------
    corpus, task
        Of the figures: corpus, and what is resampled.
    run_id, references
        Ids of a recorded run and its references; empty where the run is controlled.
    seed, condition
        Of the controlled run.
    variants
        Whether the other settings and the limits of the converged solve are tried as well.
    """

    corpus: str
    task: str
    run_id: str = ""
    references: tuple[str, ...] = ()
    seed: int = 0
    condition: str = ""
    variants: bool = False


def recorded_jobs(
    recordings: Sequence[Recording],
    chosen: Mapping[str, Sequence[Recording]],
    runs_max: int | None,
    sample: int,
) -> list[TrackingJob]:
    """Return jobs for the runs that have references.

    Parameters
    ----------
    runs_max
        Runs a corpus, evenly spread over it; None takes all.
    sample
        Every so many of them is tried with all variants.
    """
    jobs: list[TrackingJob] = []
    for corpus, runs in each_corpus(recordings).items():
        taken = spread([run for run in runs if chosen.get(run.run_id)], runs_max)
        jobs += [
            TrackingJob(
                corpus,
                run.key,
                run.run_id,
                tuple(each.run_id for each in chosen[run.run_id]),
                variants=place % sample == 0,
            )
            for place, run in enumerate(taken)
        ]
    return jobs


def controlled_jobs(tasks: int, sample: int) -> list[TrackingJob]:
    """Return every condition of the campaign on its random tasks."""
    return [
        TrackingJob(
            CONTROLLED, f"task{seed}", seed=seed, condition=name, variants=seed % sample == 0
        )
        for seed in range(tasks)
        for name in (*BENIGN, *FAULTY)
    ]


def follow(watcher: Watcher, job: TrackingJob) -> dict[str, list[StepGap]]:
    """Track one run; gaps by method, step by step."""
    monitor, events = _staged(watcher, job)
    monitor.fold.profile = with_own_rows(monitor.fold.profile)
    references, taken = gather(monitor, events)
    if references is None or not taken:
        return {}
    params, limits = monitor.fold.profile.transport, LeakThresholds.of(monitor.fold.profile)
    found = {FAST: track(params, references, taken, limits)}
    if job.variants:
        found[CONVERGED] = track_solve(params, references, taken, limits)
        for name, changes in VARIANTS.items():
            changed = replace(params, solver=replace(params.solver, **changes))
            fair = limits.at(changed.solver.gamma) if "gamma" in changes else limits
            found[name] = track(changed, references, taken, fair, params.solver)
    return found


def with_own_rows(profile: Profile) -> Profile:
    """Let every step keep a row of its own: what long runs lose by sharing is another question."""
    whole = replace(profile.prefix, active_max=profile.prefix.nodes_max)
    return replace(profile, prefix=whole)


def gather(
    monitor: EmbeddedMonitor, events: Sequence[Event]
) -> tuple[ReferenceSet | None, list[Taken]]:
    """Let a monitor take a run, and keep what each aligned step gave its transport.

    Returns
    -------
    references
        Those that the monitor chose; None where it had none.
    taken
        One for each step that became a node.
    """
    profile = monitor.fold.profile
    references: ReferenceSet | None = None
    taken: list[Taken] = []
    for event in events:
        monitor.feed(event)
        state: RunState = monitor.state.runs[event.run_id]
        references = state.knowledge.references
        if isinstance(event, Step) and state.transport is not None:
            graph = state.prefix
            if graph.size == len(taken) + 1:
                row = state.transport.cost[:, -1, :]
                taken.append(Taken(row, graph.hops, prefix.age_weights(profile.prefix, graph)))
    return references, taken


def _staged(watcher: Watcher, job: TrackingJob) -> tuple[EmbeddedMonitor, Sequence[Event]]:
    if not job.condition:
        run = watcher.recordings[job.run_id]
        return watcher.monitor(run.task, watcher.named(job.references)), run.events
    task = random_task(job.seed)
    return staged(watcher.settings, task, task.references(), job.condition, job.seed)
