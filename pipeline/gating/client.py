"""Questions to a gate over HTTP: a worker's, or that of ``ontrack serve``."""

from __future__ import annotations

import asyncio

import aiohttp

from ontrack.pipeline.gating.answers import GateAnswer, NoAnswer, Refusal
from ontrack.pipeline.gating.wire import (
    GATE_PATH,
    REDEEM_PATH,
    Redemption,
    fields_of,
    read_answer,
)
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs, errors
from ontrack.topics.errors import InvalidEvent, InvalidSettings
from ontrack.topics.events import Proposal

SERVER_SHARE = 0.8  # of the deadline: the rest is for the way there and back


class GateClient:
    """One server, one keep-alive session.

    Parameters
    ----------
    url
        Its address, ``http://host:port``.
    token
        Its bearer token; None: the setting ``web_token``.
    """

    def __init__(self, settings: Settings, url: str, token: str | None) -> None:
        self.url = url.rstrip("/")
        self._redeem_s = max(1.0, settings.gate_deadline_ms / 1000)
        if token is None and settings.web_token is not None:
            token = settings.web_token.get_secret_value()
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the session; nothing is sent yet."""
        self._session = aiohttp.ClientSession(headers=self._headers)

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def ask(self, proposal: Proposal, deadline_s: float) -> GateAnswer:
        """Ask the gate; the caller bounds the time.

        Raises
        ------
        NoAnswer
            The gate cannot be reached, or what answers is no gate.
        InvalidEvent, InvalidSettings
            As :func:`problem_of`.
        """
        raw = codecs.encode(proposal)
        deadline = b',"deadline_ms":%d}' % max(1, round(deadline_s * 1000 * SERVER_SHARE))
        status, body = await self.post(GATE_PATH, raw[:-1] + deadline)
        if status != 200:
            raise problem_of(status, body)
        try:
            return read_answer(body, proposal)
        except ValueError as error:
            place = self.url + GATE_PATH
            raise NoAnswer(f"{place} gave no answer to this question") from error

    async def redeem(self, answer: GateAnswer) -> Refusal | None:
        """Use the decision of an answer. Errors as :meth:`ask`."""
        return await self.use(
            Redemption(decision_id=answer.id, run_id=answer.run_id, call_sha256=answer.call_sha256)
        )

    async def use(self, wanted: Redemption) -> Refusal | None:
        """Use a decision. Errors as :meth:`ask`."""
        try:
            async with asyncio.timeout(self._redeem_s):
                status, body = await self.post(REDEEM_PATH, codecs.encode(wanted))
        except TimeoutError:
            raise NoAnswer("the gate did not answer in time") from None
        told = fields_of(body)
        if status == 200 and told.get("ok") is True:
            return None
        if status != 409:
            raise problem_of(status, body)
        why: Refusal = told.get("why") or "unknown"
        return why

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send a body; return status and body of the answer.

        Raises
        ------
        NoAnswer
            The server cannot be reached.
        """
        assert self._session is not None, "the run has not begun: use it in async with"
        for is_last in (False, True):
            try:
                async with self._session.post(
                    self.url + path, data=body, allow_redirects=False
                ) as response:
                    return response.status, await response.read()
            except aiohttp.ServerDisconnectedError as error:
                # A kept connection that the server had given up: a new one may do. Whatever we
                # send may be sent twice.
                if is_last:
                    raise _unreachable(error) from error
            except (aiohttp.ClientError, ConnectionError) as error:
                raise _unreachable(error) from error
        raise AssertionError("the last attempt returns or raises")


def _unreachable(error: Exception) -> NoAnswer:
    return NoAnswer(f"the gate cannot be reached ({type(error).__name__})")


def problem_of(status: int, body: bytes) -> Exception:
    """Return the error that a server's answer stands for: the caller's own, or NoAnswer."""
    told = fields_of(body)
    kind = getattr(errors, str(told.get("error")), None)
    if isinstance(kind, type) and issubclass(kind, InvalidEvent):
        return kind(str(told.get("text", "")))
    if status == 401:
        return InvalidSettings("the gate asks for a token; set ONTRACK_WEB_TOKEN or pass token")
    return NoAnswer(f"the gate answered with status {status}")
