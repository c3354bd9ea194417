"""``ontrack replay``: monitor recorded runs from files, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from ontrack.pipeline import readers
from ontrack.pipeline.cli.options import (
    json_option,
    knowledge_options,
    load_knowledge,
    monitor_options,
    paths_argument,
)
from ontrack.pipeline.cli.show import Printer
from ontrack.pipeline.embedded import EmbeddedMonitor, proposal_of
from ontrack.pipeline.fold import Record, dead_letter
from ontrack.pipeline.log import set_up_logging
from ontrack.pipeline.settings import load_settings
from ontrack.topics.errors import InvalidEvent
from ontrack.topics.events import Step
from ontrack.topics.verdicts import Output


@click.command(name="replay")
@paths_argument(required=True)
@knowledge_options
@monitor_options
@json_option
@click.option(
    "--gate", is_flag=True, help="Also ask the gate about each recorded call before its step."
)
@click.option(
    "--quarantine",
    is_flag=True,
    help="Turn unusable lines of event files into dead letters and go on, instead of stopping.",
)
def command(
    paths: tuple[str, ...],
    profile: str | None,
    encoder: str | None,
    no_intervene: bool,
    as_json: bool,
    gate: bool,
    quarantine: bool,
    **knowledge: Any,
) -> None:
    """Monitor recorded runs from PATH… (files, folders, globs, - for standard input)."""
    settings = load_settings(
        profile=profile, encoder=encoder, intervene=False if no_intervene else None
    )
    set_up_logging(settings.log_level, settings.log_json)
    given = load_knowledge(paths, settings.limits, skip_bad=quarantine, **knowledge)
    monitor = EmbeddedMonitor(settings, given.references, given.contracts, given.tasks)
    printer = Printer(as_json)
    quarantined: list[Output] = []

    def keep(path: str, line: int, raw: bytes, error: InvalidEvent) -> None:
        quarantined.append(dead_letter(Record(raw, topic=path, offset=line), error))

    source = readers.read_events(
        paths, knowledge["format_"], keep if quarantine else None, settings.limits
    )
    for output in _monitored(monitor, source, gate):
        while quarantined:
            printer.show(quarantined.pop(0))
        printer.show(output)
    for output in [*quarantined, *monitor.close()]:
        printer.show(output)
    printer.flush()
    counts = printer.counts
    click.echo(
        f"{counts['scorecard']} runs, {counts['verdict']} verdicts, "
        f"{counts['intervention']} interventions, {counts['dead_letter']} dead letters",
        err=True,
    )


def _monitored(
    monitor: EmbeddedMonitor, source: Iterator[readers.SourceEvent], gate: bool
) -> Iterator[Output]:
    for item in source:
        if gate and isinstance(item.event, Step) and item.event.run_id not in monitor.state.ended:
            yield monitor.propose(proposal_of(item.event))
        # The line itself, as it would stand on the topic: dead letters hold its bytes, and what the
        # codec has to mend in it is flagged.
        yield from monitor.feed_bytes(item.raw, item.path, item.line)
