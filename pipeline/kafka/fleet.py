"""The fleet's minutes: read from the outputs, written to their topic, the same after any crash.

Nothing that Faust delivers counts here: its commits were measured to lose events (decision 0001).
Each assigned partition has a reader of the same partition of the four output topics. It begins at
offsets that are kept with the state that they led to, as one entry of a compacted topic; that is
written when the lines that were made before it are acknowledged. So after a crash some outputs are
read again, in a state that does not know them yet, and give the same lines again. Without a state
all outputs that are kept are read from the topics' beginning.

A worker that fails here goes on judging: it says so, and begins again at the last state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import structlog
from aiokafka import ConsumerRecord, TopicPartition

from ontrack.operators import snapshot
from ontrack.operators.fleet import due, step
from ontrack.operators.fleet_state import FleetParams, FleetState, dump, load
from ontrack.pipeline.kafka.clock import BrokerClock
from ontrack.pipeline.kafka.emitter import Emitter
from ontrack.pipeline.kafka.log import LogReader
from ontrack.pipeline.kafka.merged import merged
from ontrack.pipeline.kafka.messages import Message, cloud_headers
from ontrack.pipeline.kafka.turns import Turns
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.catalog import Catalogue
from ontrack.topics.errors import InvalidEvent, InvalidSnapshot
from ontrack.topics.fleet import FleetAggregate

_log = structlog.get_logger(__name__)

POLL_S = 2.0  # lines are told a minute at a time, so this is soon enough
PAUSE_S = 30.0  # after a failure
WRITE_S = 10.0  # while much is read at once
STOP_S_MAX = 2.0
STATES_READ = 8  # from the end of the topic: the last sound one counts
VALUE_BYTES_MAX = 8_000_000
#: How much longer than the monitor itself a run may be silent.
_SILENT_MORE_MS = 3_600_000


def params_of(settings: Settings) -> FleetParams:
    """Return the limits that go with the worker's settings."""
    return FleetParams(silent_ms=settings.run_idle_s * 1000 + _SILENT_MORE_MS)


class FleetPartition:
    """Aggregates of one partition; its owner calls one method at a time."""

    def __init__(
        self,
        partition: int,
        params: FleetParams,
        topics: Catalogue,
        log: LogReader,
        emitter: Emitter,
        metrics: Metrics,
        turns: Turns,
    ) -> None:
        self.partition = partition
        self.state = FleetState()
        self.owned = True
        self.not_before_s = 0.0
        self._params, self._topics = params, topics
        self._reader, self._emitter = log, emitter
        self._metrics, self._turns = metrics, turns
        self._clock = BrokerClock()
        self._sources = (
            topics.verdicts.name,
            topics.interventions.name,
            topics.decisions.name,
            topics.scorecards.name,
        )
        self._restored = False
        self._start_over()

    def forget(self) -> None:
        """Begin again at the state that was written last."""
        self._restored = False

    async def advance(self) -> None:
        """Count what has come, and write the lines that are due."""
        if not self._restored:
            await self._restore()
        took, spans = False, await self._spans()
        places = {TopicPartition(topic, self.partition): span for topic, span in spans.items()}
        async for messages in merged(self._reader, places):
            if not self.owned:
                return
            took = True
            await self._take(messages)
            await self._tell(self.state.now_ms)
            if time.monotonic() - self._written_s > WRITE_S:
                await self._write()
        # Offsets without a message at the end are passed over.
        self._offsets |= {topic: stop for topic, (_, stop) in spans.items()}
        # Once more behind the last message, and only after all that stood there was counted.
        if self.state.now_ms >= 0 and (took or self._clock.now_ms() is None):
            self._clock.heard(self.state.now_ms)
        now_ms = self._clock.now_ms()
        if now_ms is not None:
            await self._tell(now_ms)
        if self._unwritten and self.owned:
            await self._write()

    async def _spans(self) -> dict[str, tuple[int, int]]:
        """Return from where to where each source is to be read now."""
        bounds = {
            topic: await self._reader.bounds(topic, self.partition) for topic in self._sources
        }
        gone = [topic for topic in self._sources if self._offsets[topic] > bounds[topic][1]]
        if gone:
            # As with the watermark of events: somebody created a topic anew.
            _log.error("fleet_of_former_topics", partition=self.partition, topics=gone)
            self._start_over()
        for topic, (first, _) in bounds.items():
            lost = first - self._offsets[topic]
            if lost > 0:
                if self._offsets[topic] > 0:
                    _log.warning("fleet_outputs_expired", partition=self.partition, topic=topic)
                    self._metrics.fleet_skipped.labels("expired").inc(lost)
                self._offsets[topic] = first
        return {topic: (self._offsets[topic], last) for topic, (_, last) in bounds.items()}

    async def _take(self, messages: Iterable[ConsumerRecord]) -> None:
        untracked = self.state.untracked
        async with self._turns.working(behind=True):
            for message in messages:
                self._count(message)
                self._offsets[message.topic] = message.offset + 1
                await self._turns.give_way()
        if self.state.untracked > untracked:
            self._metrics.fleet_skipped.labels("untracked").inc(self.state.untracked - untracked)

    def _count(self, message: ConsumerRecord) -> None:
        if message.value is None:
            return
        try:
            output = codecs.decode_output(message.value)
        except InvalidEvent as error:
            # Somebody else's message on our topic.
            self._metrics.fleet_skipped.labels("unreadable").inc()
            _log.warning(
                "fleet_output_unreadable",
                topic=message.topic,
                offset=message.offset,
                error=type(error).__name__,
            )
            return
        self.state = step(self._params, self.state, output, message.timestamp)

    async def _tell(self, now_ms: int) -> None:
        """Write the lines that are due; the state goes on when they are acknowledged."""
        more = True
        while more and self.owned:
            # In a thread, for with many groups it takes long; states never change.
            done = await asyncio.to_thread(due, self._params, self.state, now_ms, self.partition)
            if done.lines:
                await self._emitter.emit([self._message(line) for line in done.lines])
                self._unwritten = True
                for line in done.lines:
                    kind = "final" if line.final else "first" if line.revision == 1 else "revised"
                    self._metrics.fleet_aggregates.labels(kind).inc()
            self.state, more = done.state, done.more

    def _message(self, line: FleetAggregate) -> Message:
        key = line.group.key.text
        headers = cloud_headers(line, f"{line.id}|{line.revision}", "ontrack", key)
        value = codecs.encode(line)
        return Message(
            self._topics.fleet.name, self.partition, key.encode("utf-8", "replace"), value, headers
        )

    async def _write(self) -> None:
        """Write state and offsets."""
        self._written_s, self._unwritten = time.monotonic(), False
        state, offsets = self.state, dict(self._offsets)
        value = await asyncio.to_thread(lambda: snapshot.seal([_plain(offsets), dump(state)]))
        if len(value) > VALUE_BYTES_MAX:
            self._metrics.snapshots_refused.inc()
            _log.warning("fleet_state_too_large", partition=self.partition, bytes=len(value))
            return
        topic = self._topics.fleet_states.name
        await self._emitter.emit([Message(topic, self.partition, b"", value, [])])

    async def _restore(self) -> None:
        """Begin at the last sound state; at the topics' beginning where there is none."""
        self._start_over()
        found = await self._reader.tail(self._topics.fleet_states.name, self.partition, STATES_READ)
        for message in reversed(found):
            try:
                offsets, parts = snapshot.unseal(message.value or b"")
                state = await asyncio.to_thread(load, parts)
                self._offsets |= {
                    topic: offset for topic, offset in offsets if topic in self._offsets
                }
            except (InvalidSnapshot, ValueError, TypeError) as error:
                self._metrics.snapshots_refused.inc()
                _log.warning("fleet_state_refused", partition=self.partition, error=str(error))
                continue
            self.state = state
            break
        self._restored = True
        _log.info(
            "fleet_restored",
            partition=self.partition,
            offsets=self._offsets,
            runs=len(self.state.runs),
        )

    def _start_over(self) -> None:
        self.state = FleetState()
        self._clock = BrokerClock()
        self._offsets = dict.fromkeys(self._sources, 0)
        self._written_s, self._unwritten = time.monotonic(), False


