"""Some topics' same partition as one stream, by the broker's time."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping

from aiokafka import ConsumerRecord

from ontrack.pipeline.kafka.log import LogReader

FETCHED_MAX = 2000  # offsets of one topic that are held at a time


class _Stream:
    """One topic's rest, a piece of it at hand."""

    def __init__(self, log: LogReader, topic: str, partition: int, start: int, stop: int) -> None:
        self.at_hand: deque[ConsumerRecord] = deque()
        self.position, self.stop = start, stop
        self._log, self._topic, self._partition = log, topic, partition

    async def fill(self) -> None:
        """Read on where nothing is at hand; some offsets may have no message."""
        while not self.at_hand and self.position < self.stop:
            end = min(self.position + FETCHED_MAX, self.stop)
            pieces = self._log.read(self._topic, self._partition, self.position, end)
            async for messages in pieces:
                self.at_hand.extend(messages)
            self.position = end


async def merged(
    log: LogReader, partition: int, spans: Mapping[str, tuple[int, int]]
) -> AsyncIterator[list[ConsumerRecord]]:
    """Yield what stands in [start, stop) of each topic, in batches, by time.

    Inside one topic it is the order of the log, whatever the times say.
    """
    streams = [_Stream(log, topic, partition, *span) for topic, span in spans.items()]
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
