"""Who may look at the dashboard: the guard before its pages, without a server."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from ontrack.pipeline.dashboard import auth, tries
from ontrack.pipeline.dashboard.auth import Guard
from ontrack.pipeline.dashboard.sessions import SESSION_S, SESSIONS_MAX, Sessions

TOKEN = "a token with spaces"
HERE = {"host": "127.0.0.1:8200"}
THERE = {"host": "board.example:8200"}
PAGE = {"accept": "text/html"}


class Answer:
    def __init__(self, sent: list[dict[str, Any]]) -> None:
        self.kinds = [message["type"] for message in sent]
        start = next((m for m in sent if m["type"] == "http.response.start"), {})
        self.status = start.get("status")
        self.headers = {name.decode(): value.decode() for name, value in start.get("headers", ())}
        self.body = b"".join(message.get("body", b"") for message in sent)

    @property
    def passed(self) -> bool:
        """Whether the application behind the guard was asked."""
        return self.body == b"the page" or "websocket.accept" in self.kinds


async def _page(scope: Any, _receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"the page"})


def guard(token: str | None) -> Guard:
    return Guard(_page, None if token is None else SecretStr(token))


def ask(
    guarded: Guard,
    path: str = "/",
    method: str = "GET",
    query: str = "",
    body: bytes = b"",
    kind: str = "http",
    scheme: str = "http",
    **headers: str,
) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    scope = {
        "type": kind,
        "path": path,
        "query_string": query.encode(),
        "scheme": scheme,
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in named.items()],
    }
    if kind == "http":
        scope["method"] = method
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    asyncio.run(guarded(scope, receive, send))
    return Answer(sent)


def log_in(guarded: Guard, token: str = TOKEN, target: str = "/run/a", **more: str) -> Answer:
    form = urlencode({"token": token, "next": target}).encode()
    return ask(guarded, "/login", "POST", body=form, **(THERE | more))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "WRONG_TOKEN_S", 0.0)


def test_without_a_token_this_machine_s_browser_is_served() -> None:
    assert ask(guard(None), **HERE, **PAGE).passed
    assert ask(guard(None), **HERE, origin="http://localhost:8200", kind="websocket").passed
    assert ask(guard(None), host="[::1]:8200").passed


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:8200"},  # a name that was made to point here
        {"host": ""},
        HERE | {"origin": "http://evil.example"},
        HERE | {"origin": "null"},
        HERE | {"origin": "http://127.0.0.1.evil.example"},
        HERE | {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"},
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_without_a_token_other_sites_are_refused(headers: dict[str, str], kind: str) -> None:
    answer = ask(guard(None), kind=kind, **headers)
    assert not answer.passed
    assert answer.kinds[0] == "websocket.close" or answer.status == 403


def test_a_link_on_another_site_may_lead_here() -> None:
    followed = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert ask(guard(None), **HERE, **followed).passed


def test_with_a_token_nothing_is_given_without_it() -> None:
    guarded = guard(TOKEN)
    for path in ("/", "/run/a", "/assets/dashboard.css", "/_nicegui_ws/socket.io/", "/x"):
        answer = ask(guarded, path, **THERE)
        assert answer.status == 401
        assert json.loads(answer.body)["error"] == "Unauthorized"
    assert ask(guarded, kind="websocket", **THERE).kinds == ["websocket.close"]
    assert ask(guarded, **THERE, authorization="Bearer wrong").status == 401
    assert ask(guarded, **THERE, authorization=f"Basic {TOKEN}").status == 401


def test_a_person_without_it_is_led_to_the_login_page_and_back() -> None:
    guarded = guard(TOKEN)
    answer = ask(guarded, "/run/a", query="x=1", **THERE, **PAGE)
    assert (answer.status, answer.headers["location"]) == (303, "/login?next=%2Frun%2Fa%3Fx%3D1")
    form = ask(guarded, "/login", query="next=%2Frun%2Fa", **THERE, **PAGE)
    assert b'name="next" value="/run/a"' in form.body
    done = log_in(guarded)
    assert (done.status, done.headers["location"]) == (303, "/run/a")
    cookie = done.headers["set-cookie"]
    assert "; HttpOnly; SameSite=Strict" in cookie
    assert "Secure" not in cookie
    assert TOKEN not in cookie
    assert "; Secure" in log_in(guarded, scheme="https").headers["set-cookie"]
    own = cookie.partition(";")[0]
    assert ask(guarded, "/run/a", **THERE, cookie=own).passed
    assert ask(guarded, kind="websocket", **THERE, cookie=own).passed
    assert ask(guarded, **THERE, authorization=f"bearer {TOKEN}").passed
    assert not ask(guarded, **THERE, cookie=own + "x").passed


def test_two_dashboards_on_one_host_do_not_log_each_other_out() -> None:
    """A browser sends the cookies of a host to all of its ports."""
    one, other = guard(TOKEN), guard(TOKEN)
    ports = {"one": {"host": "board.example:8200"}, "other": {"host": "board.example:8201"}}
    jar: dict[str, str] = {}
    for guarded, there in ((one, ports["one"]), (other, ports["other"])):
        said = log_in(guarded, **there).headers["set-cookie"].partition(";")[0]
        name, _, value = said.partition("=")
        jar[name] = value
    both = "; ".join(f"{name}={value}" for name, value in jar.items())
    assert ask(one, **ports["one"], cookie=both).passed
    assert ask(other, **ports["other"], cookie=both).passed
    assert ask(one, "/logout", "POST", **ports["one"], cookie=both).status == 303
    assert not ask(one, **ports["one"], cookie=both).passed
    assert ask(other, **ports["other"], cookie=both).passed


@pytest.mark.parametrize(
    ("host", "scheme", "port"),
    [
        ("board.example", "http", 80),
        ("board.example", "https", 443),
        ("[2001:db8::1]:8300", "http", 8300),
        ("board.example:port", "http", 80),
        ("board.example:99999", "http", 80),
    ],
)
def test_the_cookie_is_named_after_the_port_that_the_browser_asked(
    host: str, scheme: str, port: int
) -> None:
    said = log_in(guard(TOKEN), host=host, scheme=scheme).headers["set-cookie"]
    assert said.startswith(f"ontrack_session_{port}=")


async def test_tokens_that_are_tried_in_parallel_are_mostly_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tries, "WRONG_TOKEN_S", 0.02)
    guarded = guard(TOKEN)
    bodies = [urlencode({"token": f"guess {n}"}).encode() for n in range(50)]
    bodies.append(urlencode({"token": TOKEN}).encode())
    answers = await asyncio.gather(*(post_form(guarded, "/login", body) for body in bodies))
    found = [answer.status for answer in answers]
    assert found == [401] * (1 + tries.WAITING_MAX) + [429] * (len(bodies) - 1 - tries.WAITING_MAX)
    assert answers[-1].headers["retry-after"] == "1"
    assert b"Too many tries at once" in answers[-1].body
    bearers = [f"Bearer guess {n}" for n in range(20)] + [f"Bearer {TOKEN}"]
    asked = (post_form(guarded, "/", authorization=bearer) for bearer in bearers)
    found = [answer.status for answer in await asyncio.gather(*asked)]
    assert found.count(429) == len(bearers) - 1 - tries.WAITING_MAX
    assert found.count(401) == 1 + tries.WAITING_MAX
    late = await post_form(guarded, "/login", bodies[-1])
    assert late.status == 303, "the queue is empty again"


async def test_who_has_logged_in_does_not_wait_for_those_that_guess(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tries, "WRONG_TOKEN_S", 60.0)
    guarded = guard(TOKEN)
    own = await cookie_of(guarded)
    guesses = [
        asyncio.create_task(post_form(guarded, "/login", b"token=guess"))
        for _ in range(tries.WAITING_MAX + 1)
    ]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        assert (await post_form(guarded, "/", cookie=own)).passed
        assert (await post_form(guarded, "/", authorization=f"Bearer {TOKEN}")).status == 429
    for guess in guesses:
        guess.cancel()
    await asyncio.gather(*guesses, return_exceptions=True)
    assert (await post_form(guarded, "/", authorization=f"Bearer {TOKEN}")).passed


def test_a_wrong_token_is_told_and_opens_nothing() -> None:
    for wrong in ("", "a token", TOKEN + " ", "ü"):
        answer = log_in(guard(TOKEN), wrong)
        assert answer.status == 401
        assert b"That is not the token." in answer.body
        assert "set-cookie" not in answer.headers
    assert ask(guard(TOKEN), "/login", "POST", body=b"token=" + b"x" * 9_000, **THERE).status == 401


def test_with_a_cookie_other_sites_still_cannot_act() -> None:
    guarded = guard(TOKEN)
    own = log_in(guarded).headers["set-cookie"].partition(";")[0]
    evil = {"cookie": own, "origin": "http://evil.example"}
    assert ask(guarded, kind="websocket", **THERE, **evil).kinds == ["websocket.close"]
    assert ask(guarded, "/logout", "POST", **THERE, **evil).status == 403
    assert ask(guarded, **THERE, cookie=own).passed


def test_logging_out_ends_the_session() -> None:
    guarded = guard(TOKEN)
    own = log_in(guarded).headers["set-cookie"].partition(";")[0]
    assert ask(guarded, "/logout", **THERE, cookie=own).status == 303
    assert ask(guarded, **THERE, cookie=own).passed, "a link cannot log anybody out"
    answer = ask(
        guarded, "/logout", "POST", **THERE, cookie=own, origin="http://board.example:8200"
    )
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert not ask(guarded, **THERE, cookie=own).passed


def test_a_link_from_another_site_reloads_so_that_the_strict_cookie_comes() -> None:
    answer = ask(guard(TOKEN), "/run/a", **THERE, **PAGE, sec_fetch_site="cross-site")
    assert answer.status == 200
    assert b'http-equiv="refresh"' in answer.body


@pytest.mark.parametrize(
    "target",
    ["//evil.example", "/\\evil.example", "http://evil.example", "javascript:1", "", "/a\r\nX: y"],
)
def test_the_login_page_leads_to_pages_of_ours_only(target: str) -> None:
    assert log_in(guard(TOKEN), target=target).headers["location"] == "/"


@given(st.text())
def test_the_login_page_shows_where_it_leads_as_text(target: str) -> None:
    page = auth.login_page("n", f'/"><script>{target}').decode("utf-8", "surrogatepass")
    assert "<script" not in page


@pytest.mark.parametrize("token", [None, TOKEN])
def test_every_answer_says_what_a_browser_may_do(token: str | None) -> None:
    guarded = guard(token)
    answers = [
        ask(guarded, **HERE),
        ask(guarded, "/healthz", host="probe"),
        ask(guarded, "/login", **HERE),
        ask(guarded, **HERE, origin="http://evil.example", method="POST"),
    ]
    policies = set()
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self' 'nonce-")
        assert "'unsafe-inline'" not in policy.partition("style-src")[0]
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        policies.add(policy)
    assert len(policies) == len(answers), "a nonce is used once"


def test_health_is_told_to_everybody_and_tells_nothing() -> None:
    answer = ask(guard(TOKEN), "/healthz", host="anything")
    assert (answer.status, json.loads(answer.body)) == (200, {"ok": True})


def test_sessions_run_out_and_are_bounded() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    first = sessions.open()
    assert sessions.holds(first)
    now[0] = SESSION_S
    assert not sessions.holds(first)
    second = sessions.open()
    others = [sessions.open() for _ in range(SESSIONS_MAX)]
    assert not sessions.holds(second)
    assert all(map(sessions.holds, others))


async def _talk(scope: Any, receive: Any, send: Any) -> None:
    """A socket that stays open until the browser goes, and says one more thing then."""
    if scope["type"] == "http":
        await _page(scope, receive, send)
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        await send({"type": "websocket.send", "text": "news"})
    await send({"type": "websocket.send", "text": "too late"})


class Socket:
    """A browser's socket through a guard."""

    def __init__(self, guarded: Guard, **headers: str) -> None:
        named = [(name.encode(), value.encode()) for name, value in (THERE | headers).items()]
        scope = {"type": "websocket", "path": "/", "query_string": b"", "headers": named}
        self._from_browser: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_browser.put_nowait({"type": "websocket.connect"})
        self.said: list[str] = []
        self.serving = asyncio.create_task(guarded(scope, self._from_browser.get, self._send))

    async def _send(self, message: Any) -> None:
        self.said.append(message.get("text", message["type"].partition(".")[2]))

    async def ask(self) -> None:
        self._from_browser.put_nowait({"type": "websocket.receive", "text": "?"})
        await asyncio.sleep(0.01)


