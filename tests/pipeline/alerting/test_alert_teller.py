"""The teller over crashes: whatever was committed, nothing above it is ever missed."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ontrack.pipeline.alerting.dispatch import Dispatcher
from ontrack.pipeline.alerting.machine import Delivery
from ontrack.pipeline.alerting.settings import AlertSettings
from ontrack.pipeline.alerting.teller import Teller
from ontrack.pipeline.metrics import Metrics
from tests.pipeline.alerting.alerts_kit import (
    NIGHT_S,
    NOON_S,
    decision,
    halt,
    record_at,
    settings_with,
    warn,
)

PARTITIONS = (0, 1)
TOPIC = "ontrack.interventions"


class Log:
    """Two partitions, a reader that crashes, and sinks that take some time."""

    def __init__(self, settings: AlertSettings) -> None:
        self.settings = settings
        self.now_s = NIGHT_S
        self.log: dict[int, list[Any]] = {number: [] for number in PARTITIONS}
        self.committed = dict.fromkeys(PARTITIONS, (0, 0))
        self.arrived: list[Delivery] = []
        self.restart()

    @property
    def outstanding(self) -> list[Any]:
        return [delivery.bundle for delivery in self.on_their_way]

    async def put(self, delivery: Delivery) -> None:
        self.on_their_way.append(delivery)

    def count_waiting(self, *_: Any) -> None:
        """Count nothing."""

    def restart(self) -> None:
        self.on_their_way: list[Delivery] = []
        self.teller = Teller(self.settings, self, clock=lambda: self.now_s)  # type: ignore[arg-type]
        self.teller.start_over({(TOPIC, p): self.committed[p][0] for p in PARTITIONS})
        self.positions = {p: self.committed[p][1] for p in PARTITIONS}

    def append(self, partition: int, output: Any) -> None:
        place = len(self.log[partition])
        record = record_at(place, output, self.now_s, partition)
        self.log[partition].append((output, record))

    def read(self, count: int) -> None:
        for partition in PARTITIONS:
            for output, record in self.log[partition][self.positions[partition] :][:count]:
                self.positions[partition] += 1
                asyncio.run(self.teller.take(output, record))

    def tick(self) -> None:
        if all(self.positions[p] == len(self.log[p]) for p in PARTITIONS):
            asyncio.run(self.teller.tick())

    def arrive(self, which: int) -> None:
        if self.on_their_way:
            self.arrived.append(self.on_their_way.pop(which % len(self.on_their_way)))

    def commit(self) -> None:
        for partition in PARTITIONS:
            place = (TOPIC, partition)
            position = self.positions[partition]
            untold = self.teller.untold_from(place, position)
            assert untold >= self.committed[partition][0]
            self.committed[partition] = (untold, self.teller.rebuilt_from(place, untold, position))


appended = st.tuples(st.just("append"), st.integers(0, 1), st.sampled_from("ab"), st.booleans())
moves = st.one_of(
    appended,
    appended,
    st.tuples(st.just("read"), st.integers(1, 5)),
    st.tuples(st.just("read"), st.just(100)),
    st.tuples(st.just("arrive"), st.integers(0, 10)),
    st.tuples(st.just("wait"), st.sampled_from([1, 20, 90, 30_000])),
    st.tuples(st.sampled_from(["commit", "crash", "tick"])),
)
quiet = st.none() | st.just({"from": "22:00", "to": "07:00"})


@hypothesis_settings(max_examples=60)
@given(
    st.lists(moves, min_size=10, max_size=80),
    st.sampled_from([0, 30, 300]),
    st.integers(1, 3),
    quiet,
    st.sampled_from([["run", "verdict"], []]),
)
def test_whenever_it_crashes_every_alert_arrives(
    given_moves: list[tuple[Any, ...]], dedupe_s: float, rate: int, hours: Any, group_by: list[str]
) -> None:
    route = {"name": "r", "sinks": ["ops"], "dedupe_s": dedupe_s, "rate_per_minute": rate}
    world = Log(settings_with(route | {"quiet": hours, "group_by": group_by}))
    made = []
    for move, *how in given_moves:
        if move == "append" and len(made) < 20:  # a bundle keeps as many by name
            partition, run, is_halt = how
            made.append((halt if is_halt else warn)(f"{run}{partition}", len(made)))
            world.append(partition, made[-1])
        elif move == "read":
            world.read(how[0])
        elif move == "arrive":
            world.arrive(how[0])
        elif move == "wait":
            world.now_s += how[0]
        elif move == "commit":
            world.commit()
        elif move == "crash":
            world.restart()
        elif move == "tick":
            world.tick()
    world.read(100)
    for _ in range(50):
        world.now_s += 3600
        world.tick()
    while world.on_their_way:
        world.arrive(0)
    told = {alert.id for delivery in world.arrived for alert in delivery.bundle.kept}
    assert told == {output.id for output in made}
    world.commit()
    assert [world.committed[p][0] for p in PARTITIONS] == [len(world.log[p]) for p in PARTITIONS]


def test_after_a_crash_an_open_window_is_open_again() -> None:
    world = Log(settings_with({"name": "r", "sinks": ["ops"], "dedupe_s": 300}))
    world.append(0, warn(seq=1))
    world.read(1)
    world.arrive(0)
    world.commit()
    assert world.committed[0] == (1, 0)  # told, and where the window begins
    world.restart()
    world.now_s += 10
    world.append(0, warn(seq=2))
    world.read(5)
    assert world.on_their_way == []
    world.now_s += 300
    world.tick()
    assert [d.cause for d in world.on_their_way] == ["more"]


def test_a_clock_that_is_ahead_of_ours_suppresses_nothing_for_years() -> None:
    world = Log(settings_with({"name": "r", "sinks": ["ops"], "dedupe_s": 60}))
    ahead = record_at(0, warn("a"), NIGHT_S + 1e9)
    asyncio.run(world.teller.take(warn("a"), ahead))
    world.now_s += 61
    asyncio.run(world.teller.take(warn("a", 1), record_at(1, warn("a", 1), world.now_s)))
    assert len(world.on_their_way) == 2
    assert all(d.lead.time_s <= world.now_s for d in world.on_their_way)


def test_a_bundle_of_which_a_part_was_told_is_told_again() -> None:
    route = {"name": "r", "sinks": ["ops"], "dedupe_s": 300, "group_by": []}
    world = Log(settings_with(route))
    for partition, seq in ((0, 0), (0, 1), (1, 2)):
        world.append(partition, warn(seq=seq))
    world.committed[0] = (2, 0)  # a life before this one told of both
    world.restart()
    world.read(5)
    assert world.on_their_way == []
    world.now_s += 300
    world.tick()
    assert [alert.seq for d in world.on_their_way for alert in d.bundle.kept] == [1, 2]


def test_nothing_is_thought_told_while_an_earlier_delivery_waits_for_room() -> None:
    settings = settings_with({"name": "all", "sinks": ["ops"], "dedupe_s": 60}, queue_max=1)
    now = [NOON_S]

    async def done(*_: Any) -> None:
        """Nobody sends in this test."""

    async def run() -> int:
        dispatcher = Dispatcher(settings, {"ops": object(), "dev": object()}, Metrics(), done)  # type: ignore[dict-item]
        teller = Teller(settings, dispatcher, clock=lambda: now[0])
        for offset, partition, name in ((0, 0, "a"), (1, 0, "a")):
            output = halt(name, offset)
            await teller.take(output, record_at(offset, output, now[0], partition))
        now[0] += 61
        # Due now: what waited for run a; and run b's own, from another partition.
        output = halt("b", 0)
        taking = asyncio.ensure_future(teller.take(output, record_at(0, output, now[0], 1)))
        await asyncio.sleep(0.05)  # the queue is full: the first of the two waits
        assert not taking.done()
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        return teller.untold_from((TOPIC, 1), 1)

    assert asyncio.run(run()) == 0


def test_a_window_outlives_a_process_that_ends_before_it_has_rebuilt_it() -> None:
    world = Log(settings_with({"name": "all", "sinks": ["ops"], "dedupe_s": 600}))
    world.append(0, halt("run-1", 0))
    world.read(1)
    world.arrive(0)
    world.commit()
    for _ in range(2):  # as the reader does at once when it starts
        world.restart()
        world.commit()
    world.append(0, halt("run-1", 1))
    world.read(2)
    assert world.on_their_way == []


def test_what_waits_is_told_in_time_although_other_news_never_pause() -> None:
    log = Log(settings_with({"name": "r", "sinks": ["ops"], "dedupe_s": 60}))
    log.now_s = NOON_S
    log.append(0, warn("run-1", 0))
    log.append(0, warn("run-1", 1))
    for second in range(61):
        log.now_s = NOON_S + second
        log.append(0, decision("run-2", second, "allow"))
    log.read(100)  # all in one go, and never a tick
    counts = [delivery.bundle.count for delivery in log.on_their_way]
    assert counts == [1, 1]
