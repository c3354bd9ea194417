"""The SDK's providers, processors and exporters of one process; imported only when it is on.

Where to, with which headers, certificates and time limits stands in the ``OTEL_…`` variables, which
the SDK reads itself.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.telemetry.delivery import Complaints, Delivery, listen_to_exporters
from ontrack.pipeline.telemetry.events import Events
from ontrack.pipeline.telemetry.registry_export import metrics_data
from ontrack.pipeline.telemetry.traces import Traces

STOP_S_MAX = 3.0
METRICS_INTERVAL_MS = 60_000
QUEUE_RECORDS_MAX = 2048

_SCOPE = "ontrack"


class Pipes:
    """The three ways out; one that is switched off is None.

    Parameters
    ----------
    service
        ``service.name``, where no variable names it.
    instance
        ``service.instance.id``; None: a new one.
    traces_ratio
        Share of the spans that are recorded; 0: none, and nothing is set up for them.
    """

    def __init__(
        self, metrics: Metrics, service: str, instance: str | None, traces_ratio: float
    ) -> None:
        listen_to_exporters()
        resource = resource_of(service, instance)
        complaints = Complaints()

        def delivery(signal: str, variable: str) -> Delivery:
            return Delivery(signal, _number(variable, QUEUE_RECORDS_MAX), metrics, complaints)

        self.events: Events | None = None
        self.traces: Traces | None = None
        self._metrics: PeriodicMetrics | None = None
        if _is_wanted("LOGS"):
            accounts = delivery("logs", "OTEL_BLRP_MAX_QUEUE_SIZE")
            self.events = Events(OTLPLogExporter(), accounts, resource)
        if traces_ratio > 0 and _is_wanted("TRACES"):
            accounts = delivery("traces", "OTEL_BSP_MAX_QUEUE_SIZE")
            self.traces = Traces(OTLPSpanExporter(), accounts, resource, traces_ratio)
        if _is_wanted("METRICS"):
            accounts = Delivery("metrics", 1, metrics, complaints)
            interval_s = _number("OTEL_METRIC_EXPORT_INTERVAL", METRICS_INTERVAL_MS) / 1000
            self._metrics = PeriodicMetrics(
                OTLPMetricExporter(), accounts, metrics, resource, interval_s
            )

    def close(self) -> None:
        """Send what is left at the same time; give up what has not arrived in time."""
        parts = [part for part in (self.events, self.traces, self._metrics) if part is not None]
        threads = [threading.Thread(target=part.flush_and_end, daemon=True) for part in parts]
        for thread in threads:
            thread.start()
        ends = time.monotonic() + STOP_S_MAX
        for part, thread in zip(parts, threads, strict=True):
            thread.join(max(0.0, ends - time.monotonic()))
            part.delivery.end()
            if thread.is_alive():
                part.give_up()


class PeriodicMetrics:
    """Exports the registry now and then, from a thread of its own."""

    def __init__(
        self,
        exporter: MetricExporter,
        delivery: Delivery,
        metrics: Metrics,
        resource: Resource,
        interval_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._exporter = exporter
        self.delivery = delivery
        self._metrics = metrics
        self._resource = resource
        self._scope = InstrumentationScope(_SCOPE, version("ontrack"))
        self._interval_s = interval_s
        self._clock = clock
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ontrack-metrics", daemon=True)
        self._thread.start()

    def flush_and_end(self) -> None:
        """Export once more and end; returns when that is done."""
        self._ending.set()
        self._thread.join()
        self._exporter.shutdown()

    def give_up(self) -> None:
        """Interrupt an exporter that still tries."""
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._ending.wait(self._interval_s):
            self._export()
        self._export()

    def _export(self) -> None:
        def export() -> bool:
            data = metrics_data(
                self._metrics.registry,
                self._resource,
                self._scope,
                self._metrics.began_s,
                self._clock(),
            )
            return self._exporter.export(data) is MetricExportResult.SUCCESS

        self.delivery.hand_over(1, export, queued=False)


def resource_of(service: str, instance: str | None) -> Resource:
    """Return who sends: ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` win.

    Every process has its own ``service.instance.id``, or the metrics of two workers would be taken
    for one.
    """
    named = OTELResourceDetector().detect()
    ours = {
        "service.name": service,
        "service.version": version("ontrack"),
        "service.instance.id": instance or str(uuid.uuid4()),
    }
    return Resource.create(ours).merge(named)


def _is_wanted(signal: str) -> bool:
    return os.environ.get(f"OTEL_{signal}_EXPORTER") != "none"


def _number(variable: str, otherwise: int) -> int:
    """Read a variable that the SDK reads as well, and would ignore if it made no sense."""
    text = os.environ.get(variable)
    if not text:
        return otherwise
    if not (text.isascii() and text.isdigit() and int(text[:12]) > 0):
        raise ValueError(f"{variable} is {text!r}; expected a whole number above 0")
    return int(text)
