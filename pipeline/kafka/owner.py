"""Owner of one partition of the events topic: the self-healing watermark.

The truth is the log. ``next_offset`` (the watermark W) is the offset of the next event to fold:

* an event below W is a duplicate and is passed over;
* an event above W means that some were not delivered: they are read from the log first;
* a periodic look at the log's end catches a tail that was never delivered.

After a cold start the run states are folded again from the log. What has been published before is
not published again: the floor of each output topic is the source offset of the last output found
at its tail.

A checkpoint of the open runs, if there is a sound one, lets the fold begin further up in the log.

Proposals have a watermark of their own: what was not delivered is read from their log too, and an
answer is never given twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import structlog

from ontrack.pipeline.folding import offload
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.pipeline.folding.preparing import prepare_question
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.folding.upkeep import Upkeep
from ontrack.pipeline.kafka.checkpoints import Checkpoints
from ontrack.pipeline.kafka.emitter import Emitter
from ontrack.pipeline.kafka.floors import Floors
from ontrack.pipeline.kafka.follower import KnowledgeFollower
from ontrack.pipeline.kafka.log import LogReader, patiently, record_of
from ontrack.pipeline.kafka.messages import Message, Sent, Told, event_message, messages_of
from ontrack.pipeline.kafka.modes import Modes
from ontrack.pipeline.kafka.progress import Progress
from ontrack.pipeline.kafka.turns import Turns
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.telemetry import AnyTelemetry, NoTelemetry, Span
from ontrack.topics.catalog import Catalogue
from ontrack.topics.events import ChildStarted, Notice, RunEnded
from ontrack.topics.verdicts import Intervention, Output, Verdict

_log = structlog.get_logger(__name__)

Apply = Callable[[Sequence[Record]], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Watermark:
    """Where a partition of one source topic stands.

    Parameters
    ----------
    topic
        The source topic.
    next_offset
        W: the next record to take.
    settled
        W as it was when the last outputs were acknowledged.
    end_seen
        The log's end at the last look.
    floors
        Per output topic the place of the source up to which outputs are published.
    """

    topic: str
    next_offset: int = 0
    settled: int = 0
    end_seen: int = 0
    floors: dict[str, Told] = field(default_factory=dict)


class PartitionOwner:
    """Folds one partition, in order, without loss, and publishes what is new."""

    def __init__(
        self,
        partition: int,
        settings: Settings,
        topics: Catalogue,
        fold: Fold,
        log: LogReader,
        emitter: Emitter,
        follower: KnowledgeFollower,
        metrics: Metrics,
        turns: Turns | None = None,
        telemetry: AnyTelemetry | None = None,
    ) -> None:
        self.partition = partition
        self.state: PartitionState = fold.partition()
        self.watermark = Watermark(topics.events.name)
        self.asked = Watermark(topics.proposals.name)
        self.answered = -1  # the last proposal whose answer is acknowledged
        self._ready = asyncio.Event()
        self._revoked = asyncio.Event()
        self._settings = settings
        self._upkeep = Upkeep(settings.run_idle_s, settings.reorder_ms)
        self._floors = Floors(partition, topics, log)
        self._epoch = 0  # counts revocations
        self._topics = topics
        self._fold = fold
        self._reader = log
        self._emitter = emitter
        self._follower = follower
        self._metrics = metrics
        self._turns = turns or Turns()
        self._telemetry = telemetry or NoTelemetry()
        self._checkpoints = Checkpoints(
            partition, topics, fold, log, emitter, follower, metrics, self._turns
        )
        self._modes = Modes(fold.library)
        self._turn = asyncio.Lock()
        self._owned = True

    @property
    def ready(self) -> bool:
        """Whether the log has been folded to its end since the last assignment."""
        return self._ready.is_set()

    async def until_ready(self) -> None:
        """Wait for that, or for a revocation: decisions are not made on half a state."""
        ends = [asyncio.ensure_future(event.wait()) for event in (self._ready, self._revoked)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    def revoke(self) -> None:
        """Stop publishing: the partition may belong to somebody else by now."""
        self._owned = False
        self._epoch += 1
        self._ready.clear()
        self._metrics.ready(self.partition, False)
        # Lets those go who wait now; who begins to wait later waits for the next recovery.
        self._revoked.set()
        self._revoked = asyncio.Event()

    async def resume(self) -> None:
        """Take the partition (again): find the floors, fold the log to its end, be ready.

        The state in memory is kept: it is a function of the log up to the watermark, whoever
        published meanwhile.
        """
        epoch = self._epoch
        async with self._turn:
            if epoch != self._epoch:
                return  # revoked again while it waited for its turn
            self._owned = True
            self._metrics.ready(self.partition, False)
            self._upkeep.begin_again()
            await self._find_floors()
            if self.watermark.next_offset == 0:
                restored = await self._checkpoints.restore()
                if restored is not None:
                    self.state, self.watermark.next_offset = restored
            first, last = await self._reader.bounds(self.watermark.topic, self.partition)
            if self.watermark.next_offset > last:
                # As with floors: the state is that of a topic that is no more. Keeping it would
                # pass over every event until the new offsets have passed the old ones.
                _log.error(
                    "state_of_a_former_log",
                    partition=self.partition,
                    watermark=self.watermark.next_offset,
                    log_end=last,
                )
                self.state = self._fold.partition()
                self.watermark.next_offset = 0
            if self.watermark.next_offset < first:
                # The beginning is gone (retention), and with it the numbers of unnumbered steps.
                self.state = self._fold.partition()
                self.state.cut_until = max(self.watermark.floors.values()).offset
                self.watermark.next_offset = first
            behind = last - self.watermark.next_offset
            _log.info(
                "partition_recovering",
                partition=self.partition,
                watermark=self.watermark.next_offset,
                log_end=last,
                events=behind,
                floors={name: place.offset for name, place in self.watermark.floors.items()},
            )
            began = time.monotonic()
            progress = Progress(self.partition, self.watermark.next_offset, last, self._metrics)

            async def advance(records: Sequence[Record]) -> None:
                await self._advance(records)
                progress.tell(self.watermark.next_offset)

            await self._fill(self.watermark, last, advance)
            self._metrics.observe(self.partition, 0, len(self.state.runs))
            if self._owned:
                await self._answer_missed()
            if not self._owned:
                return
            for watermark in (self.watermark, self.asked):
                watermark.settled = watermark.next_offset
            self._ready.set()
            self._metrics.ready(self.partition, True)
            _log.info(
                "partition_ready",
                partition=self.partition,
                events=behind,
                runs=len(self.state.runs),
                seconds=round(time.monotonic() - began, 3),
            )

    async def take(self, records: Sequence[Record]) -> None:
        """Fold delivered events; fills what the delivery left out."""
        async with self._turn:
            await self._in_order(self.watermark, records, self._advance)

    async def save(self) -> None:
        """Write a checkpoint, so that a successor need not fold the whole log.

        While the log is still being folded there is none to write; a rebalance must not wait for
        that to end.
        """
        if not self.ready:
            return
        async with self._turn:
            if self._owned and self.ready:
                await self._checkpoints.write(self.state, self.watermark.next_offset)

    async def decide(self, records: Sequence[Record]) -> None:
        """Answer delivered proposals, each once; fills what the delivery left out."""
        async with self._turn:
            await self._in_order(self.asked, records, self._answer)

    async def catch_up(self) -> None:
        """Compare the watermarks with the logs' ends and read what was never delivered.

        What has come since the last look may still be on its way, so it is left to the delivery.
        Proposals are looked after as well: under a backlog Faust delivers them behind the events.
        """
        if not self.ready:
            return
        await self._catch_up(self.asked, self._answer)
        if not self._turn.locked():
            lag = await self._catch_up(self.watermark, self._advance)
            self._metrics.lag(self.partition, lag)

    async def _catch_up(self, watermark: Watermark, apply: Apply) -> int:
        overdue = watermark.end_seen
        _, last = await self._reader.bounds(watermark.topic, self.partition)
        watermark.end_seen = last
        async with self._turn:
            if self._owned and overdue > watermark.next_offset:
                _log.warning(
                    "undelivered_tail",
                    topic=watermark.topic,
                    partition=self.partition,
                    watermark=watermark.next_offset,
                    log_end=last,
                )
                await self._fill(watermark, last, apply)
            return last - watermark.next_offset

    async def close_idle(self, now_ms: int) -> None:
        """End runs that have been silent for too long, by an event of ours in the log."""
        if not self.ready or self.watermark.next_offset < self.watermark.end_seen:
            return  # whoever lags behind the log knows nothing of its last events
        ends = self._upkeep.idle(self.state, now_ms)
        if not ends:
            return
        _log.info("idle_runs_closed", partition=self.partition, runs=len(ends))
        await self._emitter.emit([self._message(end, f"{end.run_id}:idle") for end in ends])

    async def close_gaps(self, now_ms: int) -> None:
        """Give up steps that have been waited for long enough, by an event of ours in the log."""
        if not self.ready:
            return
        async with self._turn:  # a thread may be folding
            gaps = self._upkeep.overdue(self.state, now_ms)
        if not gaps:
            return
        _log.info("gaps_closed", partition=self.partition, runs=len(gaps))
        await self._emitter.emit(
            [self._message(gap, f"{gap.run_id}:{gap.seq}:gap_closed") for gap in gaps]
        )

    async def keep_modes(self) -> None:
        """Bring open runs under the switches of now, by events of ours in the log."""
        if not self.ready or not await self._modes.is_due(self.watermark.next_offset, self._end):
            return
        async with self._turn:
            changes = await self._modes.changes(self.state)
        if not changes:
            return
        _log.info("modes_changed", partition=self.partition, runs=len(changes))
        number = self._modes.switchings
        await self._emitter.emit(
            [self._message(each, f"{each.run_id}:{number}:mode_changed") for each in changes]
        )

    def _message(self, event: RunEnded | Notice, event_id: str) -> Message:
        """Return an event of ours for this partition's log."""
        return event_message(self._topics, event, event_id, self.partition)

    async def _end(self) -> int:
        _, last = await self._reader.bounds(self.watermark.topic, self.partition)
        return last

    async def _answer_missed(self) -> None:
        """Answer the proposals that nobody answered while nobody owned the partition."""
        _, last = await self._reader.bounds(self.asked.topic, self.partition)
        await self._fill(self.asked, last, self._answer)

    async def _in_order(
        self, watermark: Watermark, records: Sequence[Record], apply: Apply
    ) -> None:
        """Pass over what was taken before, read what is missing, apply the rest in order."""
        contiguous: list[Record] = []
        for record in records:
            expected = contiguous[-1].offset + 1 if contiguous else watermark.next_offset
            if record.offset < expected:
                self._metrics.redelivered.inc()
                continue
            if record.offset > expected:
                await apply(contiguous)
                contiguous = []
                await self._fill(watermark, record.offset, apply)
                if record.offset < watermark.next_offset:
                    continue
            contiguous.append(record)
        await apply(contiguous)

    async def _fill(self, watermark: Watermark, stop: int, apply: Apply) -> None:
        """Read the log from the watermark up to ``stop``."""
        start = watermark.next_offset
        async for messages in self._reader.read(watermark.topic, self.partition, start, stop):
            if not self._owned:
                return
            records = [record_of(message) for message in messages]
            for begin in range(0, len(records), self._settings.batch_events_max):
                await apply(records[begin : begin + self._settings.batch_events_max])
        if self._owned and stop > start:
            # Offsets without a message at the end of the range are passed over for good.
            watermark.next_offset = max(watermark.next_offset, stop)
            watermark.settled = watermark.next_offset
            self._metrics.filled.inc(stop - start)

    async def _answer(self, records: Sequence[Record]) -> None:
        """Answer proposals from the runs as they stand."""
        if not records or not self._owned:
            return
        answers: list[Sent] = []
        newest_ms = _newest_ms(records)
        try:
            with self._span("ontrack.answers", records) as span:
                async with self._turns.working():
                    for record in records:
                        await self._cover(record, newest_ms)
                        await prepare_question(
                            self._fold, self.state, record, self._turns.elsewhere
                        )
                        answer = self._fold.decide(self.state, record)
                        answers += self._untold(self.asked, record, [answer])
                        self.asked.next_offset = record.offset + 1
                        await self._turns.give_way()
                await self._say(answers, span)
        except BaseException:
            # Whoever goes on answers them: the floors say which of them have been answered.
            self.asked.next_offset = self.answered + 1
            raise
        self.answered = self.asked.next_offset - 1
        self.asked.settled = self.asked.next_offset

    async def _cover(self, record: Record, newest_ms: int) -> None:
        """Make sure that the library holds what a run is compared with that begins here.

        Asking costs a round trip to the broker, and few records begin a run. What is asked for is
        what the rest of the batch may need as well, up to ``newest_ms``.
        """
        if record.timestamp_ms is None or self._follower.has_covered(record.timestamp_ms):
            return
        if offload.asks_library(self.state, record):
            async with self._turns.elsewhere():
                await patiently(lambda: self._follower.cover(newest_ms))

    async def _advance(self, records: Sequence[Record]) -> None:
        """Fold a contiguous batch, publish above the floors, move the watermark."""
        if not records or not self._owned:
            return
        began = time.monotonic()
        try:
            with self._span("ontrack.batch", records) as span:
                await self._fold_and_tell(records, span)
        except BaseException:
            # What was folded may not have been said: no checkpoint may be written of this state,
            # and whoever takes the partition again folds from the last sound one.
            self._start_over()
            raise
        self.watermark.settled = self.watermark.next_offset
        if self.ready:  # what is folded again after a start is old, not late
            self._metrics.acknowledged(records, time.time())
        self._checkpoints.events += len(records)
        if self._checkpoints.events >= self._settings.checkpoint_events:
            await self._checkpoints.write(self.state, self.watermark.next_offset)
        self._metrics.batch_seconds.observe(time.monotonic() - began)

    async def _fold_and_tell(self, records: Sequence[Record], span: Span) -> None:
        told_now: list[Sent] = []
        notices: list[Message] = []
        newest_ms = _newest_ms(records)
        told = max(self.watermark.floors.values(), default=Told()).offset
        async with self._turns.working():
            for record in records:
                await self._cover(record, newest_ms)
                duplicates = self.state.duplicates
                said = await offload.apply(
                    self._fold,
                    self,
                    record,
                    self._turns.elsewhere,
                    self._metrics.engine_seconds.observe,
                )
                self._metrics.duplicates.inc(self.state.duplicates - duplicates)
                outputs = [item for item in said if not isinstance(item, Notice)]
                if record.offset > told:
                    notices += [self._notice(item) for item in said if isinstance(item, Notice)]
                told_now += self._untold(self.watermark, record, outputs)
                self._checkpoints.note(outputs)
                self.watermark.next_offset = record.offset + 1
                await self._turns.give_way()
        self._upkeep.folded(self.state)
        self._metrics.observe(self.partition, len(records), len(self.state.runs))
        # Notices first: where an output of this batch is found, they must be in the log already.
        await self._emitter.emit(notices)
        await self._say(told_now, span)

    async def _say(self, sent: Sequence[Sent], span: Span) -> None:
        """Publish outputs; once they are acknowledged, others are told of them as well."""
        await self._emitter.emit([item.message for item in sent])
        span.set("ontrack.outputs", len(sent))
        for _, output, _ in sent:
            self._telemetry.tell(output)
            if isinstance(output, (Verdict, Intervention)):
                span.link(output.trace)

    def _span(self, name: str, records: Sequence[Record]) -> AbstractContextManager[Span]:
        return self._telemetry.span(
            name,
            {
                "ontrack.partition": self.partition,
                "ontrack.offset.first": records[0].offset,
                "ontrack.offset.last": records[-1].offset,
                "ontrack.records": len(records),
            },
        )

    def _start_over(self) -> None:
        """Forget the state: it is ahead of what was said. The next recovery builds it anew."""
        self.revoke()
        self.state = self._fold.partition()
        self.watermark.next_offset = 0

    def _untold(
        self, watermark: Watermark, record: Record, outputs: Sequence[Output]
    ) -> list[Sent]:
        """Return what is above the floors, and count it."""
        untold = []
        for sent in messages_of(self._topics, record, outputs):
            if sent.told > watermark.floors.get(sent.message.topic, Told()):
                untold.append(sent)
                self._metrics.count(sent.output)
        return untold

    def _notice(self, notice: Notice) -> Message:
        told = notice.child_run_id if isinstance(notice, ChildStarted) else notice.parent_run_id
        return event_message(self._topics, notice, f"{notice.run_id}:{notice.type}:{told}")

    async def _find_floors(self) -> None:
        """Find how far outputs are published, and with it where proposals go on."""
        for watermark in (self.watermark, self.asked):
            watermark.floors = await self._floors.of(watermark.topic)
        _, last = await self._reader.bounds(self.asked.topic, self.partition)
        if self.asked.next_offset > last:
            self.asked.next_offset = 0  # of a topic that is no more, as with floors
        # Proposals leave no state behind: what has been answered need not be read again.
        answered = max(self.asked.floors.values()).offset
        self.asked.next_offset = max(self.asked.next_offset, answered + 1)
        self.answered = self.asked.next_offset - 1


def _newest_ms(records: Sequence[Record]) -> int:
    return max((item.timestamp_ms for item in records if item.timestamp_ms is not None), default=-1)
