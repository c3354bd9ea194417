"""A real OpenTelemetry SDK sends an agent's spans to a real `ontrack serve`; verdicts come out."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import format_span_id, format_trace_id

from tests.pipeline.serving.served import Served, served

ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 30.0
CALLS = 5


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, ONTRACK_SERVE_SPANS_S="0.5") as process:
        yield process


def exporter_to(daemon: Served, compression: Compression = Compression.Gzip) -> OTLPSpanExporter:
    return OTLPSpanExporter(f"{daemon.url}/v1/traces", compression=compression, timeout=10)


def provider_of(exporter: SpanExporter, is_batched: bool) -> TracerProvider:
    provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
    make = BatchSpanProcessor if is_batched else SimpleSpanProcessor
    provider.add_span_processor(make(exporter))
    return provider


def run_agent(provider: TracerProvider, conversation: str | None) -> list[tuple[str, str]]:
    """Call one tool again and again in the same way; return the ids of the calls' spans."""
    tracer = provider.get_tracer("by hand")
    agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "planner"}
    if conversation is not None:
        agent["gen_ai.conversation.id"] = conversation
    ids = []
    with tracer.start_as_current_span("invoke_agent planner", attributes=agent):
        for number in range(CALLS):
            call = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": "search",
                "gen_ai.tool.call.id": f"call-{number}",
                "gen_ai.tool.call.arguments": '{"query": "the same"}',
                "gen_ai.tool.call.result": "nothing found",
            }
            with tracer.start_as_current_span("execute_tool search", attributes=call) as span:
                context = span.get_span_context()
                ids.append((format_trace_id(context.trace_id), format_span_id(context.span_id)))
    assert provider.force_flush()
    return ids


def outputs(daemon: Served, kind: str, count: int) -> list[dict[str, Any]]:
    """What the daemon has printed of a kind, as soon as there is so much of it."""
    return until(lambda: [each for each in daemon.outputs() if each["type"] == kind], count)


def until(look: Callable[[], list[Any]], count: int) -> list[Any]:
    end = time.monotonic() + WAIT_S
    while len(found := look()) < count and time.monotonic() < end:
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("is_batched", [True, False])
@pytest.mark.parametrize("compression", [Compression.Gzip, Compression.NoCompression])
def test_an_sdk_sends_spans_and_the_verdicts_come_out(
    daemon: Served, is_batched: bool, compression: Compression
) -> None:
    provider = provider_of(exporter_to(daemon, compression), is_batched)
    ids = run_agent(provider, conversation=None)
    (card,) = outputs(daemon, "scorecard", 1)
    provider.shutdown()
    verdicts = outputs(daemon, "verdict", CALLS)
    assert [verdict["run_id"] for verdict in verdicts] == [ids[0][0]] * CALLS
    assert [verdict["seq"] for verdict in verdicts] == list(range(CALLS))
    told = [(each["trace"]["trace_id"], each["trace"]["span_id"]) for each in verdicts]
    assert told == ids
    assert (verdicts[0]["verdict"], verdicts[-1]["verdict"]) == ("OK", "WARN")
    assert (card["run_id"], card["steps"]) == (ids[0][0], CALLS)


def test_a_conversation_goes_on_over_traces(daemon: Served) -> None:
    provider = provider_of(exporter_to(daemon), is_batched=True)
    for _ in range(2):
        run_agent(provider, conversation="c1")
    provider.shutdown()
    verdicts = outputs(daemon, "verdict", 2 * CALLS)
    assert [(verdict["run_id"], verdict["seq"]) for verdict in verdicts] == [
        ("c1", seq) for seq in range(2 * CALLS)
    ]
    time.sleep(1.0)  # twice what spans wait: nothing says that it has ended
    assert outputs(daemon, "scorecard", 0) == []


def test_an_exporter_that_sends_again_is_told_that_all_is_well(daemon: Served) -> None:
    class Stuttering(SpanExporter):
        """Sends everything twice, as one does whose answer was lost."""

        def __init__(self, inner: OTLPSpanExporter) -> None:
            self.inner = inner
            self.results: list[SpanExportResult] = []

        def export(self, spans: Any) -> SpanExportResult:
            self.results += [self.inner.export(spans) for _ in range(2)]
            return self.results[-1]

        def shutdown(self) -> None:
            self.inner.shutdown()

    stuttering = Stuttering(exporter_to(daemon))
    provider = provider_of(stuttering, is_batched=False)
    run_agent(provider, conversation=None)
    assert len(outputs(daemon, "scorecard", 1)) == 1
    provider.shutdown()
    assert set(stuttering.results) == {SpanExportResult.SUCCESS}
    assert len(stuttering.results) == 2 * (CALLS + 1)
    assert len(outputs(daemon, "verdict", CALLS)) == CALLS


def test_what_is_rejected_is_told_by_number(daemon: Served) -> None:
    body = json.dumps({
        "resourceSpans": [{"scopeSpans": [{"spans": [
            {"traceId": "1" * 32, "spanId": "2" * 16, "name": "x"},
            {"traceId": "", "spanId": "2" * 16, "name": "y"},
        ]}]}]
    }).encode()  # fmt: skip
    request = urllib.request.Request(
        f"{daemon.url}/v1/traces", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        told = json.loads(answer.read())
    assert told["partialSuccess"]["rejectedSpans"] == "1"


def blocks(language: str) -> list[str]:
    """Code of a language in docs/otlp.md."""
    text = (ROOT / "docs" / "otlp.md").read_text()
    return [part.split("```")[0] for part in text.split(f"```{language}\n")[1:]]


def test_the_program_in_the_docs_is_watched(daemon: Served) -> None:
    (program,) = blocks("python")
    exec(program.replace("http://127.0.0.1:8100", daemon.url), {})  # noqa: S102
    verdicts = outputs(daemon, "verdict", 5)
    assert [verdict["verdict"] for verdict in verdicts][::4] == ["OK", "WARN"]
    assert len(outputs(daemon, "scorecard", 1)) == 1


def test_the_collectors_settings_in_the_docs_are_what_they_say() -> None:
    over_http, over_kafka = (yaml.safe_load(text)["exporters"] for text in blocks("yaml"))
    assert over_http["otlphttp/ontrack"]["traces_endpoint"].endswith(":8100/v1/traces")
    assert over_kafka["kafka"]["partition_traces_by_id"] is True
    assert over_kafka["kafka"]["traces"] == {"topic": "otlp_spans", "encoding": "otlp_proto"}
