"""The emitter: whatever fails on the way, everything arrives, in order within its partition."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, KafkaTimeoutError, ProducerClosed
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.pipeline.folding.quarantine import dead_letter
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.kafka import emitter as module
from ontrack.pipeline.kafka.emitter import Emitter
from ontrack.pipeline.kafka.messages import Message, messages_of
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.catalog import catalogue
from ontrack.topics.errors import BrokerUnavailable, MalformedMessage
from ontrack.topics.verdicts import Authority, Verdict, VerdictName

Place = tuple[str, int]


@dataclass
class FakeCluster:
    """Partitions as lists, and a script of what happens to the sends, one word a send.

    ``ok``; ``refused`` (send itself fails), ``lost`` (accepted, never stored), ``unsure`` (stored,
    but the acknowledgement is lost). After the script all is well.
    """

    script: list[str] = field(default_factory=list)
    away: int = 0
    stored: dict[Place, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    producers: list[FakeProducer] = field(default_factory=list)

    async def start(self, _settings: Settings, linger_ms: int) -> FakeProducer:
        assert linger_ms == 0  # whoever waits for an answer does not wait for more to send
        if self.away:
            self.away -= 1
            raise BrokerUnavailable("away")
        self.producers.append(FakeProducer(self))
        return self.producers[-1]


class FakeProducer:
    """Like an idempotent producer: after a failure nothing more of that partition is stored."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._broken: set[Place] = set()
        self.stopped = False

    async def send(
        self, topic: str, value: bytes, *, key: Any, partition: int, headers: Any
    ) -> asyncio.Future[None]:
        if self.stopped:
            raise ProducerClosed
        script = self._cluster.script
        word = script.pop(0) if script else "ok"
        if word == "refused":
            raise KafkaTimeoutError
        place, future = (topic, partition), asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)
        if word in ("ok", "unsure") and place not in self._broken:
            self._cluster.stored[place].append(value)
        if word == "ok" and place not in self._broken:
            future.set_result(None)
        else:
            self._broken.add(place)
            future.set_exception(KafkaConnectionError())
        return future

    async def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster()
    connect(monkeypatch, made)
    return made


def connect(monkeypatch: pytest.MonkeyPatch, cluster: FakeCluster) -> None:
    monkeypatch.setattr(module, "start_producer", cluster.start)
    monkeypatch.setattr(module, "asyncio", HastyAsyncio)


class HastyAsyncio:
    """asyncio, whose pauses between tries take no time."""

    Lock = asyncio.Lock
    gather = staticmethod(asyncio.gather)

    @staticmethod
    async def sleep(_seconds: float) -> None:
        await asyncio.sleep(0)


def messages(count: int, partitions: int = 2) -> list[Message]:
    return [Message("verdicts", n % partitions, b"a", b"%d" % n, []) for n in range(count)]


def in_order(stored: list[bytes], sent: list[bytes]) -> bool:
    """Whether what is stored, at its last mention of each, reads as it was sent."""
    last = list(dict.fromkeys(reversed(stored)))
    return last[::-1] == sent and list(dict.fromkeys(stored)) == sent


async def test_messages_arrive_in_order_through_one_producer(cluster: FakeCluster) -> None:
    emitter = Emitter(Settings())
    await emitter.emit(messages(6))
    await emitter.emit(messages(2))
    assert cluster.stored["verdicts", 0] == [b"0", b"2", b"4", b"0"]
    assert cluster.stored["verdicts", 1] == [b"1", b"3", b"5", b"1"]
    assert len(cluster.producers) == 1
    await emitter.stop()
    assert cluster.producers[0].stopped


async def test_nothing_to_send_needs_no_connection(cluster: FakeCluster) -> None:
    await Emitter(Settings()).emit([])
    assert not cluster.producers


