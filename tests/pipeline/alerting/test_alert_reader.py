"""The reader of alerts without a broker: what it commits, and that its time passes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from ontrack.pipeline.alerting.dispatch import Dispatcher
from ontrack.pipeline.alerting.lines import read_lines
from ontrack.pipeline.alerting.teller import Teller
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.kafka.alerts import AlertReader
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from tests.pipeline.alerting.alerts_kit import NOON_S, decision, settings_with, warn

TP = TopicPartition("ontrack.interventions", 0)


def message(offset: int, value: bytes, at_s: float = 0.0) -> ConsumerRecord:
    stamp = round(at_s * 1000)
    return ConsumerRecord(
        TP.topic, TP.partition, offset, stamp, 0, b"r", value, None, 1, len(value), ()
    )


class Consumer:
    """One partition; each question is answered with one message more, until there is none."""

    def __init__(self, *messages: ConsumerRecord, end: int = 1) -> None:
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.messages = list(messages)
        self.end = end
        self.is_empty = asyncio.Event()

    def assignment(self) -> set[TopicPartition]:
        return {TP}

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[Any, int]:
        return dict.fromkeys(partitions, self.end)

    def highwater(self, _tp: TopicPartition) -> int:
        return self.end

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Begin at the only message."""

    async def getmany(self, **_: Any) -> dict[TopicPartition, list[ConsumerRecord]]:
        await asyncio.sleep(0)
        if self.messages:
            return {TP: [self.messages.pop(0)]}
        self.is_empty.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        self.committed |= offsets


class Stuck:
    """Dead letters whose topic does not answer."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def quarantine(self, *_: Any) -> None:
        self.asked.set()
        await asyncio.Event().wait()


class Thrown:
    """Dead letters that are taken and forgotten."""

    async def quarantine(self, *_: Any) -> None:
        """Take it."""


class Deliveries:
    """A dispatcher that delivers at once."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.outstanding: tuple[Any, ...] = ()

    async def put(self, delivery: Any) -> None:
        self.counts.append(delivery.bundle.count)

    def count_waiting(self, *_: Any) -> None:
        """Count nothing."""


def reader_of(consumer: Consumer, teller: Teller, letters: Any) -> AlertReader:
    reader = AlertReader(Settings(), teller, letters, from_beginning=True)
    reader._consumer = consumer

    async def nothing() -> dict[TopicPartition, OffsetAndMetadata]:
        return {}

    reader._stored = nothing  # type: ignore[method-assign]
    return reader


async def read_all(consumer: Consumer, teller: Teller) -> None:
    reading = asyncio.ensure_future(reader_of(consumer, teller, Thrown()).read(asyncio.Event()))
    try:
        await asyncio.wait_for(consumer.is_empty.wait(), 10)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_what_is_not_quarantined_yet_is_read_again() -> None:
    async def nobody(*_: Any) -> None:
        """Nothing is delivered in this test."""

    alerts = settings_with()
    dispatcher = Dispatcher(alerts, {}, Metrics(), nobody)
    letters, consumer = Stuck(), Consumer(message(0, b"not ours"))
    reader = reader_of(consumer, Teller(alerts, dispatcher), letters)
    reading = asyncio.ensure_future(reader.read(asyncio.Event()))
    await letters.asked.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await reader.commit()
    assert consumer.committed[TP].offset == 0


def two_alike(at_s: float) -> list[ConsumerRecord]:
    return [message(seq, codecs.encode(warn("run-1", seq)), at_s) for seq in (0, 1)]


ONE_WINDOW = {"name": "r", "sinks": ["ops"], "dedupe_s": 60}


async def test_messages_that_cannot_be_read_tell_the_time() -> None:
    junk = [message(2 + n, b"not ours", NOON_S + n) for n in range(61)]
    deliveries = Deliveries()
    teller = Teller(settings_with(ONE_WINDOW), deliveries, clock=lambda: NOON_S + 9999)  # type: ignore[arg-type]
    # More stands there than is read: the times of messages count, and nobody ticks.
    await read_all(Consumer(*two_alike(NOON_S), *junk[:-1], end=1000), teller)
    assert deliveries.counts == [1]
    await read_all(Consumer(*two_alike(NOON_S), *junk, end=1000), teller)
    assert deliveries.counts == [1, 1, 1]


async def test_once_all_is_read_the_clock_counts_though_news_never_pause() -> None:
    now_s = [NOON_S]

    class Live(Consumer):
        async def getmany(self, **more: Any) -> dict[TopicPartition, list[ConsumerRecord]]:
            found = await super().getmany(**more)
            self.end = found[TP][-1].offset + 1  # each is the last when it comes
            now_s[0] += 1
            return found

    # Their sender's clock stands still.
    others = [message(n, codecs.encode(decision("b", n, "allow")), NOON_S) for n in range(2, 70)]
    deliveries = Deliveries()
    teller = Teller(settings_with(ONE_WINDOW), deliveries, clock=lambda: now_s[0])  # type: ignore[arg-type]
    await read_all(Live(*two_alike(NOON_S), *others), teller)
    assert deliveries.counts == [1, 1]


@pytest.mark.parametrize("line", [b'{"type": "summary"}', b"no JSON"])
async def test_lines_of_other_kinds_do_not_stop_the_time(line: bytes) -> None:
    now_s = [NOON_S]

    class Lines:
        path = "-"

        def lines(self) -> Iterator[tuple[int, bytes]]:
            for seq in (0, 1):
                yield seq, codecs.encode(warn("run-1", seq))
            yield from enumerate([line] * 200, 2)

    def bad(*_: Any) -> None:
        """Pass it over."""

    deliveries, counts_before_the_end = Deliveries(), []

    class Told(Teller):
        async def pass_over(self, record: Record) -> None:
            now_s[0] += 1
            await super().pass_over(record)

        async def finish(self) -> None:
            counts_before_the_end.extend(deliveries.counts)
            await super().finish()

    teller = Told(settings_with(ONE_WINDOW), deliveries, clock=lambda: now_s[0])  # type: ignore[arg-type]
    sources: list[Any] = [Lines()]
    assert await read_lines(sources, teller, asyncio.Event(), bad) is None
    assert counts_before_the_end == [1, 1]
