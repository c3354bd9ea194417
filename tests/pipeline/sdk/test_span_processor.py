"""The span processor: a program's tool spans are judged while it runs, and never hold it up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import Status, StatusCode

from ontrack.pipeline.sdk import OnTrackSpanProcessor
from ontrack.topics.errors import InvalidSettings
from ontrack.topics.events import RunEnded
from tests.pipeline.sdk.recorded import ORDER, SETTINGS, Recorded
from tests.pipeline.serving.served import served

CALL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": "c"}


def provider_with(processor: OnTrackSpanProcessor, **more: Any) -> TracerProvider:
    found = TracerProvider(resource=Resource({"service.name": "shop"}), **more)
    found.add_span_processor(processor)
    return found


@pytest.fixture
def watched() -> Iterator[tuple[Recorded, list[Any], TracerProvider]]:
    monitor, heard = Recorded(), []
    processor = OnTrackSpanProcessor(
        monitor, on_verdict=heard.append, settle_s=0.05, settings=SETTINGS
    )
    provider = provider_with(processor)
    yield monitor, heard, provider
    provider.shutdown()


def call_a_tool(provider: TracerProvider, tool: str, number: int = 0, **more: Any) -> str:
    """A call as an instrumented agent records it; returns the trace's id."""
    tracer = provider.get_tracer("agent")
    with tracer.start_as_current_span(f"execute_tool {tool}") as span:
        span.set_attributes(
            {
                **CALL,
                "gen_ai.tool.name": tool,
                "gen_ai.tool.call.id": f"c{number}",
                "gen_ai.tool.call.arguments": json.dumps({"n": number}),
                "gen_ai.tool.call.result": json.dumps(ORDER),
                **more,
            }
        )
    return format(span.get_span_context().trace_id, "032x")


def run_an_agent(provider: TracerProvider, conversation: str, calls: int = 3) -> None:
    tracer = provider.get_tracer("agent")
    with tracer.start_as_current_span("invoke_agent clerk") as span:
        span.set_attributes(
            {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": "clerk",
                "gen_ai.conversation.id": conversation,
            }
        )
        for number in range(calls):
            call_a_tool(provider, "find", number)


def test_the_calls_of_an_agent_become_the_steps_of_its_conversation(
    watched: tuple[Recorded, list[Any], TracerProvider],
) -> None:
    monitor, heard, provider = watched
    run_an_agent(provider, "conv-1")
    provider.shutdown()
    assert [(s.run_id, s.tool, s.args) for s in monitor.steps] == [
        ("conv-1", "find", {"n": n}) for n in range(3)
    ]
    first = monitor.steps[0]
    assert first.result == json.dumps(ORDER)  # as the attribute has it
    assert first.trace is not None
    assert len(first.trace.span_id or "") == 16
    assert [output.type for output in heard] == ["verdict"] * 3
    assert heard[0].trace == first.trace


def test_a_call_is_judged_while_the_program_goes_on(
    watched: tuple[Recorded, list[Any], TracerProvider],
) -> None:
    _, heard, provider = watched
    trace = call_a_tool(provider, "find")
    assert provider.force_flush()
    end = time.monotonic() + 20
    while not heard and time.monotonic() < end:
        time.sleep(0.02)
    assert heard[0].run_id == trace


def test_an_error_of_a_tool_is_the_steps(
    watched: tuple[Recorded, list[Any], TracerProvider],
) -> None:
    monitor, _, provider = watched

    def fails() -> None:
        with provider.get_tracer("agent").start_as_current_span("execute_tool find") as span:
            span.set_attributes({**CALL, "gen_ai.tool.name": "find"})
            raise KeyError("no such order")

    with pytest.raises(KeyError):
        fails()
    with provider.get_tracer("agent").start_as_current_span("execute_tool find") as span:
        span.set_attributes({**CALL, "gen_ai.tool.name": "find", "error.type": "timeout"})
        span.set_status(Status(StatusCode.ERROR))
    provider.shutdown()
    thrown, timed_out = [step.error for step in monitor.steps]
    assert thrown is not None
    assert timed_out is not None
    assert "no such order" in (thrown.message or "")
    assert timed_out.type == "timeout"


