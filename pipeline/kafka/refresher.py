"""Refresher: many ask for the knowledge of now, and two readings at most are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from aiokafka.errors import KafkaError

from ontrack.topics.errors import BrokerUnavailable

_log = structlog.get_logger(__name__)


class Refresher:
    """Shares the reading of knowledge among those who wait for it.

    Parameters
    ----------
    refresh
        Reads what has been published by the time it begins.
    """

    def __init__(self, refresh: Callable[[], Awaitable[None]]) -> None:
        self._refresh = refresh
        self._last: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def refreshed(self) -> None:
        """Wait for a reading that begins from now on: the one that has not begun yet.

        It is not cancelled with who waits for it: a consumer that is cut off may lose what it has
        read.
        """
        if self._next is None:
            self._next = self._last = asyncio.create_task(self._after(self._last))
        await asyncio.shield(self._next)

    async def _after(self, former: asyncio.Task[None] | None) -> None:
        if former is not None:
            await asyncio.wait([former])
        self._next = None
        try:
            await self._refresh()
        except (KafkaError, BrokerUnavailable) as error:
            # What was published before stands in memory; whoever asks is answered from that.
            _log.warning("knowledge_not_refreshed", error=str(error))
