"""The end of a connection: waited for a little, and never in the way of what ends after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import structlog
from aiokafka.errors import KafkaError

_log = structlog.get_logger(__name__)

CLOSE_S_MAX = 2.0  # for each connection, where the broker is away


async def closed(part: str, ending: Awaitable[object]) -> None:
    """Wait for an end, at last without a broker that is away.

    aiokafka cancels its own fetches when it closes, and where one of them was waiting to try again
    (the broker refused the one before) that cancellation comes out of its ``stop``. Nobody has
    cancelled us then; taken for a real one it ended Faust's thread before it could say so, and the
    worker hung.
    """
    try:
        async with asyncio.timeout(CLOSE_S_MAX):
            await ending
    except TimeoutError:
        _log.warning("closed_by_force", part=part, seconds=CLOSE_S_MAX)
    except KafkaError as error:
        _log.warning("closed_badly", part=part, error=type(error).__name__)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        _log.info("closed_badly", part=part, error="CancelledError")
