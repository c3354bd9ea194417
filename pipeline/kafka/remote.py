"""The client's way to the monitor over the network: events to Kafka, questions over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import aiohttp
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from pydantic import TypeAdapter, ValidationError

from ontrack.pipeline.gate import GateAnswer, NoAnswer, Refusal
from ontrack.pipeline.kafka.connection import start_producer, topics_of, unreachable
from ontrack.pipeline.kafka.wire import GATE_PATH, REDEEM_PATH
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs, errors
from ontrack.topics.errors import InvalidEvent, InvalidSettings
from ontrack.topics.events import Event, Proposal
from ontrack.topics.knowledge import ToolContract
from ontrack.topics.verdicts import Output

SERVER_SHARE = 0.8  # of the deadline: the rest is for the way there and back
_ANSWER = TypeAdapter(GateAnswer)


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
        self._topic = topics_of(settings).events.name
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
        """Close both connections."""
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
            return _ANSWER.validate_json(body)
        except ValidationError as error:
            raise NoAnswer(f"{self._gate} gave an answer that cannot be read") from error

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
        if status == 200:
            return None
        if status != 409:
            raise _problem(status, body)
        why: Refusal = _parsed(body).get("why", "unknown")
        return why

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


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _problem(status: int, body: bytes) -> Exception:
    """Return the error that a worker's answer stands for."""
    told = _parsed(body)
    kind = getattr(errors, str(told.get("error")), None)
    if isinstance(kind, type) and issubclass(kind, InvalidEvent):
        return kind(str(told.get("text", "")))
    if status == 401:
        return InvalidSettings("the gate asks for a token; set ONTRACK_WEB_TOKEN or pass token")
    return NoAnswer(f"the gate answered with status {status}")
