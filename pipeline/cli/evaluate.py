"""``ontrack evaluate``: what the verdicts are worth, measured on recorded runs with outcomes."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ontrack.pipeline.blas import one_blas_thread
from ontrack.pipeline.cli.measures import progress, show_table
from ontrack.pipeline.cli.options import json_option, paths_argument
from ontrack.pipeline.terminal import printable

if TYPE_CHECKING:
    from ontrack.pipeline.evaluation.corpus import Recording
    from ontrack.pipeline.evaluation.measures import Measure
    from ontrack.pipeline.evaluation.watching import Setup, Watcher

Command = TypeVar("Command", bound=Callable[..., Any])
Job = TypeVar("Job")
Result = TypeVar("Result")


@click.group(name="evaluate")
def command() -> None:
    """Measure verdicts, scores and the gate on recorded runs that say how they ended.

    PATH… are files in any supported format; a file with several runs is a corpus of its own, and
    all of them together are one more. See docs/evaluation.md.
    """


def _options(name: str) -> Callable[[Command], Command]:
    """Add what all experiments share."""
    decorators: tuple[Callable[[Any], Any], ...] = (
        command.command(name=name),
        paths_argument(required=True),
        click.option("--tools", multiple=True, metavar="FILE", help="Tool contracts."),
        click.option(
            "--format", "format_", default="auto", show_default=True, help="Format of PATH."
        ),
        click.option("--profile", metavar="NAME", help="Profile of operator settings."),
        click.option(
            "--encoder", metavar="NAME", help="Text encoder: wordllama, hashing or minilm."
        ),
        click.option(
            "--references",
            "count",
            type=click.IntRange(min=0),
            default=5,
            show_default=True,
            metavar="N",
            help="Successful runs of the same task that a run is compared with, at most; never "
            "the run itself.",
        ),
        click.option(
            "--exclude-own-model",
            is_flag=True,
            help="No references by the model that made the run.",
        ),
        click.option(
            "--other-tasks",
            is_flag=True,
            help="References are N successes of other tasks, the same for every run; their tasks "
            "are left out. For corpora with one run a task.",
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="Of every choice."),
        click.option(
            "--processes",
            type=click.IntRange(min=1),
            help="At work side by side [cores]; the figures do not depend on it.",
        ),
        json_option,
    )

    def decorate(function: Command) -> Command:
        decorated: Any = function
        for each in reversed(decorators):
            decorated = each(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


def _runs_option(default: int | None, text: str) -> Callable[[Command], Command]:
    return click.option(
        "--runs",
        type=click.IntRange(min=1),
        default=default,
        show_default=default is not None,
        metavar="N",
        help=text,
    )


def _plot_option(text: str) -> Callable[[Command], Command]:
    return click.option(
        "--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png", help=text
    )


def _lengths(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Parse ``3,5,whole``."""
    found = []
    for part in (each.strip() for each in text.split(",")):
        if part == "whole":
            found.append(0)
        elif part.isascii() and part.isdigit() and int(part[:9]) > 0:
            found.append(int(part))
        else:
            raise click.BadParameter(
                f"{part[:40]!r}: expected numbers of steps such as 3,5,10, and `whole` for all"
            )
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class _Bench:
    """What an experiment works with."""

    setup: Setup
    chosen: dict[str, tuple[Recording, ...]]
    seed: int
    processes: int
    as_json: bool

    @property
    def recordings(self) -> tuple[Recording, ...]:
        return self.setup.recordings

    @property
    def profile(self) -> str:
        return self.setup.settings.profile

    def under(self, profile: str) -> _Bench:
        """Return the same under another profile, without what was chosen for this one."""
        settings = self.setup.settings
        if profile == settings.profile:
            return self
        changes: dict[str, Any] = {"profile": profile, "operators": {}, "calibration": None}
        changed = settings.model_copy(update=changes)
        return replace(self, setup=replace(self.setup, settings=changed))

    def each_profile(self, named: str | None) -> Iterator[tuple[str, _Bench]]:
        """Yield it under both profiles, or as it is where one was named."""
        from ontrack.pipeline.evaluation.watching import PROFILES

        for name in PROFILES if named is None else (self.profile,):
            yield name, self.under(name)

    def names(self, run: Recording) -> tuple[str, ...]:
        """Ids of a run's references."""
        return tuple(each.run_id for each in self.chosen.get(run.run_id, ()))

    def work(
        self, what: str, function: Callable[[Watcher, Job], Result], jobs: Sequence[Job]
    ) -> list[Result]:
        """Do jobs under a progress bar."""
        from ontrack.pipeline.evaluation.processes import run_jobs

        with progress(what, len(jobs)) as advance:
            return run_jobs(function, self.setup, jobs, self.processes, advance)

    def show(self, title: str, measures: Sequence[Measure]) -> None:
        """Print the figures, as lines for programs or as a table."""
        if self.as_json:
            for measure in measures:
                click.echo(json.dumps(measure.as_record()))
        else:
            show_table(title, measures)


