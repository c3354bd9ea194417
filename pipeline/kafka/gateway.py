"""Gateway: the gate over HTTP, answered from memory by the worker that owns the run.

Asked elsewhere, a worker passes the question on to the owner, once. Where nobody can answer in
time the policy does. Arguments of calls are never logged here.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import structlog

from ontrack.operators.gate import effect_of
from ontrack.operators.report import in_shadow
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.pipeline.folding.preparing import prepare_proposal
from ontrack.pipeline.gating import wire
from ontrack.pipeline.gating.answers import DecidedBy, GateAnswer, GatePolicy, Tickets
from ontrack.pipeline.gating.wire import Reply
from ontrack.pipeline.kafka.messages import Message, decision_message
from ontrack.pipeline.kafka.peers import PeerUnreachable
from ontrack.pipeline.kafka.refresher import Refresher
from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.telemetry import AnyTelemetry, NoTelemetry, Span
from ontrack.pipeline.telemetry.evaluations import guardrail
from ontrack.topics import codecs
from ontrack.topics.catalog import Catalogue
from ontrack.topics.errors import (
    EventAfterEnd,
    InvalidEvent,
)
from ontrack.topics.events import Proposal
from ontrack.topics.verdicts import Decision

_log = structlog.get_logger(__name__)

POLL_S = 0.002
REDEEM_S_MIN = 1.0  # nothing runs before the answer, so there is no deadline to hold
Way = Literal["local", "forwarded", "policy"]


class Owned(Protocol):
    """What the gate needs of the owner of a partition."""

    @property
    def ready(self) -> bool:
        """Whether the state is that of the log's end."""

    state: PartitionState
    answered: int


class Directory(Protocol):
    """Who has which partition."""

    url: str

    def partition_of(self, run_id: str) -> int | None:
        """Return a run's partition, if it is known."""

    def url_of(self, partition: int) -> str | None:
        """Return the address of another worker that has the partition."""

    def is_lost(self, partition: int) -> bool:
        """Tell whether somebody else has claimed it since."""


