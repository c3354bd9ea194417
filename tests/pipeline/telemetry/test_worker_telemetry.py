"""The worker tells a collector what it has said, and what it did for that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.messages import topic_of
from ontrack.pipeline.kafka.sender import send_events, send_knowledge
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.telemetry import Span, Telemetry
from ontrack.pipeline.telemetry.evaluations import Rules
from ontrack.pipeline.workplace import contracts, references
from ontrack.topics import codecs
from ontrack.topics.errors import BrokerUnavailable
from ontrack.topics.events import Event, Step, TraceRef
from ontrack.topics.verdicts import Output
from tests.pipeline.fleet import WorkerProcess, wait_for
from tests.pipeline.kafka.test_gateway import Harness
from tests.pipeline.kafka.test_kafka import fleet_events
from tests.pipeline.kafka.test_owner import (
    EVENTS,
    OUTPUTS,
    TOPICS,
    FakeKafka,
    fill,
    mixed,
    new_owner,
    said,
)
from tests.pipeline.telemetry.collector import attributes, collector
from tests.pipeline.telemetry.test_telemetry import TRACE_ID, closed_port, on


class Listener:
    """Takes the place of telemetry and remembers what it was told, and when."""

    rules = Rules()

    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka = kafka
        self.told: dict[str, list[bytes]] = {name: [] for name in OUTPUTS}
        self.spans: list[tuple[str, dict[str, Any]]] = []

    def tell(self, output: Output) -> None:
        topic = topic_of(TOPICS, output)
        assert codecs.encode(output) in self.kafka.said(topic)  # not before it is acknowledged
        self.told[topic].append(codecs.encode(output))

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, Any] | None = None) -> Iterator[Span]:
        noted = dict(attributes or {})
        self.spans.append((name, noted))

        class Noted:
            def set(self, name: str, value: Any) -> None:
                noted[name] = value

            def link(self, trace: TraceRef | None) -> None:
                if trace is not None:
                    noted.setdefault("links", []).append(trace)

        yield Noted()


def listened(kafka: FakeKafka, metrics: Metrics | None = None) -> tuple[Any, Listener]:
    owner, listener = new_owner(kafka, metrics), Listener(kafka)
    owner._telemetry = listener
    return owner, listener


async def test_what_is_acknowledged_is_told_once_and_a_cold_start_tells_nothing_again() -> None:
    kafka, metrics = FakeKafka(), Metrics()
    owner, listener = listened(kafka, metrics)
    await owner.resume()
    records = fill(kafka, mixed(6))
    await owner.take(records)
    await owner.take(records[3:])
    assert any(listener.told.values())
    assert listener.told == said(kafka)
    assert f"ontrack_engine_seconds_count {len(records)}.0" in metrics.text().decode()
    again, second = listened(kafka)
    await again.resume()
    assert not any(second.told.values())


async def test_what_was_not_acknowledged_is_not_told() -> None:
    kafka = FakeKafka()
    owner, listener = listened(kafka)
    await owner.resume()
    records = fill(kafka, mixed(2))
    kafka.refuses = TOPICS.verdicts.name
    with pytest.raises(BrokerUnavailable):
        await owner.take(records)
    assert not any(listener.told.values())


async def test_a_batch_is_one_span_that_says_where_it_stands_and_links_to_its_steps() -> None:
    kafka = FakeKafka()
    owner, listener = listened(kafka)
    await owner.resume()
    trace = TraceRef(trace_id=TRACE_ID, span_id="00f067aa0ba902b7")
    records = fill(kafka, [Step(run_id="a", tool="look", trace=trace), Step(run_id="a", tool="x")])
    await owner.take(records)
    assert listener.spans == [
        (
            "ontrack.batch",
            {
                "ontrack.partition": 0,
                "ontrack.offset.first": 0,
                "ontrack.offset.last": 1,
                "ontrack.records": 2,
                "ontrack.outputs": 2,
                "links": [trace],
            },
        )
    ]
    assert TOPICS.events.name == EVENTS


async def test_a_question_is_one_span_with_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        harness = Harness()
        for guardrails in (False, True):
            telemetry = Telemetry.of(on(telemetry_guardrails=guardrails), harness.metrics, "worker")
            harness.gateway._telemetry = telemetry
            trace = {"trace_id": TRACE_ID, "span_id": "00f067aa0ba902b7"}
            await harness.ask(tool="pay", args={"q": "zq9Secret"}, call_id="c1", trace=trace)
            await telemetry.stop()
        plain, proposed = receiver.spans()
        decided = [attributes(record.attributes)["ontrack.id"] for record in receiver.log_records()]
        assert b"zq9Secret" not in b"".join(body for _, body in receiver.bodies)
    found = attributes(plain.attributes)
    assert plain.name == "ontrack.gate"
    assert [link.span_id.hex() for link in plain.links] == ["00f067aa0ba902b7"]
    assert found == {
        "gen_ai.conversation.id": "r",
        "gen_ai.tool.name": "pay",
        "ontrack.decision": json.loads(harness.published[0].value or b"")["decision"],
        "ontrack.way": "local",
    }
    more = attributes(proposed.attributes)
    assert more["gen_ai.operation.name"] == "run_guardrail"
    assert more["gen_ai.guardrail.target.id"] == "c1"
    assert found.items() <= more.items()
    # Only with the flag the decision itself is told.
    assert decided == [json.loads(harness.published[1].value or b"")["id"]]


def traced(events: list[Event]) -> list[Event]:
    """The same runs, as a host would send them that traces every call."""
    return [
        event.model_copy(
            update={"trace": TraceRef(trace_id=TRACE_ID, span_id=f"{number + 1:016x}")}
        )
        if isinstance(event, Step)
        else event
        for number, event in enumerate(events)
    ]


def evaluations(settings: Settings, events: list[Event]) -> dict[str, TraceRef | None]:
    """What a collector should get: ids and the places in traces."""
    monitor = EmbeddedMonitor(settings, references(), contracts())
    outputs = [output for event in events for output in monitor.feed(event)]
    told = [(output.id, Rules().evaluation(output)) for output in outputs]
    return {
        f"{evaluation.attributes['gen_ai.evaluation.name']} {name}": evaluation.trace
        for name, evaluation in told
        if evaluation is not None
    }


def test_a_worker_exports_what_it_says_of_the_runs_that_were_sent(
    settings: Settings, worker: WorkerProcess
) -> None:
    events = traced(fleet_events(14))
    expected = evaluations(settings, events)
    asyncio.run(send_knowledge(settings, references(), contracts()))
    with collector() as receiver:
        worker.more = {
            "ONTRACK_TELEMETRY": "true",
            "ONTRACK_TELEMETRY_TRACES_RATIO": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_BLRP_SCHEDULE_DELAY": "100",
        }
        worker.start()
        worker.wait_ready()
        asyncio.run(send_events(settings, events, None))
        receiver.wait_for(len(expected))
        folded = worker.metric("ontrack_engine_seconds_count")
        worker.stop()
        records = receiver.log_records()
        found = {
            f"{said['gen_ai.evaluation.name']} {said['ontrack.id']}": record
            for record in records
            if (said := attributes(record.attributes))
        }
        assert found.keys() == expected.keys()
        for name, trace in expected.items():
            where = (found[name].trace_id.hex(), found[name].span_id.hex())
            assert where == (("", "") if trace is None else (trace.trace_id, trace.span_id))
        assert any(trace is not None for trace in expected.values())
        assert folded >= len(events)
        metrics = receiver.last_metrics()
        assert sum(p.count for p in metrics["ontrack_engine_seconds"].histogram.data_points) >= (
            len(events)
        )
        batches = [span for span in receiver.spans() if span.name == "ontrack.batch"]
        assert sum(attributes(span.attributes)["ontrack.records"] for span in batches) >= (
            len(events)
        )
        assert any(span.links for span in batches)
        assert receiver.resource()["service.name"] == "ontrack-worker"


def test_a_worker_whose_collector_is_away_says_all_the_same(
    settings: Settings, worker: WorkerProcess
) -> None:
    events = fleet_events(7)
    monitor = EmbeddedMonitor(settings, references(), contracts())
    verdicts = [
        output.id for event in events for output in monitor.feed(event) if output.type == "verdict"
    ]
    asyncio.run(send_knowledge(settings, references(), contracts()))
    worker.more = {"ONTRACK_TELEMETRY": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": closed_port()}
    worker.more |= {"OTEL_BLRP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    worker.start()
    worker.wait_ready()
    asyncio.run(send_events(settings, events, None))
    name = topics_of(settings).verdicts.name
    assert len(asyncio.run(wait_for(settings, name, len(verdicts)))) == len(verdicts)
    worker.stop()
    assert worker.tail().count("telemetry_not_delivered") == 1
    assert "Traceback" not in worker.tail()
