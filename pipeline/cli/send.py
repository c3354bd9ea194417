"""``ontrack send``: publish recorded runs as events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Any

import click

from ontrack.pipeline.cli.options import (
    Given,
    broker_option,
    knowledge_options,
    load_knowledge,
    paths_argument,
)
from ontrack.pipeline.event_reader import SourceEvent
from ontrack.pipeline.settings import Settings, load_settings
from ontrack.topics.codecs import Limits
from ontrack.topics.events import Event


@click.command(name="send")
@paths_argument(required=False)
@broker_option
@knowledge_options
@click.option("--demo", is_flag=True, help="Send the bundled demo runs with their references.")
@click.option("--rate", type=float, help="Events a second; as fast as they go otherwise.")
def command(
    paths: tuple[str, ...], broker: str | None, demo: bool, rate: float | None, **knowledge: Any
) -> None:
    """Publish the runs of PATH… to Kafka, references and contracts first."""
    if demo == bool(paths):
        raise click.UsageError("give either PATH… or --demo")
    if rate is not None and rate <= 0:
        raise click.UsageError("--rate must be above 0")
    settings = load_settings(broker=broker)
    given, events = _demo() if demo else (_given(settings, paths, knowledge), None)
    source = (
        events if events is not None else _from_files(paths, knowledge["format_"], settings.limits)
    )

    from ontrack.pipeline.kafka.sender import send_events, send_knowledge

    async def send() -> int:
        published = await send_knowledge(settings, given.references, given.contracts, given.tasks)
        if published:
            click.echo(f"{published} references, contracts and tasks published", err=True)
        return await send_events(settings, source, rate)

    began = time.monotonic()
    count = asyncio.run(send())
    click.echo(f"{count} events sent in {time.monotonic() - began:.1f} s", err=True)


def _given(settings: Settings, paths: tuple[str, ...], knowledge: dict[str, Any]) -> Given:
    return load_knowledge(paths, settings.limits, redaction=settings.redaction, **knowledge)


def _from_files(
    paths: tuple[str, ...], format_: str, limits: Limits
) -> Iterator[Event | SourceEvent]:
    from ontrack.pipeline import readers

    if "-" not in paths:
        # Read once before anything is sent: a bad line then sends nothing. Standard input can be
        # read only once, so there what stands before a bad line is sent.
        for _ in readers.read_events(paths, format_, limits=limits):
            pass
    return readers.read_events(paths, format_, limits=limits)


def _demo() -> tuple[Given, Iterable[Event]]:
    from ontrack.pipeline.workplace import contracts, demo_runs, references

    runs = demo_runs()
    given = Given(tuple(references()), tuple(contracts()), ())
    return given, [event for run in runs for event in run.events]
