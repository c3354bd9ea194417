"""The topics: names, keys, partitions, clean-up and retention, as data.

Decisions that stand here, and why:

* ``events`` and the knowledge topics carry the broker's append time: a run is compared with what
  was published before its first event, so the two clocks must be the same one. Outputs carry it,
  too: minutes of the fleet are counted by one clock, whichever worker has spoken.
* Outputs go to the partition of their source event; what was last said about a partition is read
  from the tail of one partition. Hence as many partitions as ``events`` has.
* Outputs live longer than events: they tell a restarted worker what it has already said. An event
  can outlive its retention by one segment, so outputs get that much more.
* Knowledge is compacted, but no version vanishes while an event can still ask for it.
* ``events`` and ``proposals`` take messages over our own limit, so that these can arrive and be
  quarantined; ``dead_letters`` has room for such a message in base64.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final, get_args

from pydantic import BaseModel

from ontrack.topics.errors import InvalidSettings
from ontrack.topics.events import Event, Proposal
from ontrack.topics.fleet import FleetAggregate
from ontrack.topics.knowledge import Reference, Switch, Task, ToolContract
from ontrack.topics.verdicts import DeadLetter, Decision, Intervention, Scorecard, Verdict

DAY_MS: Final = 86_400_000
EVENTS_RETENTION_MS: Final = 7 * DAY_MS
SEGMENT_MS: Final = DAY_MS
MIB: Final = 1_048_576

_LEGAL_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic.

    Parameters
    ----------
    name : str
        With its prefix.
    carries : str
        For people: what a message is.
    models : tuple of model classes
        What a value can be; empty where the value is plain JSON without a model.
    key : str
        What the message key is.
    partitions, replication : int
        Counts.
    config : tuple of (str, str)
        Kafka topic settings, in the broker's own names and units.
    """

    name: str
    carries: str
    models: tuple[type[BaseModel], ...]
    key: str
    partitions: int
    replication: int
    config: tuple[tuple[str, str], ...]

    @property
    def settings(self) -> dict[str, str]:
        """The Kafka topic settings as a dictionary."""
        return dict(self.config)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Every topic; iterating gives them in this order."""

    events: TopicSpec
    proposals: TopicSpec
    decisions: TopicSpec
    verdicts: TopicSpec
    interventions: TopicSpec
    scorecards: TopicSpec
    fleet: TopicSpec
    fleet_states: TopicSpec
    references: TopicSpec
    contracts: TopicSpec
    tasks: TopicSpec
    switches: TopicSpec
    dead_letters: TopicSpec
    snapshots: TopicSpec
    owners: TopicSpec

    def __iter__(self) -> Iterator[TopicSpec]:
        return (getattr(self, field.name) for field in fields(self))


def catalogue(
    prefix: str = "ontrack.",
    partitions: int = 4,
    replication: int = 1,
    retention_ms: int = EVENTS_RETENTION_MS,
) -> Catalogue:
    """Lay out all topics.

    Parameters
    ----------
    prefix : str
        What every name begins with.
    partitions : int
        Partitions of the events topic and of everything that follows it.
    replication : int
        Replicas of every topic.
    retention_ms : int
        How long events are kept, in milliseconds; the others follow from it.

    Raises
    ------
    InvalidSettings
        A name Kafka would refuse, or a count below one.
    """
    if not _LEGAL_NAME.fullmatch(f"{prefix}interventions"):
        raise InvalidSettings(
            f"topic prefix {prefix[:80]!r}: Kafka takes letters, digits, '.', '_' and '-', "
            "249 characters in all"
        )
    if min(partitions, replication, retention_ms) < 1:
        raise InvalidSettings(
            f"partitions {partitions}, replication {replication} and retention {retention_ms} ms "
            "must each be at least 1"
        )

    def topic(
        name: str,
        carries: str,
        key: str,
        config: dict[str, str],
        *models: type[BaseModel],
        partitions: int = partitions,
    ) -> TopicSpec:
        safe = {"min.insync.replicas": str(max(1, replication - 1))}
        pairs = tuple((config | safe).items())
        return TopicSpec(f"{prefix}{name}", carries, models, key, partitions, replication, pairs)

    source = _deleted(retention_ms) | _append_time() | _size(2 * MIB)
    output = _deleted(retention_ms + SEGMENT_MS) | _append_time()
    knowledge = _compacted(retention_ms) | _append_time() | _size(4 * MIB)
    # Small segments: only closed ones are compacted, and recovery reads what is left.
    between = _compacted(retention_ms) | {
        "min.compaction.lag.ms": "0",
        "segment.ms": str(SEGMENT_MS),
        "segment.bytes": str(64 * MIB),
    }
    return Catalogue(
        events=topic("events", "what agents do, step by step", "run id", source, *get_args(Event)),
        proposals=topic(
            "proposals",
            "tool calls asked about before they run",
            "run id",
            _deleted(retention_ms) | _append_time() | _size(2 * MIB),
            Proposal,
        ),
        decisions=topic("decisions", "the gate's answers", "run id", output, Decision),
        verdicts=topic("verdicts", "one verdict a step", "run id", output, Verdict),
        interventions=topic(
            "interventions", "what must happen to a run", "run id", output, Intervention
        ),
        scorecards=topic("scorecards", "one a finished run", "run id", output, Scorecard),
        fleet=topic(
            "fleet",
            "aggregates a minute by agent, task and tenant",
            "group",
            output,
            FleetAggregate,
        ),
        # One entry a partition; nothing is lost with them but time, as with snapshots.
        fleet_states=topic(
            "fleet-states",
            "what the fleet's aggregates remember, in bytes, with how far the outputs were read",
            "empty",
            between | _size(8 * MIB),
        ),
        references=topic(
            "references", "known-good runs", "reference id", knowledge, Reference, partitions=1
        ),
        contracts=topic(
            "contracts", "tool contracts", "tool name", knowledge, ToolContract, partitions=1
        ),
        tasks=topic(
            "tasks", "what tasks expect and allow", "task id", knowledge, Task, partitions=1
        ),
        switches=topic(
            "switches",
            "which agents, tasks and tenants are in shadow mode now",
            "all, or agent:, task: or tenant: and a name",
            knowledge,
            Switch,
            partitions=1,
        ),
        dead_letters=topic(
            "dead-letters",
            "messages that could not be used, with their original bytes",
            "key of the original message",
            _deleted(retention_ms + SEGMENT_MS) | _size(8 * MIB),
            DeadLetter,
        ),
        # Only a worker reads them; nothing is lost with them but time.
        snapshots=topic(
            "snapshots",
            "states of open runs, in bytes, so that recovery need not read the whole log",
            "run id; empty for the partition's own",
            between | _size(8 * MIB),
        ),
        owners=topic(
            "owners",
            "which worker has which partition, so that others can pass a gate's question on",
            "partition number",
            _compacted(retention_ms)
            | {"min.compaction.lag.ms": "0", "segment.ms": str(SEGMENT_MS)},
            partitions=1,
        ),
    )


def _deleted(retention_ms: int) -> dict[str, str]:
    segment_ms = min(SEGMENT_MS, retention_ms)
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        "segment.ms": str(segment_ms),
    }


def _compacted(retention_ms: int) -> dict[str, str]:
    return {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(retention_ms),
        "delete.retention.ms": str(retention_ms),
    }


def _append_time() -> dict[str, str]:
    return {"message.timestamp.type": "LogAppendTime"}


def _size(size_bytes: int) -> dict[str, str]:
    return {"max.message.bytes": str(size_bytes)}
