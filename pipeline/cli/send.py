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
from ontrack.pipeline.reading.event_reader import SourceEvent
from ontrack.pipeline.settings import Settings, load_settings
from ontrack.topics.codecs import Limits
from ontrack.topics.events import Event
from ontrack.topics.knowledge import Provenance


@click.command(name="send")
@paths_argument(required=False)
@broker_option
@knowledge_options
@click.option("--demo", is_flag=True, help="Send the bundled demo runs with their references.")
@click.option(
    "--replace",
    is_flag=True,
    help="Withdraw what was mined before for the tasks of --references.",
)
@click.option("--rate", type=float, help="Events a second; as fast as they go otherwise.")
def command(
    paths: tuple[str, ...],
    broker: str | None,
    demo: bool,
    replace: bool,
    rate: float | None,
    **knowledge: Any,
) -> None:
    """Publish the runs of PATH… to Kafka, references and contracts first.

    Without PATH: only what --references, --tools and --tasks hold.
    """
    is_knowledge = any(knowledge[name] for name in ("references", "tools", "tasks"))
    if demo == bool(paths) and not (is_knowledge and not demo):
        raise click.UsageError("give either PATH… or --demo, or --references, --tools or --tasks")
    if replace and not knowledge["references"]:
        raise click.UsageError("--replace is for --references")
    if rate is not None and rate <= 0:
        raise click.UsageError("--rate must be above 0")
    settings = load_settings(broker=broker)
    given, events = _demo() if demo else (_given(settings, paths, knowledge), None)
    source: Iterable[Event | SourceEvent] = events or ()
    if paths:
        source = _from_files(paths, knowledge["format_"], settings.limits)

    from ontrack.pipeline.kafka.sender import send_events, send_knowledge, withdraw_references

    async def send() -> int:
        published = await send_knowledge(settings, given.references, given.contracts, given.tasks)
        if published:
            click.echo(f"{published} references, contracts and tasks published", err=True)
        if replace:
            gone = await withdraw_references(settings, await _mined_before(settings, given))
            click.echo(f"{gone} references withdrawn", err=True)
        return await send_events(settings, source, rate)

    began = time.monotonic()
    count = asyncio.run(send())
    click.echo(f"{count} events sent in {time.monotonic() - began:.1f} s", err=True)
    if demo:
        click.echo(
            "the demo's tool contracts hold on this broker now, for tools of the same names too "
            "(make kafka-wipe begins anew)",
            err=True,
        )


async def _mined_before(settings: Settings, given: Given) -> list[str]:
    """Return the ids of published mined references of the given ones' tasks, less these."""
    from ontrack.pipeline.kafka.published import published_knowledge

    now = {reference.reference_id for reference in given.references}
    tasks = {reference.task_id for reference in given.references}
    return [
        reference.reference_id
        for reference in (await published_knowledge(settings)).references
        if reference.provenance is Provenance.MINED
        and reference.task_id in tasks
        and reference.reference_id not in now
    ]


def _given(settings: Settings, paths: tuple[str, ...], knowledge: dict[str, Any]) -> Given:
    return load_knowledge(paths, settings.limits, redaction=settings.redaction, **knowledge)


def _from_files(
    paths: tuple[str, ...], format_: str, limits: Limits
) -> Iterator[Event | SourceEvent]:
    from ontrack.pipeline.reading import readers

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
