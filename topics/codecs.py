"""Bytes to records and back: the one door of everything that comes in and goes out as JSON.

An event is validated once, straight from its bytes. Whatever is wrong with it raises a subclass of
:class:`~ontrack.topics.errors.InvalidEvent` with a text for people; what can be repaired without
guessing is repaired and named in ``Decoded.flags``:

========================================== ============================= ==================
found                                      becomes                       flag
========================================== ============================= ==================
half a surrogate pair (any string)         U+FFFD                        ``lone_surrogates``
NaN, Infinity, 1e400 in args or result     null                          ``non_finite``
integer beyond 64 bits in args or result   its decimal digits as string  ``huge_number``
========================================== ============================= ==================

The digits of a huge integer are kept however many there are; the message limit bounds them.

Events and proposals may also come as CloudEvents in structured mode; see
:mod:`ontrack.topics.cloudevents`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError

from ontrack.topics.cloudevents import is_envelope, unwrapped
from ontrack.topics.errors import (
    InvalidEvent,
    InvalidSettings,
    MalformedMessage,
    MessageTooLarge,
    TooDeep,
    UnknownEventType,
    WrongShape,
)
from ontrack.topics.events import EVENT_TYPES, AnyEvent, Call, Event, Proposal
from ontrack.topics.fleet import FleetAggregate
from ontrack.topics.jsontext import (
    PARSER_DEPTH,
    deeper_than,
    described,
    is_plainly_fine,
    may_need_taming,
    mend,
    parse,
    parse_leniently,
    shown,
    tame,
    text_of,
    unwritable,
)
from ontrack.topics.knowledge import Reference, Switch, Task, ToolContract
from ontrack.topics.verdicts import Output

E = TypeVar("E")

_EVENT: TypeAdapter[Event] = TypeAdapter(AnyEvent)
_PROPOSAL: TypeAdapter[Proposal] = TypeAdapter(Proposal)
_OUTPUT: TypeAdapter[Output] = TypeAdapter(Annotated[Output, Field(discriminator="type")])
_FLEET = TypeAdapter(FleetAggregate)
_TOOL = TypeAdapter(ToolContract)
_TASK = TypeAdapter(Task)
_REFERENCE = TypeAdapter(Reference)
_SWITCH = TypeAdapter(Switch)

_FIELDS_NAMED_MAX: Final = 3
# Fields that hold what agents and tools say: error texts tell its kind, not what it is.
_PRIVATE: Final = frozenset(
    {"args", "result", "error", "action", "reason", "consumed", "produced", "call_id"}
    | {"steps", "references"}
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one message may hold.

    Parameters
    ----------
    message_bytes : int
        Bytes of the message value.
    depth : int
        Levels of objects and arrays in ``args`` and in ``result``; ``{}`` is one level.
    quote_values : bool
        Whether an error may quote values of arguments, results and texts; by default it tells
        their type and size.
    """

    message_bytes: int = 1_048_576
    depth: int = 64
    quote_values: bool = False

    def __post_init__(self) -> None:
        deepest = PARSER_DEPTH - 8
        if self.message_bytes < 1 or not 1 <= self.depth <= deepest:
            raise InvalidSettings(
                f"limits of {self.message_bytes} bytes and depth {self.depth}: expected at least "
                f"1 byte and a depth from 1 to {deepest}"
            )


DEFAULT_LIMITS: Final = Limits()


class Decoded(NamedTuple, Generic[E]):
    """A validated record and the treatments its bytes needed."""

    event: E
    flags: tuple[str, ...]


def decode_event(raw: bytes, limits: Limits = DEFAULT_LIMITS) -> Decoded[Event]:
    """Decode a value of the events topic, or one line of an event file.

    Raises
    ------
    MessageTooLarge, MalformedMessage, UnknownEventType, WrongShape, TooDeep
        All :class:`~ontrack.topics.errors.InvalidEvent`; nothing else is ever raised.
    """
    return _decode(_EVENT, EVENT_TYPES, raw, limits)


def decode_proposal(raw: bytes, limits: Limits = DEFAULT_LIMITS) -> Decoded[Proposal]:
    """Decode a proposed tool call; ``type`` may be left out. Errors as :func:`decode_event`."""
    return _decode(_PROPOSAL, ("proposal",), raw, limits)