def with_sockets(sessions: Sessions | None = None) -> Guard:
    return Guard(_talk, SecretStr(TOKEN), sessions)


async def post_form(guarded: Guard, path: str, body: bytes = b"", **headers: str) -> Answer:
    named = [(name.encode(), value.encode()) for name, value in (THERE | headers).items()]
    scope = {"type": "http", "method": "POST", "path": path, "headers": named}
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    await guarded(scope | {"query_string": b"", "scheme": "http"}, receive, send)
    return Answer(sent)


async def cookie_of(guarded: Guard) -> str:
    done = await post_form(guarded, "/login", urlencode({"token": TOKEN}).encode())
    return done.headers["set-cookie"].partition(";")[0]


async def test_logging_out_closes_all_sockets_of_that_login_and_no_others() -> None:
    guarded = with_sockets()
    own, other = await cookie_of(guarded), await cookie_of(guarded)
    tabs = [Socket(guarded, cookie=own), Socket(guarded, cookie=own)]
    others = [Socket(guarded, cookie=other), Socket(guarded, authorization=f"Bearer {TOKEN}")]
    for socket in (*tabs, *others):
        await socket.ask()
        assert socket.said == ["accept", "news"]
    await post_form(guarded, "/logout", cookie=own)
    for socket in tabs:
        async with asyncio.timeout(5):
            await socket.serving
        assert socket.said == ["accept", "news", "close"]
    for socket in others:
        await socket.ask()
        assert socket.said == ["accept", "news", "news"]
        socket.serving.cancel()
    refused = Socket(guarded, cookie=own)
    await refused.serving
    assert refused.said == ["close"]


async def test_a_socket_is_closed_when_its_login_has_run_out() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    guarded = with_sockets(sessions)
    socket = Socket(guarded, cookie=await cookie_of(guarded))
    now[0] = SESSION_S - 0.05  # no clock moves on for the socket: it waits for what is left then
    await socket.ask()
    async with asyncio.timeout(5):
        await socket.serving
    assert socket.said[-1] == "close"


async def test_a_login_that_makes_room_for_others_closes_its_sockets() -> None:
    sessions = Sessions()
    guarded = with_sockets(sessions)
    socket = Socket(guarded, cookie=await cookie_of(guarded))
    await socket.ask()
    for _ in range(SESSIONS_MAX):
        sessions.open()
    async with asyncio.timeout(5):
        await socket.serving
    assert socket.said[-1] == "close"
