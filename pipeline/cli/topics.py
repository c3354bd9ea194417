"""``ontrack topics``: create them, show them."""

from __future__ import annotations

import asyncio
import json

import click

from ontrack.pipeline.cli.options import broker_option, json_option
from ontrack.pipeline.settings import load_settings
from ontrack.topics.asyncapi import asyncapi_document
from ontrack.topics.catalog import catalogue


@click.group(name="topics")
def command() -> None:
    """Create or show the topics."""


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
