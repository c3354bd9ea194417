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

from ontrack.pipeline.dashboard import auth
from ontrack.pipeline.dashboard.auth import SESSION_S, SESSIONS_MAX, Guard, Sessions

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
    monkeypatch.setattr(auth, "WRONG_TOKEN_S", 0.0)


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
