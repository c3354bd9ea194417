"""Work in slices: the event loop gets its turns however many partitions have much to do."""

from __future__ import annotations

import asyncio

import pytest

from ontrack.pipeline.kafka import turns as turns_module
from ontrack.pipeline.kafka.turns import Turns

EVENT_S = 0.0015  # two of them are more than a slice


class Clock:
    """Time that passes only by work."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def work(turns: Turns, clock: Clock, name: str, events: int, done: list[str]) -> None:
    async with turns.working():
        for _ in range(events):
            clock.now += EVENT_S
            done.append(name)
            await turns.give_way()


async def test_the_loop_never_waits_for_more_than_a_slice_and_an_event_of_all_partitions() -> None:
    clock = Clock()
    turns = Turns(clock)
    done: list[str] = []
    working = [asyncio.create_task(work(turns, clock, name, 50, done)) for name in "abcd"]
    longest, before = 0.0, clock.now
    while not all(task.done() for task in working):
        await asyncio.sleep(0)  # a turn of the loop, as a question of the gate would get it
        longest, before = max(longest, clock.now - before), clock.now
    assert len(done) == 200
    assert longest <= turns_module.SLICE_S + EVENT_S


async def test_partitions_take_turns() -> None:
    clock = Clock()
    turns = Turns(clock)
    done: list[str] = []
    await asyncio.gather(*(work(turns, clock, name, 6, done) for name in "ab"))
    assert "".join(done) == "aabbaabbaabb"


async def test_work_that_nobody_waits_for_stands_back_while_there_is_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        if seconds:
            paused.append(seconds)
        await sleep(0)

    monkeypatch.setattr(turns_module.asyncio, "sleep", noted)
    clock = Clock()
    turns = Turns(clock)

    async def count(messages: int) -> None:
        async with turns.working(behind=True):
            for _ in range(messages):
                clock.now += EVENT_S
                await turns.give_way()

    await count(10)  # alone
    assert paused == []
    await work(turns, clock, "a", 1, [])
    await count(10)
    assert paused == [turns_module.STAND_BACK_S] * 5
    clock.now += turns_module.BUSY_S
    await count(10)  # alone again
    assert len(paused) == 5


async def test_many_short_batches_are_as_good_as_a_long_one() -> None:
    clock = Clock()
    turns = Turns(clock)
    done: list[str] = []

    async def lane(name: str) -> None:
        for _ in range(20):
            await work(turns, clock, name, 1, done)
            await asyncio.sleep(0)  # its outputs are sent

    working = [asyncio.create_task(lane(name)) for name in "abcdefgh"]
    longest, before = 0.0, clock.now
    while not all(task.done() for task in working):
        await asyncio.sleep(0)
        longest, before = max(longest, clock.now - before), clock.now
    assert len(done) == 160
    assert longest <= turns_module.SLICE_S + EVENT_S


async def test_a_block_that_waits_in_between_is_held_to_the_slice_afterwards() -> None:
    clock = Clock()
    turns = Turns(clock)
    rounds = 0

    async def block() -> None:
        async with turns.working():
            await asyncio.sleep(0)  # as for something that another thread does
            for _ in range(20):
                clock.now += EVENT_S
                await turns.give_way()

    working = asyncio.create_task(block())
    while not working.done():
        await asyncio.sleep(0)
        rounds += 1
    assert rounds >= 8


async def test_whoever_waits_for_a_thread_leaves_the_turn_to_the_others() -> None:
    clock = Clock()
    turns = Turns(clock)
    done: list[str] = []
    finished = asyncio.Event()

    async def slow() -> None:
        async with turns.working():
            async with turns.elsewhere():
                await finished.wait()
            done.append("slow")
            await turns.give_way()

    waiting = asyncio.create_task(slow())
    await work(turns, clock, "a", 5, done)
    finished.set()
    await asyncio.wait_for(waiting, 5)
    assert done == [*"aaaaa", "slow"]
    waiting = asyncio.create_task(slow())
    finished.clear()
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.wait_for(work(turns, clock, "b", 1, done), 5)


async def test_short_work_is_not_interrupted() -> None:
    clock = Clock()
    done: list[str] = []
    other = asyncio.create_task(asyncio.sleep(0))
    await work(Turns(clock), clock, "a", 1, done)
    assert not other.done()


@pytest.mark.parametrize("turns_before", [0, 1, 2, 3, 4, 5])
async def test_who_is_cancelled_leaves_the_turn_to_the_others(turns_before: int) -> None:
    clock = Clock()
    turns = Turns(clock)
    done: list[str] = []
    first = asyncio.create_task(work(turns, clock, "a", 100, done))
    second = asyncio.create_task(work(turns, clock, "b", 100, done))
    for _ in range(turns_before):
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait_for(second, 5)
    with pytest.raises(asyncio.CancelledError):
        await first
    assert done.count("b") == 100
    await asyncio.wait_for(work(turns, clock, "c", 3, done), 5)


async def test_an_error_leaves_the_turn_to_the_others() -> None:
    turns = Turns()
    with pytest.raises(ZeroDivisionError):
        async with turns.working():
            raise ZeroDivisionError
    async with asyncio.timeout(5), turns.working():
        pass
