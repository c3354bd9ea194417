"""Some topics' partitions as one stream, by the broker's time."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

from aiokafka import ConsumerRecord, TopicPartition

from ontrack.pipeline.kafka.log import LogReader

FETCHED_MAX = 2000  # offsets of one topic that are held at a time


class _Stream:
    """One partition's rest, a piece of it at hand."""

    def __init__(self, log: LogReader, tp: TopicPartition, start: int, stop: int) -> None:
        self.at_hand: deque[ConsumerRecord] = deque()
        self.position, self.stop = start, stop
        self._log, self._tp = log, tp

    async def fill(self) -> None:
        """Read on where nothing is at hand; some offsets may have no message."""
        while not self.at_hand and self.position < self.stop:
            end = min(self.position + FETCHED_MAX, self.stop)
            topic, partition = self._tp.topic, self._tp.partition
            found = self._log.read(topic, partition, self.position, end)
            async with aclosing(found) as pieces:
                async for messages in pieces:
                    self.at_hand.extend(messages)
                    self.position = messages[-1].offset + 1
                    break  # a piece is bounded in bytes, and there are many streams
                else:
                    self.position = end


async def merged(
    log: LogReader, spans: Mapping[TopicPartition, tuple[int, int]]
) -> AsyncIterator[list[ConsumerRecord]]:
    """Yield what stands in [start, stop) of each partition, in batches, by time.

    Inside one partition it is the order of the log, whatever the times say.
    """
    streams = [_Stream(log, tp, *span) for tp, span in spans.items()]
    while True:
        for stream in streams:
            await stream.fill()
        streams = [stream for stream in streams if stream.at_hand]
        if not streams:
            return
        batch: list[ConsumerRecord] = []
        while len(batch) < FETCHED_MAX:
            # Only while each has something at hand it is known which one is next.
            earliest = min(streams, key=lambda stream: stream.at_hand[0].timestamp)
            batch.append(earliest.at_hand.popleft())
            if not earliest.at_hand:
                break
        yield batch
