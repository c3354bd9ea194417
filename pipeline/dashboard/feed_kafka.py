"""Feed from Kafka: the output topics followed, and runs folded again from the events topic.

No consumer group is joined and no offset committed: workers never notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from ontrack.pipeline.dashboard.feed import FeedState, Known, OnOutput, Unavailable
from ontrack.pipeline.dashboard.feed_base import Told, cut, now_ms
from ontrack.pipeline.dashboard.run_model import RunPicture
from ontrack.pipeline.dashboard.run_topic import RunTopic
from ontrack.pipeline.kafka.connection import start_consumer, topics_of
from ontrack.pipeline.kafka.log import LogReader
from ontrack.pipeline.kafka.provision import partition_counts
from ontrack.pipeline.quarantine import fault
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.errors import BrokerUnavailable, InvalidEvent, InvalidSettings
from ontrack.topics.verdicts import DeadLetter

_log = structlog.get_logger(__name__)
Answer = TypeVar("Answer")

PAUSE_S: Final = 1.0
CHECK_S: Final = 1.0
CHECK_S_MAX: Final = 3.0  # a broker that has not answered by then is away
ANSWER_S_MAX: Final = 30.0  # folding a run reads its whole partition of the events topic
STOP_S_MAX: Final = 3.0
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

    async def run_events(self, run_id: str) -> list[bytes]:
        """Return the run's events."""
        return await self._answered(self._runs.events(run_id))

    async def known(self) -> Known:
        """Return what stands on the topics now."""
        return await self._answered(self._runs.known())

    async def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Return the latest of the topic."""
        if limit < 1:
            return []
        found = await self._answered(self._last_letters(limit))
        found.sort(key=lambda message: int(message.timestamp), reverse=True)
        letters: dict[str, DeadLetter] = {}
        for message in found:
            with suppress(InvalidEvent):
                letter = codecs.decode_output(message.value or b"")
                if isinstance(letter, DeadLetter):
                    letters.setdefault(letter.id, cut(letter))
        return list(letters.values())[:limit]

    async def _last_letters(self, limit: int) -> list[ConsumerRecord]:
        topic = self._topics.dead_letters.name
        counts = await partition_counts(self._settings)
        found: list[ConsumerRecord] = []
        for number in range(counts.get(topic, 0)):
            found += await self._log.tail(topic, number, 2 * limit)  # some may stand there twice
        return found

    async def _answered(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Turn what Kafka cannot do into what a page can say."""
        if self.state.status == "down":
            work.close()
            raise Unavailable(self.state.text)
        try:
            return await bounded(work, ANSWER_S_MAX)
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
        counts = await partition_counts(self._settings)
        missing = [spec.name for spec in outputs if spec.name not in counts]
        if missing:
            raise BrokerUnavailable(
                f"Kafka at {self._settings.broker} has no topic {', '.join(missing)}; "
                "run: ontrack topics create"
            )
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
        checked = loop.time()
        self._told.become("live", f"following Kafka at {self._settings.broker}")
        while True:
            batches = await consumer.getmany(timeout_ms=100, max_records=2000)
            messages = [message for batch in batches.values() for message in batch]
            messages.sort(key=lambda message: int(message.timestamp))
            for message in messages:
                self._take(message)
            for tp, batch in batches.items():
                self._next[tp] = batch[-1].offset + 1
            if messages:
                await asyncio.sleep(0)
            if loop.time() - checked > CHECK_S:
                await bounded(consumer.end_offsets(partitions), CHECK_S_MAX)
                checked = loop.time()

    def _take(self, message: ConsumerRecord) -> None:
        try:
            output = codecs.decode_output(message.value or b"")
        except InvalidEvent:
            return  # not one of ours, or of a later version
        self._told.said(output, int(message.timestamp))


async def bounded(work: Coroutine[Any, Any, Answer], seconds: float) -> Answer:
    """Wait for a client's answer in a task of its own, and no longer.

    The client cancels what it waits for itself when its broker goes away; awaited here, that would
    look as if we had been cancelled.

    Raises
    ------
    TimeoutError
        There is none by then, or the client has given up.
    """
    task = asyncio.create_task(work)
    task.add_done_callback(_passed_over)
    try:
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
        return str(error)
    return f"Kafka at {settings.broker} does not answer ({type(error).__name__}); trying again"