def _prepare(
    paths: tuple[str, ...],
    tools: tuple[str, ...],
    format_: str,
    profile: str | None,
    encoder: str | None,
    count: int,
    exclude_own_model: bool,
    other_tasks: bool,
    seed: int,
    processes: int | None,
    as_json: bool,
    equal: bool = False,
) -> _Bench:
    one_blas_thread()  # before anything imports numpy
    from ontrack.pipeline.embedded import make_fold
    from ontrack.pipeline.evaluation.corpus import ReferencePlan, read_corpora, told_apart
    from ontrack.pipeline.evaluation.processes import processors
    from ontrack.pipeline.evaluation.watching import Setup
    from ontrack.pipeline.log import set_up_logging
    from ontrack.pipeline.reading.readers import read_tools
    from ontrack.pipeline.settings import load_settings

    settings = load_settings(profile=profile, encoder=encoder)
    set_up_logging("warning", settings.log_json)
    limits = make_fold(settings).profile
    contracts = tuple(tool for path in tools for tool in read_tools(path))
    recordings = read_corpora(paths, format_, settings.limits, settings.redaction)
    recordings, apart = told_apart(recordings, {tool.name: tool for tool in contracts})
    if apart:
        click.echo(f"{apart} task ids stand for several tasks; these are told apart", err=True)
    if count > limits.references_max:
        click.echo(
            f"a run is compared with at most {limits.references_max} references; "
            f"--references {count} is more",
            err=True,
        )
    plan = ReferencePlan(
        min(count, limits.references_max),
        limits.reference_steps_max,
        exclude_own_model,
        equal,
        other_tasks,
        seed,
    )
    chosen = plan.choose(recordings)
    bench = _Bench(
        Setup(settings, contracts, tuple(recordings)),
        chosen,
        seed,
        processes or processors(),
        as_json,
    )
    served = sum(bool(references) for references in chosen.values())
    click.echo(f"{len(recordings)} runs, {served} of them with references", err=True)
    return bench


