"""The hooks themselves, as each host writes them: an HTTP hook, or one line of shell with curl."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from ontrack.pipeline.serving.install.setups import Setup
from ontrack.pipeline.web import is_loopback
from ontrack.topics.errors import InvalidSettings

#: Where the daemon listens unless told otherwise.
DEFAULT_URL: Final = "http://127.0.0.1:8100"
VARIABLE: Final = "ONTRACK_WEB_TOKEN"

#: How long a call may take; then curl gives up, before the host does at its own limit, so that a
#: fail-closed hook still gets to say no.
CALL_S: Final = 5
HOST_S: Final = 10

_CLOSED = "OnTrack did not answer, and this hook is fail-closed: the call was not run"


@dataclass(frozen=True, slots=True)
class Wanted:
    """How hooks shall be written.

    Parameters
    ----------
    url
        Of the daemon, without a path's end: ``http://127.0.0.1:8100``.
    shadow
        Only watch: the daemon then neither denies nor says anything.
    closed
        Whether a call must not run while the daemon does not answer.
    """

    url: str = DEFAULT_URL
    shadow: bool = False
    closed: bool = False


def checked_url(url: str) -> str:
    """Return the daemon's URL without a slash at its end.

    Raises
    ------
    InvalidSettings
        It is no plain http or https URL: it has a user, a query, a fragment or odd characters.
    """
    problem = None
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidSettings(f"--url {url!r}: {error}") from None
    if not url.isascii() or not url.isprintable() or any(c in url for c in " \"'\\`$<>{}|^"):
        problem = "it holds characters that do not belong into a URL"
    elif parts.scheme not in ("http", "https") or not host:
        problem = "it has no scheme http or https, or no host"
    elif parts.username is not None or parts.password is not None:
        problem = f"it names a user; a token is read from {VARIABLE}"
    elif "?" in url or "#" in url:
        problem = "it has a query or a fragment"
    if problem is not None:
        raise InvalidSettings(
            f"--url {url!r}: {problem}; expected the daemon's address such as {DEFAULT_URL}"
        )
    return url.rstrip("/")


def endpoint(setup: Setup, wanted: Wanted, blocks: bool = False) -> str:
    """Return the URL that a host's hooks post to; one that ``blocks`` says so to the daemon."""
    query = "?shadow=1" if wanted.shadow else "?fail=closed" if blocks else ""
    return f"{wanted.url}/v1/hooks/{setup.name}{query}"


def handlers(setup: Setup, wanted: Wanted) -> dict[str, dict[str, Any]]:
    """Return one hook for each event of a host, the event before a call first."""
    return {
        event: _handler(setup, wanted, blocks=wanted.closed and event == setup.before)
        for event in (setup.before, *setup.events)
    }


def _handler(setup: Setup, wanted: Wanted, blocks: bool) -> dict[str, Any]:
    field, a_second = setup.timeout
    if setup.transport == "http":
        http = {
            "type": "http",
            "url": endpoint(setup, wanted, blocks),
            "headers": {"Authorization": f"Bearer ${VARIABLE}"},
            "allowedEnvVars": [VARIABLE],
            field: CALL_S * a_second,
        }
        return http | ({"onFailure": "block"} if blocks else {})
    limit = {field: HOST_S * a_second}
    command = shell_command(endpoint(setup, wanted, blocks), blocks)
    if setup.name == "copilot":
        return {"type": "command", "bash": command, **limit}
    if setup.name == "cursor":
        return {"command": command, **limit} | ({"failClosed": True} if blocks else {})
    named = {"name": "ontrack"} if setup.name == "gemini" else {}
    return {**named, "type": "command", "command": command, **limit}


def shell_command(url: str, blocks: bool) -> str:
    """Return one line for a POSIX shell: standard input is posted, the answer printed.

    It also runs where the user's own shell is fish or zsh, which some hosts use for hooks. ``-q``
    and ``--noproxy`` keep the user's settings of curl and a proxy away.

    Parameters
    ----------
    blocks
        Whether to end with 2 and a reason when there was no answer; else it ends with 0 and says
        nothing, which lets the call run.
    """
    direct = "--noproxy '*' " if is_loopback(urlsplit(url).hostname or "") else ""
    post = (
        f"curl -q -gsf --max-time {CALL_S} {direct}-H 'Content-Type: application/json' "
        f'-H "Authorization: Bearer ${VARIABLE}" --data-binary @- {shlex.quote(url)}'
    )
    otherwise = f"""sh -c 'echo "{_CLOSED}" >&2; exit 2'""" if blocks else "true"
    return f"{post} || {otherwise}"


def is_ours(handler: object, setup: Setup) -> bool:
    """Tell whether a hook is one that we wrote: it posts to our path with our token's name.

    Other tools have the same path; the token's name is ours alone.
    """
    if not isinstance(handler, dict):
        return False
    path = f"/v1/hooks/{setup.name}"
    if handler.get("type") == "http":
        url, variables = handler.get("url"), handler.get("allowedEnvVars")
        at = isinstance(url, str) and url.split("?")[0].endswith(path)
        return at and isinstance(variables, list) and VARIABLE in variables
    command = handler.get("bash") if setup.name == "copilot" else handler.get("command")
    return isinstance(command, str) and path in command and VARIABLE in command
