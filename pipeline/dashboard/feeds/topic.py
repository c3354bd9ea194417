"""Runs of the events topic, folded again with what was published when each began."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ontrack.pipeline.dashboard.feeds.feed import Known, Unavailable
from ontrack.pipeline.dashboard.feeds.pictures import Pictures
from ontrack.pipeline.dashboard.run.model import RunPicture
from ontrack.pipeline.folding.library import Library
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.follower import KnowledgeFollower
from ontrack.pipeline.kafka.log import LogReader, record_of
from ontrack.pipeline.kafka.partitions import partition_of
from ontrack.pipeline.kafka.provision import counts_of
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidEvent

LOOK_S: Final = 60.0  # between two looks whether the topic has got more partitions
PLACES_MAX: Final = 1_000  # runs of which is known where they do not begin yet


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a run stands: its partition, and the first offset that has not been read."""

    partition: int
    offset: int


class RunTopic:
    """Runs of the events topic.

    A run asked for first is looked for in its whole partition; asked for again, only what has come
    since is read, of one that was not found as well.

    Attributes
    ----------
    messages
        Looked at so far.
    """

    def __init__(self, settings: Settings, log: LogReader) -> None:
        self._settings = settings
        self._log = log
        self._topic = topics_of(settings).events.name
        self._partitions = 0
        self._looked = float("-inf")  # when they were counted, by the loop's clock
        self._pictures = Pictures(lambda: make_fold(settings), settings.limits)
        self._follower: KnowledgeFollower | None = None
        # By run, the offsets of each partition before which none of its events stand.
        self._nothing: OrderedDict[str, dict[int, int]] = OrderedDict()
        self._readings: dict[str, str] = {}
        self.messages = 0

    async def stop(self) -> None:
        """Close the connections."""
        if self._follower is not None:
            await self._follower.stop()

    async def picture(self, run_id: str) -> RunPicture:
        """Fold the run again, as far as it has come.

        Raises
        ------
        Unavailable
            No event of it stands on the topic.
        """

        async def read(place: Spot | None) -> tuple[list[Record], Spot]:
            records, spot = await self._read(run_id, place)
            # After the events: what was published before the first of them is there by now.
            await self._refresh()
            return records, spot

        return await self._pictures.of(run_id, read)

    @property
    def progress(self) -> int:
        """What has been done so far, for whoever waits: while it grows, an answer is on its way."""
        return self.messages + self._pictures.events

    def reading(self, run_id: str) -> str:
        """Return how far the run has been looked for or folded; empty while nobody does."""
        return self._readings.get(run_id) or self._pictures.folding(run_id)

    async def events(self, run_id: str) -> list[bytes]:
        """Return the run's events, redacted; those that cannot be read are left out.

        Raises
        ------
        Unavailable
            None stands there.
        """
        records, _ = await self._read(run_id, None)
        limits, redaction = self._settings.limits, self._settings.redaction
        found = []
        for record in records:
            with suppress(InvalidEvent):  # among the dead letters
                event = redaction.plainly(codecs.decode_event(record.value, limits).event)
                found.append(codecs.encode(event) if redaction else record.value)
        return found

    async def known(self) -> Known:
        """Return what stands on the knowledge topics now."""
        async with self._pictures.turn:
            library = await self._refresh()
            return Known(*library.current()).ordered()

    async def _refresh(self) -> Library:
        """Read on in the knowledge topics; by whoever holds the pictures' turn."""
        library = (await self._pictures.fold()).library
        if self._follower is None:
            self._follower = KnowledgeFollower(self._settings, library)
        await self._follower.refresh()
        return library

    async def _read(self, run_id: str, place: Spot | None) -> tuple[list[Record], Spot]:
        if place is not None:
            return await self._read_from(run_id, place, {})
        count = await self._count()
        likely = partition_of(run_id.encode("utf-8", "replace"), count)
        nothing = self._nothing.setdefault(run_id, {})
        self._nothing.move_to_end(run_id)
        if len(self._nothing) > PLACES_MAX:
            self._nothing.popitem(last=False)
        # Last those in which it can only be if somebody shares keys out in another way.
        for number in (likely, *(other for other in range(count) if other != likely)):
            spot = Spot(number, nothing.get(number, 0))
            records, spot = await self._read_from(run_id, spot, nothing)
            if records:
                return records, spot
        raise Unavailable(
            f"no event of run {run_id[:80]!r} stands on {self._topic}: the id may be misspelt, or "
            "the topic no longer holds it (see its retention)"
        )

    async def _read_from(
        self, run_id: str, place: Spot, nothing: dict[int, int]
    ) -> tuple[list[Record], Spot]:
        """Read a partition to its end; note in ``nothing`` how far none of the run's events stand.

        Who is cut off half-way, or opens one of the run's steps later, need not begin anew.
        """
        key = run_id.encode("utf-8", "replace")
        first, last = await self._log.bounds(self._topic, place.partition)
        found: list[Record] = []
        start = max(first, place.offset if place.offset <= last else 0)  # else a new topic
        where = f"partition {place.partition} of {self._topic}"
        try:
            async for messages in self._log.read(self._topic, place.partition, start, last):
                self.messages += len(messages)
                done = messages[-1].offset + 1
                told = f"{done - start:,} of {last - start:,} messages"
                self._readings[run_id] = f"reading {where}: {told}"
                found += [record_of(message) for message in messages if message.key == key]
                if not found:
                    nothing[place.partition] = done
        finally:
            self._readings.pop(run_id, None)
        return found, Spot(place.partition, max(last, start))

    async def _count(self) -> int:
        now = asyncio.get_running_loop().time()
        if now - self._looked > LOOK_S:
            counts = await counts_of(self._settings, self._topic)
            self._partitions, self._looked = counts[self._topic], now
        return self._partitions
