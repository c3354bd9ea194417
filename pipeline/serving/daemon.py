"""Daemon: engine, desk, board and spans of one process, and what runs beside its pages."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

import structlog
from aiohttp import web

from ontrack.pipeline.board import Board
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.folding.quarantine import dead_letter, fault
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.gating.answers import GateAnswer, GatePolicy
from ontrack.pipeline.gating.asker import Asker
from ontrack.pipeline.gating.wire import Reply, json_reply
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.serving.desk import Desk
from ontrack.pipeline.serving.engine import Engine, Listener
from ontrack.pipeline.serving.event_memory import EventMemory
from ontrack.pipeline.serving.recording import Recording
from ontrack.pipeline.serving.stream import Stream
from ontrack.pipeline.serving.traces import (
    Answer,
    TraceRequest,
    answer,
    read_request,
    refuse,
    unavailable,
)
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.telemetry import AnyTelemetry, NoTelemetry
from ontrack.topics import codecs
from ontrack.topics.adapters.otlp_live import LiveSpans
from ontrack.topics.errors import BrokerUnavailable, InvalidEvent, WrongShape
from ontrack.topics.events import Event, Proposal
from ontrack.topics.verdicts import DeadLetter, Output, as_plain

_log = structlog.get_logger(__name__)

SPANS_S = 0.25  # how often spans are looked at whose waiting may be over
IDLE_S = 30.0
INLINE_BYTES_MAX = 65_536  # of spans that are read on the event loop: about 4 ms


class Pictures(Protocol):
    """Pictures of runs for those who watch; whoever makes the daemon brings them."""

    async def json(self, run_id: str) -> bytes:
        """Return a run's picture as JSON; raises LookupError, saying why there is none."""