def decode_output(raw: bytes) -> Output:
    """Decode a verdict, intervention, decision, scorecard or dead letter, for consumers.

    Raises
    ------
    MalformedMessage, UnknownEventType, WrongShape
        All :class:`~ontrack.topics.errors.InvalidEvent`.
    """
    known = ("verdict", "intervention", "decision", "scorecard", "dead_letter")
    try:
        return _OUTPUT.validate_json(raw)
    except ValidationError as error:
        raise _invalid(error, known) from None


def decode_fleet(raw: bytes) -> FleetAggregate:
    """Decode a value of the fleet topic, for consumers.

    Raises
    ------
    MalformedMessage, UnknownEventType, WrongShape
        All :class:`~ontrack.topics.errors.InvalidEvent`.
    """
    try:
        return _FLEET.validate_json(raw)
    except ValidationError as error:
        raise _invalid(error, ("fleet",)) from None


def encode(record: BaseModel) -> bytes:
    """Encode a record: compact JSON, fields in the model's order, null where nothing is known.

    Equal records give equal bytes. Numbers that are not finite become null; knowledge is written
    with the field names of MCP (``inputSchema``).

    A record that a program made may hold what JSON does not know. Half a surrogate pair becomes
    U+FFFD, an object of another type its text.

    Raises
    ------
    TooDeep
        More levels than can be written, or an object that holds itself.
    MalformedMessage
        An object of another type holds text that is no Unicode.
    """
    try:
        return record.__pydantic_serializer__.to_json(record, by_alias=True)
    except PydanticSerializationError:
        return _encode_leniently(record)


def _encode_leniently(record: BaseModel) -> bytes:
    try:
        mended = _mended(record)
        return mended.__pydantic_serializer__.to_json(mended, by_alias=True, fallback=text_of)
    except (PydanticSerializationError, RecursionError) as error:
        raise unwritable(error) from None


def _mended(record: BaseModel) -> BaseModel:
    """Return a record whose texts are UTF-8, however deep they are in it."""
    changes = {
        name: _mended(value) if isinstance(value, BaseModel) else mend(value, set())
        for name, value in record
    }
    return record.model_copy(update=changes)


def decode_tools(given: bytes | list[Any] | dict[str, Any]) -> tuple[ToolContract, ...]:
    """Decode tool contracts from JSON bytes or parsed data.

    Accepted are one tool, a list of tools, ``{tools: [...]}``, and what an MCP server answers to
    ``tools/list``: ``{result: {tools: [...]}}``, or a session's messages in a list (what is no such
    answer is passed over). A tool may also be an OpenAI function, ``{function: {...}}``.

    Raises
    ------
    MalformedMessage, WrongShape
        Naming the tool by its position; also where two tools of one name differ.
    """
    tools: dict[str, ToolContract] = {}
    for index, item in enumerate(_tool_items(_parsed(given))):
        tool = _record(_TOOL, _unwrapped_function(item), f"tools[{index}]")
        if tools.setdefault(tool.name, tool) != tool:
            raise WrongShape(
                f"tools[{index}]: {shown(tool.name)} is described twice, in two ways; "
                "keep one description a tool name"
            )
    return tuple(tools.values())


def decode_tasks(given: bytes | list[Any] | dict[str, Any]) -> tuple[Task, ...]:
    """Decode tasks from JSON bytes or parsed data: ``{tasks: [...]}``, a list, or one task.

    Raises
    ------
    MalformedMessage, WrongShape
        Naming the task by its position; also where an id is used twice.
    """
    tasks: dict[str, Task] = {}
    for index, item in enumerate(_items(_parsed(given), "tasks", single="id")):
        task = _record(_TASK, item, f"tasks[{index}]")
        if task.id in tasks:
            raise WrongShape(f"tasks[{index}]: the id {shown(task.id)} is used twice")
        tasks[task.id] = task
    return tuple(tasks.values())


def decode_reference(given: bytes | dict[str, Any]) -> Reference:
    """Decode one value of the references topic.

    Raises
    ------
    MalformedMessage, WrongShape
        Naming the field.
    """
    return _record(_REFERENCE, _parsed(given), "reference")


