"""``ontrack alerts``: tell people about interventions and blocked calls."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import click

from ontrack.pipeline.alerting.alert import Alert
from ontrack.pipeline.alerting.bundle import Bundle
from ontrack.pipeline.alerting.dispatch import Dispatcher, make_sink, make_sinks, while_dispatching
from ontrack.pipeline.alerting.machine import Delivery
from ontrack.pipeline.alerting.settings import AlertSettings
from ontrack.pipeline.alerting.sinks import Parcel, SinkClient
from ontrack.pipeline.alerting.teller import Teller
from ontrack.pipeline.alerting.text import text_of
from ontrack.pipeline.cli.options import broker_option, json_option
from ontrack.pipeline.folding.quarantine import dead_letter
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.log import set_up_logging
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings, load_settings
from ontrack.pipeline.terminal import printable
from ontrack.topics import codecs
from ontrack.topics.errors import (
    AlertUndelivered,
    InvalidEvent,
    InvalidFile,
    InvalidSettings,
    OnTrackError,
)

_PATIENCE_S = 10.0


@click.command(name="alerts")
@click.argument("paths", nargs=-1, metavar="[PATH…]")
@broker_option
@json_option
@click.option("--check", is_flag=True, help="Check [alerts] of the settings and every sink.")
@click.option("--test", "test_route", metavar="ROUTE", help="Send one test alert through a route.")
@click.option("--dry-run", is_flag=True, help="Print what would be sent, and send nothing.")
@click.option(
    "--from-beginning",
    is_flag=True,
    help="On the first start, tell also of what is kept already.",
)
@click.option(
    "--metrics-port", type=click.IntRange(1, 65_535), help="Metrics for Prometheus on 127.0.0.1."
)
def command(
    paths: tuple[str, ...],
    broker: str | None,
    as_json: bool,
    check: bool,
    test_route: str | None,
    dry_run: bool,
    from_beginning: bool,
    metrics_port: int | None,
) -> None:
    """Tell people about interventions and blocked calls, by the table [alerts] of ontrack.toml.

    Reads from Kafka; with PATH… (or - for standard input) the JSON lines that replay, tail and
    serve print with --json.

    Exits 1 if a check or a test failed, or (with PATH) something could not be read or delivered.
    """
    settings = load_settings(broker=broker)
    set_up_logging(settings.log_level, settings.log_json, settings.show_arguments)
    if not settings.alerts.sinks:
        raise InvalidSettings(
            "no sink is set, so nobody can be told; put one into ontrack.toml, such as\n"
            '  [alerts.sinks.ops]\n  type = "webhook"\n  url = "https://example.com/hook"'
        )
    if check:
        sys.exit(0 if _check(settings.alerts, as_json) else 1)
    run = _Run(settings, as_json, dry_run, metrics_port)
    if test_route is not None:
        asyncio.run(run.test(test_route))
    elif paths:
        asyncio.run(run.lines(paths))
    else:
        asyncio.run(run.kafka(from_beginning))
    run.say_counts()
    if run.failed and (paths or test_route is not None):
        sys.exit(1)


class _Run:
    """One run of the command: where outcomes are printed and counted."""

    def __init__(
        self, settings: Settings, as_json: bool, dry_run: bool, metrics_port: int | None
    ) -> None:
        self._settings = settings
        self._alerts = settings.alerts
        self._as_json = as_json
        self._dry_run = dry_run
        self._metrics = Metrics()
        self._counts: Counter[str] = Counter()
        self._letters: Any = None
        self.failed = False
        if metrics_port is not None:
            from prometheus_client import start_http_server

            try:
                start_http_server(metrics_port, addr="127.0.0.1", registry=self._metrics.registry)
            except OSError as error:
                raise InvalidSettings(
                    f"port {metrics_port} cannot be used for metrics ({error.strerror}); "
                    "choose another --metrics-port"
                ) from error

    async def lines(self, paths: tuple[str, ...]) -> None:
        """Tell of what stands in files, or comes on standard input.

        Raises
        ------
        InvalidFile
            A file cannot be read; what stood before it was told.
        """
        from ontrack.pipeline.alerting.lines import read_lines
        from ontrack.pipeline.reading.sources import expand

        dispatcher = self._dispatcher(self._alerts)
        teller = Teller(self._alerts, dispatcher)
        stop = _stopped_by_signals()
        amiss: list[InvalidFile] = []

        async def read() -> None:
            found = await read_lines(expand(paths), teller, stop, self._bad)
            if found is not None:
                amiss.append(found)

        await while_dispatching(dispatcher, read())
        for error in amiss:  # only now: what stood before it is delivered
            raise error

    async def kafka(self, from_beginning: bool) -> None:
        """Tell of what comes from Kafka, until a signal ends it."""
        from ontrack.pipeline.kafka.alert_letters import DeadLetters
        from ontrack.pipeline.kafka.alerts import AlertReader

        self._letters = None if self._dry_run else DeadLetters(self._settings, self._metrics)
        dispatcher = self._dispatcher(self._alerts)
        teller = Teller(self._alerts, dispatcher)
        reader = AlertReader(self._settings, teller, self._letters, from_beginning)
        await reader.start()
        stop = _stopped_by_signals()
        try:
            reading = _given_up_after(stop, reader.read(stop))
            await while_dispatching(dispatcher, reading, _PATIENCE_S)
        finally:
            await reader.stop()
            if self._letters is not None:
                await self._letters.stop()

    async def test(self, name: str) -> None:
        """Send one test alert through a route, once."""
        routes = {route.name: route for route in self._alerts.every_route}
        if name not in routes:
            known = ", ".join(routes)
            raise InvalidSettings(f"there is no route {printable(name)!r}; routes: {known}")
        bundle = Bundle.of(_test_alert())
        once = {
            sink: found.model_copy(update={"attempts_max": 1})
            for sink, found in self._alerts.sinks.items()
        }
        dispatcher = self._dispatcher(self._alerts.model_copy(update={"sinks": once}))

        async def put() -> None:
            await dispatcher.put(Delivery(routes[name], "alert", bundle.gravest, bundle))

        await while_dispatching(dispatcher, put())

    def say_counts(self) -> None:
        """Say at the end what became of the alerts."""
        done = "would be sent" if self._dry_run else "delivered"
        click.echo(
            f"{self._counts['delivered']} {done}, {self._counts['undelivered']} undelivered, "
            f"{self._counts['unreadable']} unreadable",
            err=True,
        )

    def _dispatcher(self, alerts: AlertSettings) -> Dispatcher:
        sinks: dict[str, SinkClient] = (
            {name: _Nowhere() for name in alerts.sinks} if self._dry_run else make_sinks(alerts)
        )
        return Dispatcher(alerts, sinks, self._metrics, self._done)

    async def _done(self, parcel: Parcel, error: AlertUndelivered | None) -> None:
        if error is not None:
            self.failed = True
            if self._letters is not None:
                await self._letters.undelivered(parcel, error)
            elif self._as_json:
                for alert in parcel.delivery.bundle.kept:
                    click.echo(codecs.encode(dead_letter(alert.record, error)))
        self._counts["delivered" if error is None else "undelivered"] += 1
        self._show(parcel, error)

    def _bad(self, record: Record, error: InvalidEvent) -> None:
        self.failed = True
        self._counts["unreadable"] += 1
        click.echo(f"{printable(f'{record.topic}:{record.offset}: {error}')}", err=True)
        if self._as_json:
            click.echo(codecs.encode(dead_letter(record, error)))

    def _show(self, parcel: Parcel, error: AlertUndelivered | None) -> None:
        delivery = parcel.delivery
        text = text_of(delivery, self._alerts.run_url)
        state = "undelivered" if error else "would_be_sent" if self._dry_run else "delivered"
        if self._as_json:
            line = {
                "type": "alert",
                "id": parcel.id,
                "route": delivery.route.name,
                "sink": parcel.sink,
                "state": state,
                "cause": delivery.cause,
                "alert_id": delivery.lead.id,
                "run_id": delivery.lead.run_id,
                "severity": delivery.bundle.severity,
                "count": delivery.bundle.count,
                "title": text.title,
                "text": text.body,
                "error": None if error is None else str(error),
            }
            click.echo(json.dumps(line))
            return
        where = f"{delivery.route.name} → {parcel.sink}"
        click.echo(printable(f"{state.replace('_', ' '):13} {where}: {text.title}"))
        if self._dry_run:
            body = printable(text.body, keep="\n").replace("\n", "\n    ")
            click.echo(f"    {body}")
        if error is not None:
            click.echo(printable(f"    {error}"), err=True)


class _Nowhere:
    """The sink of a dry run."""

    async def send(self, parcel: Parcel, now_s: float) -> None:
        """Send nothing."""

    async def close(self) -> None:
        """Do nothing."""


def _check(alerts: AlertSettings, as_json: bool) -> bool:
    """Make every sink, and print what the routes say."""
    fine = True
    for name, sink in alerts.sinks.items():
        try:
            make_sink(name, sink, alerts.run_url)
        except OnTrackError as error:
            fine = False
            _show_check(f"sink {name}", False, str(error), as_json)
        else:
            _show_check(f"sink {name}", True, sink.type, as_json)
    for route in alerts.every_route:
        to = ", ".join(route.sinks) or "nobody"
        on = " and goes on" if route.goes_on else ""
        _show_check(f"route {route.name}", True, f"to {to}{on}", as_json)
    return fine


def _show_check(name: str, ok: bool, detail: str, as_json: bool) -> None:
    if as_json:
        line = {"type": "check", "name": name, "ok": ok, "detail": detail, "fix": ""}
        click.echo(json.dumps(line))
    else:
        mark = click.style("ok  ", fg="green") if ok else click.style("FAIL", fg="red")
        text = printable(f"{name}: {detail}", keep="\n")
        click.echo(f"{mark} {text}")


def _test_alert() -> Alert:
    now_s = time.time()
    return Alert(
        id=f"test:{uuid.uuid4().hex}",
        run_id="test",
        seq=0,
        verdict="WARN",
        intervention="warn",
        severity=2,
        text="This is a test of ontrack alerts; no run is in trouble.",
        authority="inform",
        time_s=now_s,
        record=Record(b"", topic="test"),
    )


def _stopped_by_signals() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set; a second one ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def told_to() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, told_to)
    return stop


async def _given_up_after(stop: asyncio.Event, work: Coroutine[None, None, None]) -> None:
    """Do work that ends by itself when told to stop; if a full queue holds it up, not for long."""
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({task}, timeout=_PATIENCE_S)
        if task.done():
            task.result()
    finally:
        for each in (task, stopping):
            each.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)
