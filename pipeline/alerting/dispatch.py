"""The dispatcher: a bounded queue and one sender a sink, which tries again with patience."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Final, Literal

import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from ontrack.pipeline.alerting.bundle import Bundle
from ontrack.pipeline.alerting.machine import Delivery, Waits
from ontrack.pipeline.alerting.settings import (
    AlertmanagerSink,
    AlertSettings,
    AppriseSink,
    Route,
    Sink,
    WebhookSink,
)
from ontrack.pipeline.alerting.sinks import Clock, NotDelivered, Parcel, SinkClient
from ontrack.pipeline.metrics import Metrics
from ontrack.topics.errors import AlertUndelivered

_log = structlog.get_logger(__name__)

Result = Literal["delivered", "dead_letter"]
#: Told of each parcel that is done: delivered, or given up with the reason.
Done = Callable[[Parcel, AlertUndelivered | None], Awaitable[None]]

_END: Final = None


def make_sinks(settings: AlertSettings) -> dict[str, SinkClient]:
    """Make all sinks, with their secrets.

    Raises
    ------
    InvalidSettings
        One of them cannot be used: a variable is not set, a library is missing.
    """
    return {name: make_sink(name, sink, settings.run_url) for name, sink in settings.sinks.items()}


def make_sink(name: str, settings: Sink, run_url: str | None) -> SinkClient:
    """Make one sink. Raises as :func:`make_sinks`."""
    if isinstance(settings, AppriseSink):
        from ontrack.pipeline.alerting.chat import Chat

        return Chat(name, settings, run_url)
    if isinstance(settings, AlertmanagerSink):
        from ontrack.pipeline.alerting.alertmanager import Alertmanager

        return Alertmanager(name, settings, run_url)
    assert isinstance(settings, WebhookSink)
    from ontrack.pipeline.alerting.webhook import Webhook

    return Webhook(name, settings, run_url)


def parcels_of(delivery: Delivery) -> Iterator[Parcel]:
    """Yield a delivery for each sink of its route.

    The id is a function of route, sink and the alerts that are told: the same ones have the same
    id after a restart, and one alert more gives another, so that a receiver which passes over ids
    it knows passes over nothing new.
    """
    for sink in dict.fromkeys(delivery.route.sinks):
        named = f"{delivery.route.name}\0{sink}\0".encode() + delivery.bundle.digest
        yield Parcel(f"ontrack_{hashlib.sha256(named).hexdigest()[:32]}", sink, delivery)


class Dispatcher:
    """Brings deliveries to their sinks.

    Each sink takes its parcels in order and by itself: a slow one delays the others only once its
    queue is full, when :meth:`put` waits.

    Parameters
    ----------
    settings
        Queue lengths, attempts and times.
    sinks
        By name, as from :func:`make_sinks`.
    done
        Called once a parcel, when it was delivered or given up; until it returns, its sink waits.
    """

    def __init__(
        self,
        settings: AlertSettings,
        sinks: Mapping[str, SinkClient],
        metrics: Metrics,
        done: Done,
        clock: Clock = time.time,
    ) -> None:
        self._settings = settings
        self._sinks = sinks
        self._metrics = metrics
        self._done = done
        self._clock = clock
        self._queues: dict[str, asyncio.Queue[Parcel | None]] = {
            name: asyncio.Queue(settings.queue_max) for name in sinks
        }
        self._open: dict[str, Parcel] = {}

    @property
    def outstanding(self) -> list[Bundle]:
        """Bundles on their way: not yet delivered to all their sinks, nor given up."""
        return [parcel.delivery.bundle for parcel in self._open.values()]

    async def put(self, delivery: Delivery) -> None:
        """Queue a delivery for each of its sinks; waits while a queue is full.

        What is on its way already, under the same id, is not queued twice.
        """
        fresh = [parcel for parcel in parcels_of(delivery) if parcel.id not in self._open]
        # All are open before the first wait: nobody may think the delivery done in between.
        self._open.update({parcel.id: parcel for parcel in fresh})
        for parcel in fresh:
            await self._queues[parcel.sink].put(parcel)

    def count_waiting(self, route: Route, waits: Waits) -> None:
        """Count an alert that was suppressed or held."""
        for sink in route.sinks or ("",):
            self._metrics.alerts.labels(route.name, sink, waits).inc()

    async def run(self) -> None:
        """Send until :meth:`end` was called and everything queued is done."""
        senders = [asyncio.ensure_future(self._work(name)) for name in self._queues]
        try:
            await asyncio.gather(*senders)
        finally:
            for sender in senders:
                sender.cancel()

    async def end(self) -> None:
        """Let :meth:`run` end after what is queued."""
        for queue in self._queues.values():
            await queue.put(_END)

    async def close(self) -> None:
        """Close all sinks."""
        for sink in self._sinks.values():
            await sink.close()

    async def _work(self, name: str) -> None:
        queue = self._queues[name]
        while (parcel := await queue.get()) is not _END:
            error = await self._deliver(parcel)
            await self._done(parcel, error)
            self._open.pop(parcel.id, None)
            result: Result = "delivered" if error is None else "dead_letter"
            self._metrics.alerts.labels(parcel.delivery.route.name, name, result).inc()

    async def _deliver(self, parcel: Parcel) -> AlertUndelivered | None:
        """Send until it is taken, or trying again is no use; return why it was not taken."""
        sink = self._settings.sinks[parcel.sink]
        backoff = wait_exponential(sink.retry_s, sink.retry_s_max) + wait_random(0, sink.retry_s)

        def pause(state: RetryCallState) -> float:
            error = None if state.outcome is None else state.outcome.exception()
            asked = error.after_s if isinstance(error, NotDelivered) else None
            return max(backoff(state), asked or 0.0)

        def note(state: RetryCallState) -> None:
            error = None if state.outcome is None else state.outcome.exception()
            self._metrics.alerts.labels(parcel.delivery.route.name, parcel.sink, "retried").inc()
            _log.info("alert_retried", sink=parcel.sink, id=parcel.id, problem=str(error))

        attempts = AsyncRetrying(
            stop=stop_after_attempt(sink.attempts_max),
            wait=pause,
            retry=retry_if_exception(_may_help),
            before_sleep=note,
            reraise=True,
        )
        try:
            await attempts(self._once, parcel, sink.timeout_s)
        except NotDelivered as error:
            tried = attempts.statistics.get("attempt_number", 1)
            _log.warning("alert_undelivered", sink=parcel.sink, id=parcel.id, problem=str(error))
            return AlertUndelivered(
                f"sink {parcel.sink!r} of route {parcel.delivery.route.name!r} did not take it in "
                f"{tried} attempts: {error.problem}; mend the sink, then send it again with "
                "ontrack dead-letters replay"
            )
        return None

    async def _once(self, parcel: Parcel, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._sinks[parcel.sink].send(parcel, self._clock())
        except TimeoutError as error:
            raise NotDelivered(f"no answer within {timeout_s:g} s", try_again=True) from error


def _may_help(error: BaseException) -> bool:
    return isinstance(error, NotDelivered) and error.try_again


async def while_dispatching(
    dispatcher: Dispatcher, work: Coroutine[None, None, None], patience_s: float | None = None
) -> None:
    """Do work while a dispatcher sends; at its end what is queued is sent, then the sinks closed.

    Parameters
    ----------
    patience_s
        How long the end may take; None: as long as it takes.
    """
    sending = asyncio.ensure_future(dispatcher.run())
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({sending, working}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()  # it ends first only by an error
        working.result()
        ending = asyncio.ensure_future(dispatcher.end())
        await asyncio.wait(
            {sending, ending}, timeout=patience_s, return_when=asyncio.FIRST_EXCEPTION
        )
        ending.cancel()
        if sending.done():
            sending.result()
    finally:
        for task in (sending, working):
            task.cancel()
        await asyncio.gather(sending, working, return_exceptions=True)
        await dispatcher.close()
