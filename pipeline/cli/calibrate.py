"""``ontrack calibrate``: thresholds from labelled runs, as a settings file."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ontrack.pipeline.blas import one_blas_thread
from ontrack.pipeline.cli.measures import progress
from ontrack.pipeline.cli.options import encoder_option, format_option, paths_argument, tools_option
from ontrack.pipeline.cli.output import write_text
from ontrack.pipeline.terminal import printable

if TYPE_CHECKING:
    from ontrack.pipeline.calibrated import Choice
    from ontrack.pipeline.evaluation.watching import Watcher

Result = TypeVar("Result")


def _share(name: str, default: float, text: str) -> Callable[[Any], Any]:
    return click.option(
        f"--{name}-max",
        f"{name}_max",
        type=click.FloatRange(0, 1),
        default=default,
        show_default=True,
        metavar="SHARE",
        help=text,
    )


@click.command(name="calibrate")
@paths_argument(required=True)
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Settings file to write (TOML).",
)
@tools_option
@format_option
@click.option("--profile", metavar="NAME", help="Profile whose thresholds are chosen.")
@encoder_option
@click.option(
    "--references",
    "count",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    metavar="N",
    help="Successful runs of the same task that a run is compared with, at most.",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    metavar="N",
    help="Runs of each outcome, at most.",
)
@click.option("--folds", type=click.IntRange(2, 50), default=5, show_default=True)
@_share("loops", 0.015, "Successes that may be warned for loops or stalls.")
@_share("halts", 0.003, "Successes that may be halted for them.")
@_share("alarms", 0.08, "Successes that may have an alarm.")
@_share("blocks", 0.04, "Successes of which the gate may block a call.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of every choice.")
@click.option("--processes", type=click.IntRange(min=1), help="At work side by side [cores].")
def command(
    paths: tuple[str, ...],
    out: Path,
    tools: tuple[str, ...],
    format_: str,
    profile: str | None,
    encoder: str | None,
    count: int,
    runs: int,
    folds: int,
    loops_max: float,
    halts_max: float,
    alarms_max: float,
    blocks_max: float,
    seed: int,
    processes: int | None,
) -> None:
    """Choose thresholds on labelled runs, within budgets of false alarms.

    PATH… are runs that say how they ended, in any supported format. The file is a settings file:
    name it in ONTRACK_CONFIG, or copy its tables into ontrack.toml. See docs/evaluation.md.
    """
    if "-" in paths:
        raise click.UsageError("calibrate reads PATH twice, which standard input does not allow")
    one_blas_thread()  # before anything imports numpy
    from ontrack.pipeline.calibrated import Budget
    from ontrack.pipeline.evaluation.calibration import calibrate
    from ontrack.pipeline.evaluation.calibration_file import describe, files_of, settings_file
    from ontrack.pipeline.evaluation.calibration_readings import Material
    from ontrack.pipeline.evaluation.corpus import ReferencePlan, read_corpora, told_apart
    from ontrack.pipeline.evaluation.injected import Herd
    from ontrack.pipeline.evaluation.processes import processors, run_jobs
    from ontrack.pipeline.evaluation.watching import Setup
    from ontrack.pipeline.log import set_up_logging
    from ontrack.pipeline.making import make_fold
    from ontrack.pipeline.reading.readers import read_tools
    from ontrack.pipeline.settings import load_settings

    settings = load_settings(profile=profile, encoder=encoder)
    # What an earlier calibration says of its encoder is about to be replaced.
    settings = settings.model_copy(update={"calibration": None})
    set_up_logging("warning", settings.log_json)
    fold = make_fold(settings)
    contracts = tuple(tool for path in tools for tool in read_tools(path))
    files = files_of(paths, format_, settings.limits)
    recordings, _ = told_apart(
        read_corpora(paths, format_, settings.limits, settings.redaction),
        {tool.name: tool for tool in contracts},
    )
    setup = Setup(settings, contracts, tuple(recordings))
    plan = ReferencePlan(
        min(count, fold.profile.references_max), fold.profile.reference_steps_max, seed=seed
    )
    herd = Herd(recordings, {each.name: each for each in contracts})
    material = Material(recordings, plan.choose(recordings), herd, seed, runs)
    budget = Budget(loops=loops_max, halts=halts_max, alarms=alarms_max, blocks=blocks_max)

    def work(
        what: str, function: Callable[[Watcher, Any], Result], jobs: Sequence[Any]
    ) -> list[Result]:
        with progress(what, len(jobs)) as advance:
            return run_jobs(function, setup, jobs, processes or processors(), advance)

    found = calibrate(setup, material, budget, folds, seed, work)
    made = describe(
        material.runs,
        files,
        found.choices,
        fold.encoder.name,
        settings.profile,
        budget,
        folds,
        seed,
    )
    written = datetime.now(UTC).isoformat(timespec="seconds")
    line = shlex.join(["ontrack", *sys.argv[1:]])
    text = settings_file(settings.encoder, found.operators, made, written, line)
    write_text(str(out), text)
    _show(found.choices)
    click.echo(f"{out}: {made.runs:,} runs of {made.tasks:,} tasks, encoder {made.encoder}")


def _show(choices: Sequence[Choice]) -> None:
    """Print the choices, with what they are worth on tasks left out."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Thresholds", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("setting", no_wrap=True)
    for heading in ("value", "disturbed", "at most", "held out", "gain", "held out"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in choices:
        shares = (each.disturbed, each.budget, each.held_out_disturbed)
        gains = (each.found, each.held_out_found)
        table.add_row(
            each.key,
            str(each.value),
            *("" if share is None else f"{100 * share:.1f} %" for share in shares),
            *("" if gain is None else f"{gain:.3f}" for gain in gains),
        )
    Console().print(table, markup=False)
    for each in choices:
        note = f"; {each.note}" if each.note else ""
        click.echo(printable(f"{each.key}: {each.gain}, {each.n} clean runs{note}"))