class Fleet:
    """Aggregates of the partitions that a worker has, one after the other."""

    def __init__(
        self,
        settings: Settings,
        topics: Catalogue,
        emitter: Emitter,
        metrics: Metrics,
        turns: Turns,
    ) -> None:
        self._params = params_of(settings)
        self._topics, self._emitter = topics, emitter
        self._metrics, self._turns = metrics, turns
        self._reader = LogReader(settings)
        self._partitions: dict[int, FleetPartition] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    def assign(self, partitions: Iterable[int]) -> None:
        """Have these partitions, and no others."""
        wanted = set(partitions)
        self.suspend()
        # What is in memory is a function of what was read, whoever has written meanwhile.
        self._partitions = {
            number: self._partitions.get(number) or self._new(number) for number in wanted
        }
        for part in self._partitions.values():
            part.owned = True
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def suspend(self) -> None:
        """Write nothing until the next assignment: another worker may have the partitions."""
        for part in self._partitions.values():
            part.owned = False

    async def stop(self) -> None:
        """Stop reading; what was not written is counted again by whoever goes on."""
        self.suspend()
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=STOP_S_MAX / 2)
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._reader.stop()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            for part in list(self._partitions.values()):
                if part.owned and time.monotonic() >= part.not_before_s:
                    await self._advance(part)
            try:
                await asyncio.wait_for(self._stopping.wait(), POLL_S)
            except TimeoutError:
                continue

    async def _advance(self, part: FleetPartition) -> None:
        try:
            await part.advance()
        except Exception:  # noqa: BLE001
            # Minutes are not worth a run that nobody judges: the worker goes on without them, and
            # log and metric say so.
            _log.exception("fleet_failed", partition=part.partition, again_after_s=PAUSE_S)
            self._metrics.fleet_failures.inc()
            part.forget()
            part.not_before_s = time.monotonic() + PAUSE_S

    def _new(self, partition: int) -> FleetPartition:
        return FleetPartition(
            partition,
            self._params,
            self._topics,
            self._reader,
            self._emitter,
            self._metrics,
            self._turns,
        )


def _plain(offsets: dict[str, int]) -> list[Any]:
    return [[topic, offset] for topic, offset in sorted(offsets.items())]
