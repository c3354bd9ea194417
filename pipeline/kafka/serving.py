"""The daemon's way through Kafka: events to their topic, questions to a worker, verdicts back."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress

import orjson
import structlog

from ontrack.pipeline.folding.quarantine import dead_letter
from ontrack.pipeline.folding.record import Record
from ontrack.pipeline.gating.answers import GateAnswer, Refusal
from ontrack.pipeline.gating.wire import Redemption
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.emitter import Emitter
from ontrack.pipeline.kafka.messages import messages_of
from ontrack.pipeline.kafka.remote import RemoteChannel
from ontrack.pipeline.kafka.tailer import tail
from ontrack.pipeline.serving.engine import Listener, Taken, nobody
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.errors import BrokerUnavailable, InvalidEvent, MessageTooLarge
from ontrack.topics.events import Event, GapClosed, Proposal, RunEnded
from ontrack.topics.knowledge import ToolContract
from ontrack.topics.verdicts import Decision, Output

_log = structlog.get_logger(__name__)

LETTER_S_MAX = 5.0
#: A coding agent waits 5 s for its hook, and its next call with it.
SEND_S_MAX = 4.0
PAUSE_S = 1.0


class KafkaEngine:
    """Workers are the monitor; this side sends, asks and listens.

    What workers say about runs that went through here comes back a moment later, by the output
    topics, and reaches the agent with its next hook.

    Parameters
    ----------
    gate_url
        A worker's address; None: as the settings say.
    """

    def __init__(self, settings: Settings, gate_url: str | None, listener: Listener) -> None:
        self._settings = settings
        self._topics = topics_of(settings)
        self._channel = RemoteChannel(settings, gate_url, None)
        self._emitter = Emitter(settings)
        self._tell = listener
        self._ours: OrderedDict[str, None] = OrderedDict()
        self._tail: asyncio.Task[None] | None = None
        self._place = 0
        self._listens = False
        self.taken: Taken = nobody

    @property
    def monitor(self) -> None:
        """None: workers judge."""
        return None

    async def start(self) -> None:
        """Connect.

        Raises
        ------
        BrokerUnavailable
            Kafka does not answer.
        """
        await self._channel.open()
        self._tail = asyncio.create_task(self._listen())

    async def stop(self) -> None:
        """Disconnect."""
        if self._tail is not None:
            self._tail.cancel()
            with suppress(asyncio.CancelledError):
                await self._tail
        await self._channel.close()
        await self._emitter.stop()

    @property
    def ready(self) -> bool:
        """Whether verdicts come back."""
        return self._listens

    async def take(self, value: bytes, event: Event | None, source: str) -> tuple[Output, ...]:
        """Send an event; returns when Kafka has it. What cannot be used is a dead letter.

        Raises
        ------
        BrokerUnavailable
            Kafka has not acknowledged it in time.
        """
        if event is None:
            try:
                event = codecs.decode_event(value, self._settings.limits).event
            except InvalidEvent as error:
                return await self._quarantined(value, source, error)
        self._ours[event.run_id] = None
        self._ours.move_to_end(event.run_id)
        if len(self._ours) > self._settings.serve_sessions_max:
            self._ours.popitem(last=False)
        try:
            async with asyncio.timeout(SEND_S_MAX):
                outputs = await self._channel.send(event)
        except MessageTooLarge as error:
            return await self._quarantined(value, source, error)
        except TimeoutError:
            raise BrokerUnavailable(
                f"Kafka at {self._settings.broker} has not acknowledged an event within "
                f"{SEND_S_MAX:g} s; it may still come there"
            ) from None
        self.taken(value, event, False)
        return outputs

    async def _quarantined(
        self, value: bytes, source: str, error: InvalidEvent
    ) -> tuple[Output, ...]:
        self._place += 1
        record = Record(value, None, source, 0, self._place)
        letter = dead_letter(record, error)
        self._tell(letter)
        messages = [sent.message for sent in messages_of(self._topics, record, [letter])]
        try:
            async with asyncio.timeout(LETTER_S_MAX):
                await self._emitter.emit(messages)
        except TimeoutError:
            # Its sender is told all the same, and still has it.
            _log.warning("dead_letter_not_sent", id=letter.id)
        return (letter,)

    async def ask(self, proposal: Proposal, deadline_s: float) -> GateAnswer:
        """Ask a worker; it puts the decision on its topic."""
        return await self._channel.ask(proposal, deadline_s)

    async def redeem(self, wanted: Redemption) -> Refusal | None:
        """Use a decision."""
        return await self._channel.use(wanted)

    def record(self, decision: Decision) -> None:
        """Send a decision of the policy to its topic, in the background."""
        self._tell(decision)
        self._channel.record(decision)

    def contracts(self) -> Iterable[ToolContract]:
        """None: they are the workers' business."""
        return ()

    async def idle(self) -> RunEnded | None:
        """None: the workers close idle runs."""
        return None

    async def overdue(self) -> list[GapClosed]:
        """None: the workers close gaps, too."""
        return []

    async def _listen(self) -> None:
        """Follow the output topics, for as long as it takes."""
        while True:
            try:
                async for value in tail(self._settings, from_beginning=False, until_idle_s=None):
                    self._listens = True
                    if value is not None:
                        self._hear(value)
            except BrokerUnavailable as error:
                _log.warning("outputs_not_followed", error=str(error))
            self._listens = False
            await asyncio.sleep(PAUSE_S)

    def _hear(self, value: bytes) -> None:
        """Pass on what is said about runs that went through here."""
        try:
            head = orjson.loads(value)
        except orjson.JSONDecodeError:
            return  # not one of ours: `ontrack tail` shows it
        if not isinstance(head, dict) or head.get("run_id") not in self._ours:
            return
        try:
            self._tell(codecs.decode_output(value))
        except InvalidEvent as error:
            _log.warning("output_not_read", error=str(error))
