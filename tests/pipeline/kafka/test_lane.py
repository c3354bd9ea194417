"""A lane: batches of what is there, in order, and nothing after its end."""

from __future__ import annotations

import asyncio

from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.kafka import lane as lanes
from ontrack.pipeline.kafka.lane import Delivery, Lane


def delivery(offset: int, done: list[int] | None = None) -> Delivery:
    record = Record(b"", b"k", "events", 0, offset)
    return Delivery(record, None if done is None else lambda: done.append(offset))


class Handler:
    """Takes batches; waits in each until it is let go."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.failures: list[BaseException] = []
        self.go = asyncio.Event()
        self.go.set()

    async def begin(self) -> None:
        await self.go.wait()

    async def handle(self, records: list[Record]) -> None:
        self.batches.append([record.offset for record in records])
        await self.go.wait()

    async def failed(self, error: BaseException) -> None:
        self.failures.append(error)

    def lane(self, batch_max: int = 100, after: Lane | None = None) -> Lane:
        return Lane(self.begin, self.handle, self.failed, batch_max, after)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_waits_while_a_batch_is_worked_on_is_the_next_batch() -> None:
    handler, done = Handler(), list[int]()
    lane = handler.lane(batch_max=3)
    lane.offer([delivery(0, done)])
    await turns()
    handler.go.clear()
    lane.offer([delivery(1, done)])
    await turns()
    lane.offer([delivery(number, done) for number in range(2, 7)])
    await turns()
    assert handler.batches == [[0], [1]]
    assert done == [0]
    handler.go.set()
    await turns()
    assert handler.batches == [[0], [1], [2, 3, 4], [5, 6]]
    assert done == list(range(7))
    lane.close()
    await lane.finished()


async def test_whoever_delivers_waits_for_room_and_no_longer(monkeypatch: object) -> None:
    handler = Handler()
    handler.go.clear()
    lane = handler.lane(batch_max=lanes.QUEUE_RECORDS_MAX)
    lane.offer([delivery(number) for number in range(lanes.QUEUE_RECORDS_MAX)])
    waiting = asyncio.create_task(lane.put(delivery(lanes.QUEUE_RECORDS_MAX)))
    await turns()
    assert not waiting.done()
    handler.go.set()
    await asyncio.wait_for(waiting, 5)
    await turns()
    assert [len(batch) for batch in handler.batches] == [lanes.QUEUE_RECORDS_MAX, 1]
    lane.close()
    await lane.finished()


async def test_few_large_records_fill_a_lane_as_well() -> None:
    """Counted by records alone, events of 1 MiB would be 4 GiB a partition."""
    handler = Handler()
    handler.go.clear()
    lane = handler.lane(batch_max=1)
    large = Record(bytes(lanes.QUEUE_BYTES_MAX // 2), b"k", "events", 0, 0)
    lane.offer([Delivery(large)] * 2)
    waiting = asyncio.create_task(lane.room())
    await turns()
    assert not waiting.done()
    handler.go.set()
    await asyncio.wait_for(waiting, 5)
    await turns()
    assert [len(batch) for batch in handler.batches] == [1, 1]
    await asyncio.wait_for(lane.room(), 5)
    lane.close()
    await lane.finished()


async def test_a_lane_that_is_closed_finishes_its_batch_drops_the_rest_and_holds_nobody_up() -> (
    None
):
    handler, done = Handler(), list[int]()
    handler.go.clear()
    handler.go.set()
    lane = handler.lane()
    lane.offer([delivery(0, done)])
    handler.go.set()
    await turns()
    handler.go.clear()
    lane.offer([delivery(1, done)])
    await turns()
    lane.offer([delivery(number, done) for number in range(2, lanes.QUEUE_RECORDS_MAX + 2)])
    blocked = asyncio.create_task(lane.room())
    await turns()
    assert not blocked.done()
    lane.close()
    await asyncio.wait_for(blocked, 5)
    lane.offer([delivery(9999, done)])
    handler.go.set()
    await lane.finished()
    assert handler.batches == [[0], [1]]
    assert done == [0, 1]


async def test_the_next_lane_of_a_partition_begins_when_the_one_before_has_ended() -> None:
    first, second = Handler(), Handler()
    before = first.lane()
    before.offer([delivery(0)])
    await turns()
    first.go.clear()
    before.offer([delivery(1)])
    await turns()
    before.close()
    after = second.lane(after=before)
    after.offer([delivery(1)])
    await turns()
    assert second.batches == []
    first.go.set()
    await turns()
    assert second.batches == [[1]]
    after.close()
    await after.finished()


async def test_a_lane_that_fails_says_so() -> None:
    handler = Handler()

    async def fail(_records: list[Record]) -> None:
        raise RuntimeError("no")

    lane = Lane(handler.begin, fail, handler.failed, 10, None)
    lane.offer([delivery(0)])
    await asyncio.wait_for(lane.finished(), 5)
    assert [str(error) for error in handler.failures] == ["no"]
