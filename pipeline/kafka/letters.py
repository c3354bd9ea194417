"""Dead letters: find them on their topic, send their originals again."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from ontrack.pipeline.folding.quarantine import CUT_HEADER
from ontrack.pipeline.kafka.connection import start_producer, topics_of
from ontrack.pipeline.kafka.history import Where, opened
from ontrack.pipeline.kafka.provision import partition_counts
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.errors import AlertUndelivered, InvalidEvent
from ontrack.topics.verdicts import DeadLetter

REPLAYED_HEADER = "ontrack_replayed_from"
IN_FLIGHT_MAX = 500

State = Literal["sent", "would_be_sent", "refused"]
Report = Callable[[DeadLetter, State, str | None], None]


@dataclass(frozen=True, slots=True)
class Found:
    """A dead letter as it stands on its topic."""

    letter: DeadLetter
    value: bytes
    time_ms: int


@dataclass(slots=True)
class Search:
    """Which dead letters are wanted; counts what was passed over.

    Parameters
    ----------
    errors, ids
        Error classes, ids of letters; empty: any.
    since_ms
        Quarantined at this time or later, in milliseconds since 1970.
    foreign
        Messages met that are no dead letters.
    seen
        Ids of the letters found.
    """

    errors: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()
    since_ms: int | None = None
    foreign: int = 0
    seen: set[str] = field(default_factory=set)

    async def letters(self, settings: Settings) -> AsyncIterator[Found]:
        """Yield each letter once, oldest first, to what is the end of the topic now."""
        async with opened(settings, topics_of(settings).dead_letters.name) as history:
            spans = await history.spans(Where(from_ms=self.since_ms))
            async for messages in history.read(spans):
                for message in messages:
                    if self.since_ms is not None and message.timestamp < self.since_ms:
                        continue  # producers' clocks: times on this topic need not grow
                    letter = self._wanted(message.value or b"")
                    if letter is not None:
                        yield Found(letter, message.value, message.timestamp)

    def _wanted(self, value: bytes) -> DeadLetter | None:
        try:
            letter = codecs.decode_output(value)
        except InvalidEvent:
            self.foreign += 1
            return None
        if not isinstance(letter, DeadLetter):
            self.foreign += 1
            return None
        # Outputs may stand on their topic twice, with the same id and bytes.
        fits = not self.errors or letter.error.name in self.errors
        fits = fits and (not self.ids or letter.id in self.ids)
        if not fits or letter.id in self.seen:
            return None
        self.seen.add(letter.id)
        return letter


class Original(NamedTuple):
    """What a dead letter was made of."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def original(letter: DeadLetter) -> Original:
    """Return the message that a dead letter quarantines.

    Raises
    ------
    ValueError
        Its bytes were cut when it was kept, or cannot be read.
    """
    try:
        found = Original(
            _bytes(letter.key_base64),
            _bytes(letter.value_base64),
            [(name, _bytes(text)) for name, text in letter.headers],
        )
    except binascii.Error as error:
        raise ValueError(f"its original bytes cannot be read: {error}") from error
    if any(name == CUT_HEADER for name, _ in found.headers):
        raise ValueError("not all of its key and headers was kept; send it from where it came from")
    size = len(found.value or b"")
    if letter.value_bytes > size:
        raise ValueError(
            f"only {size} of its {letter.value_bytes} bytes were kept; "
            "send it from where it came from"
        )
    return found


class Resender:
    """Sends originals again, to the topic and partition they came from.

    Only to topics that the monitor reads, and undelivered alerts to those that ``ontrack alerts``
    reads: whoever can write dead letters must not be able to make us write anywhere.

    Parameters
    ----------
    report
        Called for each letter with what became of it, and where it stands now or why not.
    dry_run
        Send nothing.
    """

    def __init__(self, settings: Settings, report: Report, dry_run: bool) -> None:
        self._settings = settings
        self._report = report
        self._dry_run = dry_run
        self._sources: dict[str, int] = {}
        self._told_from: dict[str, int] = {}
        self._waiting: list[tuple[DeadLetter, asyncio.Future[Any]]] = []

    async def run(self, search: Search) -> None:
        """Send all that the search finds; returns when all are acknowledged.

        Raises
        ------
        BrokerUnavailable
            Kafka does not answer, or lacks the topic of the dead letters.
        """
        topics = topics_of(self._settings)
        counts = await partition_counts(self._settings)
        names = [topics.events.name, topics.proposals.name]
        if self._settings.otlp_topic is not None:
            names.append(self._settings.otlp_topic)
        self._sources = {name: counts[name] for name in names if name in counts}
        told = (topics.interventions.name, topics.decisions.name)
        self._told_from = {name: counts[name] for name in told if name in counts}
        producer = None if self._dry_run else await start_producer(self._settings)
        try:
            async for found in search.letters(self._settings):
                await self._take(found.letter, producer)
                if len(self._waiting) >= IN_FLIGHT_MAX:
                    await self._acknowledged()
            await self._acknowledged()
        finally:
            if producer is not None:
                await producer.stop()

    async def _take(self, letter: DeadLetter, producer: AIOKafkaProducer | None) -> None:
        is_alert = letter.error.name == AlertUndelivered.__name__
        sources = self._told_from if is_alert else self._sources
        if letter.topic not in sources:
            known = " and ".join(sources) or "none of which exists"
            self._report(
                letter,
                "refused",
                f"it was read from {letter.topic!r}; only what came from a topic that OnTrack "
                f"reads ({known}) can be sent there again. If it was a file, mend it and use "
                "ontrack send",
            )
            return
        try:
            key, value, headers = original(letter)
        except ValueError as problem:
            self._report(letter, "refused", str(problem))
            return
        if producer is None:
            self._report(letter, "would_be_sent", None)
            return
        # Where the rest of its run is, whoever shared the keys out. A topic made anew may be
        # smaller; then the key decides.
        is_there = letter.partition < sources[letter.topic]
        try:
            future = await producer.send(
                letter.topic,
                value,
                key=key,
                partition=letter.partition if is_there else None,
                headers=[*headers, (REPLAYED_HEADER, letter.id.encode())],
            )
        except KafkaError as error:
            self._refused_by_kafka(letter, error)
        else:
            self._waiting.append((letter, future))

    async def _acknowledged(self) -> None:
        for letter, future in self._waiting:
            try:
                place = await future
            except KafkaError as error:
                self._refused_by_kafka(letter, error)
            else:
                self._report(letter, "sent", f"{place.topic}:{place.partition}:{place.offset}")
        self._waiting.clear()

    def _refused_by_kafka(self, letter: DeadLetter, error: KafkaError) -> None:
        self._report(letter, "refused", f"Kafka refuses it ({type(error).__name__}: {error})")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)
