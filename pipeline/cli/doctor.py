"""``ontrack doctor``: check what a worker needs, and say how to mend it."""

from __future__ import annotations

import asyncio
import json
import sys

import click

from ontrack.pipeline.checks import Check, local_checks
from ontrack.pipeline.cli.options import broker_option, json_option
from ontrack.pipeline.settings import load_settings
from ontrack.pipeline.terminal import printable


@click.command(name="doctor")
@broker_option
@json_option
@click.option("--no-broker", is_flag=True, help="Check only what the embedded monitor needs.")
@click.option(
    "--read-only",
    is_flag=True,
    help="Leave out what writes: the clock's short-lived topic, the question to the gate.",
)
def command(broker: str | None, as_json: bool, no_broker: bool, read_only: bool) -> None:
    """Check settings, machine, broker, topics, workers and gate; exit 1 if something is amiss."""
    settings = load_settings(broker=broker)
    checks = local_checks(settings)
    if not no_broker:
        from ontrack.pipeline.kafka.doctor import fleet_checks

        checks += asyncio.run(fleet_checks(settings, writes=not read_only))
    for check in checks:
        _show(check, as_json)
    if not all(check.ok for check in checks):
        sys.exit(1)


def _show(check: Check, as_json: bool) -> None:
    if as_json:
        told = {"name": check.name, "ok": check.ok, "detail": check.detail, "fix": check.fix}
        click.echo(json.dumps({"type": "check", **told}))
        return
    mark = click.style("ok  ", fg="green") if check.ok else click.style("FAIL", fg="red")
    click.echo(f"{mark} {check.name}: {printable(check.detail)}")
    if check.fix:
        click.echo(f"     {check.fix}")
