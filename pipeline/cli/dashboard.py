"""``ontrack dashboard``: the fleet page."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import TYPE_CHECKING

import click

from ontrack.pipeline.blas import one_blas_thread
from ontrack.pipeline.settings import Settings, load_settings
from ontrack.topics.errors import InvalidSettings

if TYPE_CHECKING:
    from ontrack.pipeline.dashboard.feeds.feed import Feed


@click.command(name="dashboard")
@click.option("--host", metavar="HOST", help="Where to listen [127.0.0.1]; beyond it with a token.")
@click.option("--port", type=int, help="Port [8200]; 0 takes a free one.")
@click.option("--broker", metavar="HOST:PORT,…", help="Kafka (or ONTRACK_BROKER) [127.0.0.1:9092].")
@click.option("--serve", "serve_url", metavar="URL", help="An `ontrack serve` instead of Kafka.")
@click.option("--demo", is_flag=True, help="Simulated runs in this process instead of Kafka.")
@click.option("--profile", metavar="NAME", help="Profile of operator settings, as the workers'.")
@click.option("--encoder", metavar="NAME", help="Text encoder, as the workers'.")
def command(
    host: str | None,
    port: int | None,
    broker: str | None,
    serve_url: str | None,
    demo: bool,
    profile: str | None,
    encoder: str | None,
) -> None:
    """Show the fleet, its runs, references and dead letters on a web page.

    Nobody has to log in on this machine. Bound elsewhere, ONTRACK_WEB_TOKEN is what people log in
    with. --serve uses the same token to ask the daemon.
    """
    one_blas_thread()  # before anything imports numpy
    if sum((broker is not None, serve_url is not None, demo)) > 1:
        raise click.UsageError("--broker, --serve and --demo exclude each other: choose one")
    settings = load_settings(
        dashboard_host=host, dashboard_port=port, broker=broker, profile=profile, encoder=encoder
    )
    show(settings, "demo" if demo else serve_url)


def show(settings: Settings, source: str | None, fast: bool = False) -> None:
    """Serve the pages until a signal ends it.

    Parameters
    ----------
    source
        ``demo``, the address of an ``ontrack serve``, or None for Kafka.

    Raises
    ------
    InvalidSettings
        NiceGUI is not installed, the address is no address, or it cannot be listened at.
    """
    if importlib.util.find_spec("nicegui") is None:
        raise InvalidSettings(
            "the dashboard needs the library NiceGUI; install it: pip install 'ontrack[dashboard]'"
        )
    if source not in (None, "demo") and not source.startswith(("http://", "https://")):
        raise InvalidSettings(f"--serve is {source!r}; expected an address: http://HOST:PORT")
    import uvloop

    from ontrack.pipeline.dashboard.app import serve
    from ontrack.pipeline.log import set_up_logging

    set_up_logging(settings.log_level, settings.log_json, settings.show_arguments)
    feed = _feed(settings, source, fast)

    def ready(url: str) -> None:
        click.echo(f"ontrack dashboard: {url}, news from {feed.name}", err=True)

    host, port = settings.dashboard_host, settings.dashboard_port
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(feed, host, port, settings.web_token, ready))


def _feed(settings: Settings, source: str | None, fast: bool) -> Feed:
    if source == "demo":
        from ontrack.pipeline.dashboard.demo import FAST_PAUSE_S, PAUSE_S, demo_feed

        return demo_feed(settings, FAST_PAUSE_S if fast else PAUSE_S)
    if source is not None:
        from ontrack.pipeline.dashboard.feeds.http import HttpFeed

        token = settings.web_token
        return HttpFeed(source, None if token is None else token.get_secret_value())
    from ontrack.pipeline.dashboard.feeds.kafka import KafkaFeed

    return KafkaFeed(settings)
