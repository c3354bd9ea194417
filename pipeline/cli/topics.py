"""``ontrack topics``: create them, show them, print the schemas of what stands on them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import click

from ontrack.pipeline.cli.options import broker_option, json_option
from ontrack.pipeline.settings import load_settings
from ontrack.topics.asyncapi import asyncapi_document
from ontrack.topics.catalog import catalogue
from ontrack.topics.errors import InvalidFile


@click.group(name="topics")
def command() -> None:
    """Create or show the topics, and the schemas of their messages."""


@command.command()
@broker_option
@json_option
def create(broker: str | None, as_json: bool) -> None:
    """Create every topic that does not exist yet."""
    from ontrack.pipeline.kafka.provision import create_topics

    settings = load_settings(broker=broker)
    for item in asyncio.run(create_topics(settings)):
        state = "exists" if item.existed else "created"
        if as_json:
            record = {"type": "topic", "name": item.spec.name, "state": state}
            click.echo(json.dumps(record))
        else:
            click.echo(f"{state:8} {item.spec.name} ({item.spec.partitions} partitions)")


@command.command()
@json_option
@click.option("--asyncapi", is_flag=True, help="Print an AsyncAPI 3 document of all topics.")
def show(as_json: bool, asyncapi: bool) -> None:
    """Show names, keys, partitions and clean-up of all topics."""
    settings = load_settings()
    topics = catalogue(settings.topic_prefix, settings.partitions, settings.replication)
    if asyncapi:
        click.echo(json.dumps(asyncapi_document(topics), indent=2))
        return
    for spec in topics:
        if as_json:
            record = {
                "type": "topic",
                "name": spec.name,
                "carries": spec.carries,
                "key": spec.key,
                "partitions": spec.partitions,
                "replication": spec.replication,
                "config": spec.settings,
            }
            click.echo(json.dumps(record))
        else:
            policy = spec.settings["cleanup.policy"]
            click.echo(
                f"{spec.name:24} key {spec.key:28} {spec.partitions:>3} partitions  {policy}"
            )


command.add_command(show, "list")  # what other groups of commands call it


@command.command()
@click.argument("names", nargs=-1, metavar="[TOPIC]…")
@click.option(
    "--write",
    "folder",
    metavar="FOLDER",
    help="Write each as a file there. Refused where a change breaks readers or senders of the "
    "schema that was released.",
)
@json_option
def schema(names: tuple[str, ...], folder: str | None, as_json: bool) -> None:
    """Print the JSON Schema of a topic's messages; without a name, what schemas there are.

    Topics are named without their prefix. What OnTrack reads is described as it accepts it, what
    it writes as it writes it.
    """
    from ontrack.topics.schemas.records import TOPICS, direction_of, record_schema_text

    if folder is not None:
        _write_schemas(names or TOPICS, Path(folder))
    elif names:
        for name in names:
            text = record_schema_text(name)
            line = json.dumps(json.loads(text), ensure_ascii=False) + "\n" if as_json else text
            sys.stdout.buffer.write(line.encode("utf-8", "replace"))
    else:
        for name in TOPICS:
            way = "read by OnTrack" if direction_of(name) == "read" else "written by OnTrack"
            record = {"type": "topic_schema", "topic": name, "direction": direction_of(name)}
            click.echo(json.dumps(record) if as_json else f"{name:16} {way}")


def _write_schemas(names: tuple[str, ...], folder: Path) -> None:
    from ontrack.topics.schemas.records import breaks_of, record_schema_text

    found = [f"{name} {each}" for name in names for each in breaks_of(name)]
    if found:
        for each in found:
            click.echo(each, err=True)
        click.echo(f"{len(found)} changes break somebody; nothing was written", err=True)
        sys.exit(1)
    for name in names:
        path = folder / f"{name}.schema.json"
        try:
            path.write_text(record_schema_text(name), encoding="utf-8")
        except OSError as error:
            raise InvalidFile(str(path), None, f"cannot be written: {error.strerror}") from error
        click.echo(str(path))
