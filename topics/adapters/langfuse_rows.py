"""Langfuse's rows: an observation a record, as its storage exports, tables and API write them.

``observations_v2/`` of the export to blob storage tells of the trace in each row; the older pair
``traces/`` and ``observations/`` keeps them apart, and ``scores/`` are beside both. Names are
``snake_case`` there, ``camelCase`` in the page's tables and in the API's ``{data: [row…]}``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from ontrack.topics.adapters.langfuse_observations import kind_of, value_of
from ontrack.topics.adapters.parts import dig, id_of, list_of
from ontrack.topics.adapters.traces import HELD_BYTES_MAX, SPAN_BYTES, bytes_of
from ontrack.topics.errors import WrongShape
from ontrack.topics.jsontext import described

_CAMEL: Final = {
    "trace_id": "traceId",
    "trace_name": "traceName",
    "parent_observation_id": "parentObservationId",
    "start_time": "startTime",
    "end_time": "endTime",
    "status_message": "statusMessage",
    "usage_details": "usageDetails",
    "cost_details": "costDetails",
    "total_cost": "totalCost",
    "tool_calls": "toolCalls",
    "tool_call_names": "toolCallNames",
}
#: By which rows of traces and of scores are known; they hold no calls.
_TRACE_ROW: Final = frozenset({"id", "timestamp", "project_id", "session_id", "tags"})
_SCORE_ROW: Final = frozenset({"id", "timestamp", "project_id", "trace_id", "name", "value"})
#: What is kept of a row; definitions of tools, for one, are large and stand in each.
_KEPT: Final = frozenset(
    {"id", "type", "name", "level", "metadata", "input", "output", "version", "release"}
    | set(_CAMEL.values())
)
_STATED: Final = ("id", "name", "timestamp", "version", "release")


class Group(NamedTuple):
    """The observations of one trace.

    Parameters
    ----------
    trace : dict
        Its fields, as far as they are known.
    observations : list of dict
        As a trace's own export holds them.
    place : int
        The number of the first record.
    flags : tuple of str
        What its records needed.
    missing : str or None
        What the file lacks of it.
    """

    trace: dict[str, Any]
    observations: list[dict[str, Any]]
    place: int
    flags: tuple[str, ...]
    missing: str | None


def is_row(value: object) -> bool:
    """Tell whether a record is a row of observations, traces or scores, or a page of rows."""
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        return bool(value["data"]) and _is_observation(value["data"][0])
    return _is_observation(value) or _is_other(value)


class Rows:
    """Rows of traces that may still go on: nothing says that the last one has come.

    Parameters
    ----------
    check : callable
        Raises WrongShape for a group that cannot be a run; asked of each row by itself, so that
        what is wrong is told of the record that holds it.
    """

    def __init__(self, check: Callable[[Group], object]) -> None:
        self._check = check
        self._traces: dict[str, _Trace] = {}
        self._given: set[str] = set()
        self._held = 0

    def add(self, record: object, place: int, flags: tuple[str, ...]) -> Iterator[Group]:
        """Take a record; yield what has to be given up because too much is held.

        Raises
        ------
        WrongShape
            It is no row, or a page that holds something else. Nothing of it was taken.
        """
        page = list_of(record["data"]) if isinstance(record, dict) and "data" in record else None
        rows = [_named(row, n) for n, row in enumerate([record] if page is None else page)]
        for row in rows:
            held = [_completed(row)] if _is_observation(row) else []
            self._check(Group(_told([row]), held, place, flags, None))
        for row in rows:
            self._take(row, place, flags)
        while self._held > HELD_BYTES_MAX and self._traces:
            yield from self._give(next(iter(self._traces)))

    def rest(self) -> Iterator[Group]:
        """Yield the traces, in the order in which they were heard of last."""
        while self._traces:
            yield from self._give(next(iter(self._traces)))

    def _take(self, row: dict[str, Any], place: int, flags: tuple[str, ...]) -> None:
        if not _is_observation(row) and "value" in row:
            return  # a score
        trace_id = _told([row])["id"]
        trace = self._traces.pop(trace_id, _Trace(place))
        # Last in the order of the dictionary is what was heard of last.
        self._traces[trace_id] = trace
        self._held += trace.add(row) if _is_observation(row) else trace.state(row)
        trace.flags.update(flags)

    def _give(self, trace_id: str) -> Iterator[Group]:
        trace = self._traces.pop(trace_id)
        self._held -= trace.size
        if not trace.rows:
            return  # what tells of it only; the observations stand in another file
        missing = trace.missing
        if trace_id in self._given:
            missing = "an earlier part was handed out before"
        self._given.add(trace_id)
        rows = list(trace.rows.values())
        told = _told([*([trace.stated] if trace.stated else []), *rows])
        yield Group(told, rows, trace.place, tuple(sorted(trace.flags)), missing)


class _Trace:
    """What came of one trace."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.stated: dict[str, Any] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        self.flags: set[str] = set()
        self.size = 0

    def state(self, row: dict[str, Any]) -> int:
        """Take the trace's own row; its input and output are those of an observation."""
        change = 0 if self.stated else SPAN_BYTES
        self.stated = {name: row.get(name) for name in _STATED}
        self.size += change
        return change

    def add(self, row: dict[str, Any]) -> int:
        """Take an observation; return how many bytes more are held."""
        row = _completed(row)
        own = id_of(row["id"]) or ""
        before = self.rows.get(own)
        if before is not None and not row.get("endTime"):
            return 0  # windows of exports overlap; what has ended says more
        change = _size(row) - (_size(before) if before is not None else 0)
        self.rows[own] = row
        self.size += change
        return change

    @property
    def missing(self) -> str | None:
        above = (id_of(row.get("parentObservationId")) for row in self.rows.values())
        if any(parent is not None and parent not in self.rows for parent in above):
            return "observations above others are missing"
        return None


