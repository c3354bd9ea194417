"""Telemetry against a collector that takes everything, and against those that do not."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from ontrack.pipeline.embedded import EmbeddedMonitor, proposal_of
from ontrack.pipeline.kafka.app import make_app
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.telemetry import NoTelemetry, Telemetry
from ontrack.pipeline.telemetry import pipes as pipes_module
from ontrack.pipeline.telemetry.evaluations import Rules
from ontrack.pipeline.workplace import contracts, demo_runs, references
from ontrack.topics.errors import InvalidSettings
from ontrack.topics.events import Event, RunEnded, Step, TraceRef
from ontrack.topics.verdicts import Output, Verdict, VerdictName
from tests.pipeline.telemetry.collector import Collector, attributes, collector
from tests.pipeline.telemetry.test_registry_export import VOLATILE, Series, scraped

SECRET = "zq9Secret"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name in ("OTEL_BLRP_SCHEDULE_DELAY", "OTEL_BSP_SCHEDULE_DELAY"):
        monkeypatch.setenv(name, "50")


def on(**more: Any) -> Settings:
    return Settings(encoder="hashing", telemetry=True, telemetry_traces_ratio=1.0, **more)


@pytest.fixture
def taking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collector() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        yield receiver


def span_of(seq: int) -> str:
    return f"{seq + 1:016x}"


def looping(run_id: str = "r1", steps: int = 8) -> list[Event]:
    """A run that makes the same call again and again, traced by its host."""
    calls = [
        Step(
            run_id=run_id,
            seq=seq,
            tool="search",
            args={"q": SECRET},
            result=f"nothing about {SECRET}",
            trace=TraceRef(trace_id=TRACE_ID, span_id=span_of(seq)),
        )
        for seq in range(steps)
    ]
    return [*calls, RunEnded(run_id=run_id, outcome="failure", reason=f"gave up on {SECRET}")]


def outputs_of(events: list[Event], settings: Settings) -> list[Output]:
    monitor = EmbeddedMonitor(settings)
    return [output for event in events for output in monitor.feed(event)]


def is_told(output: Output) -> bool:
    return Rules().evaluation(output) is not None


async def test_verdicts_arrive_as_evaluations_in_the_trace_of_their_step(
    taking: Collector,
) -> None:
    settings, metrics = on(), Metrics()
    telemetry = Telemetry.of(settings, metrics, "serve")
    outputs = outputs_of(looping(), settings)
    for output in outputs:
        telemetry.tell(output)
    expected = [output for output in outputs if is_told(output)]
    taking.wait_for(len(expected))
    await telemetry.stop()
    records = taking.log_records()
    assert len(records) == len(expected)
    loops = [
        output
        for output in expected
        if isinstance(output, Verdict) and output.verdict is VerdictName.LOOP
    ]
    assert loops
    arrived = {attributes(record.attributes)["ontrack.id"]: record for record in records}
    for verdict in loops:
        record = arrived[verdict.id]
        said = attributes(record.attributes)
        assert record.event_name == "gen_ai.evaluation.result"
        assert record.trace_id.hex() == TRACE_ID
        assert record.span_id.hex() == span_of(verdict.seq)
        assert said["gen_ai.evaluation.name"] == "ontrack.verdict"
        assert said["gen_ai.evaluation.score.label"] == "LOOP"
        assert said["gen_ai.conversation.id"] == "r1"
        assert said["gen_ai.tool.name"] == "search"
    final = arrived["r1:end"]
    assert attributes(final.attributes)["gen_ai.evaluation.name"] == "ontrack.final_score"
    assert final.trace_id == b""
    who = taking.resource()
    assert who["service.name"] == "ontrack-serve"
    assert who["service.instance.id"]
    assert taken(metrics, "logs") == len(expected)


async def test_the_names_that_the_environment_gives_win(
    taking: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    telemetry = Telemetry.of(on(instance="w7"), Metrics(), "worker")
    await telemetry.stop()
    who = taking.resource()
    assert who["service.name"] == "mine"
    assert who["deployment.environment.name"] == "test"
    assert who["service.instance.id"] == "w7"


async def test_the_metrics_that_arrive_are_those_of_the_registry(taking: Collector) -> None:
    metrics = Metrics()
    monitor = EmbeddedMonitor(on(), observe=metrics.engine_seconds.observe)
    metrics.watch(monitor.fold)
    telemetry = Telemetry.of(on(), metrics, "worker")
    for event in looping():
        for output in monitor.feed(event):
            metrics.count(output)
    expected = scraped(metrics)
    await telemetry.stop()  # exports once more
    found: Series = {}
    for name, metric in taking.last_metrics().items():
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            labels = frozenset(attributes(point.attributes).items())
            if kind == "histogram":
                found[f"{name}_count", labels] = point.count
                found[f"{name}_sum", labels] = point.sum
            else:
                found[f"{name}_total" if kind == "sum" else name, labels] = point.as_double
    whole = {key: value for key, value in expected.items() if not key[0].endswith("_bucket")}
    assert {key: found[key] for key in found if not key[0].startswith(VOLATILE)} == whole
    assert found["ontrack_engine_seconds_count", frozenset()] == 9
    assert found["ontrack_verdicts_total", frozenset({("verdict", "LOOP")})] > 0


async def test_own_spans_carry_what_was_done_and_point_at_the_agents_traces(
    taking: Collector,
) -> None:
    telemetry = Telemetry.of(on(), Metrics(), "worker")
    agents = TraceRef(trace_id=TRACE_ID, span_id=span_of(3))
    with telemetry.span("ontrack.batch", {"ontrack.partition": 2}) as span:
        span.set("ontrack.outputs", 5)
        for n in range(100):
            span.link(TraceRef(trace_id=TRACE_ID, span_id=span_of(n)))
        span.link(agents)
        span.link(None)
        span.link(TraceRef(trace_id=TRACE_ID))
    with pytest.raises(ZeroDivisionError), telemetry.span("ontrack.gate"):
        raise ZeroDivisionError(SECRET)
    await telemetry.stop()
    batch, gate = sorted(taking.spans(), key=lambda item: item.name)
    assert batch.name == "ontrack.batch"
    assert batch.parent_span_id == b""
    assert attributes(batch.attributes) == {"ontrack.partition": 2, "ontrack.outputs": 5}
    assert [link.span_id.hex() for link in batch.links] == [span_of(n) for n in range(32)]
    assert {link.trace_id.hex() for link in batch.links} == {TRACE_ID}
    assert attributes(gate.attributes) == {"error.type": "ZeroDivisionError"}
    assert gate.status.code == 2


@pytest.mark.parametrize("show", [False, True])
async def test_no_argument_and_no_result_is_in_any_byte_that_goes_out(
    taking: Collector, show: bool
) -> None:
    settings, metrics = on(telemetry_guardrails=True, show_arguments=show), Metrics()
    telemetry = Telemetry.of(settings, metrics, "serve")
    assert isinstance(telemetry, Telemetry)
    monitor = EmbeddedMonitor(settings, references(), contracts())
    metrics.watch(monitor.fold)
    outputs: list[Output] = list(monitor.feed_bytes(f'{{"run_id": {SECRET}}}'.encode()))
    runs = [
        *looping(),
        *(event for run in demo_runs() for event in run.events),
    ]
    for event in runs:
        if isinstance(event, Step):
            event = event.model_copy(update={"args": {**event.args, SECRET: SECRET}})
            with telemetry.span("ontrack.gate") as span:
                span.set("gen_ai.tool.name", event.tool)
                outputs.append(monitor.propose(proposal_of(event)))
        outputs += monitor.feed(event)
    if show:  # only then this test could find something
        assert any(SECRET in output.model_dump_json() for output in outputs)
    for output in outputs:
        metrics.count(output)
        telemetry.tell(output)
    await telemetry.stop()
    assert {path for path, _ in taking.bodies} == {"/v1/logs", "/v1/traces", "/v1/metrics"}
    assert len(taking.log_records()) > 20
    for _, body in taking.bodies:
        assert SECRET.encode() not in body
    assert SECRET.encode() not in metrics.text()


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def taken(metrics: Metrics, signal: str) -> float:
    return scraped(metrics).get(
        ("ontrack_telemetry_exported_total", frozenset({("signal", signal)})), 0.0
    )


def lost(metrics: Metrics, signal: str) -> dict[str, float]:
    return {
        dict(labels)["reason"]: value
        for (name, labels), value in scraped(metrics).items()
        if name == "ontrack_telemetry_dropped_total" and ("signal", signal) in labels
    }


@pytest.mark.parametrize("trouble", ["away", "refuses", "rubbish", "silent"])
async def test_trouble_with_the_collector_changes_a_metric_and_one_line_and_no_output(
    trouble: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipes_module, "STOP_S_MAX", 1.0)
    monkeypatch.setenv("OTEL_BLRP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", "4")
    settings, metrics = on(), Metrics()
    events = [event for n in range(20) for event in looping(f"r{n}")]
    expected = outputs_of(events, settings)
    with collector("silent" if trouble == "away" else trouble) as receiver:
        endpoint = closed_port() if trouble == "away" else receiver.endpoint
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monitor, outputs = EmbeddedMonitor(settings), []
        with capture_logs() as lines:
            telemetry = Telemetry.of(settings, metrics, "worker")
            for event in events:
                with telemetry.span("ontrack.batch"):
                    for output in monitor.feed(event):
                        outputs.append(output)
                        telemetry.tell(output)
            await telemetry.stop()
            telemetry.tell(outputs[-1])  # too late, and no harm
        assert outputs == expected
        count = sum(map(is_told, outputs)) + 1
        assert taken(metrics, "logs") == 0
        assert sum(lost(metrics, "logs").values()) == count
        assert set(lost(metrics, "logs")) <= {"queue_full", "not_delivered", "stopped"}
        assert lost(metrics, "logs")["stopped"] >= 1
        assert sum(lost(metrics, "traces").values()) == len(events)
        warnings = [line for line in lines if line["log_level"] == "warning"]
        assert [line["event"] for line in warnings] in (["telemetry_not_delivered"], [])
        if trouble == "refuses":
            assert "400" in warnings[0]["problem"]


async def test_an_outage_is_told_once_and_its_end_as_well(
    taking: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    settings, metrics = on(), Metrics()
    (*_, scorecard) = outputs_of(looping(), settings)
    with capture_logs() as lines:
        telemetry = Telemetry.of(settings, metrics, "worker")
        assert isinstance(telemetry, Telemetry)
        events = telemetry._pipes.events
        assert events is not None
        taking.manner = "refuses"
        for _ in range(3):
            telemetry.tell(scorecard)
            events._processor.force_flush()
        taking.manner = "takes"
        for _ in range(3):
            telemetry.tell(scorecard)
            events._processor.force_flush()
        await telemetry.stop()
    assert [line["event"] for line in lines] == [
        "telemetry_not_delivered",
        "telemetry_delivered_again",
    ]
    assert taken(metrics, "logs") == 3
    assert lost(metrics, "logs") == {"not_delivered": 3}


def test_a_full_queue_costs_records_and_never_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes_module, "STOP_S_MAX", 0.2)
    monkeypatch.setenv("OTEL_BLRP_MAX_QUEUE_SIZE", "10")
    monkeypatch.setenv("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", "5")
    settings, metrics = on(), Metrics()
    (*_, scorecard) = outputs_of(looping(), settings)
    with collector("silent") as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        telemetry = Telemetry.of(settings, metrics, "worker")
        assert isinstance(telemetry, Telemetry)
        for _ in range(100):
            telemetry.tell(scorecard)
        # Ten wait, and at most one batch of five is on its way.
        assert 85 <= lost(metrics, "logs")["queue_full"] <= 90
        telemetry.close()
        assert sum(lost(metrics, "logs").values()) == 100


def test_off_it_does_nothing_and_imports_nothing() -> None:
    assert isinstance(Telemetry.of(Settings(), Metrics(), "worker"), NoTelemetry)
    code = (
        "import sys, ontrack.pipeline.kafka.worker, ontrack.pipeline.telemetry\n"
        "sys.exit(any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ONTRACK_")}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=60).returncode == 0


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> Any:
        if name.startswith("opentelemetry."):
            raise ModuleNotFoundError(name)
        return found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(InvalidSettings, match=r'pip install "ontrack\[otel\]"'):
        Telemetry.of(on(), Metrics(), "worker")
    with pytest.raises(InvalidSettings, match="opentelemetry.sdk"):
        make_app(on())


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_BLRP_MAX_QUEUE_SIZE", "many"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
    ],
)
def test_a_variable_that_cannot_be_followed_is_an_error(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidSettings, match=variable):
        Telemetry.of(on(), Metrics(), "worker")


async def test_each_signal_can_be_switched_off(
    taking: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    telemetry = Telemetry.of(on(), Metrics(), "worker")
    with telemetry.span("ontrack.batch") as span:
        span.set("a", 1)
    for output in outputs_of(looping(), on()):
        telemetry.tell(output)
    await telemetry.stop()
    assert {path for path, _ in taking.bodies} == {"/v1/logs"}
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert isinstance(Telemetry.of(on(), Metrics(), "worker"), NoTelemetry)