def decode_switch(raw: bytes) -> Switch:
    """Decode one value of the switches topic.

    Raises
    ------
    MalformedMessage, WrongShape
        Naming the field.
    """
    return _record(_SWITCH, _parsed(raw), "switch")


def event_type(record: BaseModel) -> str:
    """Return the CloudEvents type of a record: ``ontrack.event.step``, ``ontrack.verdict``."""
    kind = "contract" if isinstance(record, ToolContract) else getattr(record, "type", "record")
    group = "event." if isinstance(record, Event) else ""
    return f"ontrack.{group}{kind}"


def event_headers(
    *, event_id: str, source: str, event_type: str, time: datetime | str, subject: str | None = None
) -> list[tuple[str, bytes]]:
    """Build the headers of a CloudEvent in Kafka's binary mode.

    Source: CloudEvents 1.0, Kafka protocol binding, binary content mode.

    Parameters
    ----------
    event_id, source : str
        Together they name the message: the id is unique within the source.
    event_type : str
        As from :func:`event_type`.
    time : datetime or str
        Aware time, or RFC 3339 text.
    subject : str, optional
        What the event is about, for filters: the run id, or the key of what is no run's.
    """
    stamp = time if isinstance(time, str) else time.isoformat().replace("+00:00", "Z")
    headers = {
        "ce_specversion": "1.0",
        "ce_id": event_id,
        "ce_source": source,
        "ce_type": event_type,
        "ce_time": stamp,
        "content-type": "application/json",
    }
    if subject is not None:
        headers["ce_subject"] = subject
    return [(name, value.encode("utf-8", "replace")) for name, value in headers.items()]


def _decode(
    adapter: TypeAdapter[E], known: tuple[str, ...], raw: bytes, limits: Limits
) -> Decoded[E]:
    if len(raw) > limits.message_bytes:
        raise MessageTooLarge(
            f"{len(raw)} bytes, the limit is {limits.message_bytes}; "
            "shorten the result or raise the limit"
        )
    flags: tuple[str, ...] = ()
    is_wrapped = False
    try:
        record = adapter.validate_json(raw)
    except ValidationError as error:
        if not _is_syntax_error(error) and not _may_be_envelope(raw):
            raise _invalid(error, known, limits.quote_values) from None
        record, flags, is_wrapped = _decode_leniently(adapter, known, raw, limits.quote_values)
    if isinstance(record, Call) and not _is_plainly_fine(record):
        # One bracket is the event's own: with no more than this, nothing can be too deep.
        # The bytes tell nothing where an envelope holds them in base64.
        if is_wrapped or raw.count(b"{") + raw.count(b"[") > limits.depth + 1:
            _check_depth(record, limits.depth)
        if is_wrapped or may_need_taming(raw):
            record, flags = _tamed(record, flags)
    return Decoded(record, flags)


def _is_plainly_fine(call: Call) -> bool:
    return is_plainly_fine(call.args) and is_plainly_fine(getattr(call, "result", None))


def _may_be_envelope(raw: bytes) -> bool:
    return b'"specversion"' in raw


def _decode_leniently(
    adapter: TypeAdapter[E], known: tuple[str, ...], raw: bytes, quote: bool
) -> tuple[E, tuple[str, ...], bool]:
    """Return the record, the treatments it needed, and whether it came in an envelope."""
    value, flags = parse_leniently(raw, quote)
    is_wrapped = is_envelope(value)
    if is_wrapped:
        value, more = unwrapped(value, quote)
        flags = tuple(sorted({*flags, *more}))
    try:
        return adapter.validate_python(value), flags, is_wrapped
    except ValidationError as error:
        raise _invalid(error, known, quote) from None


def _check_depth(call: Call, limit: int) -> None:
    for name in ("args", "result"):
        if deeper_than(getattr(call, name, None), limit):
            raise TooDeep(
                f"`{name}` is nested deeper than {limit} levels; flatten it or send it as a string"
            )


