"""The fold: ``(partition state, record) -> outputs``. Deterministic; no Kafka, no clock.

Every shell (embedded driver, Faust worker, replay) calls this and nothing else, so that the same
records give the same bytes wherever they are folded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import structlog

from ontrack.operators import run, snapshot
from ontrack.operators.admission import admit, content_digest, is_duplicate, refuse_after_end
from ontrack.operators.profiles import Profile
from ontrack.operators.redaction import Redaction
from ontrack.operators.report import Stamp, in_shadow, unsaid, unsaid_in_all
from ontrack.operators.state import RunState
from ontrack.operators.vectors import StepVectors, step_texts
from ontrack.pipeline.encoding.encoders import CachedEncoder
from ontrack.pipeline.folding import kinship
from ontrack.pipeline.folding.family import Family
from ontrack.pipeline.folding.library import Library
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.pipeline.folding.quarantine import dead_letter, fault
from ontrack.pipeline.folding.record import Record, Said
from ontrack.pipeline.folding.runs import RunStore
from ontrack.pipeline.folding.waiting import WaitingStep
from ontrack.solver import kernels
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidEvent, KeyMismatch
from ontrack.topics.events import (
    ChildStarted,
    Event,
    GapClosed,
    ModeChanged,
    Notice,
    ParentHalted,
    Proposal,
    RunEnded,
    RunResumed,
    RunStarted,
    Step,
)
from ontrack.topics.verdicts import (
    DeadLetter,
    Decision,
    InterventionName,
)

ENGINE = version("ontrack")
_log = structlog.get_logger(__name__)


def engine_name() -> str:
    """Return version and kernel: two kernels agree to 1e-12, which is not yet the same bytes."""
    return ENGINE if kernels.compiled() is None else f"{ENGINE}+numba"


class Fold:
    """The monitor as a function of records.

    Parameters
    ----------
    profile
        Settings of the operators.
    encoder
        Text encoder; its name is part of the settings' digest.
    library
        What runs are compared with.
    limits
        Of one message.
    ended_runs_max
        Ended runs remembered a partition.
    intervene
        False is shadow mode: verdicts as ever, no interventions.
    warm_runs_max
        Open runs a partition that are kept as states; the longest idle ones are kept as bytes.
    redaction
        What is replaced in every event and proposal before anything looks at it.
    """

    def __init__(
        self,
        profile: Profile,
        encoder: CachedEncoder,
        library: Library,
        limits: codecs.Limits | None = None,
        ended_runs_max: int = 20_000,
        intervene: bool = True,
        warm_runs_max: int = 5000,
        redaction: Redaction | None = None,
    ) -> None:
        self.profile = profile
        self.encoder = encoder
        self.library = library
        self._limits = limits or codecs.Limits()
        self._ended_runs_max = ended_runs_max
        self._intervene = intervene
        self._warm_runs_max = warm_runs_max
        self.redaction = redaction or Redaction()
        digest = profile.digest(encoder.name, self.redaction.fingerprint)
        nothing = np.zeros(encoder.dimension, np.float32)
        self._unencoded = StepVectors(nothing, nothing, nothing)
        self.stamp = Stamp(profile.name, digest, engine_name())

    @property
    def intervenes(self) -> bool:
        """False in shadow mode."""
        return self._intervene

    def partition(self) -> PartitionState:
        """Return the state of a partition before its first record."""
        most = self._ended_runs_max
        runs = RunStore(self._warm_runs_max, self.thaw)
        return PartitionState(runs, ended_runs_max=most, family=Family(most))

    def thaw(self, held: bytes | RunState) -> RunState:
        """Join a snapshot with the knowledge of its run's first event.

        Raises
        ------
        InvalidSnapshot
            It is damaged, or does not fit settings or references.
        """
        state = snapshot.read(held)[1] if isinstance(held, bytes) else held
        knowledge = self.library.knowledge(state.task_id, state.run_id, state.started_ms)
        return snapshot.restore(state, self.stamp, knowledge)

    def apply(self, state: PartitionState, record: Record) -> list[Said]:
        """Fold one record of the events topic; what cannot be used becomes a dead letter.

        A step that came too early gives nothing yet: what it has to say comes with the record that
        ends its waiting. Notices must be written into the log (or, without one, folded next).
        """
        return self._guarded(record, lambda: self._fold(state, record))

    def _guarded(self, record: Record, fold: Callable[[], list[Said]]) -> list[Said]:
        """Quarantine a record that cannot be folded."""
        try:
            return fold()
        except InvalidEvent as error:
            return [dead_letter(record, error)]
        except Exception as error:  # noqa: BLE001
            # A fault of ours must not stop the partition. Run states are immutable, so the run
            # stands as it did before this record; the record is kept with its bytes.
            _log.error("fold_failed", topic=record.topic, offset=record.offset, **fault(error))
            return [dead_letter(record, error)]

    def _fold(self, state: PartitionState, record: Record) -> list[Said]:
        decoded = self._decoded(record)
        event, run_id = decoded.event, decoded.event.run_id
        _check_key(record, run_id)
        if isinstance(event, ChildStarted):
            # Before what is known already: it stands in the partition's entry, not in the run's.
            return [*kinship.child_started(state, event)] if self._intervene else []
        if record.offset <= state.known_until.get(run_id, -1):
            return []
        if state.is_cut(event, record.offset):
            return []
        said = self._take(state, event, decoded.flags, record)
        state.heard(event, record)
        return said

    def _take(
        self, state: PartitionState, event: Event, flags: tuple[str, ...], record: Record
    ) -> list[Said]:
        """Fold an event, and the waiting steps that it lets go."""
        run_id = event.run_id
        if isinstance(event, GapClosed):
            # Another number in front: the gap that it speaks of has been filled meanwhile.
            if state.waiting.first(run_id) != event.seq:
                return []
            state.waiting.give_up(run_id)
            return self._let_go(state, run_id, everything=True)
        if isinstance(event, ParentHalted):
            return [*kinship.parent_halted(state, event)] if self._intervene else []
        if isinstance(event, RunResumed):
            kinship.resumed(state, event)
            return []
        if isinstance(event, ModeChanged):
            known = state.runs.get(run_id)
            if known is not None and known.shadow != event.shadow:
                state.runs[run_id] = replace(known, shadow=event.shadow)
            return []
        if isinstance(event, RunEnded):
            said = self._let_go(state, run_id, everything=True)
            return said + self._guarded(record, lambda: self._event(state, event, flags, record))
        if isinstance(event, Step) and self._waits(state, event, record):
            if not state.waiting.is_full(run_id, self.profile.reorder_steps_max):
                return []
            state.waiting.give_up(run_id)
            return self._let_go(state, run_id, everything=True)
        said = self._event(state, event, flags, record)
        return said + self._let_go(state, run_id, everything=False)

    def _decoded(self, record: Record) -> codecs.Decoded[Event]:
        """Decode an event and redact it: no later text can hold what was redacted."""
        decoded = codecs.decode_event(record.value, self._limits)
        event = self.redaction.event(decoded.event)
        return decoded if event is decoded.event else decoded._replace(event=event)

    def named(self, record: Record) -> Event | None:
        """Return the event of a record as it will be folded; None where it cannot be read."""
        try:
            return self._decoded(record).event
        except InvalidEvent:
            return None  # the fold makes a dead letter of it

    def asked(self, record: Record) -> Proposal | None:
        """Return the proposal of a record; None where it cannot be read."""
        try:
            return codecs.decode_proposal(record.value, self._limits).event
        except InvalidEvent:
            return None

    def decide(self, state: PartitionState, record: Record) -> Decision | DeadLetter:
        """Answer one record of the proposals topic; the partition's runs stay as they are."""
        try:
            decoded = codecs.decode_proposal(record.value, self._limits)
            _check_key(record, decoded.event.run_id)
            return self.propose(state, decoded.event, record.timestamp_ms)
        except InvalidEvent as error:
            return dead_letter(record, error)
        except Exception as error:  # noqa: BLE001 (as in apply)
            _log.error("gate_failed", topic=record.topic, offset=record.offset, **fault(error))
            return dead_letter(record, error)

    def propose(
        self, state: PartitionState, proposal: Proposal, timestamp_ms: int | None = None
    ) -> Decision:
        """Answer a proposal; a run that is not known yet is judged as it would start.

        Raises
        ------
        EventAfterEnd
            The run has ended.
        """
        proposal = self.redaction.event(proposal)
        if proposal.run_id in state.ended:
            raise refuse_after_end(proposal)
        known = state.runs.get(proposal.run_id)
        if known is None:
            known = self._start(proposal, timestamp_ms)
        answer = run.propose(self.profile, known, proposal, self._vectors(proposal, known))
        return in_shadow(answer) if known.shadow or not self._intervene else answer

    def _start(self, event: Event | Proposal, timestamp_ms: int | None) -> RunState:
        """Begin a run with what had been published by its first event."""
        knowledge = self.library.knowledge(event.task_id, event.run_id, timestamp_ms)
        return run.start(
            self.stamp, event, knowledge, timestamp_ms, self.is_shadowed(event, timestamp_ms)
        )

    def is_shadowed(self, named: Event | Proposal | RunState, time_ms: int | None) -> bool:
        """Tell whether a run that is called so begins in shadow mode."""
        return self.library.is_shadowed(named.agent, named.task_id, named.tenant, time_ms)

    def _event(
        self, state: PartitionState, event: Event, flags: tuple[str, ...], record: Record
    ) -> list[Said]:
        if event.run_id in state.ended:
            if isinstance(event, RunEnded) and state.ended[event.run_id] == _digest(event):
                state.duplicates += 1  # the same end again
                return []
            raise refuse_after_end(event)
        known = state.runs.get(event.run_id)
        said: list[Said] = []
        if known is None:
            known = self._start(event, record.timestamp_ms)
            said += kinship.introduction(event)
        elif known.parent_run_id is None and event.parent_run_id is not None:
            known = replace(known, parent_run_id=event.parent_run_id)
            said += kinship.introduction(event)
        if isinstance(event, RunStarted):
            if known.highest < 0 and known.task_id is None and event.task_id is not None:
                # Nothing has been judged yet: take the task that the first event did not name.
                time_ms = record.timestamp_ms
                knowledge = self.library.knowledge(event.task_id, event.run_id, time_ms)
                known = run.rename(known, event, knowledge, time_ms)
                known = replace(known, shadow=self.is_shadowed(known, time_ms))
            state.runs[event.run_id] = known
            return said
        if isinstance(event, RunEnded):
            return said + self._end(state, known, event)
        assert isinstance(event, Step)
        return said + self._step(state, known, event, flags)

    def _waits(self, state: PartitionState, event: Step, record: Record) -> bool:
        """Let a step wait that comes before its predecessor, and tell whether it does.

        Never the first step of a run: some number from 1, and some runs begin in the middle.

        Raises
        ------
        ConflictingDuplicate
            Another step waits under the same number.
        """
        known = state.runs.get(event.run_id)
        if event.seq is None or known is None or not 0 <= known.highest < event.seq - 1:
            return False
        is_refused = len(known.seen) >= self.profile.steps_max
        if is_refused or not self.profile.reorder_steps_max:
            return False
        if not state.waiting.is_worthwhile(event.run_id):
            return False
        digest = content_digest(event)
        if is_duplicate(event, digest, state.waiting.digest(event.run_id, event.seq)):
            state.duplicates += 1
        else:
            state.waiting.add(event.run_id, WaitingStep(event.seq, digest, record))
        return True

    def _let_go(self, state: PartitionState, run_id: str, everything: bool) -> list[Said]:
        """Fold a run's waiting steps, in order: those whose turn it is, or all."""
        said: list[Said] = []
        while (first := state.waiting.first(run_id)) is not None:
            known = state.runs[run_id]
            if first > known.highest + 1 and not everything:
                break
            record = state.waiting.take_first(run_id).record

            def fold(known: RunState = known, record: Record = record) -> list[Said]:
                event, flags = self._decoded(record)
                assert isinstance(event, Step)
                return self._step(state, known, event, flags)

            said += self._guarded(record, fold)
        return said

    def _step(
        self, state: PartitionState, known: RunState, event: Step, flags: tuple[str, ...]
    ) -> list[Said]:
        admission = admit(event.run_id, known.seen, known.highest, self.profile.steps_max, event)
        if admission.duplicate:
            state.duplicates += 1
            return []
        stepped, verdict, intervention = run.step(
            self.profile, known, event, admission, self._vectors(event, known), flags
        )
        state.runs[event.run_id] = stepped
        if not self._intervene:
            return [unsaid(verdict, intervention)]
        if intervention is None:
            return [verdict]
        notices: list[Notice] = []
        if intervention.intervention is InterventionName.HALT:
            notices = kinship.tell_children(state, event.run_id)
        return [*notices, intervention, verdict]

    def _end(self, state: PartitionState, known: RunState, event: RunEnded) -> list[Said]:
        scorecard = run.end(self.profile, known, event)
        state.end(event.run_id, _digest(event))
        return [scorecard if self._intervene else unsaid_in_all(scorecard)]

    def _vectors(self, call: Step | Proposal, known: RunState) -> StepVectors:
        """Encode a call's texts; zeros where no operator that is switched on looks at them."""
        profile = self.profile
        if profile.loop is None and profile.gain is None and known.knowledge.references is None:
            return self._unencoded
        texts = step_texts(call, profile.result_characters_max)
        action, args, result = self.encoder.encode(texts)
        return StepVectors(action, args, result)


def _digest(event: RunEnded) -> bytes:
    return hashlib.blake2b(codecs.encode(event), digest_size=8).digest()


def _check_key(record: Record, run_id: str) -> None:
    """Files have no keys; on a topic the key decides the partition, so it must be the run id."""
    if record.topic == "memory" or record.timestamp_ms is None:
        return
    if record.key != run_id.encode():
        raise KeyMismatch(
            f"the message key is not the run id {run_id!r}; events of one run must share a "
            "partition, so send them with the run id as key"
        )
