"""Options that several commands share, and what they load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from ontrack.operators.redaction import Redaction
from ontrack.pipeline.reading import readers
from ontrack.pipeline.terminal import printable
from ontrack.topics.codecs import Limits
from ontrack.topics.errors import InvalidEvent
from ontrack.topics.knowledge import Provenance, Reference, Task, ToolContract

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Given:
    """Knowledge from files: what runs are compared with."""

    references: tuple[Reference, ...]
    contracts: tuple[ToolContract, ...]
    tasks: tuple[Task, ...]


def _apply(command: Command, *decorators: Callable[[Command], Command]) -> Command:
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def paths_argument(required: bool) -> Callable[[Command], Command]:
    """Files, folders, globs and ``-``."""
    return click.argument("paths", nargs=-1, required=required, metavar="PATH…")


def tools_option(command: Command) -> Command:
    """Add ``--tools``."""
    return click.option("--tools", multiple=True, metavar="FILE", help="Tool contracts.")(command)


def tasks_option(command: Command) -> Command:
    """Add ``--tasks``."""
    return click.option("--tasks", multiple=True, metavar="FILE", help="Task files.")(command)


def format_option(command: Command) -> Command:
    """Add ``--format``."""
    return click.option(
        "--format", "format_", default="auto", show_default=True, help="Format of PATH."
    )(command)


def profile_option(command: Command) -> Command:
    """Add ``--profile``."""
    return click.option("--profile", metavar="NAME", help="Profile of operator settings.")(command)


def encoder_option(command: Command) -> Command:
    """Add ``--encoder``."""
    return click.option(
        "--encoder", metavar="NAME", help="Text encoder: wordllama, hashing or minilm."
    )(command)


def knowledge_options(command: Command) -> Command:
    """Add what runs are compared with: references, tools, tasks; and the format of PATH."""
    return _apply(
        command,
        click.option(
            "--references", multiple=True, metavar="PATH", help="Known-good runs, any format."
        ),
        click.option(
            "--provenance",
            type=click.Choice([item.value for item in Provenance]),
            default="mined",
            show_default=True,
            help="Where --references come from; it limits what verdicts may do.",
        ),
        click.option(
            "--references-from-successes",
            is_flag=True,
            help="Use the successful runs among PATH as references; never a run for itself.",
        ),
        tools_option,
        tasks_option,
        format_option,
    )


def monitor_options(command: Command) -> Command:
    """Add ``--profile --encoder --no-intervene``."""
    return _apply(
        command,
        profile_option,
        encoder_option,
        click.option(
            "--no-intervene",
            is_flag=True,
            help="Shadow mode: verdicts as ever, no interventions.",
        ),
    )


def broker_option(command: Command) -> Command:
    """Add ``--broker``."""
    return click.option(
        "--broker", metavar="HOST:PORT,…", help="Kafka (or ONTRACK_BROKER) [127.0.0.1:9092]."
    )(command)


def json_option(command: Command) -> Command:
    """Add ``--json``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="JSON Lines on stdout, as on the topics."
    )(command)


def load_knowledge(
    paths: Sequence[str],
    limits: Limits,
    references: Sequence[str],
    provenance: str,
    references_from_successes: bool,
    tools: Sequence[str],
    tasks: Sequence[str],
    format_: str,
    skip_bad: bool = False,
    redaction: Redaction | None = None,
) -> Given:
    """Read the knowledge that the options name.

    Parameters
    ----------
    limits
        Of one event.
    skip_bad
        Pass over unusable events of PATH, which whoever reads PATH again will report.
    redaction
        Of runs that become references.

    Raises
    ------
    InvalidFile
        A file that cannot be read, naming the line.
    """
    found: list[Reference] = []
    left_out: list[tuple[str, str]] = []

    def skipped(run_id: str, why: str) -> None:
        left_out.append((run_id, why))

    if references:
        found += readers.read_references(
            references, Provenance(provenance), skipped, redaction=redaction
        )
    if references_from_successes:
        if "-" in paths:
            raise click.UsageError(
                "--references-from-successes reads PATH twice, which standard input does not "
                "allow; write the runs to a file first"
            )
        successes = readers.references_from_successes(
            paths,
            format_,
            skipped,
            on_bad=_pass_over if skip_bad else None,
            limits=limits,
            redaction=redaction,
        )
        if not successes:
            click.echo(_NO_SUCCESS, err=True)
        found += successes
    if left_out:
        tell_left_out(left_out)
    return Given(
        tuple(found),
        tuple(tool for path in tools for tool in readers.read_tools(path)),
        tuple(task for path in tasks for task in readers.read_tasks(path)),
    )


_NO_SUCCESS = (
    "no references: no run among these names a task and ended with success. Events say so with "
    "task_id and {type: run_ended, outcome: success}; a run a line with task_id and success: true"
)


def tell_left_out(left_out: Sequence[tuple[str, str]]) -> None:
    """Say on stderr which runs cannot be references."""
    run_id, why = left_out[0]
    more = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
    click.echo(f"no reference: run {printable(run_id)}: {why}{more}", err=True)


def _pass_over(_path: str, _line: int, _raw: bytes, _error: InvalidEvent) -> None:
    """Leave an unusable event out."""
