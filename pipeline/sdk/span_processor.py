"""A span processor: the spans of a running program go to the monitor as they end."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import structlog

from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.folding.quarantine import fault
from ontrack.pipeline.reading.otlp_protobuf import read_document
from ontrack.pipeline.settings import Settings, load_settings
from ontrack.topics.adapters.otlp_live import LiveSpans
from ontrack.topics.errors import InvalidEvent, InvalidSettings
from ontrack.topics.events import Event
from ontrack.topics.verdicts import Output

try:
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
except ImportError as missing:
    raise ImportError(
        "OnTrackSpanProcessor needs OpenTelemetry's SDK and its OTLP exporter: "
        'pip install "ontrack[otel]"'
    ) from missing

_log = structlog.get_logger(__name__)

TRACES_PATH: Final = "/v1/traces"
WAITING_MAX: Final = 10_000
BATCH_MAX: Final = 256
ROUND_S: Final = 0.2


class OnTrackSpanProcessor(SpanProcessor):
    """Feeds ended spans to a monitor in this process, or to ``ontrack serve``.

    ::

        provider.add_span_processor(OnTrackSpanProcessor(on_verdict=print))

    It never keeps the program waiting: ended spans are queued and worked off by a thread; where
    more than ``waiting_max`` wait, further ones are dropped and counted. Spans are read as those
    that come over the network (:class:`~ontrack.topics.adapters.otlp_live.LiveSpans`): those of
    tools become steps, of the run that their conversation names.

    Parameters
    ----------
    monitor
        A monitor in this process, fed by nobody else; by default one as the settings say.
    serve_url
        Address of ``ontrack serve``, instead: spans go there by OpenTelemetry's own exporter, and
        verdicts are said there.
    token
        Its bearer token; by default the setting ``web_token``.
    on_verdict
        Told of all that the monitor says (verdicts, interventions, scorecards), in the thread;
        only with a monitor in this process.
    settle_s
        How long a trace may take to name the run of a call, in seconds.
    waiting_max
        Ended spans that wait.
    settings
        Instead of those from ``ontrack.toml`` and ``ONTRACK_…`` variables.

    Raises
    ------
    InvalidSettings
        ``serve_url`` together with ``monitor`` or ``on_verdict``.
    """

    def __init__(
        self,
        monitor: EmbeddedMonitor | None = None,
        *,
        serve_url: str | None = None,
        token: str | None = None,
        on_verdict: Callable[[Output], object] | None = None,
        settle_s: float = 2.0,
        waiting_max: int = WAITING_MAX,
        settings: Settings | None = None,
    ) -> None:
        if serve_url is not None and (monitor is not None or on_verdict is not None):
            raise InvalidSettings(
                "with serve_url the monitor is elsewhere, and so are its verdicts: see `ontrack "
                "tail` or the server's /v1/runs; leave out monitor and on_verdict"
            )
        found = settings or load_settings()
        self._way: SpanProcessor
        if serve_url is not None:
            self._way = _exporter(found, serve_url, token, waiting_max)
        else:
            made = monitor or EmbeddedMonitor(found)
            self._way = _Local(made, found, on_verdict, settle_s, waiting_max)

    @property
    def dropped(self) -> int:
        """Spans that found no room, with a monitor in this process."""
        return self._way.dropped if isinstance(self._way, _Local) else 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing: a span is read when it has ended."""
        self._way.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Queue an ended span; returns at once."""
        self._way.on_end(span)

    def shutdown(self) -> None:
        """Work off what waits, as if nothing else would come, and stop."""
        self._way.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Wait until the spans that have ended so far are read; False where time ran out.

        What waits for its trace to name its run goes on waiting.
        """
        return self._way.force_flush(timeout_millis)


def _exporter(
    settings: Settings, serve_url: str, token: str | None, waiting_max: int
) -> BatchSpanProcessor:
    if token is None and settings.web_token is not None:
        token = settings.web_token.get_secret_value()
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    exporter = OTLPSpanExporter(endpoint=serve_url.rstrip("/") + TRACES_PATH, headers=headers)
    return BatchSpanProcessor(
        exporter,
        max_queue_size=waiting_max,
        schedule_delay_millis=ROUND_S * 1000,
        max_export_batch_size=min(BATCH_MAX, waiting_max),
    )


class _Local(SpanProcessor):
    """A queue, and a thread that folds what is in it."""

    def __init__(
        self,
        monitor: EmbeddedMonitor,
        settings: Settings,
        on_verdict: Callable[[Output], object] | None,
        settle_s: float,
        waiting_max: int,
    ) -> None:
        self._monitor = monitor
        self._redaction = settings.redaction
        self._tell = on_verdict
        self._waiting_max = waiting_max
        self._new_spans = partial(LiveSpans, settle_s=settle_s, limits=settings.limits)
        self.dropped = 0
        self._begin()
        # In a forked child there is no thread, and what waits is the parent's to tell.
        mine = weakref.WeakMethod(self._begin)
        os.register_at_fork(after_in_child=lambda: (again := mine()) and again())

    def _begin(self) -> None:
        self._spans: LiveSpans = self._new_spans()
        self._waiting: deque[ReadableSpan] = deque()
        self._changed = threading.Condition()
        self._is_over = False
        self._taken = self._done = 0
        self._thread = threading.Thread(target=self._work, name="ontrack-spans", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        if context is None or not context.trace_flags.sampled:
            return
        with self._changed:
            if self._is_over or len(self._waiting) >= self._waiting_max:
                self.dropped += 1
                return
            self._waiting.append(span)
            self._taken += 1
            if len(self._waiting) == 1:
                self._changed.notify_all()

    def shutdown(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        with self._changed:
            wanted = self._taken
            return self._changed.wait_for(lambda: self._done >= wanted, timeout_millis / 1000)

    def _work(self) -> None:
        is_last = False
        while not is_last:
            with self._changed:
                if not self._waiting and not self._is_over:
                    self._changed.wait(ROUND_S)
                batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
                is_last = self._is_over and not self._waiting
            self._read(batch)
            self._guarded(lambda: self._spans.due(time.monotonic()))
            with self._changed:
                self._done += len(batch)
                self._changed.notify_all()
        self._guarded(self._spans.rest)

    def _read(self, batch: Sequence[ReadableSpan]) -> None:
        if batch:
            self._guarded(lambda: self._events(batch))

    def _events(self, batch: Sequence[ReadableSpan]) -> list[Event]:
        """Read spans by way of the protocol's own encoding, as if they came over the network."""
        raw: bytes = encode_spans(batch).SerializeToString()
        now_s = time.monotonic()
        events: list[Event] = self._spans.add(read_document(raw), now_s, on_bad=_unusable)
        return events

    def _guarded(self, events: Callable[[], Iterable[Event]]) -> None:
        """Fold events; a fault of ours, or of a callback, must not reach the program."""
        try:
            for event in events():
                for output in self._monitor.feed(self._redaction.plainly(event)):
                    if self._tell is not None:
                        self._tell(output)
        except Exception as error:  # noqa: BLE001
            _log.error("spans_not_watched", **fault(error))


def _unusable(error: InvalidEvent) -> None:
    _log.warning("span_not_used", error=type(error).__name__, text=str(error))
