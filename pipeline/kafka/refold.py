"""Refold: the events topic folded again, as the worker folded it or under other settings.

The fold is the one of the worker and of the embedded driver, with the knowledge that stood on its
topics when each run began. So under the same settings the same ids and bytes come out as were
published; under other settings it is a what-if.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence

from ontrack.pipeline.embedded import proposal_of
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.folding.shelves import Items
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.follower import KnowledgeFollower
from ontrack.pipeline.kafka.history import History, Span, Where, opened
from ontrack.pipeline.kafka.log import record_of
from ontrack.pipeline.kafka.partitions import partition_of
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidEvent
from ontrack.topics.events import Notice, Step
from ontrack.topics.knowledge import Reference, Task, ToolContract
from ontrack.topics.verdicts import Output, Verdict

RECORDS_AT_ONCE = 200  # folding gives way to the event loop after so many
_EVERYTHING_MS = 2**62  # a time after every publication


class Refold:
    """The events topic, folded again.

    Parameters
    ----------
    settings
        Of the fold and of the broker.
    where
        What to read.
    run_ids
        Only these runs; none: all.
    gate
        Ask the gate about each step before it is folded.
    references, contracts, tasks
        Known from the start, over what is published under the same name.

    Attributes
    ----------
    events
        Folded so far.
    partitions
        Of the topic, in all.
    spans
        What was read.
    not_found
        Of ``run_ids``, after the end.
    from_the_middle
        Runs, after the end, whose first events were not among those read: their verdicts are not
        those of the whole run.
    still_open
        Number of runs that had not ended where the reading ended.
    """

    def __init__(
        self,
        settings: Settings,
        where: Where,
        run_ids: Collection[str] = (),
        gate: bool = False,
        references: Sequence[Reference] = (),
        contracts: Sequence[ToolContract] = (),
        tasks: Sequence[Task] = (),
    ) -> None:
        self._settings = settings
        self._where = where
        self._wanted = {run_id.encode("utf-8", "surrogateescape") for run_id in run_ids}
        self._gate = gate
        pinned = Items(tuple(references), tuple(contracts), tuple(tasks))
        self._fold = make_fold(settings, pinned=pinned)
        self._states: dict[int, PartitionState] = {}
        self._found: set[bytes] = set()
        self._judged: set[str] = set()
        self.events = 0
        self.partitions = 0
        self.spans: list[Span] = []
        self.not_found: list[str] = []
        self.from_the_middle: list[str] = []

    @property
    def still_open(self) -> int:
        """Number of runs that have not ended."""
        return sum(len(state.runs) for state in self._states.values())

    async def outputs(self) -> AsyncIterator[Output]:
        """Fold, and yield what the monitor says.

        Raises
        ------
        BrokerUnavailable
            Kafka does not answer, or lacks a topic.
        InvalidSettings
            The starting point names a partition that does not exist.
        """
        topics = topics_of(self._settings)
        knowledge = {
            topics.references.name,
            topics.contracts.name,
            topics.tasks.name,
            topics.switches.name,
        }
        async with opened(self._settings, topics.events.name, *knowledge) as history:
            await self._read_knowledge()
            self.partitions = history.partitions
            spans = await history.spans(self._where)
            here = {partition_of(key, history.partitions) for key in self._wanted}
            likely = [s for s in spans if not self._wanted or s.partition in here]
            async for output in self._folded(history, likely, self._wanted):
                yield output
            left = self._wanted - self._found
            if left:  # keyed by somebody who shares keys out in another way
                others = [span for span in spans if span not in likely]
                async for output in self._folded(history, others, left):
                    yield output
            self.not_found = sorted(map(_shown, self._wanted - self._found))
            await self._find_earlier_events(history)

    async def _read_knowledge(self) -> None:
        follower = KnowledgeFollower(self._settings, self._fold.library)
        try:
            await follower.cover(_EVERYTHING_MS)
        finally:
            await follower.stop()

    async def _folded(
        self, history: History, spans: Sequence[Span], wanted: Collection[bytes]
    ) -> AsyncIterator[Output]:
        self.spans += spans
        async for messages in history.read(spans):
            for begin in range(0, len(messages), RECORDS_AT_ONCE):
                for message in messages[begin : begin + RECORDS_AT_ONCE]:
                    if wanted and message.key not in wanted:
                        continue
                    self._found.add(message.key or b"")
                    for output in self._said(record_of(message)):
                        yield output
                await asyncio.sleep(0)

    def _said(self, record: Record) -> Iterator[Output]:
        state = self._states.get(record.partition)
        if state is None:
            state = self._states[record.partition] = self._fold.partition()
        self.events += 1
        if self._gate:
            yield from self._decisions(state, record)
        for output in self._fold.apply(state, record):
            if isinstance(output, Notice):
                continue  # what was written then stands in the log
            if isinstance(output, Verdict) and output.run_id not in self._judged:
                self._judged.add(output.run_id)
                if output.seq > 0:
                    self.from_the_middle.append(output.run_id)
            yield output

    def _decisions(self, state: PartitionState, record: Record) -> Iterator[Output]:
        """Ask about a step as it would have been asked about before it ran."""
        try:
            event = codecs.decode_event(record.value, self._settings.limits).event
        except InvalidEvent:
            return  # the fold is about to make a dead letter of it
        is_fit = isinstance(event, Step) and record.key == event.run_id.encode()
        if is_fit and event.run_id not in state.ended:
            assert isinstance(event, Step)
            yield self._fold.propose(state, proposal_of(event), record.timestamp_ms)

    async def _find_earlier_events(self, history: History) -> None:
        """Find those of the folded runs that have events before the starting point."""
        earlier: set[bytes] = set()
        skipped = [Span(span.partition, span.kept, span.kept, span.start) for span in self.spans]
        async for messages in history.read(skipped):
            earlier.update(m.key for m in messages if m.key is not None and m.key in self._found)
        self.from_the_middle = sorted({*map(_shown, earlier), *self.from_the_middle})


def _shown(key: bytes) -> str:
    return key.decode("utf-8", "replace")
