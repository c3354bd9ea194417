"""Files of recorded runs as a stream of events, whatever format they are in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from ontrack.pipeline.reading import otlp_files
from ontrack.pipeline.reading.sources import LINE_BYTES_MAX, Source
from ontrack.topics.adapters import FOREIGN, FORMATS, PARTIAL, Adapter, Origin, Run
from ontrack.topics.adapters import events as native
from ontrack.topics.codecs import Limits, decode_event, decode_reference, encode
from ontrack.topics.errors import InvalidEvent, InvalidFile, UnknownName
from ontrack.topics.events import Event
from ontrack.topics.jsontext import Parsed, parse
from ontrack.topics.knowledge import Reference

OnBad = Callable[[str, int, bytes, InvalidEvent], None]
Line = tuple[int, bytes]

AUTO: Final = "auto"
REFERENCES: Final = "references"
_LOG = logging.getLogger(__name__)
_LINES_LOOKED_AT: Final = 100


class SourceEvent(NamedTuple):
    """An event and where it was read.

    Parameters
    ----------
    event : Event
        The event.
    raw : bytes
        The line; for a foreign format, the event as it would stand on the topic.
    flags : tuple of str
        Treatments, as in :class:`~ontrack.topics.codecs.Decoded`; a foreign record's treatments
        are on each of its events.
    path : str
        The file as named; ``-`` is stdin.
    line : int
        1-based; the position of the item where the file is one JSON array.
    """

    event: Event
    raw: bytes
    flags: tuple[str, ...]
    path: str
    line: int


@dataclass
class _Reading:
    """A file of runs that are spread over its records, while it is read.

    Parameters
    ----------
    source : Source
        The file.
    used : set of str
        Run ids given out for it.
    names : dict of str to str
        Run ids as recorded, and as given out.
    treated : dict of str to int
        The last record that needed a treatment, by flag.
    damaged : bool
        Whether a record was passed over as bad.
    """

    source: Source
    used: set[str]
    names: dict[str, str] = field(default_factory=dict)
    treated: dict[str, int] = field(default_factory=dict)
    damaged: bool = False


class EventReader(Iterator[SourceEvent]):
    """Events of several sources, read as they are asked for.

    Attributes
    ----------
    recognised : dict of str to str
        Path to format, filled as files are opened.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        format: str,
        on_bad: OnBad | None,
        limits: Limits,
        references: list[Reference] | None = None,
    ) -> None:
        if format not in (AUTO, *FORMATS):
            raise UnknownName(f"unknown format {format!r}; known are {AUTO}, {', '.join(FORMATS)}")
        self.recognised: dict[str, str] = {}
        self._format = format
        self._on_bad = on_bad
        self._limits = limits
        self._references = references
        self._run_ids: set[str] = set()
        self._events = chain.from_iterable(map(self._read, tuple(sources)))

    def __next__(self) -> SourceEvent:
        return next(self._events)

    def _read(self, source: Source) -> Iterator[SourceEvent]:
        head, lines = _sniffed(source, self._format)
        if self._format == AUTO:
            # Once a format aloud: a folder may hold thousands of files.
            level = logging.DEBUG if head in self.recognised.values() else logging.INFO
            _LOG.log(level, "%s: recognised the format %s", source.path, head)
        self.recognised[source.path] = head
        used: set[str] = set()
        if head == REFERENCES:
            yield from self._read_references(source, lines)
        elif head == native.NAME:
            yield from self._read_native(source, lines, used)
        else:
            adapter = next(adapter for adapter in FOREIGN if adapter.name == head)
            read = self._read_foreign if adapter.runs is None else self._read_runs
            yield from read(source, lines, adapter, used)
        self._run_ids |= used

    def _read_native(
        self, source: Source, lines: Iterator[Line], used: set[str]
    ) -> Iterator[SourceEvent]:
        for number, raw in lines:
            found = self._decoded(source, number, raw)
            if found is not None:
                used.add(found.event.run_id)
                yield found

    def _read_foreign(
        self, source: Source, lines: Iterator[Line], adapter: Adapter, used: set[str]
    ) -> Iterator[SourceEvent]:
        for number, raw in lines:
            try:
                record, flags = parse(raw)
                origin = _origin(source, number)
                events = list(adapter.events(record, origin))
            except InvalidEvent as error:
                raise InvalidFile(
                    source.path, number, f"no run of the format {adapter.name}: {error}"
                ) from error
            run_id = self._unused(events[0].run_id, source.stem, number, used)
            for event in events:
                renamed = event.model_copy(update={"run_id": run_id})
                found = self._decoded(source, number, encode(renamed))
                if found is not None:
                    yield found._replace(flags=tuple(sorted({*flags, *found.flags})))

    def _read_runs(
        self, source: Source, lines: Iterator[Line], adapter: Adapter, used: set[str]
    ) -> Iterator[SourceEvent]:
        """Read a format whose records are no runs; a bad record is treated as a bad event is."""
        assert adapter.runs is not None
        runs = adapter.runs()
        state = _Reading(source, used)
        for number, raw in lines:
            try:
                record, flags = _parsed(raw)
                state.treated.update(dict.fromkeys(flags, number))
                done = list(runs.add(record, _origin(source, number), number))
            except InvalidEvent as error:
                if self._on_bad is None:
                    raise InvalidFile(
                        source.path, number, f"no record of the format {adapter.name}: {error}"
                    ) from error
                self._on_bad(source.path, number, raw, error)
                state.damaged = True
                continue
            for run in done:
                yield from self._run(run, state, number)
        for run in runs.rest():
            yield from self._run(run, state, None)

    def _run(self, run: Run, state: _Reading, number: int | None) -> Iterator[SourceEvent]:
        """Yield a run's events under an id of its own, with the treatments of its records."""
        first, source = run.events[0], state.source
        run_id = self._unused(first.run_id, source.stem, run.place, state.used)
        state.names[first.run_id] = run_id
        flags = {*run.flags, *(flag for flag, at in state.treated.items() if at >= run.place)}
        if state.damaged and run.place != number:
            # Whose the bad record was is not known; a run that is one record has it not.
            flags.add(PARTIAL)
        for event in run.events:
            above = event.parent_run_id
            changes = {"run_id": run_id, "parent_run_id": state.names.get(above or "", above)}
            found = self._decoded(source, run.place, encode(event.model_copy(update=changes)))
            if found is not None:
                yield found._replace(flags=tuple(sorted({*flags, *found.flags})))

    def _decoded(self, source: Source, number: int, raw: bytes) -> SourceEvent | None:
        """Decode one event; a bad one is handed to ``on_bad``, or ends the reading."""
        try:
            event, flags = decode_event(raw, self._limits)
        except InvalidEvent as error:
            if self._on_bad is None:
                raise InvalidFile(source.path, number, str(error)) from error
            self._on_bad(source.path, number, raw, error)
            return None
        return SourceEvent(event, raw, flags, source.path, number)

    def _unused(self, run_id: str, stem: str, number: int, used: set[str]) -> str:
        """Return the run id, told apart from runs of the same id read before."""
        name, copy = run_id, 0
        while name in self._run_ids or name in used:
            name = f"{run_id}@{stem}" + ("" if copy == 0 else f":{number + copy - 1}")
            copy += 1
        used.add(name)
        return name

    def _read_references(self, source: Source, lines: Iterator[Line]) -> Iterator[SourceEvent]:
        if self._references is None:
            raise InvalidFile(source.path, 1, "holds references, not runs; pass it as references")
        for number, raw in lines:
            try:
                self._references.append(decode_reference(raw))
            except InvalidEvent as error:
                raise InvalidFile(source.path, number, str(error)) from error
        yield from ()


