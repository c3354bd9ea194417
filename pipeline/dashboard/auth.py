"""Who may look at the dashboard, and what a browser may do with its pages: ASGI, before all else.

Without a token only this machine's browser is served, and no page of another site can use it:
``Host`` and ``Origin`` must name this machine, as in :mod:`ontrack.pipeline.web`. With a token
there is a login page; a request shows the cookie that it gave, or the token itself as a bearer.
"""

from __future__ import annotations

import asyncio
import hmac
import html
import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, Literal
from urllib.parse import parse_qs, quote, urlsplit

from pydantic import SecretStr

from ontrack.pipeline.dashboard.sessions import SESSION_S, Sessions
from ontrack.pipeline.dashboard.tries import TooManyTries, Tries
from ontrack.pipeline.web import is_loopback

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "ontrack_session"  # with the port behind it: browsers give one host's cookies to all ports
FORM_BYTES_MAX = 8_192
LOGGED_OUT = 1008  # how a socket is closed whose login has ended: "policy violation"
NONCE = "csp_nonce"  # where in the ASGI scope the page template finds it


class Guard:
    """The ASGI application that stands before the pages.

    Parameters
    ----------
    app
        What is guarded. Also found as ``app`` on the guard, as ASGI servers expect.
    token
        None: only this machine is served, and nobody is asked.
    """

    def __init__(self, app: App, token: SecretStr | None, sessions: Sessions | None = None) -> None:
        self.app = app
        self._token = None if token is None else token.get_secret_value().encode()
        self._sessions = sessions or Sessions()
        self._tries = Tries(self._is_token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        nonce = scope[NONCE] = secrets.token_urlsafe(16)
        headers = _headers(scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_security(nonce)]
            await send(message)

        if scope["type"] == "http" and scope["path"] == "/healthz":
            await _answer(guarded, 200, b'{"ok": true}', "application/json")
        elif not _is_ours(scope, headers, self._token is not None):
            text = "a page of another site asked, or this name is not this machine's"
            if self._token is None:
                text += "; open http://127.0.0.1, or set ONTRACK_WEB_TOKEN"
            await _refuse(scope, guarded, 403, text)
        else:
            try:
                shown = await self._shown(scope, headers)
            except TooManyTries:
                await _refuse(scope, guarded, 429, "too many wrong tokens at once; wait a second")
                return
            await self._serve(scope, receive, guarded, headers, shown)

    async def _serve(
        self,
        scope: Scope,
        receive: Receive,
        guarded: Send,
        headers: dict[str, str],
        shown: Literal["nothing", "session", "token"],
    ) -> None:
        """Serve a request of ours by what it shows: the pages, or the way to log in."""
        if shown != "nothing":
            if scope["type"] == "http" and scope["path"] in ("/login", "/logout"):
                await self._log_out(scope, headers, guarded)
            elif scope["type"] == "websocket" and shown == "session":
                session = _session(scope, headers)
                await self._serve_socket(scope, receive, guarded, session)
            else:
                await self.app(scope, receive, guarded)
        elif scope["type"] == "http" and scope["path"] == "/login":
            await self._login(scope, receive, headers, guarded)
        elif scope["type"] == "http" and _is_navigation(scope, headers):
            await self._show_login(scope, headers, guarded)
        else:
            await _refuse(scope, guarded, 401, "log in first, or send Authorization: Bearer …")

    def _is_token(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)

    async def _shown(
        self, scope: Scope, headers: dict[str, str]
    ) -> Literal["nothing", "session", "token"]:
        """Tell what a request shows to be let in; where there is no token, nobody need.

        Raises
        ------
        TooManyTries
            A bearer that was not looked at.
        """
        if self._token is None:
            return "token"
        if self._sessions.holds(_session(scope, headers)):
            return "session"
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return "nothing"
        is_right = await self._tries.look(_address(scope), given.strip())
        return "token" if is_right else "nothing"

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send, session: str) -> None:
        """Serve a socket for as long as the login holds that opened it.

        A socket asks only once who it is. Without this, a tab that was open when somebody logged
        out, or twelve hours ago, would be told of everything for ever.
        """
        with self._sessions.end_of(session) as end:
            socket = _Socket(receive, send, end, lambda: self._sessions.left_s(session))
            try:
                await self.app(scope, socket.receive, socket.send)
            finally:
                socket.release()

    async def _show_login(self, scope: Scope, headers: dict[str, str], send: Send) -> None:
        path = scope["path"] + ("?" + scope["query_string"].decode("latin-1")).rstrip("?")
        if headers.get("sec-fetch-site") == "cross-site":
            # A link in a mail or a chat: the browser keeps a strict cookie back for it, but sends
            # it when the page itself asks again.
            await _answer(send, 200, b'<!doctype html><meta http-equiv="refresh" content="0">')
            return
        location = "/login?next=" + quote(path, safe="")
        await _answer(send, 303, b"", extra=[(b"location", location.encode("ascii"))])

    async def _login(
        self, scope: Scope, receive: Receive, headers: dict[str, str], send: Send
    ) -> None:
        nonce = scope[NONCE]
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if scope["method"] != "POST":
            await _answer(send, 200, login_page(nonce, _local(query.get("next", ["/"])[0])))
            return
        form = await _form(receive)
        target = _local(form.get("next", "/"))
        try:
            is_right = await self._tries.look(_address(scope), form.get("token", ""))
        except TooManyTries:
            page = login_page(nonce, target, "Too many tries at once: wait a second.")
            await _answer(send, 429, page, extra=[(b"retry-after", b"1")])
            return
        if not is_right:
            await _answer(send, 401, login_page(nonce, target, "That is not the token."))
            return
        cookie = _set_cookie(scope, headers, self._sessions.open(), int(SESSION_S))
        where = quote(target, safe="/?&=%:+,;@~!$'()*-._")
        await _answer(send, 303, b"", extra=[(b"location", where.encode()), cookie])

    async def _log_out(self, scope: Scope, headers: dict[str, str], send: Send) -> None:
        extra = [(b"location", b"/")]
        if scope["path"] == "/logout" and scope["method"] == "POST":
            self._sessions.close(_session(scope, headers))
            extra.append(_set_cookie(scope, headers, "", 0))
        await _answer(send, 303, b"", extra=extra)


