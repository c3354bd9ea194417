"""Experiments on the engine itself: against the converged solve, whole runs, all references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ontrack.pipeline.cli.experiment import (
    numbers,
    options,
    prepare,
    require_some,
    runs_option,
)

if TYPE_CHECKING:
    from ontrack.pipeline.evaluation.measures import Measure


@options("tracking")
@runs_option(None, "Runs a corpus, evenly spread over it [all].")
@click.option(
    "--campaign-tasks",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="Random tasks of the controlled campaign, seven runs each.",
)
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Every so many runs are tried with other settings as well.",
)
def tracking(runs: int | None, campaign_tasks: int, sample: int, **options: Any) -> None:
    """Compare one iteration an event with the converged solve of the same prefix, step by step.

    Under both profiles, unless --profile names one. See docs/tracking.md.
    """
    bench = prepare(**options)
    from ontrack.pipeline.evaluation import tracking_runs
    from ontrack.pipeline.evaluation.tracking_summary import shown, summarise

    jobs = tracking_runs.recorded_jobs(bench.recordings, bench.chosen, runs, sample)
    jobs += tracking_runs.controlled_jobs(campaign_tasks, sample)
    require_some(jobs)
    measures: dict[str, list[Measure]] = {}
    for name, under in bench.each_profile(options["profile"]):
        found = under.work(f"tracking, {name}", tracking_runs.follow, jobs)
        measures[name] = summarise(jobs, found, name, bench.seed)
    if bench.as_json:
        bench.show("", [each for figures in measures.values() for each in figures])
        return
    for name, figures in measures.items():
        bench.show(f"The fast path against the converged solve, {name}", shown(figures))


@options("horizon")
@runs_option(12, "Longest runs a corpus, at most.")
@click.option(
    "--shortest",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    metavar="N",
    help="Recorded runs of fewer steps are left out.",
)
@click.option(
    "--generated",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    metavar="N",
    help="Generated runs of each kind.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=100, max=5000),
    default=600,
    show_default=True,
    metavar="N",
    help="Of each generated run; without collapse a step takes longer, the longer its run is.",
)
def horizon(runs: int, shortest: int, generated: int, steps: int, **options: Any) -> None:
    """Compare long runs whose old steps share rows with the same runs folded whole.

    Under both profiles, unless --profile names one. See docs/horizon.md.
    """
    bench = prepare(**options)
    from ontrack.pipeline.evaluation import horizon

    jobs = horizon.recorded_jobs(bench.recordings, bench.chosen, shortest, runs)
    jobs += horizon.generated_jobs(generated, steps)
    require_some(jobs)
    for name, under in bench.each_profile(options["profile"]):
        found = under.work(f"horizon, {name}", horizon.compare, jobs)
        title = f"Long runs with shared rows against the same runs whole, {name}"
        bench.show(title, horizon.summarise(jobs, found, name))


@options("candidates", references=False)
@runs_option(5, "Runs a corpus, evenly spread over it.")
@click.option(
    "--campaign-tasks",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="N",
    help="Random tasks of the controlled campaign, seven runs each.",
)
@click.option(
    "--candidates",
    "counts",
    callback=numbers,
    default="30,50",
    show_default=True,
    metavar="K,…",
    help="Numbers of references; those of other tasks fill up what a run's own task lacks. "
    "Up to 24 all are aligned, so that there is nothing to compare.",
)
def candidates(runs: int, campaign_tasks: int, counts: tuple[int, ...], **options: Any) -> None:
    """Is the best of many references found although only some are aligned, and what is saved?

    Under both profiles, unless --profile names one. See docs/many-references.md.
    """
    bench = prepare(**options)
    from ontrack.pipeline.evaluation import candidates

    jobs = candidates.recorded_jobs(bench.recordings, counts, runs, bench.seed)
    jobs += candidates.controlled_jobs(campaign_tasks, counts)
    require_some(jobs)
    for name, under in bench.each_profile(options["profile"]):
        found = under.work(f"candidates, {name}", candidates.follow, jobs)
        figures = candidates.summarise(jobs, found, name, bench.seed)
        bench.show(f"Some references aligned against all of them, {name}", figures)
