"""Messages: how what we put on topics looks, and what an output says of where it came from."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from aiokafka import ConsumerRecord
from pydantic import BaseModel

from ontrack.pipeline.folding.quarantine import KEY_BYTES_MAX
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.gating.answers import DecidedBy
from ontrack.pipeline.gating.wire import DECIDED_BY_HEADER
from ontrack.topics import codecs
from ontrack.topics.catalog import Catalogue
from ontrack.topics.events import Event
from ontrack.topics.knowledge import Switch
from ontrack.topics.verdicts import (
    DeadLetter,
    Decision,
    Intervention,
    Output,
    Scorecard,
    Verdict,
)

Header = tuple[str, bytes]

SOURCE_HEADER = "ontrack_source"
ANSWERED_HEADER = "ontrack_answered"
MORE_HEADER = "ontrack_more"


@dataclass(frozen=True, slots=True)
class Message:
    """One message ready to send; without a partition the key decides, as for any producer."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: list[Header]


class Told(NamedTuple):
    """Up to where an output topic has been told what a source topic gave.

    Parameters
    ----------
    offset
        In the source topic.
    number
        Of the last output of that offset on this topic, from 0, where more were to follow.
    """

    offset: int = -1
    number: int = sys.maxsize


class Sent(NamedTuple):
    """An output as a message; ``told`` is what its topic has been told with it."""

    message: Message
    output: Output
    told: Told


def topic_of(topics: Catalogue, output: Output) -> str:
    """Return the name of the topic that carries an output."""
    by_type = {
        Verdict: topics.verdicts,
        Intervention: topics.interventions,
        Decision: topics.decisions,
        Scorecard: topics.scorecards,
        DeadLetter: topics.dead_letters,
    }
    return by_type[type(output)].name


def cloud_headers(
    record: BaseModel,
    event_id: str,
    source: str,
    subject: str | None,
    time: datetime | None = None,
) -> list[Header]:
    """Return the headers that make a message a CloudEvent.

    Parameters
    ----------
    event_id, source
        Together they name the message: the id is unique within the source.
    subject
        The run id, or the key of what is no run's.
    time
        When it happened; None: now. Times of processing travel here, never in the body.
    """
    return codecs.event_headers(
        event_id=event_id,
        source=source,
        event_type=codecs.event_type(record),
        time=time or datetime.now(UTC),
        subject=subject,
    )


def messages_of(topics: Catalogue, source: Record, outputs: Sequence[Output]) -> list[Sent]:
    """Address what one record gave: the partition of the record, headers that say where from.

    Of several messages to one topic all but the last are numbered: a successor that finds one of
    these says the rest.
    """
    names = [topic_of(topics, output) for output in outputs]
    sent = []
    for place, (output, name) in enumerate(zip(outputs, names, strict=True)):
        more = name in names[place + 1 :]
        number = names[:place].count(name) if more else sys.maxsize
        if isinstance(output, DeadLetter):
            message = letter_message(topics, output, source.key, source.partition)
        else:
            headers = cloud_headers(output, output.id, "ontrack", output.run_id)
            key = output.run_id.encode()
            message = Message(name, source.partition, key, codecs.encode(output), headers)
        message.headers.append(_place(SOURCE_HEADER, source.topic, source.partition, source.offset))
        if more:
            message.headers.append((MORE_HEADER, str(number).encode()))
        sent.append(Sent(message, output, Told(source.offset, number)))
    return sent


def letter_message(
    topics: Catalogue, letter: DeadLetter, key: bytes | None, partition: int | None = None
) -> Message:
    """Address a dead letter, under the key of what it quarantines."""
    headers = cloud_headers(letter, letter.id, "ontrack", None)
    key = key if key is None else key[:KEY_BYTES_MAX]
    return Message(topics.dead_letters.name, partition, key, codecs.encode(letter), headers)


def decision_message(
    topics: Catalogue,
    partition: int | None,
    decision: Decision,
    by: DecidedBy,
    answered: int | None = None,
    source: str = "ontrack/gate",
) -> Message:
    """Address a decision that answers no message.

    Parameters
    ----------
    by
        Who has decided; it stands in a header.
    answered
        Offset of the last proposal on the topic whose answer is safe: the next owner reads from
        the last decisions where it stands, and these may all be answers over HTTP. None where the
        sender does not own the partition.
    """
    headers = cloud_headers(decision, decision.id, source, decision.run_id)
    headers.append((DECIDED_BY_HEADER, by.encode()))
    if answered is not None:
        assert partition is not None, "who knows what was answered owns the partition"
        headers.append(_place(ANSWERED_HEADER, topics.proposals.name, partition, answered))
    key, value = decision.run_id.encode(), codecs.encode(decision)
    return Message(topics.decisions.name, partition, key, value, headers)


def event_message(
    topics: Catalogue,
    event: Event,
    event_id: str,
    partition: int | None = None,
    source: str = "ontrack",
    value: bytes | None = None,
) -> Message:
    """Address an event, as any producer of its run would.

    Parameters
    ----------
    value
        Its bytes where they exist already; None: they are made.
    """
    headers = cloud_headers(event, event_id, source, event.run_id, event.time)
    value = codecs.encode(event) if value is None else value
    return Message(topics.events.name, partition, event.run_id.encode(), value, headers)


def switch_message(topics: Catalogue, key: str, switch: Switch | None) -> Message:
    """Address a switch; None takes back what stands under the key."""
    now = datetime.now(UTC)
    headers = codecs.event_headers(
        event_id=f"{key}:{now.isoformat()}",
        source="ontrack/shadow",
        event_type="ontrack.switch",  # said of an empty value, too
        time=now,
        subject=key,
    )
    value = None if switch is None else codecs.encode(switch)
    return Message(topics.switches.name, None, key.encode(), value, headers)


def snapshot_message(
    topics: Catalogue, source: str, partition: int, key: bytes, value: bytes | None, offset: int
) -> Message:
    """Address an entry of a checkpoint; its header says up to which event it knows."""
    headers = [_place(SOURCE_HEADER, source, partition, offset)]
    return Message(topics.snapshots.name, partition, key, value, headers)


def source_offset(message: ConsumerRecord, topic: str) -> int:
    """Return the offset of what an output came from; -1 where it came from another topic.

    Dead letters come from events and from proposals, whose offsets have nothing to do with each
    other.
    """
    found = _offset(dict(message.headers or ()), SOURCE_HEADER, topic)
    return -1 if found is None else found


def told_by(message: ConsumerRecord, topic: str) -> Told | None:
    """Return up to which place of a source topic an output says that all has been told.

    Either it came from that offset, or (a gate's answer over HTTP, which comes from no message) it
    names the last one answered before it. None where it says nothing about the topic.
    """
    headers = dict(message.headers or ())
    number = int(headers.get(MORE_HEADER) or sys.maxsize)
    offsets = (_offset(headers, name, topic) for name in (SOURCE_HEADER, ANSWERED_HEADER))
    found = [Told(offset, number) for offset in offsets if offset is not None]
    return max(found, default=None)


def _place(name: str, topic: str, partition: int, offset: int) -> Header:
    return name, f"{topic}:{partition}:{offset}".encode()


def _offset(headers: dict[str, bytes | None], name: str, topic: str) -> int | None:
    """Read a place again; None where there is none, or it is of another topic."""
    place = headers.get(name)
    if not place:
        return None
    source, _, offset = place.decode("utf-8", "replace").rsplit(":", 2)
    return int(offset) if source == topic else None
