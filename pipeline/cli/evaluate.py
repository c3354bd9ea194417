"""``ontrack evaluate``: what the verdicts are worth, measured on recorded runs with outcomes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ontrack.pipeline.cli import evaluate_twins
from ontrack.pipeline.cli.experiment import (
    lengths,
    options,
    plot_option,
    prepare,
    require_some,
    runs_option,
)
from ontrack.pipeline.cli.measures import progress
from ontrack.pipeline.cli.options import encoder_option, format_option, paths_argument, tools_option
from ontrack.pipeline.cli.output import write_text
from ontrack.pipeline.terminal import printable

if TYPE_CHECKING:
    from ontrack.pipeline.evaluation.measures import Measure


@click.group(name="evaluate")
def command() -> None:
    """Measure verdicts, scores and the gate on recorded runs that say how they ended.

    PATH… are files in any supported format; a file with several runs is a corpus of its own, and
    all of them together are one more. See docs/evaluation.md.
    """


@options("ranking")
@click.option(
    "--k",
    "ks",
    callback=lengths,
    default="3,5,8,10,20,whole",
    show_default=True,
    metavar="K,…",
    help="Numbers of steps seen; `whole` for all.",
)
@click.option(
    "--full-prefixes",
    is_flag=True,
    help="Leave out runs shorter than k, instead of taking all their steps.",
)
@plot_option("Write ROC and calibration (after the second of K, or the only one).")
def ranking(ks: tuple[int, ...], full_prefixes: bool, plot: Path | None, **options: Any) -> None:
    """Do runs that will succeed score higher early on? AUROC, with rivals beside it."""
    bench = prepare(equal=True, **options)
    from ontrack.pipeline.evaluation import figures, ranking

    if plot is not None:
        figures.require_matplotlib()
    runs = ranking.eligible(bench.recordings, bench.chosen)
    jobs = [ranking.RankingJob(run.run_id, bench.names(run), ks) for run in runs]
    found = bench.work("ranking", ranking.score_run, jobs)
    scored = {job.run_id: scores for job, scores in zip(jobs, found, strict=True)}
    measures = ranking.summarise(runs, scored, bench.profile, bench.seed, full_prefixes)
    bench.show("Do successes rank above failures? Area under the ROC curve", measures)
    _tell_left_out(measures)
    if plot is not None:
        figures.plot_ranking(plot, runs, scored, ks[min(1, len(ks) - 1)], bench.profile)


@options("gate")
@runs_option(None, "Clean runs a corpus [all].")
def gate(runs: int | None, **options: Any) -> None:
    """Put malicious calls into successful runs: how many does the gate block, and what else?"""
    bench = prepare(**options)
    from ontrack.pipeline.evaluation import gate
    from ontrack.pipeline.evaluation.injected import Herd

    herd = Herd(bench.recordings, {each.name: each for each in bench.setup.contracts})
    jobs = gate.plan(bench.recordings, bench.chosen, herd, bench.seed, runs)
    require_some(jobs)
    answers = bench.work("gate", gate.ask, jobs)
    bench.show("What the gate blocks", gate.summarise(jobs, answers, bench.profile, bench.seed))


@options("loops")
@click.option(
    "--matrix",
    "matrices",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Loops and legitimate patterns: {name: {loop_by_step, steps: […]}}; repeatable.",
)
def loops(matrices: tuple[str, ...], **options: Any) -> None:
    """Are loops found, and are successful runs left in peace? No references take part."""
    bench = prepare(**options)
    from ontrack.pipeline.evaluation import loops

    measures: list[Measure] = []
    for path in matrices:
        matrix = loops.read_matrix(path)
        patterns = [loops.LoopJob(name, pattern) for name, pattern in matrix.items()]
        signs = bench.work("matrix", loops.watch, patterns)
        named = dict(zip(matrix, signs, strict=True))
        corpus = Path(path).name.split(".")[0]
        measures += loops.summarise_matrix(corpus, matrix, named, bench.profile)
    jobs = [loops.LoopJob(run.run_id) for run in bench.recordings]
    found = bench.work("loops", loops.watch, jobs)
    by_run = {job.run_id: signs for job, signs in zip(jobs, found, strict=True)}
    measures += loops.summarise(bench.recordings, by_run, bench.profile)
    bench.show("Loops and stalls", measures)


@options("faults")
@runs_option(60, "Runs a fault and corpus.")
def faults(runs: int | None, **options: Any) -> None:
    """Put known faults into successful runs: which are found, how soon, at what price?"""
    bench = prepare(**options)
    from ontrack.pipeline.evaluation import faults
    from ontrack.pipeline.evaluation.injected import Herd

    herd = Herd(bench.recordings, {each.name: each for each in bench.setup.contracts})
    jobs = faults.plan(bench.recordings, bench.chosen, herd, bench.seed, runs)
    require_some(jobs)
    alarms = bench.work("faults", faults.watch, jobs)
    bench.show("Faults put into clean runs", faults.summarise(jobs, alarms, bench.profile))


@options("abort")
@plot_option("Write steps saved against false stops.")
def abort(plot: Path | None, **options: Any) -> None:
    """Stop runs early by several policies: who is stopped, and what does it save?"""
    bench = prepare(**options)
    from ontrack.pipeline.evaluation import abort, figures

    if plot is not None:
        figures.require_matplotlib()
    jobs = [abort.AbortJob(run.run_id, bench.names(run)) for run in bench.recordings]
    found = bench.work("abort", abort.watch, jobs)
    courses = {job.run_id: course for job, course in zip(jobs, found, strict=True)}
    measures = abort.summarise(bench.recordings, courses, bench.profile, bench.seed)
    bench.show("Stopping early", measures)
    if plot is not None:
        figures.plot_savings(plot, abort.savings(bench.recordings, courses), bench.profile)


@command.command(name="tables")
@paths_argument(required=True)
@tools_option
@format_option
@encoder_option
@click.option("--seed", type=int, default=42, show_default=True, help="Of every choice.")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    help="At work side by side [cores]; the figures do not depend on it.",
)
@runs_option(40, "Runs a corpus and kind in Table 4, at most.")
@click.option(
    "--campaign-tasks",
    type=click.IntRange(min=1),
    default=40,
    show_default=True,
    metavar="N",
    help="Random tasks of the campaign.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="REPORT.md",
    help="Write the report there [stdout].",
)
def tables(seed: int, runs: int, campaign_tasks: int, out: Path | None, **options: Any) -> None:
    """Reproduce the paper's Tables 2-9, profiles `paper` and `default` side by side."""
    bench = prepare(
        profile=None,
        seed=seed,
        as_json=False,
        **options,
    )
    from ontrack.pipeline.encoding.encoders import make_encoder
    from ontrack.pipeline.evaluation.tables import recorded_tables, report
    from ontrack.pipeline.evaluation.tables_controlled import controlled_tables

    with progress("campaign", 2 * campaign_tasks) as advance:
        found = controlled_tables(bench.setup.settings, campaign_tasks, advance)
    found += recorded_tables(bench.setup, seed, runs, bench.work)
    text = report(
        found,
        shlex.join(["ontrack", *sys.argv[1:]]),
        bench.setup,
        make_encoder(bench.setup.settings.encoder).name,
        seed,
        bench.processes,
    )
    if out is None:
        click.echo(text, nl=False)
    else:
        write_text(str(out), text)


def _tell_left_out(measures: Sequence[Measure]) -> None:
    """Say how many tasks had no pair to compare."""
    counts = {
        measure.corpus: (measure.more["tasks_left_out"], measure.more["tasks"])
        for measure in measures
        if "tasks_left_out" in measure.more
    }
    for corpus, (left_out, compared) in counts.items():
        click.echo(
            f"{printable(corpus)}: {compared} tasks compared within; {left_out} left out, since "
            "all their runs ended alike",
            err=True,
        )


for _each in (ranking, gate, loops, faults, abort):
    command.add_command(_each)
for _each in (evaluate_twins.tracking, evaluate_twins.horizon, evaluate_twins.candidates):
    command.add_command(_each)
