"""Owners: which worker has which partition, known to all through one small compacted topic."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from ontrack.pipeline.kafka.connection import start_consumer, topics_of
from ontrack.pipeline.kafka.emitter import Emitter
from ontrack.pipeline.kafka.messages import Message
from ontrack.pipeline.kafka.partitions import partition_of
from ontrack.pipeline.kafka.provision import counts_of
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import BrokerUnavailable, InvalidSettings

_log = structlog.get_logger(__name__)

RETRY_S = 1.0
FETCH_WAIT_MS = 500  # nothing is asked on this connection but for claims, which are few


class Claim(BaseModel):
    """A worker says that it has a partition of the events topic.

    Parameters
    ----------
    url
        Where the worker is reached. Two may say the same: by default all do.
    nonce
        Which worker it is, made anew for each. Claims of versions before have none.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    instance: str | None = None
    url: str
    partition: int
    nonce: str | None = None

    @property
    def claimant(self) -> str:
        """Who claims: by address where nothing else is known."""
        return self.url if self.nonce is None else self.nonce


_CLAIM = TypeAdapter(Claim)


def advertised_url(settings: Settings) -> str:
    """Return the address at which other workers reach this one."""
    if settings.web_advertised_url is not None:
        return settings.web_advertised_url.rstrip("/")
    host = f"[{settings.web_host}]" if ":" in settings.web_host else settings.web_host
    return f"http://{host}:{settings.web_port}"


