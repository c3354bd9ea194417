"""The one metrics registry; everything that is counted is counted here."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ontrack.pipeline.durations import Durations
from ontrack.pipeline.folding.record import Record
from ontrack.topics.errors import InvalidEvent
from ontrack.topics.events import Outcome
from ontrack.topics.verdicts import (
    DeadLetter,
    Decision,
    Intervention,
    InterventionName,
    Output,
    Scorecard,
    Verdict,
    VerdictName,
)

if TYPE_CHECKING:
    from ontrack.pipeline.folding.fold import Fold

ANSWER_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
ENGINE_BUCKETS = (
    *(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005),
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1),
)


class Metrics:
    """Counters of one process, in the names that Prometheus shows.

    Attributes
    ----------
    registry : CollectorRegistry
        Where all of them stand, those of the Python process as well.
    began_s : float
        When it began to count, seconds since the epoch.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.began_s = time.time()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        Info("ontrack_build", "Version of this process", registry=self.registry).info(
            {"version": version("ontrack"), "python": platform.python_version()}
        )
        self._inside = _Inside()
        self.registry.register(self._inside)
        self.engine_seconds = Durations(
            "ontrack_engine_seconds", "Time to fold one event, without I/O", ENGINE_BUCKETS
        )
        self.registry.register(self.engine_seconds)
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
        self._begin()
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
        self.fleet_aggregates = Counter(
            "ontrack_fleet_aggregates",
            "Lines of the fleet's minutes: first, revised, final",
            ["kind"],
            registry=self.registry,
        )
        self.fleet_skipped = Counter(
            "ontrack_fleet_skipped",
            "Outputs that the fleet's minutes miss, or count without their run, and why",
            ["reason"],
            registry=self.registry,
        )
        self.fleet_failures = Counter(
            "ontrack_fleet_failures",
            "Times that the fleet's minutes had to begin again at their last state",
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
            buckets=ANSWER_BUCKETS,
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
        self.stream_dropped = Counter(
            "ontrack_stream_dropped",
            "Readers of the stream that were cut off because they read too slowly",
            registry=self.registry,
        )
        self.hook_requests = Counter(
            "ontrack_hook_requests",
            "Calls of hooks by host, moment and decision",
            ["host", "moment", "decision"],
            registry=self.registry,
        )
        self.hook_seconds = Histogram(
            "ontrack_hook_seconds",
            "Time from a hook's call to its answer",
            ["host"],
            buckets=ANSWER_BUCKETS,
            registry=self.registry,
        )
        self.hook_bypassed = Counter(
            "ontrack_hook_bypassed",
            "Steps whose call was not asked about, or ran in spite of the answer",
            ["reason"],
            registry=self.registry,
        )
        self.telemetry_exported = Counter(
            "ontrack_telemetry_exported",
            "Records that a collector took (logs, spans), and exports of all metrics",
            ["signal"],
            registry=self.registry,
        )
        self.telemetry_dropped = Counter(
            "ontrack_telemetry_dropped",
            "Records and exports that no collector took, and why",
            ["signal", "reason"],
            registry=self.registry,
        )
        self.alerts = Counter(
            "ontrack_alerts",
            "Alerts by route and sink: delivered, retried, dead_letter; suppressed and held wait",
            ["route", "sink", "result"],
            registry=self.registry,
        )
        self.open_runs = Gauge(
            "ontrack_open_runs", "Runs in memory", ["partition"], registry=self.registry
        )
        self.watermark_lag = Gauge(
            "ontrack_watermark_lag", "Events not folded yet", ["partition"], registry=self.registry
        )
        self.partition_ready = Gauge(
            "ontrack_partition_ready",
            "1 once the partition's log is folded to its end, 0 while it is rebuilt",
            ["partition"],
            registry=self.registry,
        )
        self._elsewhere: set[int] = set()
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

    def _begin(self) -> None:
        """Show at zero what rules and board compare: neither sees a counter that begins above it.

        A wave of halts that a worker begins with would be no increase, and a verdict that was never
        given before has no share to be a multiple of.
        """
        for verdict in VerdictName:
            self.verdicts.labels(verdict.value)
        for intervention in InterventionName:
            self.interventions.labels(intervention.value)
        for decision in get_args(Decision.model_fields["decision"].annotation):
            self.decisions.labels(decision)
        for outcome in get_args(Outcome):
            self.scorecards.labels(outcome)
        for kind in InvalidEvent.__subclasses__():
            self.dead_letters.labels(kind.__name__)

    def watch(self, fold: Fold) -> None:
        """Show the encoder's cache and the library of a fold; both are read when asked for."""
        self._inside.fold = fold

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
        if partition not in self._elsewhere:
            self.open_runs.labels(str(partition)).set(open_runs)

    def hold(self, partition: int) -> None:
        """Show a partition (again): it is this worker's."""
        self._elsewhere.discard(partition)

    def forget(self, partition: int) -> None:
        """Show a partition no longer: another worker has it.

        A batch in flight is finished after that, and must not bring it back.
        """
        self._elsewhere.add(partition)
        for gauge in (self.open_runs, self.watermark_lag, self.partition_ready):
            with contextlib.suppress(KeyError):
                gauge.remove(str(partition))

    def ready(self, partition: int, is_ready: bool) -> None:
        """Note whether a partition's log has been folded to its end."""
        if partition not in self._elsewhere:
            self.partition_ready.labels(str(partition)).set(is_ready)

    def acknowledged(self, records: Iterable[Record], now_s: float) -> None:
        """Note how long events took from the broker's clock to ours; a clock behind it gives 0."""
        for record in records:
            if record.timestamp_ms is not None:
                self.end_to_end_seconds.observe(max(0.0, now_s - record.timestamp_ms / 1000))

    def lag(self, partition: int, events: int) -> None:
        """Note how many events of a partition are not folded yet."""
        if partition not in self._elsewhere:
            self.watermark_lag.labels(str(partition)).set(max(0, events))
            self.events.labels(str(partition))  # a log that does not move has a pace, which is 0

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _Inside(Collector):
    """What the fold counts itself, read at the moment somebody asks, so that it costs nothing."""

    def __init__(self) -> None:
        self.fold: Fold | None = None
        self._known = {"references": 0, "contracts": 0, "tasks": 0}

    def collect(self) -> Iterable[Metric]:
        encoder = None if self.fold is None else self.fold.encoder
        hits = CounterMetricFamily(
            "ontrack_encoder_cache_hits",
            "Texts whose vector was at hand",
            0 if encoder is None else encoder.hits,
        )
        misses = CounterMetricFamily(
            "ontrack_encoder_cache_misses",
            "Texts that had to be encoded",
            0 if encoder is None else encoder.misses,
        )
        knowledge = GaugeMetricFamily(
            "ontrack_knowledge", "Current references, contracts and tasks", labels=["kind"]
        )
        for kind, count in self._counts().items():
            knowledge.add_metric([kind], count)
        return hits, misses, knowledge

    def _counts(self) -> dict[str, int]:
        if self.fold is not None:
            # A dictionary may grow meanwhile, where metrics are exported from another thread while
            # knowledge comes in. What was known a moment ago is as good.
            with contextlib.suppress(RuntimeError):
                self._known = self.fold.library.counts()
        return self._known
