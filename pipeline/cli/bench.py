"""``ontrack bench``: what a step costs on this machine, and what a worker makes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ontrack.pipeline.bench.machine import machine_facts
from ontrack.pipeline.bench.row import rounded
from ontrack.pipeline.bench.yardsticks import NOT_INSTALLED
from ontrack.pipeline.blas import one_blas_thread
from ontrack.pipeline.cli import scale
from ontrack.pipeline.cli.options import broker_option, json_option

if TYPE_CHECKING:
    from ontrack.pipeline.bench.clock import Contestant, Figure
    from ontrack.pipeline.bench.row import AnyFigure


_seconds_option = click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help="How long to measure.",
)


@click.group(name="bench", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Measure the engine on this machine; without a name, all of it (`all`)."""
    if context.invoked_subcommand is None:
        context.invoke(everything)


@command.command(name="all")
@broker_option
@json_option
@click.option(
    "--corpus",
    "corpora",
    multiple=True,
    metavar="FILE",
    help="Recorded runs for the vital signs [runs of the simulated workplace].",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Of all benches together, what they prepare included [480].",
)
def everything(
    broker: str | None, as_json: bool, corpora: tuple[str, ...], seconds: float | None
) -> None:
    """Measure every figure in one run, and hold them against the aims.

    What is not installed, or needs a broker that is not there, is named with the reason.
    """
    from ontrack.pipeline.cli.bench_all import run_all

    run_all(broker, corpora, seconds, as_json)


@command.command(name="step")
@json_option
@_seconds_option
def step(as_json: bool, seconds: float) -> None:
    """Time one step: engine, whole monitor, textbook numpy, POT, converged solve.

    They take turns in this process, so their ratios hold although the machine's pace drifts.
    """
    one_blas_thread()  # before anything imports numpy
    from ontrack.pipeline.bench.steps import contestants
    from ontrack.pipeline.log import set_up_logging
    from ontrack.pipeline.settings import load_settings

    settings = load_settings()
    set_up_logging("warning", settings.log_json)
    machine = machine_facts() | {"profile": settings.profile, "encoder": settings.encoder}
    taking_part = contestants(settings)
    if "pot" not in {each.name for each in taking_part}:
        click.echo(f"left out: {NOT_INSTALLED['pot']}", err=True)
    figures = _measured("step", machine, taking_part, seconds, as_json)
    if not as_json:
        _show(machine, figures)


@command.command(name="vital")
@json_option
@click.option(
    "--corpus",
    "corpora",
    multiple=True,
    required=True,
    metavar="FILE",
    help="Recorded runs in any supported format; may be given again.",
)
@_seconds_option
def vital(as_json: bool, corpora: tuple[str, ...], seconds: float) -> None:
    """Time the vital signs alone on recorded events, beside PM4Py's online alignments.

    They take turns in this process, on the same events: the vital signs on real arguments and
    results, the alignments on the names of tools. Profile `default`, unless ONTRACK_PROFILE says
    otherwise.
    """
    one_blas_thread()  # before anything imports numpy
    from ontrack.pipeline.bench.vitals import ALIGNED, contestants
    from ontrack.pipeline.evaluation.corpus import read_corpora
    from ontrack.pipeline.log import set_up_logging
    from ontrack.pipeline.settings import load_settings

    settings = load_settings()
    set_up_logging("warning", settings.log_json)
    recordings = read_corpora(corpora, limits=settings.limits, redaction=settings.redaction)
    click.echo("making the models …", err=True)
    taking_part = contestants(settings, recordings)
    if ALIGNED not in {each.name for each in taking_part}:
        click.echo(f"left out: {NOT_INSTALLED['pm4py']}", err=True)
    machine = machine_facts() | {"profile": settings.profile}
    figures = _measured("vital", machine, taking_part, seconds, as_json)
    if not as_json:
        _table(
            machine,
            figures,
            "The vital signs of one step, in µs",
            "ratio: p50 divided by that of the row named beside it, on the same corpus",
        )