class Daemon:
    """What the pages talk to.

    Parameters
    ----------
    make_engine
        Makes the engine; its argument is told of everything that the monitor says.
    listeners
        Told of it as well: a printer, for one.
    recording
        Where events are appended; what it holds is folded before the first request.
    make_pictures
        Makes pictures of the runs of a monitor from the memory of its events.

    Attributes
    ----------
    monitor
        The one in this process; None where workers judge.
    memory
        Events of the latest runs, as they were folded.
    stream
        Everything that is said, to readers.
    pictures
        None where workers judge, or nobody has brought any.
    """

    def __init__(
        self,
        settings: Settings,
        make_engine: Callable[[Metrics, Listener], Engine],
        listeners: Iterable[Listener] = (),
        recording: Recording | None = None,
        telemetry: Callable[[Metrics], AnyTelemetry] = lambda _metrics: NoTelemetry(),
        make_pictures: Callable[[EmbeddedMonitor, EventMemory], Pictures] | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.board = Board(settings.serve_sessions_max)
        self.memory = EventMemory()
        self.stream = Stream(_now, self.metrics.stream_dropped.inc)
        self._listeners = tuple(listeners)
        self._recording = recording
        self._is_past = False
        self._refusals = 0
        self.engine = make_engine(self.metrics, self._said)
        self.engine.taken = self._taken
        self.monitor = self.engine.monitor
        self.pictures = None
        if self.monitor is not None and make_pictures is not None:
            self.pictures = make_pictures(self.monitor, self.memory)
        self._telemetry = telemetry(self.metrics)
        policy = GatePolicy.of(settings.gate_fail_open)
        self._asker = Asker(self.engine, policy, self.engine.contracts())
        self.desk = Desk(
            partial(self._take_event, source="hook"),
            self.ask,
            settings.redaction.plainly,
            self.board,
            settings.serve_sessions_max,
            lambda why: self.metrics.hook_bypassed.labels(why).inc(),
            _now,
        )
        self._spans_turn = asyncio.Lock()
        self._outbox: deque[Event] = deque()
        self._spans = LiveSpans(settings.serve_spans_s, limits=settings.limits)

    async def running(self, _app: web.Application) -> AsyncIterator[None]:
        """Start, and stop when the pages do."""
        await self.engine.start()
        try:
            await self._fold_recording()
            gc.collect()
            gc.freeze()  # what stays for good: a full collection of it would hold up the hooks
            tasks = [
                asyncio.create_task(self._every(SPANS_S, self._due_spans)),
                asyncio.create_task(self._every(self.settings.reorder_ms / 4000, self._close_gaps)),
                asyncio.create_task(self._every(IDLE_S, self._close_idle)),
            ]
            yield
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            async with self._spans_turn:
                self._outbox.extend(self._spans.rest())
                await self._empty_outbox()
        finally:
            await self.engine.stop()
            await self._telemetry.stop()
            if self._recording is not None:
                self._recording.close()

    async def take_events(self, items: Sequence[bytes]) -> Reply:
        """Take events from a body, all that can be used, and tell of the first that cannot."""
        outputs: list[Output] = []
        bad: tuple[int, DeadLetter] | None = None
        for index, item in enumerate(items):
            said = await self._take(item, None, "http:/v1/events")
            outputs += said
            letter = next((one for one in said if isinstance(one, DeadLetter)), None)
            if letter is not None and bad is None:
                bad = (index, letter)
            await asyncio.sleep(0)  # nothing above need have waited: let hooks be answered
        rejected = sum(isinstance(output, DeadLetter) for output in outputs)
        told = {
            "accepted": len(items) - rejected,
            "outputs": [as_plain(output) for output in outputs],
        }
        if bad is None:
            return json_reply(200, told)
        index, letter = bad
        problem = {"error": letter.error.name, "text": letter.error.text, "index": index}
        return json_reply(400, problem | told)

    async def take_spans(self, raw: bytes, kind: str | None, encoding: str | None) -> Answer:
        """Take spans by OTLP/HTTP; 503 where their steps cannot be handed on now."""
        async with self._spans_turn:
            try:
                await self._empty_outbox()
                request, events = await self._read_spans(raw, kind, encoding)
                self._outbox.extend(events)
                await self._empty_outbox()
            except InvalidEvent as error:
                self.refused(raw, "http:/v1/traces", error)
                return refuse(error, kind)
            except BrokerUnavailable as error:
                return unavailable(str(error), kind)
        if request.rejected:
            self.refused(raw, "http:/v1/traces", WrongShape(request.reason or "unusable spans"))
        return answer(request)

    async def _read_spans(
        self, raw: bytes, kind: str | None, encoding: str | None
    ) -> tuple[TraceRequest, list[Event]]:
        """Read a request; a large one in a thread, so that nobody waits for it."""

        def read() -> tuple[TraceRequest, list[Event]]:
            request = read_request(raw, kind, encoding)
            events = self._spans.add(request.document, time.monotonic(), on_bad=request.reject)
            return request, events

        return read() if len(raw) <= INLINE_BYTES_MAX else await asyncio.to_thread(read)

    async def _empty_outbox(self) -> None:
        """Hand on steps of spans; what cannot be handed on stays, since no span is read twice."""
        while self._outbox:
            await self._take_event(self._outbox[0], "spans")
            self._outbox.popleft()
            await asyncio.sleep(0)  # as above

    def refused(self, raw: bytes, source: str, error: InvalidEvent) -> None:
        """Make a dead letter of a body that cannot be used; its sender is told as well."""
        self._refusals += 1
        self._said(dead_letter(Record(raw, None, source, 0, self._refusals), error))

    async def ask(self, proposal: Proposal, deadline_ms: float | None = None) -> GateAnswer:
        """Ask the gate.

        Raises
        ------
        InvalidEvent
            The run has ended, or the call cannot be read.
        """
        limit_ms = self.settings.gate_deadline_ms if deadline_ms is None else deadline_ms
        began = time.perf_counter()
        given = await self._asker.ask(self.settings.redaction.plainly(proposal), limit_ms)
        way = "local" if given.decided_by == "monitor" else "policy"
        self.metrics.gate_requests.labels(given.decision, way).inc()
        self.metrics.gate_seconds.labels(way).observe(time.perf_counter() - began)
        return given

    async def _take_event(self, event: Event, source: str) -> tuple[Output, ...]:
        event = self.settings.redaction.plainly(event)
        return await self._take(codecs.encode(event), event, source)

    async def _take(self, value: bytes, event: Event | None, source: str) -> tuple[Output, ...]:
        """Hand one event to the monitor."""
        if event is None:
            try:
                decoded = codecs.decode_event(value, self.settings.limits).event
            except InvalidEvent:
                # The monitor makes a dead letter of it.
                return await self.engine.take(value, None, source)
            if self.settings.redaction:
                decoded = self.settings.redaction.plainly(decoded)
                value = codecs.encode(decoded)
            event = decoded
        return await self.engine.take(value, event, source)

    def _taken(self, value: bytes, event: Event, made_here: bool) -> None:
        """Note and record what was folded.

        Notices of the monitor's own stand in the memory, since a run that is folded again by itself
        would miss them, and not in the recording, which is folded as a whole.
        """
        self.memory.add(event.run_id, value)
        if made_here:
            return
        self.board.heard(event, _now())
        if self._recording is not None and not self._is_past:
            self._recording.append(value)

    def _said(self, output: Output) -> None:
        """Tell everybody what the monitor says; of what was said before nobody again.

        Kafka may bring an output twice, and brings back what was decided here. Dead letters are
        made on this side, each once.
        """
        if self.board.knows(output) and not isinstance(output, DeadLetter):
            return
        self.board.said(output)
        self.stream.said(output)
        if self._is_past:
            return
        self.metrics.count(output)
        self.desk.said(output)
        self._telemetry.tell(output)
        for listener in self._listeners:
            listener(output)

    async def _fold_recording(self) -> None:
        if self._recording is None:
            return
        self._is_past = True
        count = 0
        for line in self._recording.lines():
            await self._take(line.strip(), None, "recording")
            count += 1
        self._is_past = False
        if count:
            _log.info("recording_folded", events=count, open_runs=self.board.open_runs)

    async def _due_spans(self) -> None:
        async with self._spans_turn:
            self._outbox.extend(self._spans.due(time.monotonic()))
            await self._empty_outbox()

    async def _close_gaps(self) -> None:
        for gap in await self.engine.overdue():
            await self._take_event(gap, "gaps")

    async def _close_idle(self) -> None:
        while (end := await self.engine.idle()) is not None:
            await self._take_event(end, "idle")

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except Exception as error:  # noqa: BLE001
                # A broker that is away, say: the next round may do better.
                _log.error("round_failed", work=work.__name__, **fault(error))


def _now() -> datetime:
    return datetime.now(UTC)
