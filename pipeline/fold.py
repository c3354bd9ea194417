"""The fold: ``(partition state, record) -> outputs``. Deterministic; no Kafka, no clock.

Every shell (embedded driver, Faust worker, replay) calls this and nothing else, so that the same
records give the same bytes wherever they are folded.
"""

from __future__ import annotations

import base64
import hashlib
from collections import OrderedDict
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

import structlog

from ontrack.operators import run, snapshot
from ontrack.operators.admission import admit, refuse_after_end
from ontrack.operators.profiles import Profile
from ontrack.operators.report import Stamp
from ontrack.operators.vectors import StepVectors, step_texts
from ontrack.pipeline.encoders import CachedEncoder
from ontrack.pipeline.library import Library
from ontrack.pipeline.runs import RunStore
from ontrack.solver import kernels
from ontrack.topics import codecs
from ontrack.topics.errors import BeginningLost, InvalidEvent, KeyMismatch
from ontrack.topics.events import Event, Proposal, RunEnded, RunStarted, Step
from ontrack.topics.verdicts import DeadLetter, DeadLetterError, Decision, Output

ENGINE = version("ontrack")
DEAD_LETTER_BYTES_MAX = 4 * 1_048_576  # base64 and the rest must fit on the topic
_log = structlog.get_logger(__name__)


def engine_name() -> str:
    """Return version and kernel: two kernels agree to 1e-12, which is not yet the same bytes."""
    return ENGINE if kernels.compiled() is None else f"{ENGINE}+numba"


@dataclass(frozen=True, slots=True)
class Record:
    """One message, as it came from a topic or a file.

    Parameters
    ----------
    value, key, headers
        The original bytes.
    topic, partition, offset
        Where it stands; a file is a topic with one partition, a line an offset.
    timestamp_ms
        When the broker appended it; None: by now everything published counts.
    """

    value: bytes
    key: bytes | None = None
    topic: str = "memory"
    partition: int = 0
    offset: int = 0
    timestamp_ms: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass(slots=True)