@command.command(name="distance")
@json_option
@_seconds_option
def distance(as_json: bool, seconds: float) -> None:
    """Time the trajectory distance at 300 steps in all schemes, beside the public metric of ek.

    They take turns in this process, on the same runs; docs/distance.md says where they agree.
    """
    one_blas_thread()  # before anything imports numpy
    from ontrack.pipeline.bench.distances import contestants, yardstick

    if yardstick() is None:
        click.echo(f"left out: {NOT_INSTALLED['ek']}", err=True)
    machine = machine_facts()
    figures = _measured("distance", machine, contestants(), seconds, as_json)
    if not as_json:
        caption = "ratio: p50 divided by ours of the same scheme"
        _table(machine, figures, "Trajectory distance, in µs", caption)


def _measured(
    bench: str,
    machine: dict[str, Any],
    taking_part: Sequence[Contestant],
    seconds: float,
    as_json: bool,
) -> list[Figure]:
    """Let contestants take turns; print the machine and their figures where JSON is wanted."""
    from ontrack.pipeline.bench.clock import measure

    if as_json:
        click.echo(json.dumps({"type": "machine"} | machine))
    else:
        click.echo(f"measuring for {seconds:g} s …", err=True)
    figures = measure(taking_part, seconds)
    if as_json:
        for figure in figures:
            click.echo(json.dumps({"type": "figure", "bench": bench} | rounded(figure)))
    return figures


def _show(machine: dict[str, Any], figures: list[Figure]) -> None:
    _table(
        machine,
        sorted(figures, key=lambda each: each.size),
        "One step, in µs",
        "ratio: p50 divided by the engine's at the same size",
    )


