"""Feed from Kafka: the output topics followed, and runs folded again from the events topic.

No consumer group is joined and no offset committed: workers never notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from ontrack.pipeline.dashboard.feeds.base import LETTERS_MAX, Told, cut, now_ms
from ontrack.pipeline.dashboard.feeds.feed import FeedState, Known, Letter, OnOutput, Unavailable
from ontrack.pipeline.dashboard.feeds.topic import RunTopic
from ontrack.pipeline.dashboard.run.model import RunPicture
from ontrack.pipeline.folding.quarantine import fault
from ontrack.pipeline.kafka.connection import start_consumer, topics_of
from ontrack.pipeline.kafka.log import LogReader
from ontrack.pipeline.kafka.provision import counts_of, partition_counts
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.errors import BrokerUnavailable, InvalidEvent, InvalidSettings
from ontrack.topics.verdicts import DeadLetter

_log = structlog.get_logger(__name__)
Answer = TypeVar("Answer")

PAUSE_S: Final = 1.0
CHECK_S: Final = 1.0
LOOK_S: Final = 60.0  # between two looks whether topics have got more partitions
CHECK_S_MAX: Final = 3.0  # a broker that has not answered by then is away
ANSWER_S_MAX: Final = 30.0  # without news from the broker; a whole partition may take longer
STOP_S_MAX: Final = 3.0
AT_ONCE: Final = 50  # outputs that are taken before others have their turn
BACK_MINUTES: Final = 60.0


class KafkaFeed:
    """News from the output topics.

    Parameters
    ----------
    settings
        Of broker, topics and fold: those of the workers, so that runs are folded as they were.
    back_minutes
        How far back it begins.
    """

    def __init__(self, settings: Settings, back_minutes: float = BACK_MINUTES) -> None:
        self._settings = settings
        self._back_ms = int(back_minutes * 60_000)
        self._topics = topics_of(settings)
        self._told = Told()
        self._log = LogReader(settings)
        self._runs = RunTopic(settings, self._log)
        # The next offset of each partition: after a break it goes on where it stopped.
        self._next: dict[TopicPartition, int] = {}
        self._task: asyncio.Task[None] | None = None
        # The latest dead letters, and the next offset of each partition of them.
        self._letters: dict[str, Letter] = {}
        self._letters_next: dict[int, int] = {}
        self._letters_turn = asyncio.Lock()

    @property
    def name(self) -> str:
        """The bootstrap servers."""
        return f"Kafka at {self._settings.broker}"

    @property
    def state(self) -> FeedState:
        """How it stands."""
        return self._told.state

    async def start(self, on_output: OnOutput) -> None:
        """Begin to follow the topics, for as long as it takes."""
        self._told.listen(on_output)
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        for stop in (self._runs.stop, self._log.stop):
            with suppress(KafkaError, OSError):
                await bounded(stop(), STOP_S_MAX)

    async def picture(self, run_id: str) -> RunPicture:
        """Fold the run from the events topic, by what had been published when it began."""
        picture = await self._answered(self._runs.picture(run_id))
        return self._told.heard.complete(picture)

    def reading(self, run_id: str) -> str:
        """Return how much of its partition has been looked at, and of its events folded."""
        return self._runs.reading(run_id)

    async def run_events(self, run_id: str) -> list[bytes]:
        """Return the run's events."""
        return await self._answered(self._runs.events(run_id))

    async def known(self) -> Known:
        """Return what stands on the topics now."""
        return await self._answered(self._runs.known())

    async def dead_letters(self, limit: int) -> list[Letter]:
        """Return the latest of the topic."""
        if limit < 1:
            return []
        await self._answered(self._read_letters())
        latest = sorted(self._letters.values(), key=lambda one: one.time_ms, reverse=True)
        return latest[:limit]

    async def _read_letters(self) -> None:
        """Read the last dead letters, then only what is new: each may be as large as a message.

        Pages ask every few seconds.
        """
        topic = self._topics.dead_letters.name
        async with self._letters_turn:
            counts = await partition_counts(self._settings)
            for number in range(counts.get(topic, 0)):
                first, last = await self._log.bounds(topic, number)
                start = self._letters_next.get(number, last + 1)
                if start > last:  # the first time, or a new topic; some may stand there twice
                    start = last - 2 * LETTERS_MAX
                start = max(first, start)
                async for messages in self._log.read(topic, number, start, last):
                    for message in messages:
                        self._keep_letter(message)
                    self._letters_next[number] = messages[-1].offset + 1
                self._letters_next[number] = last

    def _keep_letter(self, message: ConsumerRecord) -> None:
        with suppress(InvalidEvent):
            letter = codecs.decode_output(message.value or b"")
            if isinstance(letter, DeadLetter):
                self._letters[letter.id] = Letter(cut(letter), int(message.timestamp))
        while len(self._letters) > LETTERS_MAX:
            del self._letters[min(self._letters, key=lambda one: self._letters[one].time_ms)]

    async def _answered(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Turn what Kafka cannot do into what a page can say."""
        if self.state.status == "down":
            work.close()
            raise Unavailable(self.state.text)
        try:
            return await bounded(work, ANSWER_S_MAX, lambda: self._runs.progress)
        except TimeoutError as error:
            raise Unavailable(
                f"Kafka at {self._settings.broker} gave no answer within {ANSWER_S_MAX:g} s"
            ) from error
        except (BrokerUnavailable, KafkaError, OSError) as error:
            raise Unavailable(_problem(self._settings, error)) from error

    async def _follow(self) -> None:
        while True:
            try:
                await self._read()
            except (BrokerUnavailable, InvalidSettings, KafkaError, OSError) as error:
                self._told.become("down", _problem(self._settings, error))
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                self._told.become("down", _problem(self._settings, TimeoutError(str(error))))
            except Exception as error:  # noqa: BLE001
                # A fault of ours must not leave a page that says "live" and shows nothing new.
                _log.error("feed_failed", **fault(error))
                self._told.become("down", f"a fault of the dashboard ({type(error).__name__})")
            await asyncio.sleep(PAUSE_S)

    async def _read(self) -> None:
        partitions = await self._partitions()
        consumer = await start_consumer(self._settings)
        try:
            consumer.assign(partitions)
            await self._seek(consumer, partitions)
            await self._follow_with(consumer, partitions)
        finally:
            with suppress(KafkaError, OSError):
                await bounded(consumer.stop(), STOP_S_MAX)

    async def _partitions(self) -> list[TopicPartition]:
        topics = self._topics
        outputs = (
            topics.verdicts,
            topics.interventions,
            topics.decisions,
            topics.scorecards,
            topics.dead_letters,
        )
        counts = await counts_of(self._settings, *(spec.name for spec in outputs))
        return [
            TopicPartition(spec.name, number)
            for spec in outputs
            for number in range(counts[spec.name])
        ]

    async def _seek(self, consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> None:
        """Go to where it stopped, or back by the minutes asked for."""
        ends = await consumer.end_offsets(partitions)
        fresh = [tp for tp in partitions if self._next.get(tp, ends[tp] + 1) > ends[tp]]
        if fresh:
            since = max(0, now_ms() - self._back_ms)
            found = await consumer.offsets_for_times(dict.fromkeys(fresh, since))
            for tp in fresh:
                place = found.get(tp)
                self._next[tp] = ends[tp] if place is None else place.offset
        for tp in partitions:
            consumer.seek(tp, self._next[tp])

    async def _follow_with(
        self, consumer: AIOKafkaConsumer, partitions: list[TopicPartition]
    ) -> None:
        """Tell what comes, and look now and then whether the broker is still there.

        A consumer says nothing when its broker goes away; one that is asked for the ends has to.
        """
        loop = asyncio.get_running_loop()
        checked = looked = loop.time()
        behind = await bounded(consumer.end_offsets(partitions), CHECK_S_MAX)
        start = sum(self._next.values())
        while True:
            self._tell_place(behind, start)
            batches = await consumer.getmany(timeout_ms=100, max_records=2000)
            messages = [message for batch in batches.values() for message in batch]
            messages.sort(key=lambda message: int(message.timestamp))
            for number, message in enumerate(messages):
                self._take(message)
                if number % AT_ONCE == AT_ONCE - 1:
                    await asyncio.sleep(0)  # pages are served meanwhile
            for tp, batch in batches.items():
                self._next[tp] = batch[-1].offset + 1
            if loop.time() - checked > CHECK_S:
                await bounded(consumer.end_offsets(partitions), CHECK_S_MAX)
                checked = loop.time()
            if loop.time() - looked > LOOK_S:
                partitions = await self._widened(consumer, partitions)
                looked = loop.time()

    async def _widened(
        self, consumer: AIOKafkaConsumer, partitions: list[TopicPartition]
    ) -> list[TopicPartition]:
        """Take in partitions that have come since, each from its beginning; return all."""
        try:
            found = await bounded(self._partitions(), CHECK_S_MAX)
            fresh = [tp for tp in found if tp not in set(partitions)]
            begins = await bounded(consumer.beginning_offsets(fresh), CHECK_S_MAX) if fresh else {}
        except (BrokerUnavailable, KafkaError, OSError) as error:
            # Whether the broker is there is asked every second; this can wait until the next look.
            _log.warning("partitions_not_looked_at", **fault(error))
            return partitions
        if not fresh:
            return partitions
        self._next.update(begins)
        consumer.assign(found)  # forgets where it stood
        for tp in found:
            consumer.seek(tp, self._next[tp])
        return found

    def _tell_place(self, ends: dict[TopicPartition, int], start: int) -> None:
        """Say that it is live once all has been read that stood there when it began.

        Figures of half an hour ago must not look like those of now.
        """
        if self.state.status == "live":
            return
        left = sum(max(0, end - self._next[tp]) for tp, end in ends.items())
        where = f"Kafka at {self._settings.broker}"
        if left == 0:
            self._told.become("live", f"following {where}")
            return
        read = sum(self._next.values()) - start
        text = f"reading from {where} what was said before: {read:,} of {read + left:,} messages"
        self._told.become("connecting", text)

    def _take(self, message: ConsumerRecord) -> None:
        try:
            output = codecs.decode_output(message.value or b"")
        except InvalidEvent:
            return  # not one of ours, or of a later version
        self._told.said(output, int(message.timestamp))


async def bounded(
    work: Coroutine[Any, Any, Answer], seconds: float, progress: Callable[[], int] = lambda: 0
) -> Answer:
    """Wait for a client's answer in a task of its own, and no longer.

    The client cancels what it waits for itself when its broker goes away; awaited here, that would
    look as if we had been cancelled.

    Parameters
    ----------
    progress
        Waited for another ``seconds`` where this has changed.

    Raises
    ------
    TimeoutError
        There is none by then, or the client has given up.
    """
    task = asyncio.create_task(work)
    task.add_done_callback(_passed_over)
    try:
        before = None
        while not task.done() and before != (before := progress()):
            await asyncio.wait({task}, timeout=seconds)
    finally:
        is_done = task.done()
        task.cancel()
    if not is_done or task.cancelled():
        raise TimeoutError("no answer")
    return task.result()


def _passed_over(task: asyncio.Task[Any]) -> None:
    """Look at how a task ended that nobody may be waiting for any more."""
    if not task.cancelled():
        task.exception()


def _problem(settings: Settings, error: Exception) -> str:
    if isinstance(error, BrokerUnavailable | InvalidSettings):
        return f"{error} (trying again; `ontrack doctor` says what is unreachable)"
    return (
        f"Kafka at {settings.broker} does not answer ({type(error).__name__}); trying again. Is "
        "the broker running, and is this its address? `ontrack doctor` says what is unreachable"
    )
