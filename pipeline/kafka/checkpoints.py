"""The checkpoints of one partition on their topic: read at a start, written as events go by."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from ontrack.pipeline.folding import checkpoint, parts
from ontrack.pipeline.folding.fold import Fold
from ontrack.pipeline.folding.partition import PartitionState
from ontrack.pipeline.folding.preparing import prepare_run
from ontrack.pipeline.kafka.emitter import Emitter
from ontrack.pipeline.kafka.follower import KnowledgeFollower
from ontrack.pipeline.kafka.log import LogReader, patiently
from ontrack.pipeline.kafka.messages import Message, snapshot_message
from ontrack.pipeline.kafka.turns import Turns
from ontrack.pipeline.metrics import Metrics
from ontrack.topics.catalog import Catalogue
from ontrack.topics.errors import InvalidSnapshot
from ontrack.topics.verdicts import Output, Scorecard

_log = structlog.get_logger(__name__)


class Checkpoints:
    """Keeps a partition's entries in step with its state; its owner calls one method at a time."""

    def __init__(
        self,
        partition: int,
        topics: Catalogue,
        fold: Fold,
        log: LogReader,
        emitter: Emitter,
        follower: KnowledgeFollower,
        metrics: Metrics,
        turns: Turns,
    ) -> None:
        self._partition = partition
        self._topics = topics
        self._fold = fold
        self._reader = log
        self._emitter = emitter
        self._follower = follower
        self._metrics = metrics
        self._turns = turns
        self._stored: set[str] = set()  # runs that have an entry of their own
        self._closed: set[str] = set()  # those among them that have ended since
        self._parts: dict[bytes, tuple[bytes, ...]] = {}  # of the entries that were cut up
        self._part_keys: set[bytes] = set()  # of all that may stand there
        self.events = 0  # folded since the last one

    async def restore(self) -> tuple[PartitionState, int] | None:
        """Return the state of the last checkpoint and the offset to read the log from.

        None if there is none, or none to trust: the log is folded from its start then.
        """
        topic = self._topics.snapshots.name
        first, last = await self._reader.bounds(topic, self._partition)
        latest: dict[bytes, checkpoint.Entry] = {}
        async for messages in self._reader.read(topic, self._partition, first, last):
            for message in messages:
                key = message.key or b""
                latest[key] = checkpoint.Entry(key, message.value, time_ms=message.timestamp)
        # Whatever becomes of them: when these runs end, their entries have to go.
        kept = {key: entry for key, entry in latest.items() if entry.value is not None}
        self._stored = {
            key.decode("utf-8", "replace")
            for key in kept
            if key != checkpoint.PARTITION_KEY and not parts.is_part(key)
        }
        self._parts = {key: parts.part_keys(entry.value) for key, entry in kept.items()}
        self._part_keys = {key for key in kept if parts.is_part(key)}
        try:
            stored = await asyncio.to_thread(checkpoint.read, self._fold, parts.joined(latest))
            if stored is None:
                return None
            await patiently(lambda: self._follower.cover(stored.newest_ms))
            async with self._turns.working():
                runs = iter(stored.open_runs.values())
                for state in checkpoint.restore(self._fold, stored):
                    restored = state
                    await self._turns.give_way()
                    following = next(runs, None)
                    if following is not None:
                        await prepare_run(self._fold, following[1], self._turns.elsewhere)
        except InvalidSnapshot as error:
            self._metrics.snapshots_refused.inc()
            _log.warning("checkpoint_refused", partition=self._partition, error=str(error))
            return None
        self._closed = self._stored - restored.runs.keys()
        self._stored -= self._closed
        _log.info(
            "checkpoint_restored",
            partition=self._partition,
            runs=len(restored.runs),
            next_offset=stored.next_offset,
        )
        return restored, stored.next_offset

    def note(self, outputs: Sequence[Output]) -> None:
        """Note which runs have ended, so that their entries go with the next checkpoint."""
        for output in outputs:
            if isinstance(output, Scorecard) and output.run_id in self._stored:
                self._stored.discard(output.run_id)
                self._closed.add(output.run_id)

    async def write(self, state: PartitionState, next_offset: int) -> None:
        """Publish the changed runs and then, once these are safe, the partition's own entry.

        Last go the entries of runs that have ended since the checkpoint before: a successor that
        begins at that one still needs them.
        """
        if not self.events:
            return
        self.events = 0
        entries = []
        async with self._turns.working():
            for run_id in sorted(state.touched):
                if run_id in state.runs:
                    entries.append(checkpoint.run_entry(state, run_id))
                await self._turns.give_way()
        # In a thread: with many ended runs it takes long, and the state stands still meanwhile.
        own = await asyncio.to_thread(checkpoint.partition_entry, self._fold, state, next_offset)
        if any(map(parts.is_too_large, (*entries, own))):
            # An accelerator must stop nobody: a successor begins at the checkpoint before.
            self._metrics.snapshots_refused.inc()
            largest = max(len(entry.value or b"") for entry in (*entries, own))
            _log.warning("checkpoint_too_large", partition=self._partition, bytes=largest)
            return
        heads = await self._emit_parts([*entries, own])
        await self._emit(heads[:-1])
        await self._emit(heads[-1:])
        self._stored |= state.touched & state.runs.keys()
        state.touched.clear()
        gone = [run_id.encode() for run_id in sorted(self._closed - state.runs.keys())]
        self._closed.clear()
        self._parts |= {head.key: parts.part_keys(head.value) for head in heads}
        self._parts = {key: keys for key, keys in self._parts.items() if keys and key not in gone}
        in_use = {key for keys in self._parts.values() for key in keys}
        gone += sorted(self._part_keys - in_use)
        await self._emit([checkpoint.Entry(key, None, own.offset) for key in gone])
        self._part_keys &= in_use

    async def _emit_parts(self, entries: Sequence[checkpoint.Entry]) -> list[checkpoint.Entry]:
        """Publish the parts of entries that are too large for a message; return what is left."""
        heads: list[checkpoint.Entry] = []
        for entry in entries:
            *pieces, head = parts.split(entry)
            heads.append(head)
            self._part_keys |= {piece.key for piece in pieces}
            await self._emit(pieces)  # one entry's at a time: they are large
        return heads

    async def _emit(self, entries: Sequence[checkpoint.Entry]) -> None:
        await self._emitter.emit([self._message(entry) for entry in entries])

    def _message(self, entry: checkpoint.Entry) -> Message:
        source = self._topics.events.name
        return snapshot_message(
            self._topics, source, self._partition, entry.key, entry.value, entry.offset
        )
