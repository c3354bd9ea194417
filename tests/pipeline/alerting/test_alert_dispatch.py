"""The dispatcher: everything arrives, however the receiver behaves, and slow sinks are alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from ontrack.pipeline.alerting.dispatch import (
    Dispatcher,
    make_sinks,
    parcels_of,
    while_dispatching,
)
from ontrack.pipeline.alerting.settings import AlertSettings
from ontrack.pipeline.alerting.sinks import Parcel
from ontrack.pipeline.alerting.teller import Teller
from ontrack.pipeline.metrics import Metrics
from ontrack.topics.errors import AlertUndelivered
from tests.pipeline.alerting.alerts_kit import (
    NOON_S,
    SECRET,
    Receiver,
    fails_half_the_time,
    record_at,
    warn,
)

#: A pause of the machine must not look like a receiver's silence: attempts are counted here.
QUICK = {"retry_s": 0.001, "retry_s_max": 0.01, "timeout_s": 3, "attempts_max": 30}


def hook(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "webhook", "url": url, "secret": SECRET} | QUICK | more


def settings_for(sinks: dict[str, Any], **more: Any) -> AlertSettings:
    route = {"name": "r", "sinks": list(sinks), "dedupe_s": 0, "rate_per_minute": 100_000}
    return AlertSettings.model_validate({"sinks": sinks, "routes": [route]} | more)


class Outcomes:
    """Runs a dispatcher over outputs and keeps what became of the parcels."""

    def __init__(self, settings: AlertSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.done: list[tuple[Parcel, AlertUndelivered | None]] = []
        self.dispatcher = Dispatcher(settings, make_sinks(settings), self.metrics, self._done)
        self.teller = Teller(settings, self.dispatcher, clock=lambda: NOON_S)

    async def _done(self, parcel: Parcel, error: AlertUndelivered | None) -> None:
        self.done.append((parcel, error))

    async def run(self, count: int) -> None:
        async def feed() -> None:
            for number in range(count):
                output = warn(f"run-{number}")
                await self.teller.take(output, record_at(number, output))

        await while_dispatching(self.dispatcher, feed())

    def count(self, result: str, sink: str = "ops") -> float:
        return self.metrics.alerts.labels("r", sink, result)._value.get()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_every_alert_arrives_at_a_receiver_that_fails_half_the_time(seed: int) -> None:
    with Receiver(fails_half_the_time(seed)) as receiver:
        told = Outcomes(settings_for({"ops": hook(receiver.url)}))
        await told.run(40)
        taken = receiver.taken()
    arrived = Counter(request.json["data"]["alert"]["run_id"] for request in taken)
    assert set(arrived) == {f"run-{number}" for number in range(40)}
    assert [error for _, error in told.done] == [None] * 40
    # The idempotency key and the body are the same however often an alert is sent.
    by_run: dict[str, set[tuple[str, bytes]]] = {}
    for request in receiver.requests:
        key = (request.headers["webhook-id"], request.body)
        by_run.setdefault(request.json["data"]["alert"]["run_id"], set()).add(key)
    assert all(len(keys) == 1 for keys in by_run.values())
    assert len({key for keys in by_run.values() for key, _ in keys}) == 40
    assert len(receiver.requests) > 40
    assert told.count("delivered") == 40
    assert told.count("retried") == len(receiver.requests) - 40


async def test_what_a_sink_refuses_is_not_tried_again_and_given_up_with_the_reason() -> None:
    with Receiver(lambda _: (400, {})) as receiver:
        told = Outcomes(settings_for({"ops": hook(receiver.url)}))
        await told.run(2)
    assert len(receiver.requests) == 2
    assert [str(error).split(";")[0] for _, error in told.done] == [
        "sink 'ops' of route 'r' did not take it in 1 attempts: it answered 400"
    ] * 2
    assert (told.count("dead_letter"), told.count("retried")) == (2, 0)


async def test_after_the_last_attempt_it_is_given_up() -> None:
    with Receiver(lambda _: ("close", {})) as receiver:
        told = Outcomes(settings_for({"ops": hook(receiver.url, attempts_max=3)}))
        await told.run(1)
    assert len(receiver.requests) == 3
    assert "in 3 attempts: no answer" in str(told.done[0][1])


async def test_the_pause_that_a_sink_asks_for_is_kept() -> None:
    answers = iter([(503, {"retry-after": "1"}), (200, {})])
    with Receiver(lambda _: next(answers)) as receiver:
        told = Outcomes(settings_for({"ops": hook(receiver.url)}))
        began = asyncio.get_running_loop().time()
        await told.run(1)
    assert asyncio.get_running_loop().time() - began >= 1.0
    assert told.done[0][1] is None


class Gate:
    """A sink that takes nothing until it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.taken: list[str] = []

    async def send(self, parcel: Parcel, now_s: float) -> None:
        await self.open.wait()
        self.taken.append(parcel.delivery.lead.run_id)

    async def close(self) -> None:
        """Do nothing."""


