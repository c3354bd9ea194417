"""``ontrack bench``: what one step costs on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ontrack.pipeline.bench.machine import machine_facts, one_blas_thread
from ontrack.pipeline.cli.options import json_option

if TYPE_CHECKING:
    from ontrack.pipeline.bench.clock import Figure


@click.group(name="bench")
def command() -> None:
    """Measure the engine on this machine."""


@command.command(name="step")
@json_option
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help="How long to measure.",
)
def step(as_json: bool, seconds: float) -> None:
    """Time one step: engine, whole monitor, textbook numpy, POT, converged solve.

    They take turns in this process, so their ratios hold although the machine's pace drifts.
    """
    one_blas_thread()  # before anything imports numpy
    from ontrack.pipeline.bench.clock import measure
    from ontrack.pipeline.bench.steps import contestants
    from ontrack.pipeline.log import set_up_logging
    from ontrack.pipeline.settings import load_settings

    settings = load_settings()
    set_up_logging("warning", settings.log_json)
    machine = machine_facts() | {"profile": settings.profile, "encoder": settings.encoder}
    taking_part = contestants(settings)
    if "pot" not in {each.name for each in taking_part}:
        click.echo(
            'POT is not installed, so it is left out: pip install "ontrack[bench]"', err=True
        )
    if as_json:
        click.echo(json.dumps({"type": "machine"} | machine))
    else:
        click.echo(f"measuring for {seconds:g} s …", err=True)
    figures = measure(taking_part, seconds)
    if as_json:
        for figure in figures:
            click.echo(json.dumps({"type": "figure", "bench": "step"} | _rounded(figure)))
    else:
        _show(machine, figures)


def _rounded(figure: Figure) -> dict[str, Any]:
    """Return the fields; more digits than these mean nothing."""
    fields = asdict(figure)
    for name in ("p50_us", "p95_us", "p99_us", "events_per_s"):
        fields[name] = round(fields[name], 1)
    if figure.ratio is not None:
        fields["ratio"] = round(figure.ratio, 3)
    return fields


def _show(machine: dict[str, Any], figures: list[Figure]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title="One step, in µs",
        caption="ratio: p50 divided by the engine's at the same size",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for heading in ("name", "size"):
        table.add_column(heading, no_wrap=True)
    for heading in ("p50", "p95", "p99", "events/s", "ratio", "samples"):
        table.add_column(heading, justify="right", no_wrap=True)
    for figure in sorted(figures, key=lambda each: each.size):
        table.add_row(
            figure.name,
            figure.size,
            *(f"{value:,.0f}" for value in (figure.p50_us, figure.p95_us, figure.p99_us)),
            f"{figure.events_per_s:,.0f}",
            "" if figure.ratio is None else f"{figure.ratio:.2f}",
            f"{figure.samples:,}",
        )
    console = Console()
    console.print(table)
    facts = ", ".join(f"{name} {value}" for name, value in machine.items() if value is not None)
    console.print(facts, style="dim", highlight=False)
