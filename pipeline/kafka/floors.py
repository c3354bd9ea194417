"""Floors: how far a partition's outputs are published, read off the tails of their topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import structlog

from ontrack.pipeline.kafka.log import LogReader
from ontrack.pipeline.kafka.messages import Told, told_by
from ontrack.topics.catalog import Catalogue

_log = structlog.get_logger(__name__)

TAIL_MESSAGES = 256
TAIL_MESSAGES_MAX: Final = 131_072


class Floors:
    """Finds the floors of one partition.

    Parameters
    ----------
    partition
        Of the source topic and of all output topics.
    """

    def __init__(self, partition: int, topics: Catalogue, log: LogReader) -> None:
        self._partition = partition
        self._topics = topics
        self._reader = log

    async def of(self, source: str) -> dict[str, Told]:
        """Return by output topic the place of ``source`` up to which outputs are published."""
        return {name: await self._floor(name, source) for name in self._outputs_of(source)}

    def _outputs_of(self, source: str) -> Iterable[str]:
        topics = self._topics
        if source == topics.proposals.name:
            return topics.decisions.name, topics.dead_letters.name
        told = topics.verdicts, topics.interventions, topics.scorecards, topics.dead_letters
        return tuple(topic.name for topic in told)

    async def _floor(self, output: str, source: str) -> Told:
        floor = await self._last_told(output, source)
        return await self._credible(output, floor, source)

    async def _last_told(self, output: str, source: str) -> Told:
        """Return what the last output at a topic's tail says has been told.

        Among decisions there may be many that a policy made and that come from no proposal, and
        dead letters come from events and proposals: then look further back.
        """
        count = TAIL_MESSAGES
        while True:
            tail = await self._reader.tail(output, self._partition, count)
            # A former owner may have been writing while its successor was: take the highest.
            found = [place for item in tail if (place := told_by(item, source)) is not None]
            is_shared = output in (self._topics.decisions.name, self._topics.dead_letters.name)
            if found or not is_shared or len(tail) < count or count >= TAIL_MESSAGES_MAX:
                return max(found, default=Told())
            count *= 8

    async def _credible(self, output: str, floor: Told, source: str) -> Told:
        """Drop a floor that lies beyond its source: it speaks of a topic that is no more.

        Somebody created the source topic anew, or the broker lost its end. Without this the worker
        would stay silent until the new offsets have passed the old ones.
        """
        if floor.offset < 0:
            return floor
        # Asked after the floor was read: an output never precedes what it came from.
        _, last = await self._reader.bounds(source, self._partition)
        if floor.offset < last:
            return floor
        _log.error(
            "outputs_of_a_former_log",
            partition=self._partition,
            output=output,
            floor=floor,
            source=source,
            log_end=last,
        )
        return Told()
