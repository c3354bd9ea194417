"""CloudEvents in structured mode: read like the record alone, or refused with a reason."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cloudevents.core.bindings.kafka import to_structured_event
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given

from ontrack.topics.codecs import (
    Limits,
    decode_event,
    decode_proposal,
    encode,
    event_type,
)
from ontrack.topics.errors import (
    InvalidEvent,
    MalformedMessage,
    MessageTooLarge,
    TooDeep,
    UnknownEventType,
    WrongShape,
)
from ontrack.topics.events import Event, Proposal, RunEnded, RunStarted, Step
from tests.strategies import steps

STEP = {"run_id": "r", "type": "step", "tool": "search", "args": {"q": [1, None]}}
PROPOSAL = {"run_id": "r", "tool": "pay", "args": {"order": "a-1"}}


def envelope(data: Any = STEP, **more: Any) -> bytes:
    attributes = {"specversion": "1.0", "id": "1", "source": "/agents/a", "type": "acme.thing"}
    return json.dumps({**attributes, "data": data, **more}).encode()


def in_structured_mode(record: Event | Proposal) -> bytes:
    """As the public SDK writes it."""
    event = CloudEvent(
        {"type": event_type(record), "source": "/agents/a", "datacontenttype": "application/json"},
        json.loads(encode(record)),
    )
    return bytes(to_structured_event(event).value)


@pytest.mark.parametrize(
    "record",
    [RunStarted(run_id="r"), Step(run_id="r", tool="t", args={"a": 1}), RunEnded(run_id="r")],
)
def test_an_event_as_the_public_sdk_writes_it_is_read(record: Event) -> None:
    assert decode_event(in_structured_mode(record)) == (record, ())


def test_a_proposal_as_the_public_sdk_writes_it_is_read() -> None:
    record = Proposal(run_id="r", tool="t", args={"a": 1})
    assert decode_proposal(in_structured_mode(record)) == (record, ())


@given(steps())
def test_every_step_is_read_as_if_it_came_alone(record: Step) -> None:
    assert decode_event(in_structured_mode(record)) == decode_event(encode(record))


def test_the_envelope_says_the_type_where_the_record_does_not() -> None:
    data = {name: value for name, value in STEP.items() if name != "type"}
    read = decode_event(envelope(data, type="ontrack.event.step")).event
    assert isinstance(read, Step)
    with pytest.raises(UnknownEventType, match="lunch"):
        decode_event(envelope(data, type="acme.lunch"))
    assert decode_proposal(envelope(PROPOSAL, type="ontrack.proposal")).event.tool == "pay"


def test_data_may_be_base64() -> None:
    text = json.dumps(STEP).encode()
    raw = envelope(None, data_base64=base64.b64encode(text).decode())
    assert decode_event(raw) == decode_event(text)


def test_a_run_may_carry_a_field_called_specversion() -> None:
    assert decode_event(json.dumps({**STEP, "specversion": "1.0"}).encode()).event.run_id == "r"
    with pytest.raises(WrongShape, match="`tool` is missing"):
        decode_event(b'{"type":"step","run_id":"r","args":{"specversion":"1.0"}}')


@pytest.mark.parametrize(
    ("raw", "error", "text"),
    [
        (envelope(specversion="0.3"), WrongShape, "specversion.*0.3.*expected '1.0'"),
        (envelope(None), WrongShape, "JSON object in `data`, found null"),
        (envelope("secret"), WrongShape, "found a text of 6 characters"),
        (envelope(datacontenttype="application/avro"), WrongShape, "datacontenttype"),
        (envelope(datacontenttype=7), WrongShape, "datacontenttype"),
        (envelope(None, data_base64="?"), WrongShape, "should be base64"),
        (envelope(None, data_base64=5), WrongShape, "should be base64"),
        (envelope(None, data_base64="YQ=="), MalformedMessage, "not JSON"),
        (envelope({"type": "step", "run_id": "r"}), WrongShape, "`tool` is missing"),
        (envelope({**STEP, "type": "lunch"}), UnknownEventType, "lunch"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(
    raw: bytes, error: type[InvalidEvent], text: str
) -> None:
    with pytest.raises(error, match=text):
        decode_event(raw)


def test_the_limits_hold_inside_an_envelope() -> None:
    deep: Any = "x"
    for _ in range(70):
        deep = [deep]
    data = {**STEP, "args": {"a": deep}}
    hidden = base64.b64encode(json.dumps(data).encode()).decode()
    for raw in (envelope(data), envelope(None, data_base64=hidden)):
        with pytest.raises(TooDeep):
            decode_event(raw)
    with pytest.raises(MessageTooLarge):
        decode_event(envelope(), Limits(message_bytes=50))


@pytest.mark.parametrize("media", [None, "application/json", "application/x+JSON; charset=utf-8"])
def test_numbers_that_json_lacks_are_treated_inside_an_envelope(media: str | None) -> None:
    text = b'{"run_id":"r","type":"step","tool":"t","args":{"n":NaN,"h":123456789012345678901234}}'
    hidden = base64.b64encode(text).decode()
    plain = envelope(datacontenttype=media).replace(json.dumps(STEP).encode(), text)
    for raw in (plain, envelope(None, data_base64=hidden)):
        read = decode_event(raw)
        assert isinstance(read.event, Step)
        assert read.event.args == {"n": None, "h": "123456789012345678901234"}
        assert read.flags == ("huge_number", "non_finite")