def _parsed(raw: bytes) -> Parsed:
    """Parse a record; one that is damaged OTLP in protobuf is named for what it is."""
    if otlp_files.is_damaged(raw):
        return Parsed(otlp_files.read_record(raw), ())
    return parse(raw)


def _origin(source: Source, number: int) -> Origin:
    stem = source.stem
    instance = None if stem == "stdin" else stem
    return Origin(stem if number == 1 else f"{stem}:{number}", instance)


def _sniffed(source: Source, format: str) -> tuple[str, Iterator[Line]]:
    """Find a file's format; return it with the file's records, each as one line of JSON."""
    lines: Iterator[Line] = ((number, raw) for number, raw in source.lines() if raw.strip())
    first = next(lines, None)
    if first is None:
        raise _no_runs(source, "the file is empty")
    lines = chain([first], lines)
    why = ""
    if _json(first[1]) is None:
        document, lines, why = _whole_document(lines)
        if document is not None:
            lines = iter([(1, document)])
    seen: list[Line] = []
    found = format if format != AUTO else None
    for line in islice(lines, _LINES_LOOKED_AT if found is None else 0):
        seen.append(line)
        found = _format_of(line)
        if found is not None:
            break
    if found is None:
        raise _no_runs(source, why)
    return found, chain.from_iterable(_unpacked(line, found) for line in chain(seen, lines))


def _whole_document(lines: Iterator[Line]) -> tuple[bytes | None, Iterator[Line], str]:
    """Try the whole file as one JSON text; return it, or what was read of it and why not."""
    held: list[Line] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line[1]) + 1
        if size > LINE_BYTES_MAX:
            return None, chain(held, lines), ""
    text = b"\n".join(raw for _, raw in held)
    try:
        parse(text)
    except InvalidEvent as error:
        return None, iter(held), str(error)
    return text, iter(()), ""


def _json(raw: bytes) -> Any:
    """Return a parsed object or array, or None: looking is no reason to fail."""
    try:
        value = parse(raw).value
    except InvalidEvent:
        return None
    return value if isinstance(value, dict | list) else None


def _format_of(line: Line) -> str | None:
    value = _json(line[1])
    heads = [value, *value[:1]] if isinstance(value, list) else [value]
    for head in heads:
        if isinstance(head, dict) and head.get("type") == "reference":
            return REFERENCES
        for adapter in FOREIGN:
            if adapter.recognise(head):
                return adapter.name
        if native.recognise(head):
            return native.NAME
    return None


def _unpacked(line: Line, format: str) -> Iterator[Line]:
    """Yield a line as it is, or the items of a JSON array of records as lines of their own."""
    number, raw = line
    value = _json(raw) if raw.lstrip()[:1] == b"[" else None
    recognise = next((a.recognise for a in FOREIGN if a.name == format), None)
    if not value or not isinstance(value, list) or (recognise is not None and recognise(value)):
        yield line
        return
    for index, item in enumerate(value):
        yield number + index, native.as_line(item)


def _no_runs(source: Source, why: str) -> InvalidFile:
    known = ", ".join(FORMATS)
    because = f" ({why})" if why else ""
    return InvalidFile(source.path, None, f"no runs recognised{because}; known formats are {known}")