class PeerPost(Protocol):
    """Asks another worker; raises PeerUnreachable."""

    async def __call__(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> Reply:
        """Post and return the answer."""


@dataclass(frozen=True, slots=True)
class _Asked:
    proposal: Proposal
    raw: bytes
    began: float
    ends: float
    forwarded: bool
    partition: int | None


class _NoAnswer(Exception):
    """The monitor does not answer; the text says why, for people."""


class Gateway:
    """Answers gate requests and redemptions.

    Parameters
    ----------
    owners
        The partitions of this worker; read, never written.
    refresh
        Reads the knowledge that has been published by now.
    publish
        Takes a record of the decisions topic and returns at once.
    post
        Asks another worker.
    clock
        Seconds, monotonic.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Catalogue,
        fold: Fold,
        owners: Mapping[int, Owned],
        directory: Directory,
        refresh: Callable[[], Awaitable[None]],
        publish: Callable[[Message], None],
        post: PeerPost,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        telemetry: AnyTelemetry | None = None,
    ) -> None:
        self._telemetry = telemetry or NoTelemetry()
        self._settings = settings
        self._topics = topics
        self._fold = fold
        self._owners = owners
        self._directory = directory
        self.refresher = Refresher(refresh)
        self._publish = publish
        self._post = post
        self._metrics = metrics
        self._clock = clock
        self._policy = GatePolicy.of(settings.gate_fail_open)
        self._tickets = Tickets(settings.gate_decision_ttl_s, clock=clock)

    async def ask(self, raw: bytes, forwarded: str | None = None) -> Reply:
        """Answer a gate request.

        Parameters
        ----------
        raw
            A proposal as JSON, with an optional ``deadline_ms``.
        forwarded
            Value of :data:`~ontrack.pipeline.gating.wire.FORWARDED_HEADER`; None for a question
            that was asked here first.
        """
        with self._telemetry.span("ontrack.gate") as span:
            return await self._answer(raw, forwarded, span)

    async def _answer(self, raw: bytes, forwarded: str | None, span: Span) -> Reply:
        began = self._clock()
        try:
            decoded = codecs.decode_proposal(raw, self._settings.limits).event
            # Before anything looks at it: the policy's records, too, must not tell of it.
            proposal = self._fold.redaction.event(decoded)
            given = wire.deadline_in(raw) if forwarded is None else wire.deadline(forwarded)
            deadline_ms = self._settings.gate_deadline_ms if given is None else given
        except InvalidEvent as error:
            return self._refused(error)
        asked = _Asked(
            proposal,
            codecs.encode(proposal) if self._fold.redaction else raw,
            began,
            began + deadline_ms / 1000,
            forwarded is not None,
            self._directory.partition_of(proposal.run_id),
        )
        way: Way = "policy"
        said: str
        try:
            if began >= asked.ends:
                raise _NoAnswer("no time was given to the monitor")
            url = self._elsewhere(asked)
            if url is None:
                answer = await self._decide(asked)
                way, reply = "local", Reply(200, codecs.encode(answer))
                said = answer.decision
            else:
                reply, said = await self._pass_on(asked, url + wire.GATE_PATH)
                way = "forwarded"
        except EventAfterEnd as error:
            return self._refused(error)
        except _NoAnswer as silence:
            answer = self._without_monitor(asked, str(silence))
            reply, said = Reply(200, codecs.encode(answer)), answer.decision
        self._metrics.gate_requests.labels(said, way).inc()
        self._metrics.gate_seconds.labels(way).observe(self._clock() - began)
        self._describe(span, proposal, said, way)
        return reply

    def _describe(self, span: Span, proposal: Proposal, said: str, way: Way) -> None:
        """Say in a question's span what was asked about and what the answer was."""
        span.link(proposal.trace)
        span.set("gen_ai.conversation.id", proposal.run_id)
        span.set("gen_ai.tool.name", proposal.tool)
        span.set("ontrack.decision", said)
        span.set("ontrack.way", way)
        if self._telemetry.rules.guardrails:
            for name, value in guardrail(said, proposal.call_id).items():
                span.set(name, value)

    async def redeem(self, raw: bytes, forwarded: bool = False) -> Reply:
        """Use a decision for the call that it was made for; 200 once, else 409 with why.

        503 where the owner cannot be reached: then nothing has been allowed.
        """
        try:
            wanted = wire.read_redemption(raw)
        except InvalidEvent as error:
            return wire.refusal(error)
        partition = self._directory.partition_of(wanted.run_id)
        is_ours = partition is not None and self._is_ours(partition)
        if wanted.decision_id not in self._tickets and not is_ours and not forwarded:
            return await self._redeem_elsewhere(raw, partition)
        why = self._tickets.redeem(wanted.decision_id, wanted.run_id, wanted.call_sha256)
        self._metrics.gate_redeemed.labels(why or "ok").inc()
        return (
            wire.json_reply(200, {"ok": True})
            if why is None
            else wire.json_reply(409, {"ok": False, "why": why})
        )

    async def _redeem_elsewhere(self, raw: bytes, partition: int | None) -> Reply:
        """Pass a redemption on; only the owner's own word allows."""
        url = None if partition is None else self._directory.url_of(partition)
        timeout_s = max(REDEEM_S_MIN, self._settings.gate_deadline_ms / 1000)
        try:
            if url is None:
                raise PeerUnreachable("owner not known")
            headers = {wire.FORWARDED_HEADER: f"{timeout_s * 1000:.3f}"}
            reply = await self._post(url + wire.REDEEM_PATH, raw, headers, timeout_s)
            if not wire.is_redemption_result(reply):
                raise PeerUnreachable(f"status {reply.status} without a result")
            return reply
        except PeerUnreachable as error:
            _log.warning("redeem_not_passed_on", partition=partition, problem=str(error))
            self._metrics.gate_redeemed.labels("unreachable").inc()
            return wire.json_reply(503, {"ok": False, "why": "unreachable"})

    def _elsewhere(self, asked: _Asked) -> str | None:
        """Return where to pass a question on to; None if it is to be answered here."""
        partition = asked.partition
        if partition is None:
            raise _NoAnswer("this worker has not found its place yet")
        if self._is_ours(partition):
            if not self._owners[partition].ready:
                raise _NoAnswer("the run's state is being rebuilt")
            return None
        if asked.forwarded:
            raise _NoAnswer("the run has just moved to another worker")
        url = self._directory.url_of(partition)
        if url is None:
            raise _NoAnswer("no worker is known to have this run")
        return url

    def _is_ours(self, partition: int) -> bool:
        return partition in self._owners and not self._directory.is_lost(partition)

    async def _decide(self, asked: _Asked) -> GateAnswer:
        """Answer from the run as it stands here."""
        assert asked.partition is not None
        owner, proposal = self._owners[asked.partition], asked.proposal
        try:
            if proposal.run_id not in owner.state.runs:
                # Its first question: the knowledge of now counts, and no event has brought it.
                async with asyncio.timeout(self._left_s(asked)):
                    await self.refresher.refreshed()
            async with asyncio.timeout(self._left_s(asked)):
                # Before anything looks at a run that is kept as bytes.
                await prepare_proposal(self._fold, owner.state, proposal)
            stale = await self._step_before_is_missing(asked, owner)
            async with asyncio.timeout(self._left_s(asked)):
                await prepare_proposal(self._fold, owner.state, proposal)
            if not owner.ready:
                raise _NoAnswer("the run has just moved to another worker")
            if self._clock() >= asked.ends:
                # Folding held us up. Whoever asked goes by the policy, so must the record.
                raise TimeoutError
            decision = self._fold.propose(owner.state, proposal)
        except TimeoutError:
            raise _NoAnswer("the monitor did not answer in time") from None
        except (_NoAnswer, EventAfterEnd):
            raise
        except Exception as error:
            # A fault of ours must not leave the asker without an answer. Its text may quote
            # arguments, so the log has only its class and where it happened.
            _log.error(
                "gate_failed",
                partition=asked.partition,
                error=type(error).__name__,
                frames="".join(traceback.format_tb(error.__traceback__)),
            )
            raise _NoAnswer("the monitor failed") from error
        expires_in_s = self._tickets.note(decision)
        self._record(asked, decision, "monitor", owner)
        return GateAnswer.of(decision, "monitor", expires_in_s, stale)

    async def _step_before_is_missing(self, asked: _Asked, owner: Owned) -> bool:
        """Wait for the step before the call; at most for half of the time that is left.

        Whoever has just sent a step and asks for the next one would else be judged without it.
        """
        proposal = asked.proposal
        if not proposal.seq:
            return False
        gives_up = self._clock() + self._left_s(asked) / 2
        looked_at: int | None = None
        while proposal.run_id not in owner.state.ended:
            position = owner.state.positions.get(proposal.run_id, -1)
            if position != looked_at:
                looked_at = position
                known = owner.state.runs.who(proposal.run_id)
                if known is not None and known.highest >= proposal.seq - 1:
                    return False
            if self._clock() >= gives_up or not owner.ready:
                return True
            await asyncio.sleep(POLL_S)
        return False

    async def _pass_on(self, asked: _Asked, url: str) -> tuple[Reply, str]:
        """Ask another worker; return its answer, and the decision in it for the metrics."""
        left_s = self._left_s(asked)
        headers = {wire.FORWARDED_HEADER: f"{left_s * 1000:.3f}"}
        try:
            reply = await self._post(url, asked.raw, headers, left_s)
            return reply, wire.answer_in(reply, asked.proposal)
        except PeerUnreachable as error:
            problem = str(error)
        except ValueError as error:
            # Not its text: pydantic's quotes what it could not read.
            problem = type(error).__name__
        _log.warning("question_not_passed_on", partition=asked.partition, problem=problem)
        raise _NoAnswer("the worker that has this run did not answer")

    def _without_monitor(self, asked: _Asked, why: str) -> GateAnswer:
        """Let the policy decide, and say so."""
        proposal, owner = asked.proposal, None
        if asked.partition is not None:
            owner = self._owners.get(asked.partition)
        # Told of without making its state again: that may take long, or be why the monitor failed.
        known = None
        if owner is not None and owner.ready:
            known = owner.state.runs.who(proposal.run_id)
        effect = effect_of(proposal.tool, self._fold.library.contracts_now()).value
        seq = 0 if known is None else known.highest + 1
        decision = self._policy.decide(self._fold.stamp, proposal, effect, seq, why)
        # Of a run that is not here, what its call says.
        shadow = self._fold.is_shadowed(proposal, None) if known is None else known.shadow
        if shadow or not self._fold.intervenes:
            decision = in_shadow(decision)
        self._record(asked, decision, "policy", owner)
        return GateAnswer.of(decision, "policy")

    def _record(
        self, asked: _Asked, decision: Decision, by: DecidedBy, owner: Owned | None
    ) -> None:
        """Put a decision on its topic; who does not answer from a sound state says only that."""
        self._metrics.count(decision)
        self._telemetry.tell(decision)
        if asked.partition is None:
            self._metrics.audit_dropped.inc()
            return
        answered = owner.answered if owner is not None and owner.ready else None
        self._publish(decision_message(self._topics, asked.partition, decision, by, answered))

    def _left_s(self, asked: _Asked) -> float:
        return max(0.0, asked.ends - self._clock())

    def _refused(self, error: InvalidEvent) -> Reply:
        self._metrics.gate_requests.labels("refused", "local").inc()
        return wire.refusal(error)
