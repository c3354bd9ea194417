"""``ontrack contracts``: tool contracts from elsewhere, checks of task files, their schemas."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from ontrack.pipeline.cli.options import json_option
from ontrack.pipeline.cli.output import STDOUT, write_text
from ontrack.pipeline.contracts.formats import AUTO, FORMATS
from ontrack.pipeline.terminal import printable
from ontrack.topics.schemas import KINDS

if TYPE_CHECKING:
    from ontrack.pipeline.contracts.importing import Import

GUESSES_SHOWN_MAX = 50

_out = click.option(
    "--out", "-o", metavar="FILE", help="Write there, by its suffix; standard output without it."
)


@click.group(name="contracts")
def command() -> None:
    """Import tool contracts, check task files against them, print the schemas of both."""


@command.command(name="import")
@click.argument("paths", nargs=-1, required=True, metavar="FILE…")
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    default=AUTO,
    show_default=True,
    help="What the tools are described in.",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="NAME",
    help="Only these tools, where a file has them by group; repeatable.",
)
@_out
def import_(paths: tuple[str, ...], format_: str, groups: tuple[str, ...], out: str | None) -> None:
    """Make a tools file of what MCP servers, OpenAI or Anthropic tools and corpora describe.

    Reads answers to tools/list, whole or their list, tool schemas of chat completions, responses
    and messages, and lists by group; - is standard input. Effects are written only where the
    source states them. What is left to guess is listed on standard error: write `effect` there.
    """
    from ontrack.pipeline.contracts.importing import import_contracts, tool_record
    from ontrack.pipeline.reading.plain_files import plain_text

    found = import_contracts(paths, format_, groups)
    records = [tool_record(tool.contract) for tool in found.tools.values()]
    _write(out, plain_text({"tools": records}, out or "-"))
    _tell_import(found, out)


@command.command()
@click.argument("paths", nargs=-1, required=True, metavar="TOOLS…")
@click.option("--tasks", multiple=True, required=True, metavar="FILE", help="Task files.")
@json_option
def check(paths: tuple[str, ...], tasks: tuple[str, ...], as_json: bool) -> None:
    """Check task files against tool contracts; exit 1 where something has to be put right.

    Found are fields that nothing reads, tools without a contract in `allowed` and in references,
    conditions that do not compile, are left over or read arguments that a tool does not have, and
    tools in `allowed` that only read.
    """
    from ontrack.pipeline.contracts.checking import check_fields, check_tasks
    from ontrack.pipeline.reading.plain_files import read_plain
    from ontrack.pipeline.reading.readers import read_tasks, read_tools

    contracts = {tool.name: tool for path in paths for tool in read_tools(path)}
    read = [task for path in tasks for task in read_tasks(path, compiled=False)]
    findings = [item for path in paths for item in check_fields(read_plain(path), "tools")]
    findings += [item for path in tasks for item in check_fields(read_plain(path), "tasks")]
    findings += check_tasks(read, contracts)
    for finding in findings:
        if as_json:
            click.echo(json.dumps({"type": "contract_finding", **finding._asdict()}))
            continue
        label = click.style(finding.kind.replace("_", " "), fg="yellow")
        names = (finding.task_id, finding.tool)
        where = " ".join(_plain(name, 60) for name in names if name)
        click.echo(f"{label}  {where}: {_plain(finding.text, 600)}")
    click.echo(
        f"{len(read)} tasks, {len(contracts)} tools, {len(findings)} findings",
        err=True,
    )
    if findings:
        sys.exit(1)


@command.command()
@click.argument("kind", type=click.Choice(KINDS))
@_out
def schema(kind: str, out: str | None) -> None:
    """Print the JSON Schema of tools files or tasks files, for editors and checks."""
    from ontrack.topics.schemas import schema_text

    _write(out, schema_text(kind))


def _write(out: str | None, text: str) -> None:
    write_text(STDOUT if out is None else out, text)


def _tell_import(found: Import, out: str | None) -> None:
    """Say on standard error what was read, and what of it is a guess."""
    effects = Counter(tool.contract.effect.value for tool in found.tools.values())
    counts = ", ".join(f"{count} {name}" for name, count in sorted(effects.items()))
    click.echo(f"{len(found.tools)} tools: {counts}", err=True)
    if found.merged:
        click.echo(f"described differently, made one: {_list(found.merged)}", err=True)
    if found.unnamed:
        click.echo(f"passed over, without a name: {_list(found.unnamed)}", err=True)
    guessed = [tool for tool in found.tools.values() if tool.guess is not None]
    if not guessed:
        return
    rows = [
        (_plain(tool.contract.name, 60), tool.contract.effect.value, tool.guess or "")
        for tool in guessed[:GUESSES_SHOWN_MAX]
    ]
    _table(("tool", "assumed", "why"), rows)
    more = len(guessed) - GUESSES_SHOWN_MAX
    click.echo(
        (f"and {more} more\n" if more > 0 else "")
        + f"{len(guessed)} effects are guesses: write `effect` (read, write or destructive) beside "
        f"the names in {out or 'the file'}, or these tools count as destructive",
        err=True,
    )


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [tuple(headings), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for number, cells in enumerate(lines):
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        click.echo(click.style("  ".join(padded).rstrip(), bold=number == 0), err=True)


def _list(names: Sequence[str]) -> str:
    return _plain(", ".join(names), 400)


def _plain(text: str, width: int) -> str:
    clean = printable(text)
    return clean if len(clean) <= width else clean[: width - 1] + "…"
