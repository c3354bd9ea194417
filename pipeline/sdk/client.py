"""Client: an agent's own view of the monitor, one object a run.

Over Kafka and HTTP, over HTTP alone through ``ontrack serve``, or on an
:class:`~ontrack.pipeline.embedded.EmbeddedMonitor` without any network; the methods are the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol

import structlog

from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.gating.answers import GateAnswer, GatePolicy, Refusal
from ontrack.pipeline.gating.asker import Asker
from ontrack.pipeline.sdk.current import set_current_run
from ontrack.pipeline.sdk.declared import declared_contracts
from ontrack.pipeline.sdk.embedded_channel import EmbeddedChannel
from ontrack.pipeline.sdk.unreadable import is_unreadable
from ontrack.pipeline.settings import Settings, load_settings
from ontrack.topics import codecs
from ontrack.topics.errors import (
    BrokerUnavailable,
    InvalidEvent,
    InvalidSettings,
    MessageTooLarge,
    OnTrackError,
)
from ontrack.topics.events import (
    Agent,
    ErrorInfo,
    Event,
    Outcome,
    Proposal,
    RunEnded,
    RunStarted,
    Step,
)
from ontrack.topics.knowledge import ToolContract
from ontrack.topics.verdicts import Decision, Output

_log = structlog.get_logger(__name__)

_NUMBERED = frozenset({"type", "seq", "time"})


class Blocked(OnTrackError):
    """The gate does not let a call run; ``answer`` is the whole decision."""

    def __init__(self, answer: GateAnswer) -> None:
        self.answer = answer
        reason = answer.reasons[0].text if answer.reasons else "no reason was given"
        super().__init__(f"{answer.tool} may not run: {reason}")


class Channel(Protocol):
    """How a run reaches the monitor."""

    async def open(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """Disconnect."""

    async def send(self, event: Event) -> tuple[Output, ...]:
        """Hand over an event; return what the monitor says at once, where it does."""

    async def ask(self, proposal: Proposal, deadline_s: float) -> GateAnswer:
        """Ask the gate; raises NoAnswer, EventAfterEnd or another InvalidEvent."""

    async def redeem(self, answer: GateAnswer) -> Refusal | None:
        """Use a decision; raises NoAnswer."""

    def record(self, decision: Decision) -> None:
        """Put a decision of this side's policy on record; returns at once."""

    def contracts(self) -> Iterable[ToolContract]:
        """Return the contracts that are known on this side."""


