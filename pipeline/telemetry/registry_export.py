"""The one registry, as OTLP metrics: what Prometheus would scrape is what a collector gets.

======================= ==================================================================
Prometheus              OTLP
======================= ==================================================================
counter ``x_total``     ``x``, a monotonic cumulative sum
histogram ``x``         ``x``, a cumulative histogram; its buckets count each value once
gauge, info, anything   the sample's name, a gauge
======================= ==================================================================

Names that end in ``_seconds`` or ``_bytes`` get the units ``s`` and ``By`` (UCUM).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as OtlpMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

_CUMULATIVE = AggregationTemporality.CUMULATIVE
_UNITS = {"_seconds": "s", "_bytes": "By"}
_Labels = tuple[tuple[str, str], ...]


def metrics_data(
    registry: CollectorRegistry,
    resource: Resource,
    scope: InstrumentationScope,
    began_s: float,
    now_s: float,
) -> MetricsData:
    """Return all of a registry as OTLP metrics.

    Parameters
    ----------
    began_s, now_s
        Seconds since the epoch: since when counters count that do not say it themselves, and now.
    """
    metrics = [
        metric
        for family in registry.collect()
        for metric in _metrics_of(family, _nanoseconds(began_s), _nanoseconds(now_s))
    ]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _metrics_of(family: Metric, began_ns: int, now_ns: int) -> Iterable[OtlpMetric]:
    unit = next((unit for end, unit in _UNITS.items() if family.name.endswith(end)), "")
    if family.type == "histogram":
        points = _histogram_points(family, began_ns, now_ns)
        if points:
            histogram = Histogram(points, _CUMULATIVE)
            yield OtlpMetric(family.name, family.documentation, unit, histogram)
        return
    if family.type == "counter":
        starts = _starts(family)
        counts = [
            _number(sample, starts.get(_labels(sample), began_ns), now_ns)
            for sample in family.samples
            if sample.name == f"{family.name}_total"
        ]
        if counts:
            total = Sum(counts, _CUMULATIVE, is_monotonic=True)
            yield OtlpMetric(family.name, family.documentation, unit, total)
        return
    by_name: dict[str, list[NumberDataPoint]] = {}
    for sample in family.samples:
        by_name.setdefault(sample.name, []).append(_number(sample, 0, now_ns))
    for name, numbers in by_name.items():
        yield OtlpMetric(name, family.documentation, unit, Gauge(numbers))


@dataclass(slots=True)
class _Series:
    below: list[tuple[float, float]] = field(default_factory=list)  # bound, values up to it
    sum: float = 0.0


def _histogram_points(family: Metric, began_ns: int, now_ns: int) -> list[HistogramDataPoint]:
    """Return a point for each set of labels."""
    starts = _starts(family)
    found: dict[_Labels, _Series] = {}
    for sample in family.samples:
        if sample.name == f"{family.name}_bucket":
            series = found.setdefault(_labels(sample), _Series())
            series.below.append((float(sample.labels["le"]), sample.value))
        elif sample.name == f"{family.name}_sum":
            found.setdefault(_labels(sample), _Series()).sum = sample.value
    return [
        _histogram_point(labels, series, starts.get(labels, began_ns), now_ns)
        for labels, series in found.items()
    ]


def _histogram_point(
    labels: _Labels, series: _Series, began_ns: int, now_ns: int
) -> HistogramDataPoint:
    below = sorted(series.below)
    counts = [
        round(count - before)
        for (_, count), (_, before) in zip(below, [(0.0, 0.0), *below[:-1]], strict=True)
    ]
    return HistogramDataPoint(
        attributes=dict(labels),
        start_time_unix_nano=began_ns,
        time_unix_nano=now_ns,
        count=sum(counts),
        sum=series.sum,
        bucket_counts=counts,
        explicit_bounds=[bound for bound, _ in below if not math.isinf(bound)],
        # Prometheus does not keep them, and OTLP does not ask for them.
        min=None,  # type: ignore[arg-type]
        max=None,  # type: ignore[arg-type]
    )


def _starts(family: Metric) -> dict[_Labels, int]:
    """Return when each series of a family began, where it says so."""
    return {
        _labels(sample): _nanoseconds(sample.value)
        for sample in family.samples
        if sample.name == f"{family.name}_created"
    }


def _number(sample: Sample, began_ns: int, now_ns: int) -> NumberDataPoint:
    return NumberDataPoint(dict(sample.labels), began_ns, now_ns, sample.value)


def _labels(sample: Sample) -> _Labels:
    return tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
