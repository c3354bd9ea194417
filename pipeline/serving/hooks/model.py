"""What a host's hook says, and what it is answered, whichever host it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ontrack.topics.events import Agent, ErrorInfo

Moment = Literal["before", "after", "started", "ended", "other"]
"""Before or after a tool call; a session or subagent started or ended; anything else."""

Decision = Literal["none", "allow", "deny", "ask"]
"""``none`` is no opinion: the host's own rules apply."""


@dataclass(frozen=True, slots=True)
class HookCall:
    """One request of a host, in the same words for all hosts.

    Parameters
    ----------
    moment
        What the request is about.
    run_id
        The session; of a subagent ``session:agent``.
    parent_run_id
        Of a subagent: the session that started it.
    agent
        The host's name or the subagent's type; the version is the model, where it is known.
    tool, args
        The call. Tools of MCP servers keep the name that the host gives them.
    result, error
        What came back, after a call.
    call_id
        The host's id of the call.
    event
        The host's own name of the event, such as ``PreToolUse``.
    reason
        Why a session ended, as the host says.
    hears
        Whether a context in the answer to this event reaches the model. Where it does not, a nudge
        would be lost: it should wait for an event where it does.
    """

    moment: Moment
    run_id: str
    parent_run_id: str | None = None
    agent: Agent | None = None
    tool: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    error: ErrorInfo | None = None
    call_id: str | None = None
    event: str = ""
    reason: str | None = None
    hears: bool = True


@dataclass(frozen=True, slots=True)
class HookReply:
    """What the monitor has to say to a request.

    Parameters
    ----------
    decision
        Whether the call may run. Where the host cannot ask a person, ``ask`` leaves the call to the
        host's own rules and tells the model why, where it can be told: it is a warning.
    reason
        Of ``deny`` and ``ask``.
    context
        A text for the model.
    halt
        Why the agent must stop; None means go on.
    """

    decision: Decision = "none"
    reason: str | None = None
    context: str | None = None
    halt: str | None = None


class Host(Protocol):
    """One host's words; a module of this package is one."""

    NAME: str
    """The last part of the path ``/v1/hooks/<NAME>``."""

    def read(self, body: dict[str, Any]) -> HookCall:
        """Return what a request says.

        Raises
        ------
        ontrack.topics.errors.WrongShape
            A field is missing or of the wrong type; the message names it.
        """

    def answer(self, call: HookCall, reply: HookReply) -> dict[str, Any]:
        """Return the body that the host is answered with: its documented fields only."""
