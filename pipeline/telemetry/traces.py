"""The monitor's own traces: a span a batch and a span a question, linked to the agents' traces.

Spans of ours are traces of their own. A step's trace belongs to the agent; a batch holds steps of
many, so it points at them by links.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import Span as ApiSpan
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from ontrack.pipeline.telemetry.delivery import Delivery
from ontrack.pipeline.telemetry.evaluations import Value, encodable
from ontrack.topics.events import TraceRef

LINKS_MAX = 32


class Traces:
    """Makes spans; those that are sampled are queued when they end, or dropped and counted."""

    def __init__(
        self, exporter: SpanExporter, delivery: Delivery, resource: Resource, ratio: float
    ) -> None:
        self._exporter = exporter
        self.delivery = delivery
        self._processor = BatchSpanProcessor(_Counted(exporter, delivery))
        provider = TracerProvider(
            sampler=TraceIdRatioBased(ratio), resource=resource, shutdown_on_exit=False
        )
        provider.add_span_processor(_Bounded(self._processor, delivery))
        self._tracer = provider.get_tracer("ontrack", version("ontrack"))

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, Value] | None) -> Iterator[TracedSpan]:
        """Trace what is done inside; an error is named by its class, its text may quote."""
        span = self._tracer.start_span(name, Context(), attributes=attributes)
        try:
            yield TracedSpan(span)
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            span.end()

    def flush_and_end(self) -> None:
        """Send what is queued and end; may take as long as the exporter tries."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def give_up(self) -> None:
        """Interrupt an exporter that still tries."""
        self._exporter.shutdown()


class TracedSpan:
    """A span of ours."""

    def __init__(self, span: ApiSpan) -> None:
        self._span = span
        self._linked: set[TraceRef] = set()

    def set(self, name: str, value: Value) -> None:
        """Add an attribute."""
        self._span.set_attribute(name, encodable(value) if isinstance(value, str) else value)

    def link(self, trace: TraceRef | None) -> None:
        """Point at a step of an agent's trace, the first ``LINKS_MAX`` of them."""
        if trace is None or trace.span_id is None or not self._span.is_recording():
            return
        if trace in self._linked or len(self._linked) >= LINKS_MAX:
            return
        self._linked.add(trace)
        sampled = TraceFlags(TraceFlags.SAMPLED)
        self._span.add_link(
            SpanContext(int(trace.trace_id, 16), int(trace.span_id, 16), True, sampled)
        )


class _Bounded(SpanProcessor):
    """Lets a span into the queue only where there is a place."""

    def __init__(self, inner: SpanProcessor, delivery: Delivery) -> None:
        self._inner = inner
        self._delivery = delivery

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        self._inner.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        if context is not None and context.trace_flags.sampled and self._delivery.enter():
            self._inner.on_end(span)


class _Counted(SpanExporter):
    def __init__(self, exporter: SpanExporter, delivery: Delivery) -> None:
        self._exporter = exporter
        self._delivery = delivery

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        arrived = self._delivery.hand_over(
            len(spans), lambda: self._exporter.export(spans) is SpanExportResult.SUCCESS
        )
        return SpanExportResult.SUCCESS if arrived else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
