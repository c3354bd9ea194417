"""Feed of an ``ontrack serve``: its stream, its events, its pictures."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from pydantic import TypeAdapter, ValidationError
from yarl import URL

from ontrack.pipeline.dashboard.feeds.base import Told, now_ms
from ontrack.pipeline.dashboard.feeds.feed import FeedState, Known, Letter, OnOutput, Unavailable
from ontrack.pipeline.dashboard.run.model import RunPicture
from ontrack.pipeline.serving.stream import HEARTBEAT_S, RECENT_MAX
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidEvent

LINE_BYTES_MAX: Final = 8 * 1_048_576
SILENCE_S_MAX: Final = 3 * HEARTBEAT_S
ANSWER_S_MAX: Final = 30.0
PAUSE_S_MAX: Final = 5.0

_PICTURE = TypeAdapter(RunPicture)
_KNOWN = TypeAdapter(Known)


class HttpFeed:
    """News of an ``ontrack serve``.

    Parameters
    ----------
    url
        Its address, ``http://host:port``.
    token
        Its bearer token, if it has one.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._told = Told()
        self._session: aiohttp.ClientSession | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The daemon's address."""
        return self._url

    @property
    def state(self) -> FeedState:
        """How it stands."""
        return self._told.state

    async def start(self, on_output: OnOutput) -> None:
        """Begin to read the stream, for as long as it takes."""
        self._told.listen(on_output)
        timeout = aiohttp.ClientTimeout(total=None, connect=10.0, sock_read=ANSWER_S_MAX)
        self._session = aiohttp.ClientSession(
            headers=self._headers, timeout=timeout, read_bufsize=LINE_BYTES_MAX
        )
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._session is not None:
            await self._session.close()

    async def picture(self, run_id: str) -> RunPicture:
        """Let the daemon fold the run: it has the settings, the references and the encoder."""
        raw = await self._get(_path(run_id, "picture"))
        try:
            return self._told.heard.complete(_PICTURE.validate_json(raw))
        except ValidationError as error:
            raise Unavailable(
                f"{self._url} answers in another version's shape; use one version of ontrack for "
                "serve and dashboard"
            ) from error

    def reading(self, run_id: str) -> str:  # noqa: ARG002
        """Return nothing: the daemon does not say."""
        return ""

    async def run_events(self, run_id: str) -> list[bytes]:
        """Return the run's events."""
        return (await self._get(_path(run_id, "events"))).splitlines()

    async def known(self) -> Known:
        """Return what runs are compared with."""
        try:
            known = _KNOWN.validate_json(await self._get("/v1/knowledge"))
        except ValidationError as error:
            raise Unavailable(
                f"{self._url} answers in another version's shape; use one version of ontrack for "
                "serve and dashboard"
            ) from error
        return known.ordered()

    async def dead_letters(self, limit: int) -> list[Letter]:
        """Return those of the stream, from a little before the start on."""
        return self._told.heard.letters(limit)

    async def _get(self, path: str) -> bytes:
        if self._session is None:
            raise Unavailable("the feed has not been started")
        url = URL(self._url + path, encoded=True)  # as it is: a run may be called ".."
        try:
            async with asyncio.timeout(ANSWER_S_MAX), self._session.get(url) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(self._away(error)) from error
        if answer.status != 200:
            raise Unavailable(self._refusal(answer.status, body))
        return body

    async def _follow(self) -> None:
        pause_s = 0.2
        while True:
            try:
                await self._read_stream()
                problem = f"{self._url} has ended the stream"
            except (aiohttp.ClientError, OSError, ValueError) as error:
                problem = self._away(error)
            except Unavailable as error:
                problem = str(error)
            if self.state.status == "live":
                pause_s = 0.2
            self._told.become("down", problem)
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_S_MAX, pause_s * 2)

    async def _read_stream(self) -> None:
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=None, connect=10.0, sock_read=SILENCE_S_MAX)
        path = f"{self._url}/v1/stream?recent={RECENT_MAX}"
        async with self._session.get(path, timeout=timeout) as answer:
            if answer.status != 200:
                raise Unavailable(self._refusal(answer.status, await answer.read()))
            time_ms = now_ms()
            async for line in answer.content:
                self._told.become("live", f"reading the stream of {self._url}")
                time_ms = self._take(line, time_ms)

    def _take(self, line: bytes, time_ms: int) -> int:
        """Take a line; return the time of what follows."""
        beat = _heartbeat(line)
        if beat is not None:
            return beat
        try:
            output = codecs.decode_output(line)
        except InvalidEvent:
            return time_ms  # of a later version: what is not known is not shown
        self._told.said(output, time_ms)
        return time_ms

    def _away(self, error: Exception) -> str:
        return (
            f"{self._url} does not answer ({type(error).__name__}); is `ontrack serve` running "
            "there? Trying again"
        )

    def _refusal(self, status: int, body: bytes) -> str:
        if status in (401, 403):
            return f"{self._url} asks for its token: set ONTRACK_WEB_TOKEN to the one it has"
        return f"{self._url}: {_text(body) or f'answers with {status}'}"


def _path(run_id: str, what: str) -> str:
    """Return where the daemon tells something about a run, whatever its id looks like."""
    # A dot of a path stands for a folder, and whoever sends it on may walk there.
    name = quote(run_id, safe="", errors="replace").replace(".", "%2E")
    return f"/v1/runs/{name}/{what}"


def _heartbeat(line: bytes) -> int | None:
    """Return the time of a heartbeat; None: another line."""
    if b'"heartbeat"' not in line[:24]:
        return None
    try:
        beat = json.loads(line)
        return int(datetime.fromisoformat(beat["time"]).timestamp() * 1000)
    except (ValueError, KeyError, TypeError):
        return None


def _text(body: bytes) -> str | None:
    try:
        found: Any = json.loads(body)
    except ValueError:
        return None
    text = found.get("text") if isinstance(found, dict) else None
    return text if isinstance(text, str) else None
