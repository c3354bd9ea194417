"""Evaluation events as log records, through the SDK's batch processor."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.metadata import version

import structlog
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import (
    BatchLogRecordProcessor,
    LogRecordExporter,
    LogRecordExportResult,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    set_span_in_context,
)

from ontrack.pipeline.telemetry.delivery import Delivery
from ontrack.pipeline.telemetry.evaluations import EVENT_NAME, Evaluation
from ontrack.topics.events import TraceRef

_log = structlog.get_logger(__name__)


class Events:
    """Sends evaluations; what does not fit into the queue is dropped and counted."""

    def __init__(self, exporter: LogRecordExporter, delivery: Delivery, resource: Resource) -> None:
        self._exporter = exporter
        self.delivery = delivery
        self._processor = BatchLogRecordProcessor(_Counted(exporter, delivery))
        provider = LoggerProvider(resource, shutdown_on_exit=False)
        provider.add_log_record_processor(self._processor)
        self._logger = provider.get_logger("ontrack", version("ontrack"))

    def send(self, evaluation: Evaluation) -> None:
        """Queue one; returns at once, and never raises."""
        if not self.delivery.enter():
            return
        severity = SeverityNumber.WARN if evaluation.warns else SeverityNumber.INFO
        try:
            self._logger.emit(
                LogRecord(
                    timestamp=time.time_ns(),
                    context=parent(evaluation.trace),
                    severity_number=severity,
                    severity_text=severity.name,
                    attributes=evaluation.attributes,
                    event_name=EVENT_NAME,
                )
            )
        except Exception as error:  # noqa: BLE001
            # Whatever the SDK stumbles over: the monitor's work goes on.
            self.delivery.leave()
            self.delivery.dropped(1, "refused")
            _log.debug("event_refused", error=type(error).__name__)

    def flush_and_end(self) -> None:
        """Send what is queued and end; may take as long as the exporter tries."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def give_up(self) -> None:
        """Interrupt an exporter that still tries."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


def parent(trace: TraceRef | None) -> Context:
    """Return the context of a step of somebody's trace; an empty one where there is none."""
    if trace is None:
        return Context()
    span_id = 0 if trace.span_id is None else int(trace.span_id, 16)
    context = SpanContext(int(trace.trace_id, 16), span_id, True, TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(context), Context())


class _Counted(LogRecordExporter):
    def __init__(self, exporter: LogRecordExporter, delivery: Delivery) -> None:
        self._exporter = exporter
        self._delivery = delivery

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        arrived = self._delivery.hand_over(
            len(batch), lambda: self._exporter.export(batch) is LogRecordExportResult.SUCCESS
        )
        return LogRecordExportResult.SUCCESS if arrived else LogRecordExportResult.FAILURE

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
