"""Fields of a host's request, read by name; whatever is wrong is said with the field's name."""

from __future__ import annotations

from typing import Any, Final

from ontrack.pipeline.serving.hooks.model import HookReply
from ontrack.topics.adapters.messages import failure
from ontrack.topics.adapters.parts import text_of
from ontrack.topics.errors import InvalidEvent, WrongShape
from ontrack.topics.events import Agent, ErrorInfo
from ontrack.topics.jsontext import described, parse

#: What events allow: ``Name`` and ``RunId`` of ``ontrack.topics.events``.
TOOL_CHARACTERS_MAX: Final = 256
ID_CHARACTERS_MAX: Final = 512
REASON_CHARACTERS_MAX: Final = 4096

#: Said where a denial came without a reason: hosts ignore one that has none.
NO_REASON: Final = "OnTrack denied this call."


class Fields:
    """The fields of one request.

    A field that is missing, null or empty text counts as not there. Where several names are given
    the first that is there is taken: hosts rename fields between versions.

    Parameters
    ----------
    body
        The request's JSON.

    Raises
    ------
    WrongShape
        The body is no object.
    """

    def __init__(self, body: object) -> None:
        if not isinstance(body, dict):
            raise WrongShape(f"expected a hook's request as an object, found {described(body)}")
        self._body = body

    def __contains__(self, name: str) -> bool:
        return self._body.get(name) is not None

    def text(self, *names: str, limit: int = ID_CHARACTERS_MAX) -> str | None:
        """Return a text, or None. Raises :class:`WrongShape` for another type or a longer one."""
        found = self._first(names)
        if found is None:
            return None
        name, value = found
        if not isinstance(value, str):
            raise WrongShape(f"`{name}`: expected text, found {described(value)}")
        if len(value) > limit:
            raise WrongShape(f"`{name}`: expected at most {limit} characters, found {len(value)}")
        return value or None

    def need(self, *names: str, limit: int = ID_CHARACTERS_MAX) -> str:
        """Return a text that must be there. Raises :class:`WrongShape` where it is not."""
        value = self.text(*names, limit=limit)
        if value is None:
            wanted = " or ".join(f"`{name}`" for name in names)
            raise WrongShape(f"{wanted}: expected text that is not empty; the field is missing")
        return value

    def prose(self, *names: str) -> str | None:
        """Return a text for people, cut to ``REASON_CHARACTERS_MAX``."""
        value = self.text(*names, limit=2**31)
        return value and value[:REASON_CHARACTERS_MAX]

    def object(self, *names: str) -> dict[str, Any]:
        """Return an object; empty where there is none. Raises :class:`WrongShape` for others."""
        found = self._first(names)
        if found is None:
            return {}
        name, value = found
        if not isinstance(value, dict):
            raise WrongShape(f"`{name}`: expected an object, found {described(value)}")
        return value

    def flag(self, name: str) -> bool:
        """Return a truth value; false where there is none. Raises :class:`WrongShape`."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, bool):
            raise WrongShape(f"`{name}`: expected true or false, found {described(value)}")
        return value is True

    def value(self, *names: str) -> Any:
        """Return whatever stands there, or None."""
        found = self._first(names)
        return None if found is None else found[1]

    def _first(self, names: tuple[str, ...]) -> tuple[str, Any] | None:
        for name in names:
            if self._body.get(name) is not None:
                return name, self._body[name]
        return None


def run_of(session: str, agent_id: str | None) -> tuple[str, str | None]:
    """Return the ids of the run and of its parent: a subagent is ``session:agent``.

    A host that gives a subagent a session of its own repeats its id; that is one run.

    Raises
    ------
    WrongShape
        Together they are longer than a run id may be.
    """
    if agent_id is None or agent_id == session:
        return session, None
    run_id = f"{session}:{agent_id}"
    if len(run_id) > ID_CHARACTERS_MAX:
        raise WrongShape(
            f"`agent_id`: with `session_id` expected at most {ID_CHARACTERS_MAX} characters, "
            f"found {len(run_id)}"
        )
    return run_id, session


def session_of(fields: Fields, ids: tuple[str, ...], folder: str) -> str:
    """Return the session's id, or its folder where the host's version sends no id.

    All sessions of such a host in one folder are then one run, ``cwd:FOLDER``.

    Raises
    ------
    WrongShape
        There is neither.
    """
    session = fields.text(*ids)
    if session is not None:
        return session
    place = fields.text(folder, limit=ID_CHARACTERS_MAX - len("cwd:"))
    if place is None:
        wanted = " or ".join(f"`{name}`" for name in (*ids, folder))
        raise WrongShape(f"{wanted}: expected text that is not empty; the fields are missing")
    return f"cwd:{place}"


def agent_of(name: str, model: str | None = None) -> Agent:
    """Return who calls: the host or a subagent's type, and the model as version."""
    return Agent(id=name, version=model)


def error_of(message: str | None, kind: str = "error") -> ErrorInfo:
    """Return an error with its message cut to what events hold."""
    return ErrorInfo(**failure(message, kind))


def flagged(result: Any) -> ErrorInfo | None:
    """Return the error that a result says it is: ``is_error``, or MCP's ``isError``."""
    if not isinstance(result, dict) or not (
        result.get("is_error") is True or result.get("isError") is True
    ):
        return None
    return error_of(text_of(result.get("content")))


def from_text(value: Any) -> Any:
    """Return what a host sends as JSON text; text that is none stays text."""
    if not isinstance(value, str):
        return value
    try:
        return parse(value.encode("utf-8", "replace")).value
    except InvalidEvent:
        return value


def denial(reply: HookReply) -> str:
    """Return why a call must not run: never empty."""
    return reply.reason or reply.halt or NO_REASON


def warned(reply: HookReply) -> str | None:
    """Return the text for the model that goes with a call which is not denied."""
    return joined(reply.reason if reply.decision == "ask" else None, reply.context)


def spoken(reply: HookReply) -> str | None:
    """Return the text for the model where a call can no longer be denied nor the agent halted."""
    reason = reply.reason if reply.decision in ("deny", "ask") else None
    return joined(reply.halt, reason, reply.context)


def joined(*texts: str | None) -> str | None:
    """Return texts as lines, each once; None where there is none."""
    return "\n".join(dict.fromkeys(text for text in texts if text)) or None