def _is_observation(value: object) -> bool:
    return (
        isinstance(value, dict)
        and kind_of(value) is not None
        and id_of(value.get("id")) is not None
        and id_of(value.get("trace_id", value.get("traceId"))) is not None
        and ("start_time" in value or "startTime" in value)
    )


def _is_other(value: object) -> bool:
    if not isinstance(value, dict) or id_of(value.get("id")) is None:
        return False
    return value.keys() >= _TRACE_ROW or value.keys() >= _SCORE_ROW


def _named(row: Any, position: int) -> dict[str, Any]:
    """Return a row under the names that the API uses."""
    if not _is_observation(row) and not _is_other(row):
        raise WrongShape(
            f"row {position}: expected an observation with `id`, `trace_id`, `type` and "
            f"`start_time`, or a trace or a score, found {described(row)}"
        )
    return {_CAMEL.get(name, name): value for name, value in row.items()}


def _told(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what rows of one trace tell of it; its own row, if there is one, is the first."""
    first = rows[0]
    of_trace = not _is_observation(first) and "value" not in first
    names = [first.get("name")] if of_trace else []
    names += [row.get("traceName") for row in rows]
    return {
        "id": id_of(first["id"] if of_trace else first.get("traceId")) or "-",
        "name": next(filter(None, map(id_of, names)), None),
        "timestamp": first.get("timestamp") if of_trace else None,
        "version": id_of(first.get("version")) if of_trace else None,
        "release": id_of(first.get("release")) or None,
    }


def _completed(row: dict[str, Any]) -> dict[str, Any]:
    """Return an observation as a trace's export has it: empty texts stand for nothing there."""
    row = {
        name: None if value == "" and name in ("input", "output") else value
        for name, value in row.items()
        if name in _KEPT
    }
    metadata = value_of(row.get("metadata"))
    attributes = value_of(dig(metadata, "attributes"))
    if isinstance(metadata, dict) and not isinstance(attributes, dict):
        # The newer table keeps metadata flat, by paths.
        prefix = "attributes."
        attributes = {
            name.removeprefix(prefix): value
            for name, value in metadata.items()
            if name.startswith(prefix)
        }
    row["metadata"] = {"attributes": attributes if isinstance(attributes, dict) else {}}
    if row.get("totalCost") is None:
        row["totalCost"] = dig(row.get("costDetails"), "total")
    if row.get("output") is None and row["type"] == "GENERATION":
        row["output"] = {"tool_calls": _calls(row)} if row.get("toolCalls") else None
    return row


def _calls(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the calls that are told of beside an output that was not exported."""
    names = list_of(row.get("toolCallNames"))
    calls = [value_of(call) for call in list_of(row.get("toolCalls"))]
    return [
        {
            "id": call.get("id"),
            "function": {
                "name": call.get("name") or (names[number] if number < len(names) else None),
                "arguments": call.get("arguments"),
            },
        }
        for number, call in enumerate(calls)
        if isinstance(call, dict)
    ]


def _size(row: dict[str, Any]) -> int:
    return SPAN_BYTES + bytes_of(row.get("input"), row.get("output"), row["metadata"])
