"""Desk: answers the hooks of coding agents, from what the monitor says about their runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar

from ontrack.operators.canonical import call_sha256
from ontrack.pipeline.board import Board
from ontrack.pipeline.gating.answers import GateAnswer
from ontrack.pipeline.serving.hooks.model import HookCall, HookReply
from ontrack.pipeline.serving.sessions import Bypass, Pending, Session, Sessions
from ontrack.topics.adapters.parts import built
from ontrack.topics.errors import EventAfterEnd
from ontrack.topics.events import Event, Proposal, RunEnded, RunResumed, RunStarted, Step
from ontrack.topics.verdicts import Authority, Decision, Intervention, Output

E = TypeVar("E", RunStarted, Step, RunEnded, Proposal)

#: Hooks that say that a person goes on: what was halted before may run again.
PROMPTS = frozenset(
    {"UserPromptSubmit", "userPromptSubmitted", "beforeSubmitPrompt", "BeforeAgent"}
)


#: How often a session may have ended and gone on before the daemon began.
RUNS_MAX = 100


class Redact(Protocol):
    """Replaces what nobody is to see, once or again."""

    def __call__(self, event: E) -> E:
        """Return the event without it."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the address of a hook asks for.

    Parameters
    ----------
    shadow
        Watch and say nothing.
    closed
        Deny where the gate cannot answer and its policy does not let the call pass.
    task_id, tenant
        Of every run of this hook.
    """

    shadow: bool = False
    closed: bool = False
    task_id: str | None = None
    tenant: str | None = None


class Desk:
    """Turns hooks into events and questions, and what the monitor says into replies.

    Parameters
    ----------
    take
        Hands an event to the monitor.
    ask
        Asks the gate, within its deadline.
    redact
        Replaces what nobody is to see. Calls are compared as they are after it, as the gate does.
    bypassed
        Told how a call came past the hook before it.
    now
        The time of day, aware.
    """

    def __init__(
        self,
        take: Callable[[Event], Awaitable[tuple[Output, ...]]],
        ask: Callable[[Proposal], Awaitable[GateAnswer]],
        redact: Redact,
        board: Board,
        sessions_max: int,
        bypassed: Callable[[Bypass], None],
        now: Callable[[], datetime],
    ) -> None:
        self._take = take
        self._put = ask
        self._redact = redact
        self._board = board
        self.sessions = Sessions(sessions_max)
        self._bypassed = bypassed
        self._now = now

    def said(self, output: Output) -> None:
        """Keep what an agent must be told until its next hook."""
        if isinstance(output, Intervention):
            session = self.sessions.of_run(output.run_id)
            if session is not None:
                session.heard(output)

    async def resume(self, run_id: str) -> bool:
        """Let a halted run go on; False where it is not known.

        The monitor must hear of it as well: its gate lets a halted run change nothing.

        Raises
        ------
        BrokerUnavailable
            It could not be told.
        """
        session, view = self.sessions.of_run(run_id), self._board.get(run_id)
        if view is not None and view.halted is not None:
            await self._take(RunResumed(run_id=run_id, time=self._now()))
        return session is not None or view is not None

    async def reply(self, call: HookCall, wish: Wish) -> HookReply:
        """Answer one hook.

        Raises
        ------
        InvalidEvent
            The call cannot be read: too large, nested too deep.
        BrokerUnavailable
            An event could not be handed on.
        """
        if call.moment == "ended" and not self._is_known(call.run_id):
            return HookReply()  # nothing was ever seen of it: an end alone is no run
        session = self._session(call)
        if call.moment == "before":
            reply = await self._before(session, call, wish)
        elif call.moment == "after":
            reply = await self._after(session, call, wish)
        elif call.moment == "started":
            await self._started(session, call, wish)
            reply = HookReply()
        elif call.moment == "ended":
            await self._ended(session, call, wish)
            reply = HookReply()
        elif call.event in PROMPTS:
            await self.resume(session.run_id)
            reply = HookReply(context=session.take_nudges() if call.hears else None)
        else:
            reply = HookReply()
        self._board.heeded(session.run_id, not wish.shadow)
        return HookReply() if wish.shadow else reply

    def _is_known(self, name: str) -> bool:
        view = self._board.get(name)  # from before this daemon began
        return name in self.sessions or (view is not None and view.outcome is None)

    def _session(self, call: HookCall) -> Session:
        session = self.sessions.of(call.run_id, call.parent_run_id)
        for _ in range(RUNS_MAX):
            view = self._board.get(session.run_id)
            if view is None or view.outcome is None:
                break
            self.sessions.begin_again(session)  # it ended before this daemon began
        return session

    def _halted(self, session: Session) -> str | None:
        """Return why a session must stop, as the board knows it, which forgets halted runs last."""
        view = self._board.get(session.run_id)
        return None if view is None or view.shadow else view.halted

    async def _before(self, session: Session, call: HookCall, wish: Wish) -> HookReply:
        answer, sha = await self._ask(session, call, wish)
        reply = _opinion(answer, wish)
        is_denied = reply.decision == "deny" and not wish.shadow
        session.asked(call.call_id, Pending(sha, self._now(), is_denied))
        if (halted := self._halted(session)) is not None:
            return HookReply(halt=halted)
        if reply.decision == "deny":
            times = session.denied(sha)
            if times > 1:
                again = f" (this very call has been denied {times} times; do something else)"
                reply = replace(reply, reason=f"{reply.reason}{again}")
            return reply
        return replace(reply, context=session.take_nudges() if call.hears else None)

    async def _ask(self, session: Session, call: HookCall, wish: Wish) -> tuple[GateAnswer, str]:
        """Ask about a call; return the answer, and the call's digest.

        Not the answer's: a worker may redact more of the call than this side, which compares it
        with what comes back here.
        """
        for _ in range(RUNS_MAX):
            proposal = self._built(
                Proposal, session, call, wish, tool=call.tool, args=call.args, call_id=call.call_id
            )
            try:
                return await self._put(proposal), call_sha256(proposal.tool, proposal.args)
            except EventAfterEnd:
                # The host resumes a session that has ended: that is another run.
                self.sessions.begin_again(session)
        raise EventAfterEnd(f"session {session.name!r} has ended, and so have its next runs")

    async def _after(self, session: Session, call: HookCall, wish: Wish) -> HookReply:
        assert call.tool is not None
        step = self._built(
            Step,
            session,
            call,
            wish,
            tool=call.tool,
            args=call.args,
            result=call.result,
            error=call.error,
            call_id=call.call_id,
            ended_at=self._now(),
        )
        pending, bypass = session.came_back(call.call_id, call_sha256(step.tool, step.args))
        if bypass is not None:
            self._bypassed(bypass)
            self._board.note(session.run_id, bypass)
        if pending is not None:
            step = step.model_copy(update={"started_at": pending.asked_at})
        await self._take(step)
        if (halted := self._halted(session)) is not None:
            return HookReply(halt=halted)
        return HookReply(context=session.take_nudges() if call.hears else None)

    async def _started(self, session: Session, call: HookCall, wish: Wish) -> None:
        await self._take(self._built(RunStarted, session, call, wish))

    async def _ended(self, session: Session, call: HookCall, wish: Wish) -> None:
        await self._take(self._built(RunEnded, session, call, wish, reason=call.reason))
        self.sessions.end(session)

    def _built(
        self, model: type[E], session: Session, call: HookCall, wish: Wish, **fields: Any
    ) -> E:
        made = built(
            model,
            run_id=session.run_id,
            time=self._now(),
            agent=call.agent,
            task_id=wish.task_id,
            tenant=wish.tenant,
            parent_run_id=self.sessions.run_id_of(session.parent),
            **fields,
        )
        return self._redact(made)


def _opinion(answer: Decision, wish: Wish) -> HookReply:
    """Turn a decision into what the host is told."""
    reason = answer.reasons[0].text if answer.reasons else f"{answer.tool} may not run now"
    by_policy = isinstance(answer, GateAnswer) and answer.decided_by == "policy"
    if answer.decision == "block":
        return HookReply("deny", reason) if wish.closed or not by_policy else HookReply()
    if answer.decision == "unknown" and answer.reasons and answer.authority is Authority.WARN:
        # What speaks against it may warn, not block: a person decides.
        return HookReply("ask", reason)
    return HookReply()
