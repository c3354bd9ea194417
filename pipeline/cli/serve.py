"""``ontrack serve``: the HTTP daemon for hooks, events, spans and the gate."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from ontrack.pipeline.blas import one_blas_thread
from ontrack.pipeline.cli.options import (
    Given,
    json_option,
    knowledge_options,
    load_knowledge,
    monitor_options,
)
from ontrack.pipeline.cli.show import Printer
from ontrack.pipeline.settings import Settings, load_settings
from ontrack.topics.verdicts import DeadLetter, Decision, Output

if TYPE_CHECKING:
    from ontrack.pipeline.metrics import Metrics
    from ontrack.pipeline.serving.daemon import Daemon
    from ontrack.pipeline.serving.engine import Engine, Listener
    from ontrack.pipeline.telemetry import AnyTelemetry


@click.command(name="serve")
@click.option("--host", metavar="HOST", help="Where to listen [127.0.0.1]; beyond it with a token.")
@click.option("--port", type=int, help="Port [8100].")
@click.option(
    "--shadow", is_flag=True, help="Watch only: nothing is denied, asked, said or halted."
)
@click.option(
    "--record", "record", metavar="FILE", help="Append every event to FILE, and go on from it."
)
@click.option(
    "--broker",
    metavar="HOST:PORT,…",
    help="Go through Kafka: workers judge. Without it the monitor runs in this process.",
)
@click.option(
    "--gate-url", metavar="URL", help="With --broker: a worker's address [http://127.0.0.1:6066]."
)
@knowledge_options
@monitor_options
@json_option
def command(
    host: str | None,
    port: int | None,
    shadow: bool,
    record: str | None,
    broker: str | None,
    gate_url: str | None,
    profile: str | None,
    encoder: str | None,
    no_intervene: bool,
    as_json: bool,
    **knowledge: Any,
) -> None:
    """Answer agents' hooks, take events and OpenTelemetry spans, decide at the gate, over HTTP.

    Verdicts are printed as they come, with --json as JSON Lines. POST /v1/events, /v1/gate,
    /v1/traces (OTLP), /v1/hooks/HOST; GET /v1/runs, /v1/runs/ID, /metrics, /healthz, /readyz.
    ontrack init HOST writes a coding agent's settings.
    """
    one_blas_thread()  # before anything imports numpy
    settings = load_settings(
        serve_host=host,
        serve_port=port,
        broker=broker,
        profile=profile,
        encoder=encoder,
        intervene=False if no_intervene or shadow else None,
    )
    if broker is None and gate_url is not None:
        raise click.UsageError("--gate-url goes with --broker; without it nobody else is asked")
    if knowledge["references_from_successes"]:
        raise click.UsageError("name the runs with --references; here there is no PATH")
    knowledge_given = any(knowledge[name] for name in ("references", "tools", "tasks"))
    if broker is not None and (knowledge_given or record is not None or shadow):
        raise click.UsageError(
            "with --broker the workers judge: give --references, --tools and --tasks to "
            "`ontrack send`, --no-intervene to `ontrack worker`; events stand on their topic"
        )
    given = load_knowledge((), settings.limits, **knowledge)
    import uvloop

    from ontrack.pipeline.log import set_up_logging
    from ontrack.pipeline.serving.printing import Printing, let_go_of_stdout
    from ontrack.pipeline.serving.run import serve

    set_up_logging(settings.log_level, settings.log_json, settings.show_arguments)
    printer = Printer(as_json)

    def show(output: Output) -> None:
        if isinstance(output, Decision) and not output.reasons and not as_json:
            return  # one a call that says nothing: its verdict follows
        view = None if isinstance(output, DeadLetter) else daemon.board.get(output.run_id)
        printer.show(output, unheeded=view is not None and view.unheeded)
        printer.flush()

    printing = Printing(show)
    daemon = _daemon(settings, given, broker is not None, gate_url, record, printing.tell)

    def ready(url: str) -> None:
        way = f"through Kafka at {settings.broker}" if broker is not None else "in this process"
        mode = "" if settings.intervene else ", in shadow mode"
        click.echo(f"ontrack serve: {url}, monitor {way}{mode}", err=True)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(daemon, ready))
    finally:
        if not printing.close():
            let_go_of_stdout()


def _daemon(
    settings: Settings,
    given: Given,
    by_kafka: bool,
    gate_url: str | None,
    record: str | None,
    tell: Listener,
) -> Daemon:
    from ontrack.pipeline.dashboard.feeds.pictures import MemoryPictures
    from ontrack.pipeline.serving.daemon import Daemon
    from ontrack.pipeline.serving.recording import Recording
    from ontrack.pipeline.telemetry import NoTelemetry, Telemetry

    def engine(metrics: Metrics, listener: Listener) -> Engine:
        if by_kafka:
            from ontrack.pipeline.kafka.serving import KafkaEngine

            return KafkaEngine(settings, gate_url, listener)
        from ontrack.pipeline.embedded import EmbeddedMonitor
        from ontrack.pipeline.serving.engine import EmbeddedEngine
        from ontrack.pipeline.serving.watchful import watchful

        monitor = EmbeddedMonitor(
            watchful(settings), given.references, given.contracts, given.tasks
        )
        metrics.watch(monitor.fold)
        return EmbeddedEngine(
            monitor, settings.gate_decision_ttl_s, listener, metrics.engine_seconds.observe
        )

    def telemetry(metrics: Metrics) -> AnyTelemetry:
        # Through Kafka it is the workers who tell.
        return NoTelemetry() if by_kafka else Telemetry.of(settings, metrics, "serve")

    recording = None if record is None else Recording(record)
    return Daemon(settings, engine, [tell], recording, telemetry, MemoryPictures)