class OwnerDirectory:
    """Follows the owners topic and writes this worker's own claims to it.

    Parameters
    ----------
    failed
        What to do when following or writing cannot go on.
    clock
        Seconds since 1970.
    """

    def __init__(
        self,
        settings: Settings,
        emitter: Emitter,
        failed: Callable[[BaseException], Awaitable[object]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.url = advertised_url(settings)
        self.nonce = uuid.uuid4().hex
        self._began_ms = clock() * 1000
        self.partitions: int | None = None
        self._settings = settings
        self._topics = topics_of(settings)
        self._emitter = emitter
        self._failed = failed
        self._urls: dict[int, str] = {}
        self._confirmed: set[int] = set()
        self._lost: set[int] = set()
        self._has_claimed = False  # a claim of ours stands in the log
        self._before_us: set[str] = set()  # who claimed in our instance's name before that
        self._has_namesake = False
        self._shares_address = False
        self._following: asyncio.Task[None] | None = None
        self._writing: set[asyncio.Task[None]] = set()

    def partition_of(self, run_id: str) -> int | None:
        """Return a run's partition; None before the number of partitions is known."""
        return None if self.partitions is None else partition_of(run_id.encode(), self.partitions)

    def url_of(self, partition: int) -> str | None:
        """Return where another worker answers for a partition; None where nobody else is known.

        One that says our own address cannot be reached there: the question would come back to us.
        """
        url = self._urls.get(partition)
        return None if url == self.url else url

    def is_lost(self, partition: int) -> bool:
        """Tell whether another worker has claimed a partition after our own claim.

        A worker that was frozen for long still believes that it owns what it had.
        """
        return partition in self._lost

    def start(self) -> None:
        """Begin to follow the topic; does nothing the second time."""
        if self._following is None:
            self._following = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Stop following; claims on their way are dropped."""
        tasks = [*self._writing, *([] if self._following is None else [self._following])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def claim(self, partitions: Iterable[int]) -> None:
        """Let all know that these partitions are here now; does not wait for it."""
        claims = [
            Claim(
                instance=self._settings.instance,
                url=self.url,
                partition=number,
                nonce=self.nonce,
            )
            for number in sorted(partitions)
        ]
        for item in claims:
            self._confirmed.discard(item.partition)
            self._lost.discard(item.partition)
        if claims:
            task = asyncio.create_task(self._write(claims))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    def take(self, message: ConsumerRecord) -> None:
        """Enter one message of the topic; what cannot be read is passed over, and said.

        Raises
        ------
        InvalidSettings
            Our instance is that of a worker that runs, and was here before us.
        """
        try:
            item = _CLAIM.validate_json(message.value or b"")
        except ValidationError as error:
            _log.warning("claim_rejected", offset=message.offset, problems=error.error_count())
            return
        self._urls[item.partition] = item.url
        if item.claimant in (self.nonce, self.url):
            self._has_claimed = True
            self._confirmed.add(item.partition)
            self._lost.discard(item.partition)
            return
        if item.url == self.url and (self._has_claimed or message.timestamp > self._began_ms):
            self._tell_of_shared_address(item)
        is_namesake = item.instance is not None and item.instance == self._settings.instance
        if is_namesake and not self._has_claimed:
            self._before_us.add(item.claimant)  # may be ours of another day
        if item.partition in self._confirmed:
            self._lost.add(item.partition)
            if is_namesake:
                self._tell_of_namesake(item)

    def _tell_of_shared_address(self, item: Claim) -> None:
        """Say once that another worker that runs gives our address as its own.

        What was claimed under it before we began may be ours of another day.
        """
        if not self._shares_address:
            self._shares_address = True
            _log.warning(
                "address_used_twice",
                url=item.url,
                other=item.instance,
                detail="another worker says that it is reached where this one is: the gate cannot "
                "pass questions on between the two, and answers them by its policy; set "
                "web_advertised_url to an address at which the others reach this worker",
            )

    def _tell_of_namesake(self, item: Claim) -> None:
        """Say that another worker has our instance, once; the second of the two ends.

        Kafka lets in whoever came last and says to the other no more than that it was not
        recognized. That one joins again, and so on for ever: neither gets ready. Who claimed before
        us and claims again still runs, so it is we who came second. The first one sees a claim from
        where it has seen none before it began, which may also be a successor, and joins once more.
        """
        if not self._has_namesake:
            self._has_namesake = True
            detail = "two workers that run have one instance, and throw each other out: rename one"
            _log.error("instance_used_twice", instance=item.instance, other=item.url, detail=detail)
        if item.claimant in self._before_us:
            raise InvalidSettings(
                f"instance: {item.instance!r} is that of a worker that runs, at {item.url}; "
                "every worker needs its own: name another one with --instance"
            )

    async def _write(self, claims: list[Claim]) -> None:
        name = self._topics.owners.name
        try:
            await self._emitter.emit(
                [
                    Message(
                        name,
                        0,
                        str(item.partition).encode(),
                        json.dumps(item.model_dump()).encode(),
                        [],
                    )
                    for item in claims
                ]
            )
        except BrokerUnavailable as error:
            await self._failed(error)

    async def _follow(self) -> None:
        """Read the topic for ever; a broker that is away is asked again."""
        consumer: AIOKafkaConsumer | None = None
        try:
            while True:
                try:
                    consumer = consumer or await self._started()
                    for messages in (await consumer.getmany(timeout_ms=500)).values():
                        for message in messages:
                            self.take(message)
                except (KafkaError, BrokerUnavailable, OSError) as error:
                    _log.warning("owners_not_readable", error=str(error))
                    await asyncio.sleep(RETRY_S)
        except InvalidSettings as error:
            await self._failed(error)  # is said at the end, as for any other setting
        except Exception as error:  # noqa: BLE001
            # Without it questions would go to the wrong worker for good: stop this one.
            _log.exception("owners_failed")
            await self._failed(error)
        finally:
            if consumer is not None:
                await consumer.stop()

    async def _started(self) -> AIOKafkaConsumer:
        events, name = self._topics.events.name, self._topics.owners.name
        counts = await counts_of(self._settings, events, name)
        consumer = await start_consumer(self._settings, fetch_wait_ms=FETCH_WAIT_MS)
        parts = [TopicPartition(name, number) for number in range(counts[name])]
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        self.partitions = counts[events]
        return consumer
