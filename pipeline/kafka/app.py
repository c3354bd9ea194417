"""The worker's shell on Faust: agents over events and proposals, partitioned by run id.

Faust assigns partitions and delivers messages; everything that matters for correctness stands in
:mod:`ontrack.pipeline.kafka.owner`, which does not rely on Faust's commits (they were measured to
lose events).
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import faust
import faust.exceptions
import structlog
from faust.types.auth import SASLMechanism
from faust.web import View

from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.kafka.connection import ssl_context, topics_of
from ontrack.pipeline.kafka.lane import Delivery
from ontrack.pipeline.kafka.log import ends_seen
from ontrack.pipeline.kafka.membership import until_open_to_faust
from ontrack.pipeline.kafka.shell import STOP_S_MAX, Chore, chores, leave_for_good, prepare
from ontrack.pipeline.kafka.transport import Transport
from ontrack.pipeline.kafka.web import Page, pages, web_options
from ontrack.pipeline.kafka.worker import Worker
from ontrack.pipeline.settings import Settings

_log = structlog.get_logger(__name__)


def make_app(settings: Settings) -> faust.App:
    """Build the app; nothing is connected before its worker starts.

    Raises
    ------
    InvalidSettings
        The pages would be open to the network without a token, or telemetry is on and cannot be.
    """
    prepare(settings)
    topics = topics_of(settings)
    app: Any = faust.App(  # faust types its decorators and signals loosely
        settings.group,
        broker=[f"kafka://{server.strip()}" for server in settings.broker.split(",")],
        broker_credentials=_credentials(settings),
        datadir=settings.data_dir,
        autodiscover=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        # Measured; see docs/operating.md: a dead worker is noticed within ten seconds.
        broker_session_timeout=10,
        broker_heartbeat_interval=1,
        broker_commit_interval=0.5,
        consumer_group_instance_id=settings.instance or "",
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=16_777_216,
        stream_ack_cancelled_tasks=False,
        stream_ack_exceptions=False,
        stream_wait_empty=False,
        web_bind=settings.web_host,
        web_host=settings.web_host,
        web_port=settings.web_port,
        web_application_options=web_options(settings),
    )
    app.transport = Transport(app.conf.broker_consumer, app)
    raw: dict[str, Any] = {
        "key_type": bytes,
        "value_type": bytes,
        "key_serializer": "raw",
        "value_serializer": "raw",
    }
    events = app.topic(topics.events.name, **raw)
    proposals = app.topic(topics.proposals.name, **raw)
    holder: list[Worker] = []

    def worker() -> Worker:
        # Made on first use: encoders load and queues bind inside the worker's event loop.
        if not holder:
            holder.append(Worker(settings, app.crash))
        return holder[0]

    @app.agent(events, name="ontrack-events")
    async def fold_events(stream: Any) -> None:
        async for event in stream.noack().events():
            await worker().deliver_event(event.message.partition, _delivery(event))

    @app.agent(proposals, name="ontrack-proposals")
    async def answer_proposals(stream: Any) -> None:
        async for event in stream.noack().events():
            await worker().deliver_proposal(event.message.partition, _delivery(event))

    @app.on_partitions_revoked.connect
    async def revoked(_app: Any, revoked: Any, **_options: Any) -> None:
        await worker().suspend()

    @app.on_partitions_assigned.connect
    async def assigned(_app: Any, assigned: Any, **_options: Any) -> None:
        numbers = [tp.partition for tp in assigned if tp.topic == topics.events.name]
        _log.info("partitions_assigned", partitions=sorted(numbers))
        worker().assign(numbers)

    @app.on_before_shutdown.connect
    async def stopping(_app: Any, **_options: Any) -> None:
        leave_for_good(STOP_S_MAX)
        if holder:
            await holder[0].stop()

    for chore in chores(settings, lambda: _ends(app, topics.events.name)):
        _add_timer(app, chore, holder)
    for page in pages(settings, worker):
        _add_page(app, page)
    return app


def _add_timer(app: Any, chore: Chore, holder: list[Worker]) -> None:
    @app.timer(chore.every_s, name=chore.name)
    async def timer() -> None:
        if holder:
            await chore.do(holder[0])


def _add_page(app: Any, page: Page) -> None:
    async def answer(_view: View, request: Any, **_more: Any) -> Any:
        return await page.answer(request)

    # Faust asks the view's class which methods it has.
    app.page(page.path)(type("OurView", (View,), {page.method.lower(): answer}))


def run_worker(settings: Settings) -> None:
    """Run the worker until a signal ends it; exits the process."""
    prepare(settings)
    asyncio.run(until_open_to_faust(settings))
    app = make_app(settings)
    worker = faust.Worker(
        app,
        loglevel=settings.log_level,
        logfile=sys.stderr,
        redirect_stdouts=False,
        override_logging=False,
        quiet=True,
    )
    worker.spinner = None  # its escape sequences would stand in the output even where it is quiet
    worker.execute_from_commandline()


def _ends(app: Any, topic: str) -> dict[int, int]:
    """Return the log's end of each partition, as the last answer to a fetch told it."""
    try:
        return ends_seen(app.consumer, topic)
    except (AssertionError, faust.exceptions.ConsumerNotStarted):
        # aiokafka asserts that it has the partition: it has just lost it. The next look will do.
        return {}


def _delivery(event: Any) -> Delivery:
    message = event.message
    headers = message.headers or ()
    if isinstance(headers, dict):
        headers = headers.items()
    record = Record(
        value=message.value or b"",
        key=message.key,
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        timestamp_ms=round(message.timestamp * 1000),
        headers=tuple(headers),
    )
    return Delivery(record, event.ack)


def _credentials(settings: Settings) -> Any:
    context = ssl_context(settings)
    if settings.security_protocol.startswith("SASL"):
        password = settings.sasl_password
        return faust.SASLCredentials(
            username=settings.sasl_username,
            password=None if password is None else password.get_secret_value(),
            ssl_context=context,
            mechanism=SASLMechanism(settings.sasl_mechanism),
        )
    return None if context is None else faust.SSLCredentials(context=context)
