"""What every web server of ours shares: who may look, and how a body is read."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from pydantic import SecretStr

from ontrack.pipeline.gating.wire import Reply, json_reply, refusal
from ontrack.topics.errors import InvalidSettings, MessageTooLarge

BODY_S_MAX = 10.0  # whoever sends slower than that holds a connection for nothing
OPEN_PATHS = frozenset({"/healthz", "/healthz/"})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def is_loopback(host: str) -> bool:
    """Tell whether an address can be reached from this machine only; a name cannot promise it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(name: str, host: str, token: SecretStr | None) -> None:
    """Refuse to show pages to a network without a token.

    Parameters
    ----------
    name
        Of the setting that holds the host.

    Raises
    ------
    InvalidSettings
        The host is not the loopback interface, and there is no token.
    """
    if not is_loopback(host) and token is None:
        raise InvalidSettings(
            f"{name} is {host!r}, which others can reach, but there is no "
            "web_token; set ONTRACK_WEB_TOKEN, or bind to 127.0.0.1"
        )


def guard(token: SecretStr | None) -> Any:
    """Return the middleware that asks for the bearer token, on every page but ``/healthz``.

    Where no token is set nobody is asked: then only programs of this machine reach the pages. A
    browser of this machine is none of them: what it sends for a page of somebody else's is refused.
    """
    wanted = None if token is None else token.get_secret_value().encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if wanted is not None and request.path not in OPEN_PATHS:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            given = token.strip().encode("utf-8", "surrogateescape")
            if not (hmac.compare_digest(given, wanted) and scheme.lower() == "bearer"):
                return web.json_response(
                    {"error": "Unauthorized", "text": "send the header Authorization: Bearer …"},
                    status=401,
                    headers={"WWW-Authenticate": "Bearer"},
                )
        if wanted is None and not (request.path in OPEN_PATHS or _is_of_this_machine(request)):
            text = "without a token only programs of this machine may ask; set ONTRACK_WEB_TOKEN"
            return web.json_response({"error": "Forbidden", "text": text}, status=403)
        return await handler(request)

    return check


def _is_of_this_machine(request: web.Request) -> bool:
    """Tell whether names in a request are this machine's.

    A page of the web can make a browser ask here: its own name then stands in ``Origin``, or, if
    it has made that name point here (DNS rebinding), in ``Host``.
    """
    origin = request.headers.get("Origin")
    names = [request.host] if origin is None else [request.host, origin.partition("://")[2]]
    try:
        hosts = [urlsplit(f"//{name}").hostname or "" for name in names]
    except ValueError:
        return False
    return all(map(is_loopback, hosts))


async def read_body(request: web.Request, bytes_max: int) -> bytes | Reply:
    """Read a body; one over the limit, or one that does not come, gives the answer to that."""
    try:
        async with asyncio.timeout(BODY_S_MAX):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        return refusal(MessageTooLarge(f"the body is over the limit of {bytes_max} bytes"))
    except TimeoutError:
        text = f"the body did not come within {BODY_S_MAX} s"
        return json_reply(408, {"error": "RequestTimeout", "text": text})


def response(reply: Reply) -> web.Response:
    """Turn an answer into aiohttp's."""
    return web.Response(body=reply.body, status=reply.status, content_type="application/json")
