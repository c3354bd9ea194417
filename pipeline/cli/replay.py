"""``ontrack replay``: monitor recorded runs, from files or from Kafka, in this process."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from ontrack.pipeline.cli.dead_letters import moment
from ontrack.pipeline.cli.options import (
    broker_option,
    json_option,
    knowledge_options,
    load_knowledge,
    monitor_options,
    paths_argument,
)
from ontrack.pipeline.cli.show import Printer
from ontrack.pipeline.embedded import EmbeddedMonitor, proposal_of
from ontrack.pipeline.folding.quarantine import dead_letter
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.log import set_up_logging
from ontrack.pipeline.reading import readers
from ontrack.pipeline.reading.event_reader import AUTO
from ontrack.pipeline.settings import Settings, load_settings
from ontrack.pipeline.terminal import printable
from ontrack.topics.errors import InvalidEvent
from ontrack.topics.events import Step
from ontrack.topics.verdicts import Output

if TYPE_CHECKING:
    from ontrack.pipeline.kafka.history import Where
    from ontrack.pipeline.kafka.refold import Refold

TELL_EVERY_S: Final = 5.0  # how far a long reading has come
NAMES_SHOWN_MAX = 10


def _offsets(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> int | dict[int, int] | None:
    """Parse ``N`` or ``P:N,…``."""
    if text is None:
        return None
    found: dict[int, int] = {}
    for part in text.split(","):
        numbers = [number.strip() for number in part.split(":")]
        if not all(n.isascii() and n.isdigit() and len(n) <= 18 for n in numbers):
            numbers = []
        if len(numbers) == 1 and "," not in text:
            return int(numbers[0])
        if len(numbers) != 2 or int(numbers[0]) in found:
            raise click.BadParameter(
                f"{text[:80]!r}: expected one offset, such as 1200, or one for each of some "
                "partitions, such as 0:1200,3:900"
            )
        found[int(numbers[0])] = int(numbers[1])
    return found


@click.command(name="replay")
@paths_argument(required=False)
@click.option(
    "--from-topic",
    is_flag=True,
    help="Read the events topic instead of PATH, to its current end; no consumer group is touched.",
)
@broker_option
@click.option(
    "--from-offset",
    callback=_offsets,
    metavar="N|P:N,…",
    help="First offset, in all partitions or by partition (then only these are read).",
)
@click.option(
    "--from-time", callback=moment, metavar="TIME", help="First time of arrival, RFC 3339."
)
@click.option(
    "--until-time", callback=moment, metavar="TIME", help="Stop before this time of arrival."
)
@click.option("--run-id", "run_ids", multiple=True, metavar="ID", help="Only this run; repeatable.")
@knowledge_options
@monitor_options
@json_option
@click.option(
    "--gate", is_flag=True, help="Also ask the gate about each recorded call before its step."
)
@click.option(
    "--quarantine",
    is_flag=True,
    help="Turn unusable lines of event files into dead letters and go on, instead of stopping. "
    "From a topic it is always so.",
)
def command(
    paths: tuple[str, ...],
    from_topic: bool,
    broker: str | None,
    from_offset: int | dict[int, int] | None,
    from_time: int | None,
    until_time: int | None,
    run_ids: tuple[str, ...],
    profile: str | None,
    encoder: str | None,
    no_intervene: bool,
    as_json: bool,
    gate: bool,
    quarantine: bool,
    **knowledge: Any,
) -> None:
    """Monitor recorded runs from PATH… (files, folders, globs, - for standard input).

    Or from Kafka, with --from-topic: the events are folded again with the knowledge that stood on
    its topics when each run began. Under the worker's settings the same ids and bytes come out as
    it published; other settings, and --references, --tools and --tasks (which win over what was
    published under the same name), make it a what-if: see ontrack diff. Runs that have not ended
    stay open.
    """
    topic_options = {
        "--broker": broker,
        "--from-offset": from_offset,
        "--from-time": from_time,
        "--until-time": until_time,
        "--run-id": run_ids or None,
    }
    _check_usage(paths, from_topic, topic_options, knowledge)
    settings = load_settings(
        broker=broker,
        profile=profile,
        encoder=encoder,
        intervene=False if no_intervene else None,
    )
    set_up_logging(settings.log_level, settings.log_json, settings.show_arguments)
    printer = Printer(as_json)
    if from_topic:
        from ontrack.pipeline.kafka.history import Where

        by_partition = from_offset if isinstance(from_offset, dict) else None
        everywhere = from_offset if isinstance(from_offset, int) else 0
        where = Where(everywhere, by_partition, from_time, until_time)
        _from_topic(settings, where, run_ids, gate, knowledge, printer)
    else:
        _from_files(settings, paths, gate, quarantine, knowledge, printer)


def _check_usage(
    paths: tuple[str, ...],
    from_topic: bool,
    topic_options: Mapping[str, object],
    knowledge: Mapping[str, Any],
) -> None:
    if from_topic == bool(paths):
        raise click.UsageError("give either PATH… or --from-topic")
    given = [name for name, value in topic_options.items() if value is not None]
    if given and not from_topic:
        raise click.UsageError(f"{given[0]} is for --from-topic, not for PATH")
    if "--from-offset" in given and "--from-time" in given:
        raise click.UsageError("give either --from-offset or --from-time")
    if from_topic and knowledge["references_from_successes"]:
        raise click.UsageError(
            "--references-from-successes takes the runs of PATH; with --from-topic name the files "
            "of known-good runs with --references"
        )
    if from_topic and knowledge["format_"] != AUTO:
        raise click.UsageError("--format is for PATH; the events topic has one format")


def _from_files(
    settings: Settings,
    paths: tuple[str, ...],
    gate: bool,
    quarantine: bool,
    knowledge: Mapping[str, Any],
    printer: Printer,
) -> None:
    given = load_knowledge(
        paths, settings.limits, skip_bad=quarantine, redaction=settings.redaction, **knowledge
    )
    monitor = EmbeddedMonitor(settings, given.references, given.contracts, given.tasks)
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
    _tell_counts(printer)


def _from_topic(
    settings: Settings,
    where: Where,
    run_ids: tuple[str, ...],
    gate: bool,
    knowledge: Mapping[str, Any],
    printer: Printer,
) -> None:
    from ontrack.pipeline.kafka.refold import Refold

    given = load_knowledge((), settings.limits, redaction=settings.redaction, **knowledge)
    refold = Refold(settings, where, run_ids, gate, given.references, given.contracts, given.tasks)

    told_s = time.monotonic()

    async def fold() -> None:
        nonlocal told_s
        async for output in refold.outputs():
            printer.show(output)
            if time.monotonic() - told_s > TELL_EVERY_S:
                told_s = time.monotonic()
                click.echo(f"{refold.events:,} events folded so far", err=True)

    asyncio.run(fold())
    printer.flush()
    _tell_counts(printer)
    _tell_refold(refold)
    if refold.not_found:
        click.echo(f"not found there: {_names(refold.not_found)}", err=True)
        sys.exit(1)


def _tell_counts(printer: Printer) -> None:
    counts = printer.counts
    click.echo(
        f"{counts['scorecard']} runs, {counts['verdict']} verdicts, "
        f"{counts['intervention']} interventions, {counts['dead_letter']} dead letters",
        err=True,
    )


def _tell_refold(refold: Refold) -> None:
    spans = sorted(refold.spans, key=lambda span: span.partition)
    places = ", ".join(f"{span.partition}:{span.start}-{span.stop}" for span in spans)
    click.echo(
        f"{refold.events} events folded from {len(spans)} of {refold.partitions} partitions "
        f"({places}); {refold.still_open} runs are still open",
        err=True,
    )
    expired = [f"{span.partition}:{span.kept}" for span in spans if span.kept > 0]
    if expired:
        click.echo(f"the topic no longer holds what came before {', '.join(expired)}", err=True)
    middle = refold.from_the_middle
    if middle:
        click.echo(
            f"{len(middle)} runs had begun before the first event read ({_names(middle)}): they "
            "are judged from the middle, so not as the worker judged them",
            err=True,
        )


def _names(names: list[str]) -> str:
    """List some names of runs, fit for a terminal."""
    shown = ", ".join(printable(name)[:80] for name in names[:NAMES_SHOWN_MAX])
    more = len(names) - NAMES_SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def _monitored(
    monitor: EmbeddedMonitor, source: Iterator[readers.SourceEvent], gate: bool
) -> Iterator[Output]:
    for item in source:
        if gate and isinstance(item.event, Step) and item.event.run_id not in monitor.state.ended:
            yield monitor.propose(proposal_of(item.event))
        # The line itself, as it would stand on the topic: dead letters hold its bytes, and what the
        # codec has to mend in it is flagged.
        yield from monitor.feed_bytes(item.raw, item.path, item.line)
