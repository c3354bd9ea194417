"""The client's way to the monitor over the network: events to Kafka, questions over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from datetime import UTC, datetime

import aiohttp
import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from ontrack.pipeline.gate import GateAnswer, NoAnswer, Refusal
from ontrack.pipeline.gate_wire import (
    DECIDED_BY_HEADER,
    GATE_PATH,
    REDEEM_PATH,
    fields_of,
    read_answer,
)
from ontrack.pipeline.kafka.connection import start_producer, topics_of, unreachable
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs, errors
from ontrack.topics.errors import InvalidEvent, InvalidSettings
from ontrack.topics.events import Event, Proposal
from ontrack.topics.knowledge import ToolContract
from ontrack.topics.verdicts import Decision, Output

_log = structlog.get_logger(__name__)

SERVER_SHARE = 0.8  # of the deadline: the rest is for the way there and back
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
        self._gate = base.rstrip("/") + GATE_PATH
        self._redeem = base.rstrip("/") + REDEEM_PATH
        if token is None and settings.web_token is not None:
            token = settings.web_token.get_secret_value()
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        topics = topics_of(settings)
        self._topic, self._decisions = topics.events.name, topics.decisions.name
        self._records: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None
        self._producer: AIOKafkaProducer | None = None

    async def open(self) -> None:
        """Connect to Kafka.

        Raises
        ------
        BrokerUnavailable
            Kafka does not answer.
        """
        self._producer = await start_producer(self._settings)
        self._session = aiohttp.ClientSession(headers=self._headers)

    async def close(self) -> None:
        """Close both connections; records that are on their way have a few seconds left."""
        if self._records:
            _, late = await asyncio.wait(self._records, timeout=RECORDS_S_MAX)
            for task in late:
                task.cancel()
            if late:
                _log.warning("decisions_not_recorded", records=len(late))
        session, producer = self._session, self._producer
        self._session = self._producer = None
        if session is not None:
            await session.close()
        if producer is not None:
            await producer.stop()

    async def send(self, event: Event) -> tuple[Output, ...]:
        """Send an event and wait until Kafka has it.

        Raises
        ------
        BrokerUnavailable
            It has not; whether it will is not known.
        """
        assert self._producer is not None, "the run has not begun: use it in async with"
        headers = codecs.event_headers(
            event_id=f"{event.run_id}:{event.type}:{event.seq if event.seq is not None else ''}",
            source="ontrack/client",
            event_type=codecs.event_type(event),
            time=event.time or "",
        )
        try:
            await self._producer.send_and_wait(
                self._topic, codecs.encode(event), key=event.run_id.encode(), headers=headers
            )
        except KafkaError as error:
            raise unreachable(self._settings, error) from error
        return ()

    async def ask(self, proposal: Proposal, deadline_s: float) -> GateAnswer:
        """Ask the gate; the caller bounds the time."""
        raw = codecs.encode(proposal)
        deadline = b',"deadline_ms":%d}' % max(1, round(deadline_s * 1000 * SERVER_SHARE))
        status, body = await self._post(self._gate, raw[:-1] + deadline)
        if status != 200:
            raise _problem(status, body)
        try:
            return read_answer(body, proposal)
        except ValueError as error:
            raise NoAnswer(f"{self._gate} gave no answer to this question") from error

    async def redeem(self, answer: GateAnswer) -> Refusal | None:
        """Use a decision."""
        wanted = {
            "decision_id": answer.id,
            "run_id": answer.run_id,
            "call_sha256": answer.call_sha256,
        }
        timeout_s = max(1.0, self._settings.gate_deadline_ms / 1000)
        try:
            async with asyncio.timeout(timeout_s):
                status, body = await self._post(self._redeem, json.dumps(wanted).encode())
        except TimeoutError:
            raise NoAnswer("the gate did not answer in time") from None
        told = fields_of(body)
        if status == 200 and told.get("ok") is True:
            return None
        if status != 409:
            raise _problem(status, body)
        why: Refusal = told.get("why") or "unknown"
        return why

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
        assert self._producer is not None, "the run has not begun: use it in async with"
        headers = codecs.event_headers(
            event_id=decision.id,
            source="ontrack/client",
            event_type=codecs.event_type(decision),
            time=datetime.now(UTC),
        )
        try:
            await self._producer.send_and_wait(
                self._decisions,
                codecs.encode(decision),
                key=decision.run_id.encode(),
                headers=[*headers, (DECIDED_BY_HEADER, b"policy")],
            )
        except KafkaError as error:
            _log.warning("decision_not_recorded", id=decision.id, error=type(error).__name__)

    def contracts(self) -> Iterable[ToolContract]:
        """None: they are the workers' business."""
        return ()

    async def _post(self, url: str, body: bytes) -> tuple[int, bytes]:
        assert self._session is not None, "the run has not begun: use it in async with"
        try:
            async with self._session.post(url, data=body, allow_redirects=False) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, ConnectionError) as error:
            raise NoAnswer(f"the gate cannot be reached ({type(error).__name__})") from error


def _problem(status: int, body: bytes) -> Exception:
    """Return the error that a worker's answer stands for."""
    told = fields_of(body)
    kind = getattr(errors, str(told.get("error")), None)
    if isinstance(kind, type) and issubclass(kind, InvalidEvent):
        return kind(str(told.get("text", "")))
    if status == 401:
        return InvalidSettings("the gate asks for a token; set ONTRACK_WEB_TOKEN or pass token")
    return NoAnswer(f"the gate answered with status {status}")
