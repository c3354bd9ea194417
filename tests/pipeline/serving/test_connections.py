"""Connections that never ask anything are closed; those that ask are left alone."""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp import web

from ontrack.pipeline.serving.connections import ASKED, close_silent, note_request


async def test_whoever_never_completes_a_request_is_let_go() -> None:
    async def page(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application(middlewares=[note_request])
    app[ASKED] = set()
    app.router.add_get("/", page)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    closing = asyncio.create_task(close_silent(runner, silent_s=1.0, round_s=0.05))
    try:
        await asyncio.sleep(0.2)  # some rounds have passed when the first one asks
        async with aiohttp.ClientSession() as http:
            async with http.get(f"http://{host}:{port}/") as answer:
                assert await answer.text() == "ok"
            kept = http.connector._conns  # type: ignore[union-attr]
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET / HTTP/1.1\r\nHost: loc")
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
            # The one that had asked is still there, however long it has been silent.
            assert sum(map(len, kept.values())) == 1
            async with http.get(f"http://{host}:{port}/") as answer:
                assert await answer.text() == "ok"
    finally:
        closing.cancel()
        await runner.cleanup()


async def test_a_request_that_takes_long_is_answered() -> None:
    async def page(_request: web.Request) -> web.Response:
        await asyncio.sleep(0.5)
        return web.Response(text="ok")

    app = web.Application(middlewares=[note_request])
    app[ASKED] = set()
    app.router.add_get("/", page)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    closing = asyncio.create_task(close_silent(runner, silent_s=1.0, round_s=0.05))
    try:
        await asyncio.sleep(0.2)
        async with aiohttp.ClientSession() as http, http.get(f"http://{host}:{port}/") as answer:
            assert await answer.text() == "ok"
    finally:
        closing.cancel()
        await runner.cleanup()
