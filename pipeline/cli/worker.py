"""``ontrack worker``: the worker, on Faust or on a bare loop."""

from __future__ import annotations

import asyncio

import click

from ontrack.pipeline.blas import one_blas_thread
from ontrack.pipeline.cli.options import broker_option, monitor_options
from ontrack.pipeline.log import set_up_logging
from ontrack.pipeline.settings import load_settings


@click.command(name="worker")
@broker_option
@monitor_options
@click.option("--instance", metavar="NAME", help="Static membership: a name stable over restarts.")
@click.option(
    "--web-host",
    metavar="HOST",
    help="Where these pages listen; beyond loopback ONTRACK_WEB_TOKEN must be set [127.0.0.1].",
)
@click.option("--web-port", type=int, help="Port of /healthz, /readyz and /metrics [6066].")
@click.option("--data-dir", metavar="DIR", help="Faust's data directory [.cache/worker].")
@click.option(
    "--runtime",
    type=click.Choice(["faust", "aiokafka"]),
    help="What delivers events: Faust agents, or a bare loop, which costs less [faust].",
)
def command(
    broker: str | None,
    profile: str | None,
    encoder: str | None,
    no_intervene: bool,
    instance: str | None,
    web_host: str | None,
    web_port: int | None,
    data_dir: str | None,
    runtime: str | None,
) -> None:
    """Read events and proposals from Kafka, publish verdicts, interventions and decisions."""
    one_blas_thread()  # before anything imports numpy
    settings = load_settings(
        broker=broker,
        profile=profile,
        encoder=encoder,
        intervene=False if no_intervene else None,
        instance=instance,
        web_host=web_host,
        web_port=web_port,
        data_dir=data_dir,
        runtime=runtime,
    )
    set_up_logging(settings.log_level, settings.log_json, settings.show_arguments)
    # Imported here: Faust must find the event loop policy set, and nobody else needs Faust.
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    from ontrack.pipeline.kafka.provision import check_topics

    asyncio.run(check_topics(settings))
    if settings.runtime == "aiokafka":
        from ontrack.pipeline.kafka import loop

        loop.run_worker(settings)
    else:
        from ontrack.pipeline.kafka import app

        app.run_worker(settings)
