"""``ontrack bench scale``: how far workers go."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ontrack.pipeline.bench.machine import machine_facts
from ontrack.pipeline.blas import one_blas_thread
from ontrack.pipeline.cli.options import broker_option, json_option

if TYPE_CHECKING:
    from ontrack.pipeline.bench.scale import Scale

STEP_S = 10.0  # what the table of agents takes for the time between two steps of one


@click.command(name="scale")
@broker_option
@json_option
@click.option("--events", type=click.IntRange(min=500), default=6000, show_default=True)
@click.option("--workers", type=click.IntRange(1, 6), default=3, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.5),
    default=15.0,
    show_default=True,
    help="How long events flow at each rate.",
)
@click.option(
    "--runtime",
    "runtimes",
    type=click.Choice(["faust", "aiokafka"]),
    multiple=True,
    help="What delivers events; may be given twice [both].",
)
def command(
    broker: str | None,
    as_json: bool,
    events: int,
    workers: int,
    seconds: float,
    runtimes: tuple[str, ...],
) -> None:
    """Measure one worker, two, three on a backlog, and how long events wait for one.

    Topics and groups are the command's own, yours are not touched. At the end topics are deleted;
    the empty groups go at the broker's next clean-up.
    """
    one_blas_thread()  # before anything imports numpy
    from ontrack.pipeline.bench.runner import run
    from ontrack.pipeline.bench.scale import Plan, measure
    from ontrack.pipeline.log import set_up_logging
    from ontrack.pipeline.settings import load_settings

    plan = Plan(events, tuple(range(1, workers + 1)), seconds=seconds)
    if as_json:
        click.echo(json.dumps({"type": "machine"} | machine_facts()))
    for runtime in runtimes or ("faust", "aiokafka"):
        settings = load_settings(broker=broker, runtime=runtime)
        set_up_logging("warning", settings.log_json)
        found = run(measure(settings, plan, lambda text: click.echo(text, err=True)))
        if as_json:
            _tell(found)
        else:
            _show(found)


def _tell(found: Scale) -> None:
    head = {"type": "figure", "bench": "scale", "runtime": found.runtime}
    for backlog in found.backlogs:
        click.echo(json.dumps(head | {"name": "backlog"} | asdict(backlog)))
    click.echo(json.dumps(head | {"name": "service"} | asdict(found.service)))
    for wait in found.waits:
        click.echo(json.dumps(head | {"name": "wait"} | asdict(wait)))


def _show(found: Scale) -> None:
    click.echo(f"\nruntime {found.runtime}\n")
    click.echo("workers  events/s  speed-up  CPU µs/event")
    for each in found.backlogs:
        cpu = "" if each.cpu_us_per_event is None else f"{each.cpu_us_per_event:,.0f}"
        click.echo(f"{each.workers:7}  {each.events_per_s:8,.0f}  {each.speedup:8.2f}  {cpu:>12}")
    click.echo("\nevents/s   busy  mean ms  p50 ms  p99 ms  M/G/1 mean ms")
    for wait in found.waits:
        busy = "" if wait.utilisation is None else f"{wait.utilisation:.0%}"
        model = "given" if wait.model_ms is None else f"{wait.model_ms:.1f}"
        click.echo(
            f"{wait.events_per_s:8,.0f} {busy:>6} {wait.mean_ms:8.1f} {wait.p50_ms:7.1f} "
            f"{wait.p99_ms:7.1f}  {model:>13}"
        )
    agents = ", ".join(
        f"{found.service.agents(STEP_S, share):,} at {share:.0%}" for share in (0.3, 0.5, 0.7)
    )
    click.echo(f"\nagents with a step every {STEP_S:g} s that one worker takes: {agents} busy")