class PartitionState:
    """Runs of one partition.

    Parameters
    ----------
    runs
        Open runs by id; the values are immutable. :meth:`Fold.partition` bounds their memory.
    ended
        Ended runs, the latest ``ended_runs_max``, with a digest of their last event (None where it
        is not known any more).
    heard_ms
        Broker's time of the last event of each open run.
    positions
        Offset of the last event of each open run.
    known_until
        Offset up to which a run's events are in its state already, though the log is being read
        from an earlier place (see :mod:`ontrack.pipeline.checkpoint`).
    cut_until
        The log's beginning is gone and no checkpoint makes up for it: steps of runs that are first
        seen up to this offset cannot be numbered any more, unless they bring their numbers.
    cut_runs
        Those runs; the latest ``ended_runs_max``.
    touched
        Open runs with an event since the last checkpoint; whoever writes one clears it.
    duplicates
        Steps dropped because they had been seen.
    """

    runs: MutableMapping[str, run.RunState] = field(default_factory=dict)
    ended: OrderedDict[str, bytes | None] = field(default_factory=OrderedDict)
    heard_ms: dict[str, int] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    known_until: dict[str, int] = field(default_factory=dict)
    cut_until: int = -1
    cut_runs: OrderedDict[str, None] = field(default_factory=OrderedDict)
    touched: set[str] = field(default_factory=set)
    duplicates: int = 0


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
    ) -> None:
        self.profile = profile
        self.encoder = encoder
        self.library = library
        self._limits = limits or codecs.Limits()
        self._ended_runs_max = ended_runs_max
        self._intervene = intervene
        self._warm_runs_max = warm_runs_max
        self.stamp = Stamp(profile.name, profile.digest(encoder.name), engine_name())

    def partition(self) -> PartitionState:
        """Return the state of a partition before its first record."""
        return PartitionState(RunStore(self._warm_runs_max, self.thaw))

    def thaw(self, held: bytes | run.RunState) -> run.RunState:
        """Join a snapshot with the knowledge of its run's first event.

        Raises
        ------
        InvalidSnapshot
            It is damaged, or does not fit settings or references.
        """
        state = snapshot.read(held)[1] if isinstance(held, bytes) else held
        knowledge = self.library.knowledge(state.task_id, state.run_id, state.started_ms)
        return snapshot.restore(state, self.stamp, knowledge)

    def apply(self, state: PartitionState, record: Record) -> list[Output]:
        """Fold one record of the events topic; what cannot be used becomes a dead letter."""
        try:
            decoded = codecs.decode_event(record.value, self._limits)
            _check_key(record, decoded.event.run_id)
            run_id = decoded.event.run_id
            if record.offset <= state.known_until.get(run_id, -1):
                return []
            if self._is_cut(state, decoded.event, record.offset):
                return []
            outputs = self._event(state, decoded.event, decoded.flags, record.timestamp_ms)
            if run_id in state.runs:
                state.positions[run_id] = record.offset
                state.touched.add(run_id)
                if record.timestamp_ms is not None:
                    state.heard_ms[run_id] = record.timestamp_ms
            else:
                state.positions.pop(run_id, None)
                state.heard_ms.pop(run_id, None)
                state.touched.discard(run_id)
            return outputs
        except InvalidEvent as error:
            return [dead_letter(record, error)]
        except Exception as error:  # noqa: BLE001
            # A fault of ours must not stop the partition. Run states are immutable, so the run
            # stands as it did before this record; the record is kept with its bytes.
            _log.exception("fold_failed", topic=record.topic, offset=record.offset)
            return [dead_letter(record, error)]

    def decide(self, state: PartitionState, record: Record) -> Decision | DeadLetter:
        """Answer one record of the proposals topic; the partition's runs stay as they are."""
        try:
            decoded = codecs.decode_proposal(record.value, self._limits)
            _check_key(record, decoded.event.run_id)
            return self.propose(state, decoded.event, record.timestamp_ms)
        except InvalidEvent as error:
            return dead_letter(record, error)
        except Exception as error:  # noqa: BLE001 (as in apply)
            _log.exception("gate_failed", topic=record.topic, offset=record.offset)
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
        if proposal.run_id in state.ended:
            raise refuse_after_end(proposal)
        known = state.runs.get(proposal.run_id)
        if known is None:
            known = self._start(proposal, timestamp_ms)
        return run.propose(self.profile, known, proposal, self._vectors(proposal))

    def _start(self, event: Event | Proposal, timestamp_ms: int | None) -> run.RunState:
        """Begin a run with what had been published by its first event."""
        knowledge = self.library.knowledge(event.task_id, event.run_id, timestamp_ms)
        return run.start(self.stamp, event, knowledge, timestamp_ms)

    def _event(
        self,
        state: PartitionState,
        event: Event,
        flags: tuple[str, ...],
        timestamp_ms: int | None,
    ) -> list[Output]:
        if event.run_id in state.ended:
            if isinstance(event, RunEnded) and state.ended[event.run_id] in (None, _digest(event)):
                state.duplicates += 1  # the same end again
                return []
            raise refuse_after_end(event)
        known = state.runs.get(event.run_id)
        if known is None:
            known = self._start(event, timestamp_ms)
        if isinstance(event, RunStarted):
            if known.highest < 0 and known.task_id is None and event.task_id is not None:
                # Nothing has been judged yet: take the task that the first event did not name.
                known = self._start(event, timestamp_ms)
            state.runs[event.run_id] = known
            return []
        if isinstance(event, RunEnded):
            return self._end(state, known, event)
        return self._step(state, known, event, flags)

    def _is_cut(self, state: PartitionState, event: Event, offset: int) -> bool:
        """Tell whether a step would be numbered by arrival where earlier arrivals may be gone.

        A number once published for another step would be published again: equal ids with unequal
        bytes, the one thing that a consumer must never see. What was judged before is passed over.

        Raises
        ------
        BeginningLost
            Nobody has judged this step, and nobody can number it any more.
        """
        run_id = event.run_id
        if not isinstance(event, Step) or event.seq is not None or run_id in state.runs:
            return False
        if offset > state.cut_until and run_id not in state.cut_runs:
            return False
        state.cut_runs[run_id] = None
        if len(state.cut_runs) > self._ended_runs_max:
            state.cut_runs.popitem(last=False)
        if offset <= state.cut_until:
            return True
        raise BeginningLost(
            f"run {run_id!r} began before what the events topic still holds, and this step has no "
            "number of its own; number the steps (seq), or keep events longer than runs take"
        )

    def _step(
        self, state: PartitionState, known: run.RunState, event: Step, flags: tuple[str, ...]
    ) -> list[Output]:
        admission = admit(event.run_id, known.seen, known.highest, self.profile.steps_max, event)
        if admission.duplicate:
            state.duplicates += 1
            return []
        stepped, verdict, intervention = run.step(
            self.profile, known, event, admission, self._vectors(event), flags
        )
        state.runs[event.run_id] = stepped
        if intervention is None or not self._intervene:
            return [verdict]
        return [intervention, verdict]

    def _end(self, state: PartitionState, known: run.RunState, event: RunEnded) -> list[Output]:
        scorecard = run.end(self.profile, known, event)
        state.runs.pop(event.run_id, None)
        state.ended[event.run_id] = _digest(event)
        if len(state.ended) > self._ended_runs_max:
            state.ended.popitem(last=False)
        return [scorecard]

    def _vectors(self, call: Step | Proposal) -> StepVectors:
        action, args, result = self.encoder.encode(
            step_texts(call, self.profile.result_characters_max)
        )
        return StepVectors(action, args, result)


def dead_letter(record: Record, error: Exception) -> DeadLetter:
    """Quarantine a record with its original bytes."""
    return DeadLetter(
        id=f"{record.topic}:{record.partition}:{record.offset}",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key_base64=_base64(record.key),
        value_base64=_base64(record.value[:DEAD_LETTER_BYTES_MAX]),
        value_bytes=len(record.value),
        headers=tuple((name, _base64(value)) for name, value in record.headers),
        error=DeadLetterError(name=type(error).__name__, text=str(error)),
    )


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


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
