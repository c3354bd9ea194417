"""Sessions: what the daemon remembers of each agent session between two hooks."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from ontrack.topics.verdicts import Intervention, InterventionName

PENDING_MAX = 256  # calls of a session that were asked about and have not come back
NUDGES_MAX = 8
DENIALS_MAX = 256

#: How a call came past the hook that asks before it.
Bypass = Literal["not_asked", "other_call", "ran_though_denied"]


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that was asked about."""

    call_sha256: str
    asked_at: datetime
    denied: bool


@dataclass(slots=True)
class Session:
    """One agent session, or one subagent of it.

    Parameters
    ----------
    name
        As the host names it.
    run_id
        Of the run that its calls belong to. A session that goes on after its end is another run.
    parent
        Name of the session that started it.
    """

    name: str
    run_id: str
    parent: str | None = None
    _pending: OrderedDict[str, Pending] = field(default_factory=OrderedDict)
    _denials: OrderedDict[str, int] = field(default_factory=OrderedDict)
    _nudges: list[str] = field(default_factory=list)

    def asked(self, call_id: str | None, pending: Pending) -> None:
        """Remember a call that was asked about; one without an id by its content."""
        key = call_id or pending.call_sha256
        self._pending[key] = pending
        self._pending.move_to_end(key)
        if len(self._pending) > PENDING_MAX:
            self._pending.popitem(last=False)

    def denied(self, call_sha256: str) -> int:
        """Count a denial; return how often this very call has been denied."""
        count = self._denials.pop(call_sha256, 0) + 1
        self._denials[call_sha256] = count
        if len(self._denials) > DENIALS_MAX:
            self._denials.popitem(last=False)
        return count

    def came_back(
        self, call_id: str | None, call_sha256: str
    ) -> tuple[Pending | None, Bypass | None]:
        """Take the question that a finished call was asked about, and how it passed by it."""
        pending = self._pending.pop(call_id or call_sha256, None)
        if pending is None:
            return None, "not_asked"
        if pending.call_sha256 != call_sha256:
            return pending, "other_call"
        return pending, "ran_though_denied" if pending.denied else None

    def heard(self, intervention: Intervention) -> None:
        """Keep what the agent must be told; of a halt the board knows."""
        if intervention.intervention is InterventionName.HALT:
            return
        if len(self._nudges) < NUDGES_MAX and intervention.reason not in self._nudges:
            self._nudges.append(intervention.reason)

    def take_nudges(self) -> str | None:
        """Return what the agent has not been told yet, once."""
        told, self._nudges = self._nudges, []
        return "\n".join(told) or None


class Sessions:
    """All sessions, by the host's name and by run.

    Parameters
    ----------
    sessions_max
        Beyond it the session that was silent for the longest is forgotten; its run stays open, and
        its next hook finds a new session of the same run.
    """

    def __init__(self, sessions_max: int) -> None:
        self._sessions_max = sessions_max
        self._by_name: OrderedDict[str, Session] = OrderedDict()
        self._by_run: dict[str, Session] = {}
        self._runs_of: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def of(self, name: str, parent: str | None) -> Session:
        """Return a session; an unknown one begins."""
        session = self._by_name.get(name)
        if session is None:
            session = Session(name, _run_id(name, self._runs_of.get(name, 1)), parent)
            self._by_name[name] = self._by_run[session.run_id] = session
            while len(self._by_name) > self._sessions_max:
                _, oldest = self._by_name.popitem(last=False)
                self._by_run.pop(oldest.run_id, None)
        self._by_name.move_to_end(name)
        return session

    def of_run(self, run_id: str) -> Session | None:
        """Return the session that a run belongs to, if one does."""
        return self._by_run.get(run_id)

    def run_id_of(self, name: str | None) -> str | None:
        """Return the run of a session by its name, whether it is known or not."""
        if name is None:
            return None
        known = self._by_name.get(name)
        return _run_id(name, self._runs_of.get(name, 1)) if known is None else known.run_id

    def end(self, session: Session) -> None:
        """Forget a session whose run is over; if it goes on, that is another run."""
        self._count_on(session.name)
        self._by_name.pop(session.name, None)
        self._by_run.pop(session.run_id, None)

    def begin_again(self, session: Session) -> None:
        """Give a session that goes on after its end another run."""
        self._by_run.pop(session.run_id, None)
        session.run_id = _run_id(session.name, self._count_on(session.name))
        self._by_run[session.run_id] = session

    def _count_on(self, name: str) -> int:
        number = self._runs_of[name] = self._runs_of.pop(name, 1) + 1
        if len(self._runs_of) > self._sessions_max:
            self._runs_of.popitem(last=False)
        return number


def _run_id(name: str, number: int) -> str:
    return name if number == 1 else f"{name}~{number}"