class _Socket:
    """A websocket that is closed from here at an end, or when its time is over."""

    def __init__(
        self, receive: Receive, send: Send, end: asyncio.Event, left_s: Callable[[], float]
    ) -> None:
        self._receive = receive
        self._send = send
        self._left_s = left_s
        self._ending = asyncio.ensure_future(end.wait())
        self._is_closed = False

    def release(self) -> None:
        """Wait for the end no longer."""
        self._ending.cancel()

    async def receive(self) -> Message:
        """Return what came from the browser, or that it has gone once the login has."""
        asking = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait(
                {asking, self._ending},
                timeout=self._left_s(),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if asking.done() and not self._ending.done():
                return asking.result()
        finally:
            if not asking.done():
                asking.cancel()
        self._is_closed = True
        await self._send({"type": "websocket.close", "code": LOGGED_OUT})
        return {"type": "websocket.disconnect", "code": LOGGED_OUT}

    async def send(self, message: Message) -> None:
        """Send; nothing any more once the login has ended."""
        if not (self._is_closed or self._ending.done()):
            await self._send(message)


def login_page(nonce: str, target: str, fault: str = "") -> bytes:
    """Return the page that asks for the token; it needs no script and no other file."""
    alert = f'<p role="alert" id="fault">{html.escape(fault)}</p>' if fault else ""
    described = ' aria-describedby="fault" aria-invalid="true"' if fault else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Log in · OnTrack</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style nonce="{nonce}">
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
body {{ display: grid; min-height: 100vh; place-items: center; margin: 0; }}
main {{ width: min(22rem, calc(100vw - 2rem)); }}
input, button {{ box-sizing: border-box; width: 100%; font: inherit; padding: .6rem; }}
button {{ margin-top: 1rem; cursor: pointer; }}
</style></head>
<body><main><h1>OnTrack</h1>{alert}
<form method="post" action="/login">
<label for="token">Access token (the value of ONTRACK_WEB_TOKEN)</label>
<input id="token" name="token" type="password" autocomplete="current-password" required
 autofocus{described}>
<input type="hidden" name="next" value="{html.escape(target)}">
<button type="submit">Log in</button>
</form></main></body></html>""".encode()


def _security(nonce: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of every answer.

    Scripts must be files of ours or carry the nonce. ``unsafe-eval`` stays: Vue compiles templates
    in the browser. Inline styles stay: Vue sets them. Nothing may come from, or go to, elsewhere.
    """
    policy = (
        "default-src 'none'; "
        f"script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    return [
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"x-frame-options", b"DENY"),
        (b"referrer-policy", b"same-origin"),  # with none, a form's Origin would be "null"
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
    ]


