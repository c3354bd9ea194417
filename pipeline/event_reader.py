"""Files of recorded runs as a stream of events, whatever format they are in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from ontrack.pipeline.sources import LINE_BYTES_MAX, Source
from ontrack.topics.adapters import FOREIGN, FORMATS, Adapter, Origin
from ontrack.topics.adapters import events as native
from ontrack.topics.codecs import Limits, decode_event, decode_reference, encode
from ontrack.topics.errors import InvalidEvent, InvalidFile, UnknownName
from ontrack.topics.events import Event
from ontrack.topics.jsontext import parse
from ontrack.topics.knowledge import Reference

OnBad = Callable[[str, int, bytes, InvalidEvent], None]
Line = tuple[int, bytes]

AUTO: Final = "auto"
REFERENCES: Final = "references"
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
        self.recognised[source.path] = head
        used: set[str] = set()
        if head == REFERENCES:
            yield from self._read_references(source, lines)
        elif head == native.NAME:
            yield from self._read_native(source, lines, used)
        else:
            adapter = next(adapter for adapter in FOREIGN if adapter.name == head)
            yield from self._read_foreign(source, lines, adapter, used)
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
    seen = list(islice(lines, _LINES_LOOKED_AT))
    found = format if format != AUTO else _format_of(seen)
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


def _format_of(lines: list[Line]) -> str | None:
    for _, raw in lines:
        value = _json(raw)
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
