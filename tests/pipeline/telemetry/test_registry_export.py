"""What goes out by OTLP is what Prometheus would scrape."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.parser import text_string_to_metric_families

from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.telemetry.registry_export import metrics_data
from tests.pipeline.telemetry.collector import attributes

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
VOLATILE = ("process_", "python_")  # they move between two looks


def scraped(metrics: Metrics) -> Series:
    """All that stands on the page, by the sample's own name."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if not sample.name.endswith("_created") and not sample.name.startswith(VOLATILE)
    }


def exported(metrics: Metrics) -> Series:
    """The same from the protobuf message, rewritten in Prometheus' terms."""
    resource, scope = Resource({}), InstrumentationScope("test")
    message = encode_metrics(metrics_data(metrics.registry, resource, scope, 1.0, 2.0))
    found: Series = {}
    for metric in message.resource_metrics[0].scope_metrics[0].metrics:
        if metric.name.startswith(VOLATILE):
            continue
        kind = metric.WhichOneof("data")
        if kind == "histogram":
            assert metric.histogram.aggregation_temporality == 2
            for point in metric.histogram.data_points:
                labels = set(attributes(point.attributes).items())
                below = 0
                bounds = [*map(str, point.explicit_bounds), "+Inf"]
                for bound, count in zip(bounds, point.bucket_counts, strict=True):
                    below += count
                    found[f"{metric.name}_bucket", frozenset({*labels, ("le", bound)})] = below
                found[f"{metric.name}_sum", frozenset(labels)] = point.sum
                found[f"{metric.name}_count", frozenset(labels)] = point.count
        else:
            values = metric.sum if kind == "sum" else metric.gauge
            name = f"{metric.name}_total" if kind == "sum" else metric.name
            if kind == "sum":
                assert metric.sum.is_monotonic
                assert metric.sum.aggregation_temporality == 2
            for point in values.data_points:
                found[name, frozenset(attributes(point.attributes).items())] = point.as_double
    return found


def test_a_counter_a_gauge_and_a_histogram_arrive_as_they_stand_on_the_page() -> None:
    metrics = Metrics()
    metrics.verdicts.labels("LOOP").inc(3)
    metrics.lag(2, 17)
    metrics.hook_seconds.labels("codex").observe(0.003)
    metrics.engine_seconds.observe(0.0004)
    found = exported(metrics)
    assert found["ontrack_verdicts_total", frozenset({("verdict", "LOOP")})] == 3
    assert found["ontrack_watermark_lag", frozenset({("partition", "2")})] == 17
    assert found["ontrack_hook_seconds_count", frozenset({("host", "codex")})] == 1
    assert found == scraped(metrics)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["gate", "hook", "batch", "engine", "events", "runs", "dropped"]),
            st.sampled_from(["a", "b", 'ä "quoted" \\ text']),
            st.floats(0, 1e9, allow_subnormal=False),
        ),
        max_size=25,
    )
)
def test_whatever_was_counted_both_ways_out_say_the_same(
    happened: list[tuple[str, str, float]],
) -> None:
    metrics = Metrics()
    for what, label, value in happened:
        if what == "gate":
            metrics.gate_seconds.labels(label).observe(value)
        elif what == "hook":
            metrics.hook_requests.labels(label, "before", "none").inc(value)
        elif what == "batch":
            metrics.batch_seconds.observe(value)
        elif what == "engine":
            metrics.engine_seconds.observe(value)
        elif what == "events":
            metrics.events.labels(label).inc(value)
        elif what == "runs":
            metrics.open_runs.labels(label).set(value)
        else:
            metrics.telemetry_dropped.labels("logs", label).inc()
    found, expected = exported(metrics), scraped(metrics)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert math.isclose(found[key], value, rel_tol=1e-12)


def test_units_follow_from_the_names_and_counters_say_since_when_they_count() -> None:
    metrics = Metrics()
    data = metrics_data(
        metrics.registry,
        Resource({}),
        InstrumentationScope("test"),
        1_700_000_000.0,
        1_800_000_000.0,
    )
    by_name = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    assert by_name["ontrack_engine_seconds"].unit == "s"
    assert by_name["process_resident_memory_bytes"].unit == "By"
    assert by_name["ontrack_knowledge"].unit == ""
    (own,) = by_name["ontrack_duplicate_steps"].data.data_points
    assert own.start_time_unix_nano > 1_700_000_000_000_000_000  # its own time of creation
    (other,) = by_name["ontrack_encoder_cache_hits"].data.data_points
    assert other.start_time_unix_nano == 1_700_000_000_000_000_000
    assert other.time_unix_nano == 1_800_000_000_000_000_000
    assert by_name["ontrack_build_info"].data.data_points[0].attributes["version"]
