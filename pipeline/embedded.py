"""The embedded driver: the whole monitor in this process, without a broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from ontrack.pipeline.encoding.encoders import Encoder
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.record import Record, Said
from ontrack.pipeline.folding.timing import Observe, timed_apply, unobserved
from ontrack.pipeline.gating.answers import GateAnswer, Refusal, Tickets
from ontrack.pipeline.making import make_fold
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.events import Event, Notice, Proposal, RunEnded, Step
from ontrack.topics.knowledge import Reference, Task, ToolContract
from ontrack.topics.verdicts import Decision, Output


class EmbeddedMonitor:
    """A monitor that is fed events and gives back what it has to say.

    Parameters
    ----------
    observe
        Told how many seconds each event took to fold.

    Attributes
    ----------
    settings
        Those it was made with.

    Examples
    --------
    >>> from ontrack.pipeline.settings import load_settings
    >>> monitor = EmbeddedMonitor(load_settings(encoder="hashing"))
    >>> look = Step(run_id="r1", tool="search", args={"q": "invoice"}, result="two hits")
    >>> [verdict.verdict.value for verdict in monitor.feed(look)]
    ['OK']
    """

    def __init__(
        self,
        settings: Settings,
        references: Iterable[Reference] = (),
        contracts: Iterable[ToolContract] = (),
        tasks: Iterable[Task] = (),
        encoder: Encoder | None = None,
        observe: Observe = unobserved,
    ) -> None:
        self._observe = observe
        self.settings = settings
        self.fold = make_fold(settings, encoder)
        self.fold.library.fill(references, contracts, tasks)
        self.state = self.fold.partition()
        self._fed = 0

    def feed(self, event: Event) -> list[Output]:
        """Fold one event; it takes the way through bytes that it takes over Kafka."""
        return self.feed_bytes(codecs.encode(event))

    def feed_bytes(
        self, value: bytes, source: str = "memory", offset: int | None = None
    ) -> list[Output]:
        """Fold one event as JSON bytes; ``source`` and ``offset`` name it in a dead letter."""
        self._fed += 1
        place = self._fed - 1 if offset is None else offset
        outputs: list[Output] = []
        left: deque[Said] = deque(
            timed_apply(self.fold, self.state, Record(value, None, source, 0, place), self._observe)
        )
        while left:
            said = left.popleft()
            if isinstance(said, Notice):
                # Over Kafka it goes through the log; here it is simply the next event.
                notice = Record(codecs.encode(said), None, source, 0, place)
                left.extend(timed_apply(self.fold, self.state, notice, self._observe))
            else:
                outputs.append(said)
        return outputs

    def propose(self, proposal: Proposal) -> Decision:
        """Ask the gate about a call before it runs.

        Raises
        ------
        EventAfterEnd
            The run has ended.
        """
        return self.fold.propose(self.state, proposal)

    def ask(self, proposal: Proposal) -> Decision:
        """Do the same by way of the bytes that a worker would get, within the limits of a message.

        Raises
        ------
        InvalidEvent
            The run has ended, or the bytes cannot be used: they are too many, say.
        """
        read = codecs.decode_proposal(codecs.encode(proposal), self.settings.limits)
        return self.propose(read.event)

    def twin(self) -> Fold:
        """Return a fold of its own that judges new runs as this one does now."""
        fold = make_fold(self.settings, self.fold.encoder)
        fold.library.fill_from(self.fold.library)
        return fold

    def close(self) -> Iterator[Output]:
        """End every run that is still open, with an unknown outcome."""
        for run_id in list(self.state.runs):
            yield from self.feed(RunEnded(run_id=run_id, reason="end of the recording"))


class EmbeddedGate:
    """The gate of a monitor in this process: each answer may be used once.

    Parameters
    ----------
    tickets
        Of the answers.
    """

    def __init__(self, monitor: EmbeddedMonitor, tickets: Tickets) -> None:
        self._monitor = monitor
        self._tickets = tickets

    def ask(self, proposal: Proposal) -> tuple[Decision, GateAnswer]:
        """Ask; return the decision as it is put on record, and as the asker gets it.

        Raises
        ------
        InvalidEvent
            As :meth:`EmbeddedMonitor.ask`.
        """
        decision = self._monitor.ask(proposal)
        return decision, GateAnswer.of(decision, "monitor", self._tickets.note(decision))

    def redeem(self, decision_id: str, run_id: str, call_sha256: str) -> Refusal | None:
        """Use an answer; return why it cannot be."""
        return self._tickets.redeem(decision_id, run_id, call_sha256)

    def contracts(self) -> Iterable[ToolContract]:
        """Return the contracts that the monitor knows now."""
        return self._monitor.fold.library.contracts_now().values()


def proposal_of(step: Step) -> Proposal:
    """Return the proposal that would have come before a recorded step."""
    return Proposal(
        run_id=step.run_id,
        seq=step.seq,
        time=step.started_at or step.time,
        agent=step.agent,
        task_id=step.task_id,
        tenant=step.tenant,
        parent_run_id=step.parent_run_id,
        action=step.action,
        tool=step.tool,
        args=step.args,
        call_id=step.call_id,
    )