def _table(
    machine: dict[str, Any],
    figures: Sequence[AnyFigure],
    title: str,
    caption: str,
    decimals_ms: int | None = None,
) -> None:
    """Show figures in µs, or in ms with so many decimals."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    def shown(us: float | None) -> str:
        if us is None:
            return ""
        return f"{us:,.0f}" if decimals_ms is None else f"{us / 1000:,.{decimals_ms}f}"

    table = Table(title=title, caption=caption, box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("name", "size"):
        table.add_column(heading, no_wrap=True)
    for heading in ("p50", "p95", "p99", "events/s", "ratio", "samples"):
        table.add_column(heading, justify="right", no_wrap=True)
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        if figure.ratio_to not in (None, "engine"):
            ratio += f" {figure.ratio_to}"
        table.add_row(
            figure.name,
            figure.size,
            *map(shown, (figure.p50_us, figure.p95_us, figure.p99_us)),
            f"{figure.events_per_s:,.0f}",
            ratio,
            f"{figure.samples:,}",
        )
    console = Console()
    console.print(table)
    facts = ", ".join(f"{name} {value}" for name, value in machine.items() if value is not None)
    console.print(facts, style="dim", highlight=False)


@command.command(name="memory")
@json_option
@click.option("--runs", type=click.IntRange(min=1), default=20_000, show_default=True)
@click.option("--steps", type=click.IntRange(min=2), default=20, show_default=True)
def memory(as_json: bool, runs: int, steps: int) -> None:
    """Fold many open runs in this process; tell the highest resident size."""
    one_blas_thread()
    from ontrack.pipeline.bench.memory import measure
    from ontrack.pipeline.log import set_up_logging
    from ontrack.pipeline.settings import load_settings

    settings = load_settings()
    set_up_logging("warning", settings.log_json)
    _say("memory", measure(settings, runs, steps, _note), as_json)


def _note(text: str) -> None:
    click.echo(text, err=True)


def _say(bench: str, figures: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"type": "figure", "bench": bench} | figures))
        return
    for name, value in figures.items():
        click.echo(f"{name:>24}  {value}")


@command.command(name="pipeline")
@broker_option
@json_option
@click.option("--events", type=click.IntRange(min=100), default=20_000, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=8.0,
    show_default=True,
    help="How long events flow for the end-to-end latency.",
)
@click.option(
    "--gate-rate",
    type=click.FloatRange(min=1),
    default=200.0,
    show_default=True,
    help="Events a second while the gate is asked; at most half of what the worker sustains.",
)
@click.option(
    "--questions",
    type=click.IntRange(min=10),
    default=500,
    show_default=True,
    help="To the gate, over HTTP and again over topics.",
)
def pipeline(
    broker: str | None,
    as_json: bool,
    events: int,
    seconds: float,
    gate_rate: float,
    questions: int,
) -> None:
    """Measure a real worker on a broker, beside a bare loop and the embedded driver.

    Topics and group are the command's own, yours are not touched. At the end topics are deleted;
    the empty group goes at the broker's next clean-up.
    """
    one_blas_thread()
    from ontrack.pipeline.bench.pipeline import Plan, measure
    from ontrack.pipeline.bench.runner import run
    from ontrack.pipeline.log import set_up_logging
    from ontrack.pipeline.settings import load_settings

    settings = load_settings(broker=broker)
    set_up_logging("warning", settings.log_json)
    plan = Plan(events, seconds, gate_rate, questions)
    figures = run(measure(settings, plan, _note))
    machine = machine_facts() | settings.model_dump(include={"profile", "encoder", "runtime"})
    if as_json:
        click.echo(json.dumps({"type": "machine"} | machine))
        for figure in figures:
            click.echo(json.dumps({"type": "figure", "bench": "pipeline"} | rounded(figure)))
    else:
        _table(
            machine,
            figures,
            "One worker on one broker, times in ms",
            "ratio: events/s divided by those of the row named beside it",
            decimals_ms=2,
        )


@command.command(name="hooks")
@json_option
@click.option(
    "--rate",
    type=click.FloatRange(min=1),
    default=200.0,
    show_default=True,
    help="Requests a second.",
)
@_seconds_option
def hooks(as_json: bool, rate: float, seconds: float) -> None:
    """Answer a coding agent's hooks by a real daemon over HTTP, beside a page that does nothing.

    Times are from when a request was due to its answer, so that one slow answer counts for all
    that had to wait behind it.
    """
    one_blas_thread()
    from ontrack.pipeline.bench.hooks import figures, measure
    from ontrack.pipeline.bench.runner import run
    from ontrack.pipeline.log import set_up_logging
    from ontrack.pipeline.settings import load_settings

    settings = load_settings()
    set_up_logging("warning", settings.log_json)
    _note(f"{rate:g} requests/s for {seconds:g} s …")
    times = run(measure(settings, rate, seconds))
    machine = machine_facts() | {"profile": settings.profile, "encoder": settings.encoder}
    if as_json:
        click.echo(json.dumps({"type": "machine"} | machine))
        for figure in figures(times, rate):
            click.echo(json.dumps({"type": "figure", "bench": "hooks"} | rounded(figure)))
        return
    _table(
        machine,
        figures(times, rate),
        "Hooks of coding agents, times in ms",
        f"ratio: p50 divided by that of the row named beside it; answers: {times.answers}",
        decimals_ms=2,
    )


@command.command(name="recovery")
@broker_option
@json_option
@click.option("--runs", type=click.IntRange(min=1), default=2000, show_default=True)
@click.option("--steps", type=click.IntRange(min=2), default=40, show_default=True)
def recovery(broker: str | None, as_json: bool, runs: int, steps: int) -> None:
    """Kill a worker that has many open runs; tell when it is ready again.

    On topics of its own, which are removed afterwards.
    """
    one_blas_thread()
    from ontrack.pipeline.bench.recovery import measure
    from ontrack.pipeline.bench.runner import run
    from ontrack.pipeline.log import set_up_logging
    from ontrack.pipeline.settings import load_settings

    settings = load_settings(broker=broker)
    set_up_logging("warning", settings.log_json)
    for found in run(measure(settings, runs, steps, _note)):
        _say("recovery", {"runs": runs, "steps": steps} | asdict(found), as_json)


command.add_command(scale.command)