def test_other_spans_and_those_that_are_not_sampled_are_passed_over() -> None:
    monitor = Recorded()
    provider = provider_with(OnTrackSpanProcessor(monitor, settings=SETTINGS), sampler=ALWAYS_OFF)
    call_a_tool(provider, "find")
    provider.shutdown()
    assert monitor.fed == []
    provider = provider_with(OnTrackSpanProcessor(monitor, settings=SETTINGS))
    with provider.get_tracer("db").start_as_current_span("SELECT"):
        pass
    provider.shutdown()
    assert monitor.steps == []


def test_what_finds_no_room_is_dropped_and_counted_and_nobody_waits() -> None:
    goes_on, stuck = threading.Event(), threading.Event()

    def holds(_output: Any) -> None:
        stuck.set()
        goes_on.wait(30)

    monitor = Recorded()
    processor = OnTrackSpanProcessor(
        monitor, on_verdict=holds, settle_s=0.0, waiting_max=10, settings=SETTINGS
    )
    provider = provider_with(processor)
    call_a_tool(provider, "find")
    assert stuck.wait(20)
    for number in range(50):  # returns, although the monitor stands still
        call_a_tool(provider, "find", number)
    assert processor.dropped == 40
    assert not processor.force_flush(10)
    goes_on.set()
    provider.shutdown()
    assert len(monitor.steps) == 11


def test_a_callback_that_fails_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(_output: Any) -> None:
        raise ZeroDivisionError

    monitor = Recorded()
    provider = provider_with(
        OnTrackSpanProcessor(monitor, on_verdict=fails, settle_s=0.0, settings=SETTINGS)
    )
    for number in range(3):
        call_a_tool(provider, "find", number)
        provider.force_flush()
    provider.shutdown()
    assert len(monitor.steps) == 3
    told = capsys.readouterr()
    assert "spans_not_watched" in told.out + told.err


def test_a_monitor_elsewhere_says_its_verdicts_there() -> None:
    with pytest.raises(InvalidSettings, match="verdicts"):
        OnTrackSpanProcessor(serve_url="http://127.0.0.1:9", on_verdict=print, settings=SETTINGS)


def test_spans_go_to_the_daemon_by_the_standard_exporter(tmp_path: Path) -> None:
    with served(tmp_path, ONTRACK_WEB_TOKEN="s3cret-of-this-test") as server:
        processor = OnTrackSpanProcessor(
            serve_url=server.url, token="s3cret-of-this-test", settings=SETTINGS
        )
        provider = provider_with(processor)
        run_an_agent(provider, "conv-2", calls=2)
        assert provider.force_flush()
        provider.shutdown()
        assert processor.dropped == 0
    verdicts = [output for output in server.outputs() if output["type"] == "verdict"]
    assert [(v["run_id"], v["tool"]) for v in verdicts] == [("conv-2", "find")] * 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_watches_its_own_spans(
    watched: tuple[Recorded, list[Any], TracerProvider],
) -> None:
    monitor, _, provider = watched
    call_a_tool(provider, "find", 1)
    provider.force_flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            before = len(monitor.steps)
            call_a_tool(provider, "find", 2)
            provider.shutdown()
            code = 0 if [s.args["n"] for s in monitor.steps[before:]] == [2] else 3
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    provider.shutdown()
    assert [step.args["n"] for step in monitor.steps] == [1]


def test_the_end_of_a_trace_of_its_own_ends_its_run(
    watched: tuple[Recorded, list[Any], TracerProvider],
) -> None:
    monitor, heard, provider = watched
    with provider.get_tracer("agent").start_as_current_span("invoke_agent clerk") as span:
        span.set_attributes({"gen_ai.operation.name": "invoke_agent"})
        call_a_tool(provider, "find")
    provider.shutdown()
    assert [type(event) for event in monitor.fed[-1:]] == [RunEnded]
    assert heard[-1].type == "scorecard"


def test_a_program_that_does_not_stop_its_provider_ends(tmp_path: Path) -> None:
    program = (
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from ontrack.pipeline.sdk import OnTrackSpanProcessor\n"
        "provider = TracerProvider(shutdown_on_exit=False)\n"
        "provider.add_span_processor(OnTrackSpanProcessor())\n"
        "provider.get_tracer('a').start_span('b').end()\n"
        "print('done')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"ONTRACK_ENCODER": "hashing"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_without_the_sdk_it_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "sys.modules['opentelemetry.sdk.trace'] = None\n"
        "from ontrack.pipeline.sdk import Monitor, tool\n"
        "try:\n"
        "    from ontrack.pipeline.sdk import OnTrackSpanProcessor\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 'pip install "ontrack[otel]"' in done.stdout, done.stderr
