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
    "--from-beginning", is_flag=True, help="Everything that is kept, not only what comes."
)
@click.option(
    "--until-idle", type=float, metavar="SECONDS", help="Stop after so long without anything new."
)
def command(
    broker: str | None, as_json: bool, from_beginning: bool, until_idle: float | None
) -> None:
    """Print verdicts, interventions, decisions, scorecards and dead letters as they come."""
    from ontrack.pipeline.kafka.tailer import tail

    settings = load_settings(broker=broker)
    printer = Printer(as_json)

    async def follow() -> None:
        async for value in tail(settings, from_beginning, until_idle):
            if value is None:
                printer.flush()
            else:
                printer.show_bytes(value)

    try:
        asyncio.run(follow())
    except KeyboardInterrupt:
        printer.flush()
