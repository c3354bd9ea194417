"""Files of runs, tools, tasks and references: any supported format in, validated records out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from ontrack.operators.allowance import compile_allowance
from ontrack.operators.redaction import Redaction
from ontrack.pipeline.reading.event_reader import AUTO, EventReader, OnBad, SourceEvent
from ontrack.pipeline.reading.plain_files import read_plain
from ontrack.pipeline.reading.sources import expand
from ontrack.topics.codecs import DEFAULT_LIMITS, Limits, decode_tasks, decode_tools
from ontrack.topics.errors import InvalidFile, InvalidInput, UnknownName
from ontrack.topics.events import Outcome, RunEnded, Step
from ontrack.topics.knowledge import Provenance, Reference, ReferenceStep, Task, ToolContract

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
OnSkipped = Callable[[str, str], None]

REFERENCE_STEPS_MAX: Final = 512


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

    Whether a run failed or holds errors is not looked at. Reference lines keep their provenance.

    Parameters
    ----------
    on_skipped : callable, optional
        Called with (run id, why) for a run that cannot be a reference: no steps, or too many.
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
    for run in _recordings(reader, redaction):
        if run.task_id is None:
            raise InvalidFile(
                run.path, run.line, f"run {run.run_id!r} has no task_id; a reference needs one"
            )
        references.extend(_as_reference(run, Provenance(provenance), on_skipped))
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
    return [
        reference
        for run in _recordings(read_events(paths, format, on_bad, limits, stdin), redaction)
        if run.outcome == "success" and run.task_id is not None
        for reference in _as_reference(run, Provenance.MINED, on_skipped)
    ]


class _Recording:
    """A run as far as it was read."""

    def __init__(self, found: SourceEvent) -> None:
        self.run_id, self.path, self.line = found.event.run_id, found.path, found.line
        self.task_id: str | None = None
        self.outcome: Outcome = "unknown"
        self.steps: list[Step] = []

    def in_order(self) -> list[Step]:
        """Return the steps by sequence number, each once; as read where one has no number."""
        if any(step.seq is None for step in self.steps):
            return self.steps
        by_seq: dict[int, Step] = {}
        for step in self.steps:
            by_seq.setdefault(step.seq or 0, step)
        return [by_seq[seq] for seq in sorted(by_seq)]


def _recordings(
    events: Iterable[SourceEvent], redaction: Redaction | None = None
) -> Iterator[_Recording]:
    """Yield runs as they end, then those without an end; what follows an end is left out."""
    running: dict[str, _Recording] = {}
    ended: set[str] = set()
    for found in events:
        event = found.event if redaction is None else redaction.event(found.event)
        if event.run_id in ended:
            continue
        run = running.setdefault(event.run_id, _Recording(found))
        run.task_id = run.task_id or event.task_id
        if isinstance(event, Step):
            run.steps.append(event)
        elif isinstance(event, RunEnded):
            run.outcome = event.outcome
            ended.add(event.run_id)
            yield running.pop(event.run_id)
    yield from running.values()


def _as_reference(
    run: _Recording, provenance: Provenance, on_skipped: OnSkipped | None
) -> list[Reference]:
    steps = tuple(ReferenceStep.of(step) for step in run.in_order())
    if not 1 <= len(steps) <= REFERENCE_STEPS_MAX:
        if on_skipped is not None:
            on_skipped(
                run.run_id,
                f"{len(steps)} steps; a reference has from 1 to {REFERENCE_STEPS_MAX}",
            )
        return []
    task_id = run.task_id or ""
    canonical = json.dumps(
        [task_id, run.run_id, [step.model_dump(mode="json") for step in steps]],
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    )
    return [
        Reference(
            reference_id=hashlib.sha256(canonical.encode()).hexdigest()[:16],
            task_id=task_id,
            provenance=provenance,
            run_id=run.run_id,
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
