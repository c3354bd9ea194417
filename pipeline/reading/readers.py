"""Files of runs, tools, tasks and references: any supported format in, validated records out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from ontrack.operators.allowance import compile_allowance
from ontrack.operators.canonical import reference_id
from ontrack.operators.redaction import Redaction
from ontrack.pipeline.reading.event_reader import AUTO, EventReader, OnBad, SourceEvent
from ontrack.pipeline.reading.plain_files import read_plain
from ontrack.pipeline.reading.runs import Head, KeptSteps, by_run
from ontrack.pipeline.reading.sources import expand
from ontrack.topics.codecs import DEFAULT_LIMITS, Limits, decode_tasks, decode_tools
from ontrack.topics.errors import InvalidFile, InvalidInput, UnknownName
from ontrack.topics.knowledge import (
    STEPS_MAX,
    Provenance,
    Reference,
    ReferenceStep,
    Task,
    ToolContract,
)

__all__ = [
    "EventReader",
    "SourceEvent",
    "expand",
    "read_events",
    "read_references",
    "read_tasks",
    "read_tools",
    "references_from_successes",
]

T = TypeVar("T")
_FAILED: Final = ("failure", "cancelled")
OnSkipped = Callable[[str, str], None]


def read_events(
    paths: Iterable[str | Path],
    format: str = AUTO,
    on_bad: OnBad | None = None,
    limits: Limits = DEFAULT_LIMITS,
    stdin: BinaryIO | None = None,
) -> EventReader:
    """Read recorded runs as events, one file after the other, in memory flat in their number.

    A foreign run whose id was used before in the same call is renamed ``run_id@file``; our own
    events never are.

    Parameters
    ----------
    paths : iterable of str or Path
        Files, folders, globs and ``-``; see :func:`~ontrack.pipeline.reading.sources.expand`.
    format : str
        ``auto``, or one of ``topics.adapters.FORMATS`` for every file.
    on_bad : callable, optional
        Called with (path, line, raw bytes, error) for an event that is not usable, and reading goes
        on; without it such an event ends the reading.
    limits : Limits
        Of one event.
    stdin : BinaryIO, optional
        What ``-`` reads.

    Raises
    ------
    InvalidFile
        At once for paths that do not exist; while reading for a file that is unreadable or of no
        known format, a foreign record that cannot be parsed, or a bad event (see ``on_bad``).
    UnknownName
        No such format.
    """
    return EventReader(expand(paths, stdin), format, on_bad, limits)


def read_tools(path: str | Path, stdin: BinaryIO | None = None) -> tuple[ToolContract, ...]:
    """Read tool contracts from JSON, YAML or TOML; shapes as ``codecs.decode_tools`` takes them.

    Raises
    ------
    InvalidFile
        Naming what is wrong.
    """
    return _read_settings_file(path, stdin, decode_tools)


def read_tasks(
    path: str | Path, stdin: BinaryIO | None = None, compiled: bool = True
) -> tuple[Task, ...]:
    """Read tasks from JSON, YAML or TOML; shapes as ``codecs.decode_tasks`` takes them.

    Parameters
    ----------
    compiled
        Refuse a task whose allowance cannot be compiled; False for who reports all that is wrong.

    Raises
    ------
    InvalidFile
        Naming what is wrong.
    """

    def decode(data: Any) -> tuple[Task, ...]:
        tasks = decode_tasks(data)
        for task in tasks if compiled else ():
            compile_allowance(task, {})
        return tasks

    return _read_settings_file(path, stdin, decode)


def read_references(
    paths: Iterable[str | Path],
    provenance: str = Provenance.MINED,
    on_skipped: OnSkipped | None = None,
    stdin: BinaryIO | None = None,
    redaction: Redaction | None = None,
) -> list[Reference]:
    """Read references: runs in any format, or lines of the references topic.

    A run that says that it failed or was cancelled is none; one that does not say how it ended is
    taken at its word. Reference lines keep their provenance.

    Parameters
    ----------
    on_skipped : callable, optional
        Called with (run id, why) for a run that cannot be a reference: it failed, or has no steps,
        or too many.
    redaction : Redaction, optional
        Of runs, before their ids are made: an id is a digest of all that stands in the steps.

    Raises
    ------
    InvalidFile
        As :func:`read_events`, or a run that names no task.
    UnknownName
        No such provenance.
    """
    if provenance not in list(Provenance):
        raise UnknownName(f"unknown provenance {provenance!r}; known are {', '.join(Provenance)}")
    references: list[Reference] = []
    reader = EventReader(expand(paths, stdin), AUTO, None, DEFAULT_LIMITS, references)
    for head, run in by_run(reader, lambda _head: KeptSteps(redaction)):
        if head.outcome in _FAILED:
            if on_skipped is not None:
                on_skipped(head.run_id, f"it ended in {head.outcome}, so it shows no good way")
            continue
        if head.task_id is None:
            raise InvalidFile(
                head.path, head.line, f"run {head.run_id!r} has no task_id; a reference needs one"
            )
        references.extend(_as_reference(head, run, Provenance(provenance), on_skipped))
    return references


def references_from_successes(
    paths: Iterable[str | Path],
    format: str = AUTO,
    on_skipped: OnSkipped | None = None,
    stdin: BinaryIO | None = None,
    on_bad: OnBad | None = None,
    limits: Limits = DEFAULT_LIMITS,
    redaction: Redaction | None = None,
) -> list[Reference]:
    """Make a reference of every recorded run that names a task and ended with success.

    The reference names the run it comes from, so that no run need be compared with itself; its id
    is a digest of task, run and steps.

    Raises
    ------
    InvalidFile
        As :func:`read_events`.
    """
    events = read_events(paths, format, on_bad, limits, stdin)
    return [
        reference
        for head, run in by_run(events, lambda _head: KeptSteps(redaction))
        if head.outcome == "success" and head.task_id is not None
        for reference in _as_reference(head, run, Provenance.MINED, on_skipped)
    ]


def _as_reference(
    head: Head, run: KeptSteps, provenance: Provenance, on_skipped: OnSkipped | None
) -> list[Reference]:
    steps = tuple(ReferenceStep.of(step) for step in run.in_order())
    if not 1 <= len(steps) <= STEPS_MAX:
        if on_skipped is not None:
            why = f"{len(steps)} steps; a reference has from 1 to {STEPS_MAX}"
            on_skipped(head.run_id, why)
        return []
    task_id = head.task_id or ""
    return [
        Reference(
            reference_id=reference_id(task_id, head.run_id, steps),
            task_id=task_id,
            provenance=provenance,
            run_id=head.run_id,
            steps=steps,
        )
    ]


def _read_settings_file(path: str | Path, stdin: BinaryIO | None, decode: Callable[[Any], T]) -> T:
    name = str(path)
    data = read_plain(name, stdin)
    try:
        return decode(data)
    except InvalidInput as error:
        raise InvalidFile(name, None, str(error)) from error
