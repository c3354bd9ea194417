"""Peers: the other workers, asked over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp

from ontrack.pipeline.gating.wire import Reply
from ontrack.pipeline.settings import Settings


class PeerUnreachable(Exception):
    """Another worker gave no answer; the text says how that went, without what it was asked."""


class Peers:
    """One connection pool to all other workers, made on first use."""

    def __init__(self, settings: Settings) -> None:
        token = settings.web_token
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            # One token for the whole fleet: a question is passed on in the fleet's name.
            self._headers["Authorization"] = f"Bearer {token.get_secret_value()}"
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> Reply:
        """Ask another worker.

        Raises
        ------
        PeerUnreachable
            No connection, no answer in time, or one that does not come from a worker of ours.
        """
        if self._closed:
            raise PeerUnreachable("this worker is stopping")
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers)
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.post(
                    url, data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                return Reply(response.status, await response.read())
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is one
            raise PeerUnreachable(type(error).__name__) from error

    async def stop(self) -> None:
        """Close the connections; ask nobody any more."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None