@_options("ranking")
@click.option(
    "--k",
    "ks",
    callback=_lengths,
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
@_plot_option("Write ROC and calibration (after the second of K, or the only one).")
def ranking(ks: tuple[int, ...], full_prefixes: bool, plot: Path | None, **options: Any) -> None:
    """Do runs that will succeed score higher early on? AUROC, with rivals beside it."""
    bench = _prepare(equal=True, **options)
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


@_options("gate")
@_runs_option(None, "Clean runs a corpus [all].")
def gate(runs: int | None, **options: Any) -> None:
    """Put malicious calls into successful runs: how many does the gate block, and what else?"""
    bench = _prepare(**options)
    from ontrack.pipeline.evaluation import gate
    from ontrack.pipeline.evaluation.injected import Herd

    herd = Herd(bench.recordings, {each.name: each for each in bench.setup.contracts})
    jobs = gate.plan(bench.recordings, bench.chosen, herd, bench.seed, runs)
    _require_some(jobs)
    answers = bench.work("gate", gate.ask, jobs)
    bench.show("What the gate blocks", gate.summarise(jobs, answers, bench.profile, bench.seed))


@_options("loops")
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
    bench = _prepare(**options)
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


@_options("faults")
@_runs_option(60, "Runs a fault and corpus.")
def faults(runs: int | None, **options: Any) -> None:
    """Put known faults into successful runs: which are found, how soon, at what price?"""
    bench = _prepare(**options)
    from ontrack.pipeline.evaluation import faults
    from ontrack.pipeline.evaluation.injected import Herd

    herd = Herd(bench.recordings, {each.name: each for each in bench.setup.contracts})
    jobs = faults.plan(bench.recordings, bench.chosen, herd, bench.seed, runs)
    _require_some(jobs)
    alarms = bench.work("faults", faults.watch, jobs)
    bench.show("Faults put into clean runs", faults.summarise(jobs, alarms, bench.profile))


@_options("abort")
@_plot_option("Write steps saved against false stops.")
def abort(plot: Path | None, **options: Any) -> None:
    """Stop runs early by several policies: who is stopped, and what does it save?"""
    bench = _prepare(**options)
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


@_options("tracking")
@_runs_option(None, "Runs a corpus, evenly spread over it [all].")
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
    bench = _prepare(**options)
    from ontrack.pipeline.evaluation import tracking_runs
    from ontrack.pipeline.evaluation.tracking_summary import shown, summarise

    jobs = tracking_runs.recorded_jobs(bench.recordings, bench.chosen, runs, sample)
    jobs += tracking_runs.controlled_jobs(campaign_tasks, sample)
    _require_some(jobs)
    measures: dict[str, list[Measure]] = {}
    for name, under in bench.each_profile(options["profile"]):
        found = under.work(f"tracking, {name}", tracking_runs.follow, jobs)
        measures[name] = summarise(jobs, found, name, bench.seed)
    if bench.as_json:
        bench.show("", [each for figures in measures.values() for each in figures])
        return
    for name, figures in measures.items():
        bench.show(f"The fast path against the converged solve, {name}", shown(figures))


@_options("horizon")
@_runs_option(12, "Longest runs a corpus, at most.")
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
    bench = _prepare(**options)
    from ontrack.pipeline.evaluation import horizon

    jobs = horizon.recorded_jobs(bench.recordings, bench.chosen, shortest, runs)
    jobs += horizon.generated_jobs(generated, steps)
    _require_some(jobs)
    for name, under in bench.each_profile(options["profile"]):
        found = under.work(f"horizon, {name}", horizon.compare, jobs)
        title = f"Long runs with shared rows against the same runs whole, {name}"
        bench.show(title, horizon.summarise(jobs, found, name))


@_options("candidates")
@_runs_option(5, "Runs a corpus, evenly spread over it.")
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
    callback=_lengths,
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
    bench = _prepare(**options)
    from ontrack.pipeline.evaluation import candidates

    jobs = candidates.recorded_jobs(bench.recordings, counts, runs, bench.seed)
    jobs += candidates.controlled_jobs(campaign_tasks, counts)
    _require_some(jobs)
    for name, under in bench.each_profile(options["profile"]):
        found = under.work(f"candidates, {name}", candidates.follow, jobs)
        figures = candidates.summarise(jobs, found, name, bench.seed)
        bench.show(f"Some references aligned against all of them, {name}", figures)


@command.command(name="tables")
@paths_argument(required=True)
@click.option("--tools", multiple=True, metavar="FILE", help="Tool contracts.")
@click.option("--format", "format_", default="auto", show_default=True, help="Format of PATH.")
@click.option("--encoder", metavar="NAME", help="Text encoder: wordllama, hashing or minilm.")
@click.option("--seed", type=int, default=42, show_default=True, help="Of every choice.")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    help="At work side by side [cores]; the figures do not depend on it.",
)
@_runs_option(40, "Runs a corpus and kind in Table 4, at most.")
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
    bench = _prepare(
        profile=None,
        count=5,
        exclude_own_model=False,
        other_tasks=False,
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
        out.write_text(text, encoding="utf-8")


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


def _require_some(jobs: Sequence[object]) -> None:
    if not jobs:
        from ontrack.topics.errors import InvalidInput

        raise InvalidInput(
            "no successful run has a reference (another successful run of its task); give more "
            "runs a task, or --other-tasks"
        )