@pytest.mark.parametrize("word", ["refused", "lost", "unsure"])
@pytest.mark.parametrize("at", [0, 3, 5])
async def test_a_send_that_fails_is_sent_again_by_a_new_producer(
    cluster: FakeCluster, word: str, at: int
) -> None:
    cluster.script = ["ok"] * at + [word]
    emitter = Emitter(Settings())
    await emitter.emit(messages(6))
    for number in (0, 1):
        sent = [message.value for message in messages(6) if message.partition == number]
        assert in_order(cluster.stored["verdicts", number], sent)
    assert [producer.stopped for producer in cluster.producers] == [True, False]


async def test_while_the_broker_is_away_it_waits(cluster: FakeCluster) -> None:
    cluster.away = 5
    emitter = Emitter(Settings())
    await emitter.emit(messages(2))
    assert cluster.away == 0
    assert cluster.stored["verdicts", 1] == [b"1"]


async def test_two_partitions_that_fail_together_replace_the_producer_once_each_time(
    cluster: FakeCluster,
) -> None:
    emitter = Emitter(Settings())
    await emitter.emit(messages(1))
    cluster.script = ["lost", "lost"]
    halves = [[m for m in messages(8) if m.partition == number] for number in (0, 1)]
    await asyncio.gather(*map(emitter.emit, halves))
    assert in_order(cluster.stored["verdicts", 1], [b"1", b"3", b"5", b"7"])
    assert in_order(cluster.stored["verdicts", 0], [b"0", b"2", b"4", b"6"])
    assert not cluster.producers[-1].stopped
    assert all(producer.stopped for producer in cluster.producers[:-1])


async def test_it_can_be_cancelled_while_it_waits(cluster: FakeCluster) -> None:
    cluster.away = 10**9
    task = asyncio.create_task(Emitter(Settings()).emit(messages(1)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from(["ok", "ok", "ok", "refused", "lost", "unsure"]), max_size=40),
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_whatever_fails_everything_arrives_in_order(
    script: list[str], sizes: list[int], partitions: int
) -> None:
    cluster = FakeCluster(script)
    every = messages(sum(sizes), partitions)

    async def play() -> None:
        emitter = Emitter(Settings())
        left = iter(every)
        for size in sizes:
            await emitter.emit([next(left) for _ in range(size)])

    with pytest.MonkeyPatch.context() as patch:
        connect(patch, cluster)
        asyncio.run(play())
    for number in range(partitions):
        sent = [message.value for message in every if message.partition == number]
        assert not sent or in_order(cluster.stored["verdicts", number], sent)


def verdict() -> Verdict:
    return Verdict(
        id="a:3",
        run_id="a",
        seq=3,
        verdict=VerdictName.OK,
        severity=0,
        authority=Authority.INTERVENE,
        profile="paper",
        settings="x",
        engine="0",
    )


def test_an_output_goes_to_the_partition_of_its_source_and_says_where_it_came_from() -> None:
    source = Record(b"{}", b"key", "ontrack.events", 2, 41)
    message = messages_of(catalogue(), source, [verdict()])[0].message
    assert (message.topic, message.partition, message.key) == ("ontrack.verdicts", 2, b"a")
    assert message.value == codecs.encode(verdict())
    headers = dict(message.headers)
    assert headers["ontrack_source"] == b"ontrack.events:2:41"
    assert (headers["ce_id"], headers["ce_type"]) == (b"a:3", b"ontrack.verdict")


@pytest.mark.parametrize("key", [None, b"\xff\x00"])
def test_a_dead_letter_keeps_the_key_of_what_it_quarantines(key: bytes | None) -> None:
    source = Record(b"junk", key, "ontrack.events", 1, 5)
    letter = dead_letter(source, MalformedMessage("no JSON"))
    message = messages_of(catalogue(), source, [letter])[0].message
    assert (message.topic, message.key) == ("ontrack.dead-letters", key)


def test_times_of_processing_are_in_headers_alone() -> None:
    source = Record(b"{}", b"a", "ontrack.events", 0, 0)
    one, other = (messages_of(catalogue(), source, [verdict()])[0].message for _ in range(2))
    assert one.value == other.value
    assert "ce_time" in dict(one.headers)