def _headers(scope: Scope) -> dict[str, str]:
    return {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }


def _is_ours(scope: Scope, headers: dict[str, str], has_token: bool) -> bool:
    """Tell whether no page of another site stands behind a request.

    Without a token both names must be this machine's. With one, the page that opens a socket or
    sends a form must be one that this server gave out.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    asker = None if origin is None else origin.partition("://")[2]
    changes = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD")
    if has_token:
        return not changes or asker is None or asker.lower() == host.lower()
    if asker is None and headers.get("sec-fetch-site") == "cross-site":
        # A picture or a script of another page names no origin. A link that is followed is fine.
        return not changes and headers.get("sec-fetch-mode") == "navigate" and _is_here(host)
    return _is_here(host) and (asker is None or _is_here(asker))


def _is_here(authority: str) -> bool:
    try:
        return is_loopback(urlsplit(f"//{authority}").hostname or "")
    except ValueError:
        return False


def _is_navigation(scope: Scope, headers: dict[str, str]) -> bool:
    return scope["method"] in ("GET", "HEAD") and "text/html" in headers.get("accept", "")


def _local(target: str) -> str:
    """Return a path of ours: a link to the login page must not lead to another site."""
    fine = target.startswith("/") and not target.startswith(("//", "/\\", "/login", "/logout"))
    return target if fine and target.isprintable() else "/"


def _session(scope: Scope, headers: dict[str, str]) -> str:
    """Return what the session's cookie of a request says; empty without one."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(_cookie_name(scope, headers))
    except CookieError:
        return ""
    return "" if found is None else found.value


def _cookie_name(scope: Scope, headers: dict[str, str]) -> str:
    """Return the session's cookie for the port that the browser asked, as it sees it."""
    try:
        port = urlsplit(f"//{headers.get('host', '')}").port
    except ValueError:
        port = None
    return f"{COOKIE}_{port or (443 if _is_secure(scope) else 80)}"


def _is_secure(scope: Scope) -> bool:
    return scope.get("scheme") in ("https", "wss")


def _address(scope: Scope) -> str:
    """Return where a request comes from, behind a proxy as uvicorn believes it."""
    return str((scope.get("client") or ("",))[0])


def _set_cookie(
    scope: Scope, headers: dict[str, str], value: str, age_s: int
) -> tuple[bytes, bytes]:
    secure = "; Secure" if _is_secure(scope) else ""
    name = _cookie_name(scope, headers)
    text = f"{name}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}"
    return b"set-cookie", text.encode("ascii")


async def _form(receive: Receive) -> dict[str, str]:
    """Read a posted form; one that is too long, or no form, is an empty one."""
    body, more = b"", True
    while more and len(body) <= FORM_BYTES_MAX:
        message = await receive()
        if message["type"] != "http.request":
            return {}
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if len(body) > FORM_BYTES_MAX:
        return {}
    return {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}


async def _refuse(scope: Scope, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})  # before it opened: HTTP 403
        return
    name = {401: "Unauthorized", 403: "Forbidden", 429: "TooManyRequests"}[status]
    body = json.dumps({"error": name, "text": text}).encode()
    extra = {401: [(b"www-authenticate", b"Bearer")], 429: [(b"retry-after", b"1")]}.get(status)
    await _answer(send, status, body, "application/json", extra)


async def _answer(
    send: Send,
    status: int,
    body: bytes,
    content_type: str = "text/html; charset=utf-8",
    extra: list[tuple[bytes, bytes]] | None = None,
) -> None:
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *(extra or ()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
