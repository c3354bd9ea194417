"""How our messages look: what others have built on must stay as it is, byte by byte."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.kafka.messages import (
    Message,
    decision_message,
    event_message,
    letter_message,
    messages_of,
    snapshot_message,
    source_offset,
    switch_message,
    told_by,
)
from ontrack.topics import codecs
from ontrack.topics.catalog import catalogue
from ontrack.topics.events import GapClosed, Step
from ontrack.topics.knowledge import Switch
from tests.pipeline.dashboard.said import dead_letter, decision, verdict

TOPICS = catalogue()
SOURCE = Record(b"{}", b"k", "ontrack.events", 2, 41)


def cloud(event_id: str, source: str, kind: str, subject: str | None) -> list[tuple[str, bytes]]:
    """Return the headers that every message of ours begins with, but for the time."""
    told = [
        ("ce_specversion", b"1.0"),
        ("ce_id", event_id.encode()),
        ("ce_source", source.encode()),
        ("ce_type", kind.encode()),
        ("content-type", b"application/json"),
    ]
    return told if subject is None else [*told, ("ce_subject", subject.encode())]


def timeless(message: Message) -> list[tuple[str, bytes]]:
    return [(name, value) for name, value in message.headers if name != "ce_time"]


def test_of_two_outputs_for_one_topic_the_first_says_that_more_follows() -> None:
    first, last = (
        sent.message for sent in messages_of(TOPICS, SOURCE, [verdict("r", 0), verdict("r", 1)])
    )
    place = ("ontrack_source", b"ontrack.events:2:41")
    assert timeless(first) == [
        *cloud("r:0", "ontrack", "ontrack.verdict", "r"),
        place,
        ("ontrack_more", b"0"),
    ]
    assert timeless(last) == [*cloud("r:1", "ontrack", "ontrack.verdict", "r"), place]


def test_a_dead_letter_has_no_subject() -> None:
    message = letter_message(TOPICS, dead_letter(7), b"k" * 70_000)
    assert timeless(message) == cloud("events:0:7", "ontrack", "ontrack.dead_letter", None)
    assert message.key == b"k" * 65_536


@pytest.mark.parametrize("answered", [None, 5])
def test_a_decision_says_who_decided_and_what_was_answered(answered: int | None) -> None:
    message = decision_message(TOPICS, 3, decision("r", 1), "monitor", answered)
    headers = [
        *cloud("r:1:block", "ontrack/gate", "ontrack.decision", "r"),
        ("ontrack_decided_by", b"monitor"),
    ]
    if answered is not None:
        headers.append(("ontrack_answered", b"ontrack.proposals:3:5"))
    assert (message.topic, message.partition, timeless(message)) == (
        "ontrack.decisions",
        3,
        headers,
    )


def test_an_event_has_the_time_that_it_names_and_the_bytes_that_it_came_in() -> None:
    then = datetime(2026, 1, 1, tzinfo=UTC)
    step = Step(run_id="r", seq=4, tool="t", time=then)
    message = event_message(TOPICS, step, "id", source="ontrack/send", value=b'{"as": "read"}')
    assert timeless(message) == cloud("id", "ontrack/send", "ontrack.event.step", "r")
    assert dict(message.headers)["ce_time"] == b"2026-01-01T00:00:00Z"
    assert (message.key, message.value, message.partition) == (b"r", b'{"as": "read"}', None)
    notice = GapClosed(run_id="r", seq=3)
    assert event_message(TOPICS, notice, "id", 4).value == codecs.encode(notice)


def test_a_switch_that_is_taken_back_has_headers_and_no_value() -> None:
    on, off = (switch_message(TOPICS, "all", one) for one in (Switch(scope="all"), None))
    assert (on.key, on.value) == (b"all", codecs.encode(Switch(scope="all")))
    assert off.value is None
    assert dict(off.headers)["ce_type"] == b"ontrack.switch"


class Stored:
    def __init__(self, message: Message) -> None:
        self.headers = tuple(message.headers)


@given(st.integers(0, 2**40), st.integers(0, 999), st.sampled_from(["ontrack.events", "a:b"]))
def test_where_an_output_came_from_is_read_back(offset: int, partition: int, topic: str) -> None:
    source = Record(b"{}", b"k", topic, partition, offset)
    (sent,) = messages_of(TOPICS, source, [verdict("r", 0)])
    stored = Stored(sent.message)
    assert source_offset(stored, topic) == offset
    assert told_by(stored, topic) == sent.told
    assert source_offset(stored, "other") == -1
    assert told_by(stored, "other") is None
    entry = Stored(snapshot_message(TOPICS, topic, partition, b"k", None, offset))
    assert source_offset(entry, topic) == offset
