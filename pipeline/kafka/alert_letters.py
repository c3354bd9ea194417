"""Dead letters of alerts: what could not be read, and what no sink took."""

from __future__ import annotations

from collections.abc import Iterable

from ontrack.pipeline.alerting.alert import Alert
from ontrack.pipeline.alerting.sinks import Parcel
from ontrack.pipeline.folding.quarantine import dead_letter
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.emitter import Emitter
from ontrack.pipeline.kafka.messages import messages_of
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import AlertUndelivered, InvalidEvent
from ontrack.topics.verdicts import DeadLetter


class DeadLetters:
    """Puts what could not be read, and alerts that no sink took, on the topic of dead letters."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._topics = topics_of(settings)
        self._emitter = Emitter(settings)
        self._metrics = metrics

    async def quarantine(self, record: Record, error: InvalidEvent) -> None:
        """Quarantine a message that is no intervention and no decision."""
        await self._send([(record, dead_letter(record, error))])

    async def undelivered(self, parcel: Parcel, error: AlertUndelivered) -> None:
        """Quarantine the alerts of a parcel: each can be sent again by itself."""
        bundle = parcel.delivery.bundle
        if bundle.count > len(bundle.kept):
            error = AlertUndelivered(f"{error}{_not_kept(parcel)}")
        await self._send([(a.record, _letter(a, parcel, error)) for a in bundle.kept])

    async def stop(self) -> None:
        """Flush and close."""
        await self._emitter.stop()

    async def _send(self, letters: Iterable[tuple[Record, DeadLetter]]) -> None:
        sent = [
            m for record, letter in letters for m in messages_of(self._topics, record, [letter])
        ]
        await self._emitter.emit([message for message, _, _ in sent])
        for _, letter, _ in sent:
            self._metrics.count(letter)


def _letter(alert: Alert, parcel: Parcel, error: AlertUndelivered) -> DeadLetter:
    """Each sink has a letter of its own: others may have taken the same alert."""
    letter = dead_letter(alert.record, error)
    where = f"{parcel.delivery.route.name}/{parcel.sink}"
    return letter.model_copy(update={"id": f"{letter.id}:{where}"})


def _not_kept(parcel: Parcel) -> str:
    bundle = parcel.delivery.bundle
    ranges = ", ".join(
        f"{topic}:{partition} offsets {span.lowest} to {span.highest}"
        for (topic, partition), span in sorted(bundle.spans.items())
    )
    return (
        f"; of {bundle.count} alerts told together {len(bundle.kept)} have a dead letter, "
        f"the others stand in {ranges}"
    )
