"""The reader of alerts without a broker: what it commits when it is cut short."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from ontrack.pipeline.alerting.dispatch import Dispatcher
from ontrack.pipeline.alerting.teller import Teller
from ontrack.pipeline.kafka.alerts import AlertReader
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from tests.pipeline.alerting.alerts_kit import settings_with

TP = TopicPartition("ontrack.interventions", 0)


class Consumer:
    """One partition with one message that is no intervention."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.messages = [
            ConsumerRecord(TP.topic, TP.partition, 0, 0, 0, b"r", b"not ours", None, 1, 8, ())
        ]

    def assignment(self) -> set[TopicPartition]:
        return {TP}

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 1)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Begin at the only message."""

    async def getmany(self, **_: Any) -> dict[TopicPartition, list[ConsumerRecord]]:
        found, self.messages = self.messages, []
        return {TP: found} if found else {}

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        self.committed |= offsets


class Stuck:
    """Dead letters whose topic does not answer."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def quarantine(self, *_: Any) -> None:
        self.asked.set()
        await asyncio.Event().wait()


async def test_what_is_not_quarantined_yet_is_read_again() -> None:
    async def nobody(*_: Any) -> None:
        """Nothing is delivered in this test."""

    alerts = settings_with()
    dispatcher = Dispatcher(alerts, {}, Metrics(), nobody)
    letters, consumer = Stuck(), Consumer()
    teller = Teller(alerts, dispatcher)
    reader = AlertReader(Settings(), teller, letters, from_beginning=True)  # type: ignore[arg-type]
    reader._consumer = consumer

    async def nothing() -> dict[TopicPartition, OffsetAndMetadata]:
        return {}

    reader._stored = nothing  # type: ignore[method-assign]
    reading = asyncio.ensure_future(reader.read(asyncio.Event()))
    await letters.asked.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await reader.commit()
    assert consumer.committed[TP].offset == 0
