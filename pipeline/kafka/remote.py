"""The client's way to the monitor over the network: events to Kafka, questions over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from ontrack.pipeline.gating.answers import GateAnswer, Refusal
from ontrack.pipeline.gating.client import GateClient
from ontrack.pipeline.gating.wire import Redemption
from ontrack.pipeline.kafka.connection import start_producer, topics_of, unreachable
from ontrack.pipeline.kafka.messages import Message, decision_message, event_message
from ontrack.pipeline.settings import Settings
from ontrack.topics.errors import MessageTooLarge
from ontrack.topics.events import Event, Proposal
from ontrack.topics.knowledge import ToolContract
from ontrack.topics.verdicts import Decision, Output

_log = structlog.get_logger(__name__)

_SOURCE = "ontrack/client"
RECORDS_MAX = 1000
RECORDS_S_MAX = 3.0


class RemoteChannel:
    """Sends events to Kafka and asks a worker, any worker, over HTTP.

    Parameters
    ----------
    gate_url
        A worker's address; None: ``http://web_host:web_port`` of the settings.
    token
        Its bearer token; None: that of the settings.
    """

    def __init__(self, settings: Settings, gate_url: str | None, token: str | None) -> None:
        self._settings = settings
        base = gate_url or f"http://{settings.web_host}:{settings.web_port}"
        self._gate = GateClient(settings, base, token)
        self._topics = topics_of(settings)
        self._records: set[asyncio.Task[None]] = set()
        self._producer: AIOKafkaProducer | None = None

    async def open(self) -> None:
        """Connect to Kafka.

        Raises
        ------
        BrokerUnavailable
            Kafka does not answer.
        """
        self._producer = await start_producer(self._settings)
        await self._gate.open()

    async def close(self) -> None:
        """Close both connections; records that are on their way have a few seconds left."""
        if self._records:
            _, late = await asyncio.wait(self._records, timeout=RECORDS_S_MAX)
            for task in late:
                task.cancel()
            if late:
                _log.warning("decisions_not_recorded", records=len(late))
        producer, self._producer = self._producer, None
        await self._gate.close()
        if producer is not None:
            await producer.stop()

    async def send(self, event: Event) -> tuple[Output, ...]:
        """Send an event and wait until Kafka has it.

        Raises
        ------
        MessageTooLarge
            Kafka takes no message of this size.
        BrokerUnavailable
            It has not; whether it will is not known.
        """
        seq = event.seq if event.seq is not None else ""
        event_id = f"{event.run_id}:{event.type}:{seq}"
        try:
            await self._put(event_message(self._topics, event, event_id, source=_SOURCE))
        except MessageSizeTooLargeError as error:
            raise MessageTooLarge(
                f"Kafka at {self._settings.broker} takes no message of this size ({error}); send "
                "less of the result, or raise the topic's max.message.bytes and message_bytes_max"
            ) from error
        except KafkaError as error:
            raise unreachable(self._settings, error) from error
        return ()

    async def ask(self, proposal: Proposal, deadline_s: float) -> GateAnswer:
        """Ask the gate; the caller bounds the time."""
        return await self._gate.ask(proposal, deadline_s)

    async def redeem(self, answer: GateAnswer) -> Refusal | None:
        """Use a decision."""
        return await self._gate.redeem(answer)

    async def use(self, wanted: Redemption) -> Refusal | None:
        """Use a decision that somebody else was given."""
        return await self._gate.use(wanted)

    def record(self, decision: Decision) -> None:
        """Send a decision of the client's policy to the decisions topic; returns at once.

        Whoever asked has been answered already. While Kafka is away a bounded number waits, and
        what is lost in the end is logged.
        """
        if len(self._records) >= RECORDS_MAX:
            _log.warning("decision_not_recorded", id=decision.id, error="too many wait already")
            return
        task = asyncio.create_task(self._send_record(decision))
        self._records.add(task)
        task.add_done_callback(self._records.discard)

    async def _send_record(self, decision: Decision) -> None:
        message = decision_message(self._topics, None, decision, "policy", source=_SOURCE)
        try:
            await self._put(message)
        except KafkaError as error:
            _log.warning("decision_not_recorded", id=decision.id, error=type(error).__name__)

    async def _put(self, message: Message) -> None:
        assert self._producer is not None, "the run has not begun: use it in async with"
        await self._producer.send_and_wait(
            message.topic, message.value, key=message.key, headers=message.headers
        )

    def contracts(self) -> Iterable[ToolContract]:
        """None: they are the workers' business."""
        return ()
