"""Messages of a collector's topic turned into messages of ours, and how far that has gone.

No Kafka client and no clock: :mod:`.otlp_source` reads, sends and commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import structlog

from ontrack.pipeline.folding.quarantine import dead_letter, fault
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.kafka.messages import Message, event_message, letter_message
from ontrack.pipeline.reading.otlp_protobuf import read_document
from ontrack.pipeline.settings import Settings
from ontrack.topics.adapters.otlp_live import LiveSpans
from ontrack.topics.catalog import Catalogue
from ontrack.topics.errors import InvalidEvent, WrongShape
from ontrack.topics.events import Event
from ontrack.topics.jsontext import parse
from ontrack.topics.verdicts import DeadLetter, Output

_log = structlog.get_logger(__name__)

Headers = Sequence[tuple[str, bytes | None]]


class Intake:
    """Spans of all partitions that this process reads.

    Parameters
    ----------
    count
        Told of every dead letter.
    """

    def __init__(
        self, settings: Settings, topics: Catalogue, count: Callable[[Output], None]
    ) -> None:
        self._settings, self._topics, self._count = settings, topics, count
        self._source = f"ontrack/otlp/{settings.otlp_topic}"
        self._live = LiveSpans(settings.serve_spans_s, limits=settings.limits)
        self._next: dict[int, int] = {}
        self._places: dict[int, tuple[int, int]] = {}
        self._place = 0

    def take(self, record: Record, now_s: float) -> list[Message]:
        """Take a message of the collector's; return what is to be sent."""
        self._place += 1
        self._places[self._place] = (record.partition, record.offset)
        self._next[record.partition] = record.offset + 1
        bad: list[InvalidEvent] = []
        events: list[Event] = []
        try:
            events = self._live.add(self._document(record.value), now_s, self._place, bad.append)
        except InvalidEvent as error:
            return [self._letter(record, error)]
        except Exception as error:  # noqa: BLE001
            # A fault of ours must not stop the partition; the message is kept with its bytes.
            _log.error("otlp_failed", topic=record.topic, offset=record.offset, **fault(error))
            return [self._letter(record, error)]
        messages = self._messages(events)
        if bad:
            problem = f"{len(bad)} of its spans cannot be used (the others were): {bad[0]}"
            messages.append(self._letter(record, type(bad[0])(problem)))
        return messages

    def due(self, now_s: float) -> list[Message]:
        """Return what has waited for long enough."""
        return self._messages(self._live.due(now_s))

    def rest(self) -> list[Message]:
        """Return all that waits: this process may not see what it waits for."""
        return self._messages(self._live.rest())

    def done(self) -> dict[int, int]:
        """Return, by partition, the offset before which nothing waits any longer."""
        waiting = self._live.waiting_places
        self._places = {place: at for place, at in self._places.items() if place in waiting}
        done = dict(self._next)
        for partition, offset in self._places.values():
            if partition in done:
                done[partition] = min(done[partition], offset)
        return done

    def start_over(self) -> None:
        """Forget how far each partition was read: they are given out anew."""
        self._next.clear()
        self._places.clear()

    def recall(self, key: bytes | None, headers: Headers) -> bool:
        """Note an event that an earlier process made of a span: it is not told again.

        Where a trace was given a run of its own name, it keeps it. Returns False for other events.
        """
        found = dict(headers)
        if found.get("ce_source") != self._source.encode() or key is None:
            return False
        name = (found.get("ce_id") or b"").decode("utf-8", "replace").split(":")
        if len(name) != 3:
            return False
        trace_id, span_id, kind = name
        run_id = key.decode("utf-8", "replace")
        self._live.remember(trace_id, span_id, run_id, has_ended=kind == "run_ended")
        return True

    def _document(self, value: bytes) -> object:
        encoding = self._settings.otlp_encoding
        if encoding == "json" or (encoding == "auto" and value.lstrip()[:1] == b"{"):
            return parse(value).value
        return read_document(value)

    def _messages(self, events: Iterable[Event]) -> list[Message]:
        return [self._message(self._settings.redaction.plainly(event)) for event in events]

    def _message(self, event: Event) -> Message:
        trace = event.trace
        if trace is None:
            raise WrongShape("an event of a span without a trace")
        event_id = ":".join([trace.trace_id, str(trace.span_id), event.type])
        return event_message(self._topics, event, event_id, source=self._source)

    def _letter(self, record: Record, error: Exception) -> Message:
        letter: DeadLetter = dead_letter(record, error)
        self._count(letter)
        # Any partition: the collector's topic may have more of them than ours.
        return letter_message(self._topics, letter, record.key)