async def test_a_slow_sink_holds_up_another_only_once_its_queue_is_full() -> None:
    sinks = {"slow": hook("http://127.0.0.1:9/", timeout_s=300), "ops": hook("http://127.0.0.1:9/")}
    settings = settings_for(sinks, queue_max=5)
    slow, quick = Gate(), Gate()
    quick.open.set()
    done: list[str] = []

    async def note(parcel: Parcel, _error: Any) -> None:
        done.append(parcel.sink)

    dispatcher = Dispatcher(settings, {"slow": slow, "ops": quick}, Metrics(), note)
    teller = Teller(settings, dispatcher, clock=lambda: NOON_S)

    async def feed() -> None:
        for number in range(20):
            output = warn(f"run-{number}")
            await teller.take(output, record_at(number, output))

    sending = asyncio.ensure_future(dispatcher.run())
    feeding = asyncio.ensure_future(feed())
    while len(quick.taken) < 6:
        await asyncio.sleep(0)
    for _ in range(200):
        await asyncio.sleep(0)
    # One is being sent, five wait in the queue; the seventh waits outside, before the other's.
    assert quick.taken == [f"run-{number}" for number in range(6)]
    assert not feeding.done()
    assert len(dispatcher.outstanding) <= 8
    slow.open.set()
    await feeding
    await dispatcher.end()
    await sending
    assert slow.taken == quick.taken == [f"run-{number}" for number in range(20)]
    assert Counter(done) == {"slow": 20, "ops": 20}
    assert dispatcher.outstanding == []


async def test_what_is_on_its_way_is_not_queued_twice() -> None:
    settings = settings_for({"ops": hook("http://127.0.0.1:9/")})
    gate = Gate()
    told = Outcomes(settings)
    dispatcher = Dispatcher(settings, {"ops": gate}, Metrics(), told._done)
    teller = Teller(settings, dispatcher, clock=lambda: NOON_S)
    output = warn()

    async def feed() -> None:
        await teller.take(output, record_at(0, output))
        teller.start_over({})  # as after partitions were given out anew
        await teller.take(output, record_at(0, output))
        gate.open.set()

    await while_dispatching(dispatcher, feed())
    assert len(told.done) == 1


async def test_offsets_are_untold_while_on_their_way_and_below_the_floor_nothing_is_told() -> None:
    settings = settings_for({"ops": hook("http://127.0.0.1:9/")})
    gate = Gate()
    told = Outcomes(settings)
    dispatcher = Dispatcher(settings, {"ops": gate}, Metrics(), told._done)
    teller = Teller(settings, dispatcher, clock=lambda: NOON_S)
    place = ("ontrack.interventions", 0)
    teller.start_over({place: 5})

    async def feed() -> None:
        for number in (3, 4, 5, 6):
            output = warn(f"run-{number}")
            await teller.take(output, record_at(number, output))
        assert teller.untold_from(place, 7) == 5
        gate.open.set()
        while dispatcher.outstanding:
            await asyncio.sleep(0)
        assert teller.untold_from(place, 7) == 7

    await while_dispatching(dispatcher, feed())
    assert gate.taken == ["run-5", "run-6"]


async def test_a_fault_while_reading_ends_the_sending_and_is_the_error() -> None:
    told = Outcomes(settings_for({"ops": hook("http://127.0.0.1:9/")}))

    async def fail() -> None:
        raise AlertUndelivered("of the reader")

    with pytest.raises(AlertUndelivered, match="of the reader"):
        await while_dispatching(told.dispatcher, fail())


def test_parcels_of_a_route_that_names_a_sink_twice_are_one() -> None:
    settings = settings_for({"ops": hook("http://127.0.0.1:9/")})
    route = settings.routes[0].model_copy(update={"sinks": ("ops", "ops")})
    from ontrack.pipeline.alerting.bundle import Bundle
    from ontrack.pipeline.alerting.machine import Delivery
    from tests.pipeline.alerting.alerts_kit import alert

    bundle = Bundle.of(alert())
    assert len(list(parcels_of(Delivery(route, "alert", bundle.gravest, bundle)))) == 1
