"""The cheap histogram is the library's histogram, and the fold is timed around it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.parser import text_string_to_metric_families

from ontrack.pipeline.durations import Durations
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.metrics import ENGINE_BUCKETS, Metrics
from ontrack.pipeline.settings import Settings
from ontrack.topics.events import Step


@given(st.lists(st.floats(0, 100) | st.sampled_from(ENGINE_BUCKETS), max_size=40))
def test_durations_are_counted_as_the_librarys_histogram_counts_them(seconds: list[float]) -> None:
    registry = CollectorRegistry()
    twin = Histogram("it_seconds", "It", buckets=ENGINE_BUCKETS, registry=registry)
    durations = Durations("it_seconds", "It", ENGINE_BUCKETS)
    for one in seconds:
        twin.observe(one)
        durations.observe(one)
    (family,) = durations.collect()
    (expected,) = registry.collect()
    found = {(item.name, item.labels.get("le")): item.value for item in family.samples}
    assert found == {
        (item.name, item.labels.get("le")): item.value
        for item in expected.samples
        if not item.name.endswith("_created")
    }


def test_every_event_that_is_fed_is_timed_once() -> None:
    metrics = Metrics()
    monitor = EmbeddedMonitor(
        Settings(encoder="hashing", profile="paper"), observe=metrics.engine_seconds.observe
    )
    metrics.watch(monitor.fold)
    for n in range(3):
        monitor.feed(Step(run_id="r", tool="look", args={"q": "same"}, result=f"hit {n}"))
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if not sample.labels
    }
    assert found["ontrack_engine_seconds_count"] == 3
    assert found["ontrack_engine_seconds_sum"] > 0
    encoder = monitor.fold.encoder
    assert found["ontrack_encoder_cache_hits_total"] == encoder.hits > 0
    assert found["ontrack_encoder_cache_misses_total"] == encoder.misses > 0
