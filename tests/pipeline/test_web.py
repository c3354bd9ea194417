"""Who may see the worker's pages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from ontrack.pipeline import web as pages_module
from ontrack.pipeline.gating.wire import Reply
from ontrack.pipeline.kafka.web import check_exposure, web_options
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.web import is_loopback, read_body
from ontrack.topics.errors import InvalidSettings


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_on_the_loopback_interface_no_token_is_needed(host: str) -> None:
    assert is_loopback(host)
    check_exposure(Settings(web_host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gate.example", ""])
def test_beyond_it_a_worker_without_a_token_does_not_start(host: str) -> None:
    with pytest.raises(InvalidSettings, match="ONTRACK_WEB_TOKEN"):
        check_exposure(Settings(web_host=host))
    check_exposure(Settings(web_host=host, web_token="t"))


async def client(settings: Settings) -> TestClient[Any, Any]:
    async def page(request: web.Request) -> web.Response:
        return web.Response(body=str(len(await request.read())).encode())

    app = web.Application(**web_options(settings))
    for path in ("/healthz", "/readyz", "/metrics", "/v1/gate", "/router"):
        app.router.add_route("*", path, page)
    found: TestClient[Any, Any] = TestClient(TestServer(app))
    await found.start_server()
    return found


@pytest.mark.parametrize("path", ["/readyz", "/metrics", "/v1/gate", "/router", "/nowhere"])
@pytest.mark.parametrize("given", [None, "", "secret", "Bearer", "Bearer secreT", "Basic secret"])
async def test_without_the_token_only_liveness_is_shown(path: str, given: str | None) -> None:
    pages = await client(Settings(web_token="secret"))
    headers = {} if given is None else {"Authorization": given}
    try:
        answer = await pages.get(path, headers=headers)
        assert answer.status == 401
        assert "secret" not in await answer.text()
        assert (await pages.get("/healthz", headers=headers)).status == 200
    finally:
        await pages.close()


@pytest.mark.parametrize("given", ["Bearer sécret", "bearer  sécret"])
async def test_with_the_token_every_page_is_shown(given: str) -> None:
    pages = await client(Settings(web_token="sécret"))
    try:
        for path in ("/healthz", "/readyz", "/metrics", "/v1/gate"):
            assert (await pages.get(path, headers={"Authorization": given})).status == 200
    finally:
        await pages.close()


async def test_without_a_token_set_nobody_is_asked_and_bodies_are_bounded() -> None:
    pages = await client(Settings(message_bytes_max=2048))
    try:
        assert (await pages.post("/v1/gate", data=b"x" * 2048)).status == 200
        assert (await pages.post("/v1/gate", data=b"x" * 2049)).status == 413
    finally:
        await pages.close()


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_module, "BODY_S_MAX", 0.05)
    settings = Settings(message_bytes_max=2048)

    async def page(request: web.Request) -> web.Response:
        raw = await read_body(request, settings.message_bytes_max)
        assert isinstance(raw, Reply)
        return web.Response(status=raw.status, body=raw.body)

    app = web.Application(**web_options(settings))
    app.router.add_post("/v1/gate", page)
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"POST /v1/gate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 5)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    "names",
    [
        {"Host": "evil.example:6066"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
        {"Host": "[::1"},
    ],
)
async def test_without_a_token_a_page_of_the_web_reaches_nothing_by_way_of_a_browser(
    names: dict[str, str],
) -> None:
    pages = await client(Settings())
    try:
        answer = await pages.post("/v1/gate", data=b"{}", headers=names)
        assert answer.status in (400, 403)
    finally:
        await pages.close()


@pytest.mark.parametrize("host", ["localhost:6066", "127.0.0.1", "[::1]:6066"])
async def test_programs_of_this_machine_are_answered_by_any_of_its_names(host: str) -> None:
    pages = await client(Settings())
    try:
        names = {"Host": host, "Origin": f"http://{host}"}
        assert (await pages.post("/v1/gate", data=b"{}", headers=names)).status == 200
    finally:
        await pages.close()


async def test_with_the_token_the_name_does_not_matter() -> None:
    pages = await client(Settings(web_token="t"))
    try:
        names = {"Host": "gate.example", "Authorization": "Bearer t"}
        assert (await pages.post("/v1/gate", data=b"{}", headers=names)).status == 200
    finally:
        await pages.close()
