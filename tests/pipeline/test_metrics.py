"""Metrics: every output is counted once under its own name, in Prometheus' text format."""

from __future__ import annotations

from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ontrack.pipeline.embedded import EmbeddedMonitor, proposal_of
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, demo_runs, references
from ontrack.topics.events import Step
from ontrack.topics.verdicts import DeadLetter, Decision, Intervention, Output, Scorecard, Verdict


def samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def label_of(output: Output) -> tuple[str, str]:
    if isinstance(output, Verdict):
        return "ontrack_verdicts_total", output.verdict.value
    if isinstance(output, Intervention):
        return "ontrack_interventions_total", output.intervention.value
    if isinstance(output, Decision):
        return "ontrack_decisions_total", output.decision
    if isinstance(output, Scorecard):
        return "ontrack_scorecards_total", output.outcome
    assert isinstance(output, DeadLetter)
    return "ontrack_dead_letters_total", output.error.name


def test_every_output_is_counted_under_its_name() -> None:
    monitor = EmbeddedMonitor(Settings(encoder="hashing"), references(), contracts())
    outputs: list[Output] = [*monitor.feed_bytes(b"junk"), *monitor.feed_bytes(b"[]")]
    for event in (event for run in demo_runs() for event in run.events):
        if isinstance(event, Step):
            outputs.append(monitor.propose(proposal_of(event)))
        outputs += monitor.feed(event)
    metrics = Metrics()
    for output in outputs:
        metrics.count(output)
    expected = Counter(map(label_of, outputs))
    assert {name for name, _ in expected} == {
        "ontrack_verdicts_total",
        "ontrack_interventions_total",
        "ontrack_decisions_total",
        "ontrack_scorecards_total",
        "ontrack_dead_letters_total",
    }
    found = samples(metrics)
    for (name, label), count in expected.items():
        assert found[name, (label,)] == count


def test_batches_move_the_event_counter_and_the_gauge_of_open_runs() -> None:
    metrics = Metrics()
    metrics.observe(2, events=10, open_runs=3)
    metrics.observe(2, events=5, open_runs=1)
    found = samples(metrics)
    assert found["ontrack_events_total", ("2",)] == 15
    assert found["ontrack_open_runs", ("2",)] == 1


def test_the_way_of_an_event_is_timed_from_the_brokers_clock_to_its_acknowledged_outputs() -> None:
    metrics = Metrics()
    early, late = Record(b"", timestamp_ms=10_000), Record(b"", timestamp_ms=10_040)
    from_a_file, from_a_clock_ahead = Record(b""), Record(b"", timestamp_ms=99_000)
    metrics.acknowledged([early, late, from_a_file, from_a_clock_ahead], now_s=10.045)
    found = samples(metrics)
    assert found["ontrack_end_to_end_seconds_count", ()] == 3
    assert found["ontrack_end_to_end_seconds_sum", ()] == pytest.approx(0.045 + 0.005)
    assert found["ontrack_end_to_end_seconds_bucket", ("0.002",)] == 1
    assert found["ontrack_end_to_end_seconds_bucket", ("0.05",)] == 3


def test_lag_is_what_lies_between_watermark_and_end_and_never_negative() -> None:
    metrics = Metrics()
    metrics.lag(1, 7)
    assert samples(metrics)["ontrack_watermark_lag", ("1",)] == 7
    metrics.lag(1, -2)  # the end is older news than the watermark
    assert samples(metrics)["ontrack_watermark_lag", ("1",)] == 0


def test_a_log_of_which_nothing_was_folded_yet_has_a_pace_of_zero() -> None:
    metrics = Metrics()
    metrics.lag(1, 500)
    assert samples(metrics)["ontrack_events_total", ("1",)] == 0


def test_a_partition_that_left_is_not_brought_back_by_what_was_in_flight() -> None:
    metrics = Metrics()
    metrics.observe(1, events=5, open_runs=3)
    metrics.lag(1, 7)
    metrics.ready(1, True)
    metrics.forget(1)
    metrics.observe(1, events=2, open_runs=4)
    metrics.lag(1, 5)
    metrics.ready(1, False)
    gauges = {"ontrack_open_runs", "ontrack_watermark_lag", "ontrack_partition_ready"}
    assert {name for name, _ in samples(metrics) if name in gauges} == set()
    assert samples(metrics)["ontrack_events_total", ("1",)] == 7
    metrics.hold(1)
    metrics.observe(1, events=0, open_runs=4)
    assert samples(metrics)["ontrack_open_runs", ("1",)] == 4


def test_two_workers_in_a_process_do_not_share_counters() -> None:
    one, other = Metrics(), Metrics()
    one.redelivered.inc()
    assert samples(other)["ontrack_redelivered_events_total", ()] == 0
