"""``ontrack shadow``: an agent, a task or a tenant into shadow mode, while everything runs."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click
from pydantic import ValidationError

from ontrack.pipeline.cli.options import broker_option, json_option
from ontrack.pipeline.settings import load_settings
from ontrack.pipeline.terminal import printable
from ontrack.topics import codecs
from ontrack.topics.knowledge import Switch, SwitchScope

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(name="shadow")
def command() -> None:
    """Put a part of the fleet into shadow mode: judged as ever, told nothing, nothing stopped.

    Workers follow within about a second, for open runs as well. For a wave of false halts: on
    first, then look for the cause.
    """


def _part(command: Command) -> Command:
    for decorate in (
        click.option("--all", "everything", is_flag=True, help="The whole fleet."),
        click.option("--tenant", metavar="NAME", help="The runs of this tenant."),
        click.option("--task", metavar="ID", help="The runs of this task."),
        click.option("--agent", metavar="ID", help="The runs of this agent."),
    ):
        command = decorate(command)
    return command


def _switch(
    agent: str | None,
    task: str | None,
    tenant: str | None,
    everything: bool,
    reason: str | None = None,
    by: str | None = None,
) -> Switch:
    given: list[tuple[SwitchScope, str | None]] = []
    if agent is not None:
        given.append(("agent", agent))
    if task is not None:
        given.append(("task", task))
    if tenant is not None:
        given.append(("tenant", tenant))
    if everything:
        given.append(("all", None))
    if len(given) != 1:
        raise click.UsageError("name one of --agent, --task, --tenant and --all")
    scope, name = given[0]
    if name == "":
        # Mostly a variable that is not set; no run has such a name, and nobody would be stopped.
        raise click.UsageError(f"--{scope} is empty")
    try:
        return Switch(scope=scope, name=name, reason=reason, by=by)
    except ValidationError as error:
        raise click.UsageError(codecs.explain(error.errors(), quote=True)) from None


def _user() -> str | None:
    """Who throws it; a container may run under a number that has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return f"uid {os.getuid()}"


@command.command(name="on")
@broker_option
@_part
@click.option("--reason", metavar="TEXT", help="Why, for whoever lists the switches.")
def on(
    broker: str | None,
    agent: str | None,
    task: str | None,
    tenant: str | None,
    everything: bool,
    reason: str | None,
) -> None:
    """Switch to shadow mode."""
    from ontrack.pipeline.kafka.switches import throw

    switch = _switch(agent, task, tenant, everything, reason, _user())
    asyncio.run(throw(load_settings(broker=broker), switch.key, switch))
    click.echo(f"shadow on   {printable(switch.key)}")


@command.command(name="off")
@broker_option
@_part
def off(
    broker: str | None,
    agent: str | None,
    task: str | None,
    tenant: str | None,
    everything: bool,
) -> None:
    """Take it back."""
    from ontrack.pipeline.kafka.switches import throw

    switch = _switch(agent, task, tenant, everything)
    asyncio.run(throw(load_settings(broker=broker), switch.key, None))
    click.echo(f"shadow off  {printable(switch.key)}")


@command.command(name="list")
@broker_option
@json_option
def show(broker: str | None, as_json: bool) -> None:
    """List what is in shadow mode."""
    from ontrack.pipeline.kafka.switches import thrown

    found = asyncio.run(thrown(load_settings(broker=broker)))
    for each in found:
        switch = each.switch
        since = each.since.isoformat(timespec="seconds").replace("+00:00", "Z")
        if as_json:
            fields = {} if switch is None else switch.model_dump(mode="json")
            told = {"type": "switch", "key": each.key, "since": since, "readable": bool(switch)}
            click.echo(json.dumps(told | fields))
        elif switch is None:
            click.echo(f"{printable(each.key):30} since {since}  cannot be read: workers ignore it")
        else:
            why = "" if switch.reason is None else f"  {printable(switch.reason)}"
            by = printable(switch.by or "?")
            click.echo(f"{printable(each.key):30} since {since}  by {by}{why}")
    if not found and not as_json:
        click.echo("nothing is in shadow mode")
