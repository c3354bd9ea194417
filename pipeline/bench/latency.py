"""Milliseconds: from an event to its verdict, and from a question to the gate's answer."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from itertools import cycle, islice
from time import perf_counter
from typing import Any

import aiohttp
import orjson
from aiokafka import AIOKafkaProducer, ConsumerRecord, TopicPartition

from ontrack.pipeline.bench.stage import WorkerProcess
from ontrack.pipeline.bench.workload import Asked, Message
from ontrack.pipeline.gating.wire import GATE_PATH
from ontrack.pipeline.kafka.connection import client_arguments, start_consumer, topics_of
from ontrack.pipeline.kafka.messages import source_offset
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.errors import BrokerUnavailable

WARM_UP_SHARE = 0.1
ANSWER_S_MAX = 30.0
KEPT_MAX = 4000  # sends whose acknowledgement is still to be looked at
PAUSE_S = 0.01  # between two questions
DEADLINE_MS = 5000  # long, so that a slow answer is measured and not replaced by the policy's


async def end_to_end(
    settings: Settings, load: Sequence[Message], rate: float, dues: Sequence[float] | None = None
) -> list[float]:
    """Send events at a rate; return the seconds from each sending to its verdict being read.

    Parameters
    ----------
    dues
        When each event is sent, in seconds from the first; None: evenly.

    Raises
    ------
    BrokerUnavailable
        Verdicts are missing.
    """
    sent: dict[str, float] = {}
    taken: dict[str, float] = {}
    complete = asyncio.Event()
    expected = sum(message.verdict_id is not None for message in load)

    def take(message: ConsumerRecord) -> None:
        name = orjson.loads(message.value)["id"]
        if name in sent and name not in taken:
            taken[name] = perf_counter() - sent[name]
            if len(taken) == expected:
                complete.set()

    name = topics_of(settings).verdicts.name
    with _without_long_collections():
        async with _listening(settings, name, take):
            await _send(settings, load, rate, sent, dues)
            await _within(complete.wait(), lambda: f"{len(taken)} of {expected} verdicts came")
    times = list(taken.values())
    return times[int(len(times) * WARM_UP_SHARE) :]


async def settle(settings: Settings, runs: Sequence[Asked]) -> None:
    """Send the runs that will be asked about, and wait until the monitor knows them."""
    load = [message for run in runs for message in run.events]
    await end_to_end(settings, load, rate=1000)


@asynccontextmanager
async def flowing(settings: Settings, load: Iterator[Message], rate: float) -> AsyncIterator[None]:
    """Send events at a rate while the block runs."""
    with _without_long_collections():
        async with _beside(_send(settings, load, rate, {})):
            yield


async def gate_http(worker: WorkerProcess, runs: Sequence[Asked], questions: int) -> list[float]:
    """Ask one question after the other over HTTP; return the seconds of each.

    Raises
    ------
    BrokerUnavailable
        The answer is not one of the monitor's.
    """
    bodies = [
        codecs.encode(run.proposal)[:-1] + b',"deadline_ms":%d}' % DEADLINE_MS for run in runs
    ]
    times: list[float] = []
    async with aiohttp.ClientSession(headers=worker.headers) as session:
        for body in islice(cycle(bodies), questions):
            began = perf_counter()
            async with session.post(worker.url + GATE_PATH, data=body) as answer:
                told = await answer.read()
            times.append(perf_counter() - began)
            if answer.status != 200 or orjson.loads(told)["decided_by"] != "monitor":
                raise BrokerUnavailable(f"the gate answered {answer.status}: {told[:500]!r}")
            await asyncio.sleep(PAUSE_S)
    return times[int(questions * WARM_UP_SHARE) :]


async def gate_topics(settings: Settings, runs: Sequence[Asked], questions: int) -> list[float]:
    """Ask one question after the other by a message; return the seconds of each.

    Raises
    ------
    BrokerUnavailable
        An answer does not come.
    """
    topics = topics_of(settings)
    answered: dict[tuple[int, int], float] = {}
    news = asyncio.Event()

    def take(message: ConsumerRecord) -> None:
        offset = source_offset(message, topics.proposals.name)
        if offset >= 0:
            answered[message.partition, offset] = perf_counter()
            news.set()

    times: list[float] = []
    async with (
        _listening(settings, topics.decisions.name, take),
        _producer(settings) as producer,
    ):
        for run in islice(cycle(runs), questions):
            began = perf_counter()
            place = await producer.send_and_wait(
                topics.proposals.name,
                codecs.encode(run.proposal),
                key=run.proposal.run_id.encode(),
            )
            while (place.partition, place.offset) not in answered:
                news.clear()
                await _within(news.wait(), lambda: f"{len(times)} of {questions} answers came")
            times.append(answered[place.partition, place.offset] - began)
            await asyncio.sleep(PAUSE_S)
    return times[int(questions * WARM_UP_SHARE) :]


async def _send(
    settings: Settings,
    load: Iterable[Message],
    rate: float,
    sent: dict[str, float],
    dues: Sequence[float] | None = None,
) -> None:
    """Send one event after the other; note when each was handed to the client."""
    topic = topics_of(settings).events.name
    async with _producer(settings) as producer:
        acknowledged, began = [], perf_counter()
        for number, message in enumerate(load):
            due = number / rate if dues is None else dues[number]
            ahead = began + due - perf_counter()
            if ahead > 0:
                await asyncio.sleep(ahead)
            if message.verdict_id is not None:
                sent[message.verdict_id] = perf_counter()
            acknowledged.append(await producer.send(topic, message.value, key=message.key))
            if len(acknowledged) >= KEPT_MAX:
                await asyncio.gather(*acknowledged[: KEPT_MAX // 2])
                del acknowledged[: KEPT_MAX // 2]
        await asyncio.gather(*acknowledged)


@contextmanager
def _without_long_collections() -> Iterator[None]:
    """Leave what there is out of collections, as a worker does.

    One that looked at all the prepared events held up sending and reading (measured: 190 ms), and
    what was sent late came to the worker all at once.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@asynccontextmanager
async def _producer(settings: Settings) -> AsyncIterator[AIOKafkaProducer]:
    """Run a producer that sends at once: an agent waits for its event to be safe."""
    producer = AIOKafkaProducer(**client_arguments(settings), acks="all", enable_idempotence=True)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def _listening(
    settings: Settings, topic: str, take: Callable[[ConsumerRecord], None]
) -> AsyncIterator[None]:
    """Hand over what is new on a topic while the block runs."""
    consumer = await start_consumer(settings)
    parts = [TopicPartition(topic, number) for number in range(settings.partitions)]
    consumer.assign(parts)
    await consumer.seek_to_end(*parts)
    for part in parts:
        await consumer.position(part)

    async def follow() -> None:
        async for message in consumer:
            take(message)

    try:
        async with _beside(follow()):
            yield
    finally:
        await consumer.stop()


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Let something run while the block does; what it failed with is raised at the block's end."""
    task = asyncio.create_task(work)
    try:
        yield
        if task.done():
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _within(waiting: Awaitable[object], told: Callable[[], str]) -> None:
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            await waiting
    except TimeoutError:
        raise BrokerUnavailable(
            f"after {ANSWER_S_MAX:g} s only {told()}; look at the worker's log"
        ) from None
