"""The client's way to the monitor through ``ontrack serve``: events and questions over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated, Final

import structlog
from pydantic import BaseModel, Field, ValidationError

from ontrack.pipeline.gating.answers import GateAnswer, NoAnswer, Refusal
from ontrack.pipeline.gating.client import GateClient, problem_of
from ontrack.pipeline.sdk.unreadable import is_unreadable
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.errors import (
    BrokerUnavailable,
    EventAfterEnd,
    InvalidEvent,
    MessageTooLarge,
)
from ontrack.topics.events import Event, Proposal, RunEnded
from ontrack.topics.knowledge import ToolContract
from ontrack.topics.verdicts import DeadLetter, Decision, Output

_log = structlog.get_logger(__name__)

EVENTS_PATH: Final = "/v1/events"
SEND_S_MAX: Final = 10.0
ATTEMPT_S_MAX: Final = 5.0
UNSENT_MAX: Final = 100
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 1.0
RECORDED_MAX: Final = 1000
_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})


class ServeUnavailable(BrokerUnavailable):
    """``ontrack serve`` did not take an event in time; whether it has it is not known."""


class _Taken(BaseModel):
    """What ``/v1/events`` answers."""

    accepted: int
    outputs: tuple[Annotated[Output, Field(discriminator="type")], ...] = ()


class HttpChannel:
    """Sends one event after the other and brings back what the monitor says to each.

    An event that was not acknowledged is sent again as it is, after the time is up before the next
    one; its number tells the monitor that it had it already. Then nothing is said to it a second
    time.

    Parameters
    ----------
    url
        Address of ``ontrack serve``.
    token
        Its bearer token; None: the setting ``web_token``.
    send_s
        Seconds after which an event that nobody takes is given up.
    """

    def __init__(
        self,
        settings: Settings,
        url: str,
        token: str | None = None,
        send_s: float = SEND_S_MAX,
    ) -> None:
        self._client = GateClient(settings, url, token)
        self._send_s = send_s
        self._turn = asyncio.Lock()
        self._recorded: list[Decision] = []
        self._heard: list[Output] = []
        self._unsent: list[Event] = []

    async def open(self) -> None:
        """Nothing is sent yet: the run's beginning is the first that is."""
        await self._client.open()

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()

    async def send(self, event: Event) -> tuple[Output, ...]:
        """Send an event and return what is said to it, after what the policy has decided.

        An event that cannot be used gives a dead letter, as it does in this process.

        Raises
        ------
        ServeUnavailable
            It was not acknowledged in time; the next event brings it along.
        InvalidSettings
            The server asks for another token.
        """
        # The time counts from here: those who wait for their turn do not add theirs to it. And who
        # is cancelled meanwhile leaves its event to the next.
        end_s = asyncio.get_running_loop().time() + self._send_s
        self._unsent.append(event)
        # One at a time: numbers must arrive in their order to be judged at once.
        async with self._turn:
            outputs = await self._delivered(event, end_s)
            heard, self._heard = self._heard, []
        recorded, self._recorded = self._recorded, []
        return (*recorded, *heard, *outputs)

    async def _delivered(self, event: Event, end_s: float) -> tuple[Output, ...]:
        """Send what waits, up to an event; what is refused for good waits no longer.

        What is said to events that came along is kept: it is told also where this one fails.
        """
        while self._unsent:
            first = self._unsent[0]
            try:
                said = await self._one(first, end_s, is_again=first is not event)
            except InvalidEvent as error:
                del self._unsent[0]
                if first is event:
                    raise
                _log_refused(first, str(error))
                continue
            except ServeUnavailable:
                del self._unsent[:-UNSENT_MAX]
                raise
            del self._unsent[0]
            if first is event:
                return said
            for output in said:
                if isinstance(output, DeadLetter) and is_unreadable(output):
                    _log_refused(first, f"{output.error.name}: {output.error.text}")
                else:
                    self._heard.append(output)
        raise ServeUnavailable(f"{self._client.url}: more than {UNSENT_MAX} events waited for it")

    async def _one(self, event: Event, end_s: float, is_again: bool) -> tuple[Output, ...]:
        body = codecs.encode(event)
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_S
        while True:
            try:
                left_s = min(ATTEMPT_S_MAX, end_s - loop.time())
                async with asyncio.timeout(max(0.0, left_s)):
                    status, answer = await self._client.post(EVENTS_PATH, body)
            except (NoAnswer, TimeoutError) as error:
                why = str(error) or "no answer in time"
            else:
                if status not in _AGAIN:
                    outputs = self._read(status, answer)
                    is_end = is_again and isinstance(event, RunEnded)
                    return tuple(o for o in outputs if not (is_end and _says_ended(o)))
                why = f"status {status}"
            is_again = True
            if loop.time() + pause_s >= end_s:
                raise ServeUnavailable(
                    f"{self._client.url} took no event for {self._send_s:g} s ({why}); is "
                    "`ontrack serve` running there?"
                )
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_S_MAX, pause_s * 2)

    def _read(self, status: int, body: bytes) -> tuple[Output, ...]:
        if status not in (200, 400):
            problem = problem_of(status, body)
            if status == 413 and not isinstance(problem, InvalidEvent):
                problem = MessageTooLarge(f"{self._client.url} takes no body of this size")
            if isinstance(problem, NoAnswer):
                raise ServeUnavailable(f"{self._client.url}: {problem}") from problem
            raise problem
        try:
            return _Taken.model_validate_json(body).outputs
        except ValidationError as error:
            if status == 400:
                raise problem_of(status, body) from None
            raise ServeUnavailable(
                f"{self._client.url} answers, but not as `ontrack serve` does"
            ) from error

    async def ask(self, proposal: Proposal, deadline_s: float) -> GateAnswer:
        """Ask the gate; the caller bounds the time."""
        return await self._client.ask(proposal, deadline_s)

    async def redeem(self, answer: GateAnswer) -> Refusal | None:
        """Use a decision."""
        return await self._client.redeem(answer)

    def record(self, decision: Decision) -> None:
        """Keep a decision for the next event's outputs, the last thousand of them."""
        self._recorded = [*self._recorded[1 - RECORDED_MAX :], decision]

    def contracts(self) -> Iterable[ToolContract]:
        """None: they are the server's business."""
        return ()


def _log_refused(event: Event, error: str) -> None:
    """Note what became of an event that was sent along with a later one.

    Whoever sends the later one must not take that for its own; the sender of this one was told
    that it had not been taken yet.
    """
    _log.warning(
        "event_refused",
        run_id=event.run_id,
        type=event.type,
        seq=getattr(event, "seq", None),
        error=error,
    )


def _says_ended(output: Output) -> bool:
    return isinstance(output, DeadLetter) and output.error.name == EventAfterEnd.__name__
