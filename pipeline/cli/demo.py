"""``ontrack demo``: the whole monitor on bundled runs, no broker."""

from __future__ import annotations

import time

import click

from ontrack.pipeline.cli.options import encoder_option, json_option
from ontrack.pipeline.cli.show import Printer
from ontrack.pipeline.embedded import EmbeddedMonitor, proposal_of
from ontrack.pipeline.log import set_up_logging
from ontrack.pipeline.settings import load_settings
from ontrack.topics.events import Step


@click.command(name="demo")
@json_option
@encoder_option
@click.option("--fast", is_flag=True, help="Do not pause between steps.")
@click.option("--dashboard", is_flag=True, help="On a web page, and with more runs after these.")
@click.option("--port", type=int, help="Port of the page [8200]; 0 takes a free one.")
def command(
    as_json: bool, encoder: str | None, fast: bool, dashboard: bool, port: int | None
) -> None:
    """Watch the whole monitor on bundled runs: clean ones, and one of each kind of fault."""
    if port is not None and not dashboard:
        raise click.UsageError("--port goes with --dashboard")
    if dashboard:
        _on_a_page(as_json, encoder, fast, port)
        return
    from ontrack.pipeline.workplace import contracts, demo_runs, references

    settings = load_settings(encoder=encoder)
    set_up_logging("warning", settings.log_json)
    monitor = EmbeddedMonitor(settings, references(), contracts())
    printer = Printer(as_json)
    pause_s = 0.0 if fast or as_json or not click.get_text_stream("stdout").isatty() else 0.08
    for run in demo_runs():
        if not as_json:
            click.echo()
            click.secho(f"{run.task_id}  ({run.fault or 'clean'})", bold=True)
        for event in run.events:
            if isinstance(event, Step):
                decision = monitor.propose(proposal_of(event))
                if decision.decision == "block":
                    printer.show(decision)
            for output in monitor.feed(event):
                printer.show(output)
            if pause_s:
                time.sleep(pause_s)
    counts = printer.counts
    found = [
        f"{name} {counts[name]}"
        for name in ("LOOP", "STALLED", "OFF_TRACK", "CAUSAL_INVERSION", "BLOCK")
    ]
    click.echo(
        f"\n{counts['scorecard']} runs, {counts['verdict']} verdicts: {', '.join(found)}; "
        f"{counts['intervention']} interventions",
        err=as_json,
    )
    if not as_json:
        click.echo("Next: ontrack replay YOUR_RUNS --references-from-successes  (see README.md)")


def _on_a_page(as_json: bool, encoder: str | None, fast: bool, port: int | None) -> None:
    from ontrack.pipeline.cli.dashboard import show

    if as_json:
        raise click.UsageError("--json prints what --dashboard shows: choose one")
    show(load_settings(encoder=encoder, dashboard_port=port), "demo", fast)
