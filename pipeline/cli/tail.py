"""``ontrack tail``: print what the monitor publishes."""

from __future__ import annotations

import asyncio

import click

from ontrack.pipeline.cli.options import broker_option, json_option
from ontrack.pipeline.cli.show import Printer
from ontrack.pipeline.settings import load_settings


@click.command(name="tail")
@broker_option
@json_option
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Everything that is kept, by its time, and then what comes; else only what comes.",
)
@click.option(
    "--until-idle", type=float, metavar="SECONDS", help="Stop after so long without anything new."
)
@click.option(
    "--fleet", is_flag=True, help="The fleet's minutes, by agent, task and tenant, instead."
)
def command(
    broker: str | None,
    as_json: bool,
    from_beginning: bool,
    until_idle: float | None,
    fleet: bool,
) -> None:
    """Print verdicts, interventions, decisions, scorecards and dead letters as they come."""
    from ontrack.pipeline.kafka.tailer import tail

    settings = load_settings(broker=broker)
    printer = Printer(as_json)
    show = printer.show_fleet if fleet else printer.show_bytes

    async def follow() -> None:
        async for value in tail(settings, from_beginning, until_idle, fleet=fleet):
            if value is None:
                printer.flush()
            else:
                show(value)

    try:
        asyncio.run(follow())
    except KeyboardInterrupt:
        printer.flush()
