"""``ontrack dead-letters``: look at what could not be used, and send it again."""

from __future__ import annotations

import asyncio
import heapq
import json
import sys
from collections import Counter
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING

import click

from ontrack.pipeline.cli.options import broker_option, json_option
from ontrack.pipeline.log import set_up_logging
from ontrack.pipeline.settings import load_settings
from ontrack.pipeline.terminal import printable
from ontrack.topics.verdicts import DeadLetter

if TYPE_CHECKING:
    from ontrack.pipeline.kafka.letters import Found, Search


def moment(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """Turn RFC 3339 text into milliseconds since 1970; a callback of options."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None or len(text) <= len("2026-11-30"):
        raise click.BadParameter(
            f"{text[:80]!r} is no time; expected RFC 3339 with a zone, such as "
            "2026-11-30T08:00:00Z or 2026-11-30T09:00:00+01:00"
        )
    return round(time.timestamp() * 1000)


@click.group(name="dead-letters")
def command() -> None:
    """List what could not be used, or send it again."""


@command.command(name="list")
@broker_option
@json_option
@click.option("--error", "errors", multiple=True, metavar="NAME", help="Only this error class.")
@click.option(
    "--since", callback=moment, metavar="TIME", help="Only quarantined since then (RFC 3339)."
)
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Only the latest N, oldest first."
)
def list_(
    broker: str | None,
    as_json: bool,
    errors: tuple[str, ...],
    since: int | None,
    limit: int | None,
) -> None:
    """Print the dead letters that are kept: where each stood, its error class, its text.

    An id is the place of the message: topic, partition and offset. Of a file the same message has
    another one, its line, so what `ontrack replay FILE` shows has other ids.

    No consumer group is touched. With --json the very bytes of the topic are printed; the original
    message is in value_base64.
    """
    from ontrack.pipeline.kafka.letters import Search

    settings = load_settings(broker=broker)
    set_up_logging(settings.log_level, settings.log_json, settings.show_arguments)
    search = Search(frozenset(errors), since_ms=since)
    classes: Counter[str] = Counter()

    def show(found: Found) -> None:
        classes[found.letter.error.name] += 1
        if as_json:
            sys.stdout.buffer.write(found.value + b"\n")
        else:
            click.echo(_line(found))

    async def read() -> None:
        latest: list[tuple[int, int, Found]] = []
        arrival = count()
        async for found in search.letters(settings):
            if limit is None:
                show(found)
                continue
            heapq.heappush(latest, (found.time_ms, next(arrival), found))
            if len(latest) > limit:
                heapq.heappop(latest)
        for _, _, found in sorted(latest):
            show(found)

    asyncio.run(read())
    sys.stdout.flush()
    _tell_foreign(search)
    click.echo(f"{classes.total()} dead letters{_by_class(classes)}", err=True)


@command.command()
@broker_option
@json_option
@click.option("--id", "ids", multiple=True, metavar="ID", help="These; an id as list prints it.")
@click.option("--error", "errors", multiple=True, metavar="NAME", help="All of this error class.")
@click.option("--all", "all_", is_flag=True, help="All that are kept.")
@click.option(
    "--since", callback=moment, metavar="TIME", help="Of these, those since then (RFC 3339)."
)
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and send nothing.")
def replay(
    broker: str | None,
    as_json: bool,
    ids: tuple[str, ...],
    errors: tuple[str, ...],
    all_: bool,
    since: int | None,
    dry_run: bool,
) -> None:
    """Send the original messages again, to the topic and partition they came from.

    Value, key and headers are the original ones; one header more, ontrack_replayed_from, names the
    dead letter. Use it once what was wrong has been mended, such as a limit that was too low.

    Nothing remembers what was replayed: replaying twice sends twice. A step that is in its run by
    then is dropped as a duplicate; what still cannot be used becomes a new dead letter with a new
    id, while the old one stays on the topic. A run goes on with its later steps meanwhile, so a
    step that comes so late can be judged as late.

    Exits 1 if a letter that was asked for is not there, or cannot be sent.
    """
    if (bool(ids), bool(errors), all_).count(True) != 1:
        raise click.UsageError("give one of --id ID, --error NAME and --all")
    from ontrack.pipeline.kafka.letters import Resender, Search

    settings = load_settings(broker=broker)
    set_up_logging(settings.log_level, settings.log_json, settings.show_arguments)
    search = Search(frozenset(errors), frozenset(ids), since)
    states: Counter[str] = Counter()

    def report(letter: DeadLetter, state: str, detail: str | None) -> None:
        states[state] += 1
        _show_replayed(letter, state, detail, as_json)

    asyncio.run(Resender(settings, report, dry_run).run(search))
    sys.stdout.flush()
    _tell_foreign(search)
    missing = sorted(search.ids - search.seen)
    for name in missing:
        click.echo(f"{printable(name)}: no such dead letter is kept", err=True)
    sent = f"{states['would_be_sent']} would be sent" if dry_run else f"{states['sent']} sent again"
    click.echo(f"{sent}, {states['refused']} refused, {len(missing)} not found", err=True)
    if states["refused"] or missing:
        sys.exit(1)


def _show_replayed(letter: DeadLetter, state: str, detail: str | None, as_json: bool) -> None:
    if as_json:
        record = {
            "type": "replayed",
            "id": letter.id,
            "error": letter.error.name,
            "topic": letter.topic,
            "partition": letter.partition,
            "offset": letter.offset,
            "state": state,
            "sent_as": detail if state == "sent" else None,
            "reason": detail if state == "refused" else None,
        }
        click.echo(json.dumps(record))
        return
    link = " as " if state == "sent" else ": "
    text = f"{letter.id}  {state.replace('_', ' ')}{'' if detail is None else link + detail}"
    click.echo(printable(text), err=state == "refused")


def _tell_foreign(search: Search) -> None:
    if search.foreign:
        click.echo(f"{search.foreign} messages on the topic are no dead letters", err=True)


def _line(found: Found) -> str:
    from ontrack.pipeline.kafka.letters import REPLAYED_HEADER

    letter = found.letter
    time = datetime.fromtimestamp(found.time_ms / 1000, UTC)
    stamp = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    text = printable(letter.error.text)
    text = text if len(text) <= 300 else text[:299] + "…"
    again = "  (replayed before)" if REPLAYED_HEADER in dict(letter.headers) else ""
    name = click.style(printable(letter.error.name), fg="red")
    return f"{printable(letter.id)}  {stamp}  {name}: {text}{again}"


def _by_class(classes: Counter[str]) -> str:
    listed = ", ".join(f"{printable(name)} {number}" for name, number in classes.most_common())
    return f": {listed}" if listed else ""
