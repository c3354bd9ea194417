"""Connections that ask nothing: whoever connects and is silent holds a file for nothing."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiohttp import web

SILENT_S_MAX: Final = 15.0
ROUND_S: Final = 5.0
#: Of an application: the connections that have asked something.
ASKED: Final = web.AppKey("asked", set[int])


@web.middleware
async def note_request(request: web.Request, handler: Any) -> web.StreamResponse:
    """Remember that a connection has asked something: from then on keep-alive bounds it."""
    request.app[ASKED].add(id(request.protocol))
    answer: web.StreamResponse = await handler(request)
    return answer


async def close_silent(
    runner: web.AppRunner, silent_s: float = SILENT_S_MAX, round_s: float = ROUND_S
) -> None:
    """Close, over and over, connections that have not asked anything within ``silent_s``.

    aiohttp bounds how long a connection idles after a request, and the pages bound how long a body
    takes; nobody bounds the time before the first request is complete.
    """
    waited: dict[int, float] = {}
    asked = runner.app[ASKED]
    while True:
        await asyncio.sleep(round_s)
        server = runner.server
        if server is None:
            continue
        there = {id(one): one for one in server.connections}
        asked.intersection_update(there)  # `&= there.keys()` would make another set
        waited = {key: waited.get(key, 0.0) + round_s for key in there if key not in asked}
        for key, seconds in waited.items():
            if seconds >= silent_s:
                there[key].force_close()
                transport = there[key].transport
                if transport is not None:
                    transport.close()