class Monitor:
    """One run of an agent under the monitor's eyes.

    ``async with`` begins the run and ends it: with success, or with failure where an exception
    passes through (cancelled where the task was). Inside it is the current run of the tools of
    :mod:`ontrack.pipeline.sdk`. Steps are numbered here. What the setting ``redact`` names is
    replaced by digests before anything leaves this process.

    Parameters
    ----------
    run_id
        Unique for ever; a restarted agent may go on with its old one and ``first_seq``.
    broker, gate_url
        Kafka, and any worker's web address; by default as the settings say.
    embedded
        A monitor in this process, instead of these two.
    serve_url
        Address of ``ontrack serve``, ``http://127.0.0.1:8100``, instead of all three.
    task_id, agent, tenant, parent_run_id
        As in events; ``task_id`` says which references the run is compared with.
    contracts
        Tool contracts known to the agent: they give the effect classes for the policy. Those that
        the program declares (:mod:`ontrack.pipeline.sdk.declared`) are known as well.
    deadline_ms, fail_open
        How long to wait for the gate, and which effect classes may run without its answer; by
        default the settings ``gate_deadline_ms`` and ``gate_fail_open``.
    token
        Bearer token of the workers, or of ``ontrack serve``; by default the setting ``web_token``.
    first_seq
        Number of the next step.
    on_output
        Told of everything that the monitor says in answer to this run's events, for agents whose
        steps are reported for them.
    settings
        Instead of those from ``ontrack.toml`` and ``ONTRACK_…`` variables.

    Examples
    --------
    >>> import asyncio
    >>> from ontrack.topics.knowledge import ToolContract
    >>> pay = ToolContract(name="pay", effect="destructive", consumes=("args.order",))
    >>> find = ToolContract(name="find", effect="read", produces=("result.order",))
    >>> settings = Settings(encoder="hashing")
    >>> monitor = EmbeddedMonitor(settings, contracts=[pay, find])
    >>> async def refund() -> None:
    ...     async with Monitor(embedded=monitor, run_id="r-1", settings=settings) as run:
    ...         early = await run.check("pay", {"order": "ord-12345"})
    ...         (verdict,) = await run.step("find", result={"order": "ord-12345"})
    ...         answer = await run.check("pay", {"order": "ord-12345"})
    ...         print(early.decision, verdict.verdict, answer.decision, await run.redeem(answer))
    >>> asyncio.run(refund())
    block OK allow None
    """

    def __init__(
        self,
        *,
        run_id: str,
        broker: str | None = None,
        gate_url: str | None = None,
        embedded: EmbeddedMonitor | None = None,
        serve_url: str | None = None,
        task_id: str | None = None,
        agent: Agent | str | None = None,
        tenant: str | None = None,
        parent_run_id: str | None = None,
        contracts: Iterable[ToolContract] = (),
        deadline_ms: float | None = None,
        fail_open: Iterable[str] | None = None,
        token: str | None = None,
        first_seq: int = 0,
        on_output: Callable[[Output], object] | None = None,
        settings: Settings | None = None,
    ) -> None:
        if sum(way is not None for way in (broker or gate_url, embedded, serve_url)) > 1:
            raise InvalidSettings("give one of embedded, serve_url, or broker with gate_url")
        found = settings or load_settings(broker=broker)
        if broker is not None and settings is not None:
            found = settings.model_copy(update={"broker": broker})
        self._identity: dict[str, Any] = {
            "run_id": run_id,
            "task_id": task_id,
            "agent": Agent(id=agent) if isinstance(agent, str) else agent,
            "tenant": tenant,
            "parent_run_id": parent_run_id,
        }
        self._deadline_ms = found.gate_deadline_ms if deadline_ms is None else deadline_ms
        self._redaction = found.redaction
        self._limits = (found if embedded is None else embedded.settings).limits
        self._channel: Channel
        if embedded is not None:
            self._channel = EmbeddedChannel(embedded, found.gate_decision_ttl_s)
        elif serve_url is not None:
            # Imported here, as below: not every agent needs an HTTP client.
            from ontrack.pipeline.sdk.http_channel import HttpChannel

            self._channel = HttpChannel(found, serve_url, token)
        else:
            # Imported here: the embedded mode needs no Kafka library.
            from ontrack.pipeline.kafka.remote import RemoteChannel

            self._channel = RemoteChannel(found, gate_url, token)
        policy = GatePolicy.of(found.gate_fail_open if fail_open is None else fail_open)
        known = (*declared_contracts(), *self._channel.contracts(), *contracts)
        self._asker = Asker(self._channel, policy, known)
        self._next_seq = first_seq
        self._on_output = on_output
        self._is_over = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._run_before: object | None = None

    @property
    def next_seq(self) -> int:
        """Number of the next step."""
        return self._next_seq

    @property
    def run_id(self) -> str:
        """The run's id."""
        return str(self._identity["run_id"])

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop on which the run's block is open; None outside of the block."""
        return self._loop

    @property
    def answers_at_once(self) -> bool:
        """Whether the monitor is in this process: then no method ever waits."""
        return isinstance(self._channel, EmbeddedChannel)

    async def __aenter__(self) -> Monitor:
        await self._channel.open()
        try:
            await self._send(RunStarted(time=_now(), **self._identity))
        except BaseException:
            await self._channel.close()
            raise
        self._loop = asyncio.get_running_loop()
        self._run_before = set_current_run(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        set_current_run(self._run_before)
        self._run_before = self._loop = None
        try:
            if kind is None:
                await self.end("success")
            else:
                is_failure = issubclass(kind, Exception)
                # Only the class: its text may quote arguments.
                await self.end("failure" if is_failure else "cancelled", reason=kind.__name__)
        except BrokerUnavailable as unsent:
            if kind is None:
                raise
            # What ended the run is what its caller must see.
            _log.warning("run_end_not_sent", run_id=self._identity["run_id"], error=str(unsent))
        finally:
            await self._channel.close()

    async def check(
        self,
        tool: str,
        args: dict[str, Any] | None = None,
        *,
        action: str | None = None,
        call_id: str | None = None,
        raise_on_block: bool = False,
        deadline_ms: float | None = None,
    ) -> GateAnswer:
        """Ask whether a call may run, before it does.

        Returns within the deadline: where the gate does not answer, the policy decides by the
        tool's effect class (``decided_by`` tells). That decision goes to the decisions topic, too;
        embedded, the next :meth:`step` or :meth:`end` returns it.

        Raises
        ------
        Blocked
            It may not, and ``raise_on_block`` is set.
        EventAfterEnd
            The run has ended.
        InvalidEvent
            The call cannot be read: too large, nested too deep.
        InvalidSettings
            The gate asks for another token.
        """
        limit_ms = self._deadline_ms if deadline_ms is None else deadline_ms
        proposal = Proposal(
            **self._identity,
            seq=self._next_seq,
            action=action,
            tool=tool,
            args=args or {},
            call_id=call_id,
        )
        proposal = self._redaction.plainly(proposal)
        answer = await self._asker.ask(proposal, limit_ms, self._next_seq)
        if raise_on_block and not answer.allowed:
            raise Blocked(answer)
        return answer

    async def redeem(self, answer: GateAnswer) -> Refusal | None:
        """Use a decision for its call, right before it runs; None if that is fine.

        For whoever runs the tool and did not ask the gate itself. Anything but None means: do not
        run it. A policy's answer cannot be redeemed.

        Raises
        ------
        NoAnswer
            The worker that keeps the decision cannot be reached.
        """
        return await self._channel.redeem(answer)

    async def step(
        self,
        tool: str,
        args: dict[str, Any] | None = None,
        *,
        result: Any = None,
        error: ErrorInfo | str | None = None,
        action: str | None = None,
        **more: Any,
    ) -> tuple[Output, ...]:
        """Report a call that has run.

        Returns once the event is safe in Kafka. Embedded and through ``ontrack serve``, returns
        what the monitor says about it, after what the policy has decided in its place since the
        last event; over Kafka that comes on the topics, and the tuple is empty.

        Raises
        ------
        MessageTooLarge
            It takes more than ``message_bytes_max``; its number is used for the next step.
        BrokerUnavailable
            It could not be handed on.

        Parameters
        ----------
        more
            Further fields of :class:`~ontrack.topics.events.Step`, such as ``parents``,
            ``consumed``, ``produced``, ``cost_usd``.
        """
        unknown = more.keys() - (Step.model_fields.keys() - self._identity.keys() - _NUMBERED)
        if unknown:
            raise TypeError(f"step() has no field {', '.join(sorted(unknown))}")
        event = Step(
            **self._identity,
            seq=self._next_seq,
            time=_now(),
            tool=tool,
            args=args or {},
            result=result,
            error=ErrorInfo(message=error) if isinstance(error, str) else error,
            action=action,
            **more,
        )
        event = self._redaction.plainly(event)
        self._check_size(event)
        seq = self._next_seq
        self._next_seq += 1
        try:
            outputs = await self._send(event)
        except InvalidEvent:
            self._give_back(seq)
            raise
        if any(map(is_unreadable, outputs)):
            self._give_back(seq)
        return outputs

    def _give_back(self, seq: int) -> None:
        """Use a number again: the monitor has not seen its step, and would wait for it."""
        if self._next_seq == seq + 1:  # else others have theirs after it
            self._next_seq = seq

    def _check_size(self, event: Event) -> None:
        """Refuse at once what nobody would take: the same on every way to the monitor.

        Raises
        ------
        MessageTooLarge
            With what to do.
        """
        size, most = len(codecs.encode(event)), self._limits.message_bytes
        if size > most:
            raise MessageTooLarge(
                f"this {event.type} takes {size:,} bytes, of {most:,} that may be; report less of "
                "its result, or raise message_bytes_max here and where it is read"
            )

    async def end(
        self, outcome: Outcome, *, reward: float | None = None, reason: str | None = None
    ) -> tuple[Output, ...]:
        """End the run before the block does, with an outcome of your own; the first one counts."""
        if self._is_over:
            return ()
        self._is_over = True
        end = RunEnded(**self._identity, time=_now(), outcome=outcome, reward=reward, reason=reason)
        return await self._send(end)

    async def _send(self, event: Event) -> tuple[Output, ...]:
        outputs = await self._channel.send(self._redaction.plainly(event))
        if self._on_output is not None:
            for output in outputs:
                try:
                    self._on_output(output)
                except Exception as error:  # noqa: BLE001
                    # The event was taken: whoever looks on must not make it seem otherwise.
                    _log.error("on_output_failed", output=output.id, error=type(error).__name__)
        return outputs


def _now() -> datetime:
    return datetime.now(UTC)
