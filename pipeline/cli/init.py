"""``ontrack init``: write our hooks into a host's settings, or take them out again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from ontrack.pipeline.cli.options import json_option
from ontrack.pipeline.serving.install import files, merge
from ontrack.pipeline.serving.install.handlers import (
    DEFAULT_URL,
    VARIABLE,
    Wanted,
    checked_url,
    handlers,
)
from ontrack.pipeline.serving.install.setups import SETUPS, Setup, setup_of
from ontrack.pipeline.terminal import printable
from ontrack.pipeline.web import is_loopback
from ontrack.topics.errors import InvalidFile, WrongShape


@click.command(name="init")
@click.argument("host", required=False)
@click.option("--user", is_flag=True, help="The settings of this user [the default].")
@click.option(
    "--project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The settings of the project in this folder.",
)
@click.option("--url", metavar="URL", help=f"Where ontrack serve listens [{DEFAULT_URL}].")
@click.option("--shadow", is_flag=True, help="Only watch: nothing is denied, asked or said.")
@click.option(
    "--fail-open/--fail-closed",
    "fail_open",
    default=None,
    help="What a call does while the daemon does not answer: run [the default], or not.",
)
@click.option("--yes", is_flag=True, help="Write without asking.")
@click.option("--remove", is_flag=True, help="Take our hooks out again, and only ours.")
@json_option
def command(
    host: str | None,
    user: bool,
    project: Path | None,
    url: str | None,
    shadow: bool,
    fail_open: bool | None,
    yes: bool,
    remove: bool,
    as_json: bool,
) -> None:
    """Connect a coding agent: add our hooks to its settings, after showing the change.

    Without HOST: list the hosts, their settings files and what their hooks can do.
    """
    if host is None:
        if user or project or url or shadow or fail_open is not None or yes or remove:
            raise click.UsageError(f"name a HOST: {', '.join(SETUPS)}")
        _list(as_json)
        return
    if user and project:
        raise click.UsageError("--user and --project name different files; choose one")
    if shadow and fail_open is False:
        raise click.UsageError("--shadow never stops a call, so it cannot be --fail-closed")
    if remove and (url or shadow or fail_open is not None):
        raise click.UsageError(
            "--remove takes out our hooks whatever they say: leave --url, --shadow and --fail-… out"
        )
    setup = setup_of(host)
    wanted = Wanted(checked_url(url or DEFAULT_URL), shadow, closed=fail_open is False)
    old = files.read_settings(setup.path(project, os.environ, Path.home()))
    try:
        bare = merge.removed(old.document, setup)
        new = bare if remove else merge.merged(old.document, setup, handlers(setup, wanted))
    except WrongShape as error:
        raise InvalidFile(str(old.path), None, f"{error}; nothing was written") from None
    if not remove:
        _advise(setup, wanted, new, project is not None)
    _apply(setup, old, new, bare, remove, yes, as_json)


def _apply(
    setup: Setup,
    old: files.SettingsFile,
    new: merge.Document,
    bare: merge.Document,
    remove: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show the change, ask, write it, and say what was done."""
    changed = new != old.document
    text = old.written(new)
    deletes = False
    if remove and changed:
        kept = _kept(old.path, new)
        text = text if kept is None else kept
        # A file of which nothing was kept and nothing is left was made by us.
        deletes = not merge.acting(new) and not files.backup_of(old.path).exists()
    backup: Path | None = None
    if changed:
        shown = files.difference(old, "" if deletes else text)
        click.echo(printable(shown, keep="\n\t"), err=as_json, nl=False)
        if not yes:
            what = "Delete" if deletes else "Write"
            click.confirm(f"{what} {printable(str(old.path))}?", err=as_json, abort=True)
        if deletes:
            files.delete(old)
        else:
            # What is kept is the last text without our hooks, so that it can be put back.
            backup = files.replace(old, text, keep=bare == old.document)
    done = "deleted" if deletes else "written" if changed else "unchanged"
    if as_json:
        line = {
            "type": "init",
            "host": setup.name,
            "path": str(old.path),
            "result": done,
            "backup": None if backup is None else str(backup),
        }
        click.echo(json.dumps(line))
        return
    click.echo(f"{done}  {printable(str(old.path))}")
    if backup is not None:
        click.echo(f"the old file is kept as {printable(str(backup))}")


def _kept(path: Path, document: merge.Document) -> str | None:
    """Return the text as it was before our hooks, if it says the same as the document."""
    try:
        before = files.read_settings(files.backup_of(path))
    except InvalidFile:
        return None  # somebody else's, or broken: what is in the file counts
    if before.text is None or merge.acting(before.document) != merge.acting(document):
        return None
    return before.text


def _advise(setup: Setup, wanted: Wanted, document: merge.Document, project: bool) -> None:
    """Say on stderr what keeps the hooks from working, and what they do without the daemon."""
    notes = []
    parts = urlsplit(wanted.url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        notes.append("arguments and the token cross the network unencrypted; use https")
    if parts.hostname is not None and not is_loopback(parts.hostname):
        notes.append(f"the daemon asks for a token there: set {VARIABLE} for {setup.title}")
    if document.get("disableAllHooks") is True:
        notes.append("`disableAllHooks` is set: no hook runs")
    if setup.name == "codex":
        notes.append("trust the new hooks in Codex with /hooks; until then it passes over them")
    if wanted.closed and setup.name == "copilot" and project:
        notes.append(
            "Copilot's cloud agent reads this file too, and reaches no daemon: it can do nothing"
        )
    if wanted.closed:
        notes.append(f"fail-closed by {setup.fail_closed}; still runs: {setup.still_open}")
    for note in notes:
        click.echo(f"note: {note}", err=True)


def _list(as_json: bool) -> None:
    for setup in SETUPS.values():
        if as_json:
            click.echo(json.dumps(_line(setup)))
            continue
        click.echo(f"{setup.name:12} {setup.title}")
        for name, value in (
            ("settings", f"{setup.shown_path()}, or {setup.project_file} of a project"),
            ("can", ", ".join(_abilities(setup))),
            ("the model hears", setup.context),
            ("subagents", setup.subagents),
            ("fail-closed", f"{setup.fail_closed}; still runs: {setup.still_open}"),
        ):
            click.echo(f"  {name + ':':17}{value}")


def _abilities(setup: Setup) -> list[str]:
    return ["deny", *(["ask"] if setup.asks else []), *(["halt"] if setup.halts else [])]


def _line(setup: Setup) -> dict[str, Any]:
    return {
        "type": "host",
        "name": setup.name,
        "title": setup.title,
        "user_file": setup.shown_path(),
        "project_file": setup.project_file,
        "transport": setup.transport,
        "can": _abilities(setup),
        "context": setup.context,
        "subagents": setup.subagents,
        "fail_closed": setup.fail_closed,
        "still_open": setup.still_open,
    }