def _tamed(call: Any, flags: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
    found = set(flags)
    changes = {
        name: tame(getattr(call, name), found) for name in ("args", "result") if hasattr(call, name)
    }
    if found == set(flags):
        return call, flags
    return call.model_copy(update=changes), tuple(sorted(found))


def _is_syntax_error(error: ValidationError) -> bool:
    details = error.errors(include_url=False, include_input=False)
    if details[0]["type"] != "json_invalid":
        return False
    if "recursion limit" in details[0]["msg"]:
        raise TooDeep(
            f"nested deeper than {PARSER_DEPTH} levels; flatten it or send it as a string"
        ) from None
    return True


def _invalid(error: ValidationError, known: tuple[str, ...], quote: bool = False) -> InvalidEvent:
    details = error.errors(include_url=False)
    first = details[0]
    if first["type"] == "json_invalid":
        return MalformedMessage(f"not JSON: {first['msg'].removeprefix('Invalid JSON: ')}")
    if first["type"] == "union_tag_not_found":
        return UnknownEventType(f"no field `type`; expected {_one_of(known)}")
    if first["type"] == "union_tag_invalid" or _leaf(first) == ("type",):
        found = first["input"]
        found = found.get("type") if isinstance(found, dict) else found
        return UnknownEventType(f"unknown type {shown(found)}; expected {_one_of(known)}")
    return WrongShape(explain(details, tagged=len(known) > 1, quote=quote))


def explain(details: Iterable[ErrorDetails], *, tagged: bool = False, quote: bool = False) -> str:
    """Turn pydantic's findings into a sentence: which field, what was found, what was expected.

    Parameters
    ----------
    details : iterable of ErrorDetails
        From ``ValidationError.errors()``.
    tagged : bool
        Whether paths begin with the tag of a discriminated union, which is left out.
    quote : bool
        Whether what was found may be quoted where it is an argument, a result or a text.
    """
    texts = [_one_finding(detail, tagged, quote) for detail in details]
    more = len(texts) - _FIELDS_NAMED_MAX
    return "; ".join(texts[:_FIELDS_NAMED_MAX]) + (f"; and {more} more" if more > 0 else "")


def _one_finding(detail: ErrorDetails, tagged: bool, quote: bool) -> str:
    path = detail["loc"][1:] if tagged else detail["loc"]
    is_plain = bool(path) and _PRIVATE.isdisjoint(path)
    input_shown = (shown if quote or is_plain else described)(detail["input"])
    where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".")[:80]
    message = detail["msg"].removeprefix("Value error, ")[:200]
    if detail["type"] == "missing":
        return f"field `{where}` is missing"
    if not where:
        found = "" if detail["type"] == "value_error" else f", found {input_shown}"
        return message.replace("Input should be", "expected", 1) + found
    for subject in ("Input", "String", "Value"):
        message = message.removeprefix(f"{subject} ")
    return f"field `{where}` {message}, found {input_shown}"


def _one_of(names: tuple[str, ...]) -> str:
    return ("one of " if len(names) > 1 else "") + ", ".join(names)


def _leaf(detail: ErrorDetails) -> tuple[int | str, ...]:
    return detail["loc"][-1:]


def _parsed(given: object) -> object:
    return parse(given).value if isinstance(given, bytes) else given


def _record(adapter: TypeAdapter[E], item: object, where: str) -> E:
    try:
        return adapter.validate_python(item)
    except ValidationError as error:
        raise WrongShape(f"{where}: {explain(error.errors(include_url=False))}") from None


def _items(value: object, field: str, single: str) -> list[object]:
    if isinstance(value, dict):
        if single in value:
            return [value]
        value = value.get(field, value)
    if not isinstance(value, list):
        raise WrongShape(f"expected {{{field}: [...]}} or a list, found {described(value)}")
    return value


def _tool_items(value: object) -> list[object]:
    if isinstance(value, dict) and isinstance(value.get("result"), dict):
        value = value["result"]
    if isinstance(value, list) and any(_is_answer(item) for item in value):
        answers = [item["result"]["tools"] for item in value if _is_answer(item)]
        return [tool for tools in answers for tool in tools]
    single = "function" if isinstance(value, dict) and "function" in value else "name"
    return _items(value, "tools", single)


def _is_answer(item: object) -> bool:
    result = item.get("result") if isinstance(item, dict) else None
    return isinstance(result, dict) and isinstance(result.get("tools"), list)


def _unwrapped_function(item: object) -> object:
    if not (isinstance(item, dict) and isinstance(item.get("function"), dict)):
        return item
    function = item["function"]
    own = {name: value for name, value in item.items() if name not in ("type", "function")}
    return {"inputSchema": function.get("parameters"), **function, **own}
