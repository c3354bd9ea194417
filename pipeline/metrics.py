"""The one metrics registry; everything that is counted is counted here."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ontrack.pipeline.record import Record
from ontrack.topics.verdicts import DeadLetter, Decision, Intervention, Output, Scorecard, Verdict


class Metrics:
    """Counters of one process, in the names that Prometheus shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.events = Counter(
            "ontrack_events", "Events folded", ["partition"], registry=self.registry
        )
        self.verdicts = Counter(
            "ontrack_verdicts", "Verdicts published", ["verdict"], registry=self.registry
        )
        self.interventions = Counter(
            "ontrack_interventions",
            "Interventions published",
            ["intervention"],
            registry=self.registry,
        )
        self.decisions = Counter(
            "ontrack_decisions", "Gate decisions", ["decision"], registry=self.registry
        )
        self.scorecards = Counter(
            "ontrack_scorecards", "Runs finished", ["outcome"], registry=self.registry
        )
        self.dead_letters = Counter(
            "ontrack_dead_letters", "Messages quarantined", ["error"], registry=self.registry
        )
        self.flags = Counter(
            "ontrack_flagged_steps",
            "Steps accepted with a flag (gap, late, lone_surrogates, …)",
            ["flag"],
            registry=self.registry,
        )
        self.duplicates = Counter(
            "ontrack_duplicate_steps", "Steps dropped as seen before", registry=self.registry
        )
        self.redelivered = Counter(
            "ontrack_redelivered_events",
            "Events delivered again below the watermark",
            registry=self.registry,
        )
        self.filled = Counter(
            "ontrack_filled_events",
            "Offsets read from the log because they were not delivered",
            registry=self.registry,
        )
        self.knowledge_rejected = Counter(
            "ontrack_knowledge_rejected",
            "References, contracts and tasks that could not be read",
            registry=self.registry,
        )
        self.snapshots_refused = Counter(
            "ontrack_snapshots_refused",
            "Checkpoints that were not used; the log was folded instead",
            registry=self.registry,
        )
        self.gate_requests = Counter(
            "ontrack_gate_requests",
            "Gate requests over HTTP by answer and by who gave it",
            ["decision", "way"],
            registry=self.registry,
        )
        self.gate_seconds = Histogram(
            "ontrack_gate_seconds",
            "Time from a gate request over HTTP to its answer",
            ["way"],
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
            registry=self.registry,
        )
        self.gate_redeemed = Counter(
            "ontrack_gate_redeemed",
            "Decisions redeemed (ok) or not, and why not",
            ["result"],
            registry=self.registry,
        )
        self.audit_dropped = Counter(
            "ontrack_gate_audit_dropped",
            "Decisions over HTTP that did not reach their topic",
            registry=self.registry,
        )
        self.open_runs = Gauge(
            "ontrack_open_runs", "Runs in memory", ["partition"], registry=self.registry
        )
        self.watermark_lag = Gauge(
            "ontrack_watermark_lag", "Events not folded yet", ["partition"], registry=self.registry
        )
        self.end_to_end_seconds = Histogram(
            "ontrack_end_to_end_seconds",
            "Time from the broker's append of an event to its acknowledged outputs",
            buckets=(0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60),
            registry=self.registry,
        )
        self.batch_seconds = Histogram(
            "ontrack_batch_seconds",
            "Time from taking a batch to its acknowledged outputs",
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
            registry=self.registry,
        )

    def count(self, output: Output) -> None:
        """Count one output."""
        if isinstance(output, Verdict):
            self.verdicts.labels(output.verdict.value).inc()
            for flag in output.flags:
                self.flags.labels(flag).inc()
        elif isinstance(output, Intervention):
            self.interventions.labels(output.intervention.value).inc()
        elif isinstance(output, Decision):
            self.decisions.labels(output.decision).inc()
        elif isinstance(output, Scorecard):
            self.scorecards.labels(output.outcome).inc()
        elif isinstance(output, DeadLetter):
            self.dead_letters.labels(output.error.name).inc()

    def observe(self, partition: int, events: int, open_runs: int) -> None:
        """Count a folded batch."""
        self.events.labels(str(partition)).inc(events)
        self.open_runs.labels(str(partition)).set(open_runs)

    def acknowledged(self, records: Iterable[Record], now_s: float) -> None:
        """Note how long events took from the broker's clock to ours; a clock behind it gives 0."""
        for record in records:
            if record.timestamp_ms is not None:
                self.end_to_end_seconds.observe(max(0.0, now_s - record.timestamp_ms / 1000))

    def lag(self, partition: int, events: int) -> None:
        """Note how many events of a partition are not folded yet."""
        self.watermark_lag.labels(str(partition)).set(max(0, events))

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
