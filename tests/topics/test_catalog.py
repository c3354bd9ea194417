import dataclasses

import pytest

from ontrack.topics.catalog import DAY_MS, MIB, catalogue
from ontrack.topics.errors import InvalidSettings
from ontrack.topics.events import (
    ChildStarted,
    GapClosed,
    ModeChanged,
    ParentHalted,
    RunEnded,
    RunResumed,
    RunStarted,
    Step,
)
from ontrack.topics.verdicts import Verdict

OUTPUTS = ("decisions", "verdicts", "interventions", "scorecards", "fleet", "dead_letters")
KNOWLEDGE = ("references", "contracts", "tasks")


def test_the_topics_are_those_of_the_interface():
    assert [topic.name for topic in catalogue()] == [
        "ontrack.events",
        "ontrack.proposals",
        "ontrack.decisions",
        "ontrack.verdicts",
        "ontrack.interventions",
        "ontrack.scorecards",
        "ontrack.fleet",
        "ontrack.fleet-states",
        "ontrack.references",
        "ontrack.contracts",
        "ontrack.tasks",
        "ontrack.switches",
        "ontrack.dead-letters",
        "ontrack.snapshots",
        "ontrack.owners",
    ]


def test_the_prefix_is_one_setting():
    assert all(topic.name.startswith("prod_") for topic in catalogue("prod_"))


def test_a_topic_says_what_it_carries():
    topics = catalogue()
    assert topics.events.models[:4] == (RunStarted, Step, RunEnded, RunResumed)
    assert topics.events.models[4:] == (GapClosed, ChildStarted, ParentHalted, ModeChanged)
    assert topics.verdicts.models == (Verdict,)
    assert topics.events.key == "run id"


def test_outputs_have_a_partition_for_every_partition_of_events():
    topics = catalogue(partitions=7, replication=3)
    for role in ("events", "proposals", "fleet_states", *OUTPUTS):
        assert getattr(topics, role).partitions == 7
    for role in KNOWLEDGE:
        assert getattr(topics, role).partitions == 1
    assert {topic.replication for topic in topics} == {3}
    assert {topic.settings["min.insync.replicas"] for topic in topics} == {"2"}


@pytest.mark.parametrize("retention_ms", [7 * DAY_MS, 3_600_000, 1])
def test_outputs_are_kept_at_least_as_long_as_any_event(retention_ms):
    topics = catalogue(retention_ms=retention_ms)
    source = topics.events.settings
    longest_ms = int(source["retention.ms"]) + int(source["segment.ms"])
    for role in OUTPUTS:
        assert int(getattr(topics, role).settings["retention.ms"]) >= longest_ms


def test_events_outputs_and_knowledge_share_the_brokers_clock():
    topics = catalogue()
    # A dead letter has no part in any minute; its time may be that of the message that it holds.
    for role in {"events", *OUTPUTS, *KNOWLEDGE} - {"dead_letters"}:
        assert getattr(topics, role).settings["message.timestamp.type"] == "LogAppendTime"


def test_knowledge_is_compacted_but_kept_as_long_as_events_may_ask_for_it():
    topics = catalogue()
    for role in KNOWLEDGE:
        settings = getattr(topics, role).settings
        assert settings["cleanup.policy"] == "compact"
        assert settings["min.compaction.lag.ms"] == topics.events.settings["retention.ms"]
        assert settings["delete.retention.ms"] == topics.events.settings["retention.ms"]


def test_a_message_over_our_limit_can_arrive_and_be_quarantined():
    topics = catalogue()
    assert topics.events.settings["max.message.bytes"] == str(2 * MIB)
    assert topics.proposals.settings["max.message.bytes"] == str(2 * MIB)
    assert topics.references.settings["max.message.bytes"] == str(4 * MIB)
    assert int(topics.dead_letters.settings["max.message.bytes"]) > 2 * MIB * 4 / 3


@pytest.mark.parametrize(
    "wrong",
    [{"prefix": "a b"}, {"prefix": "x" * 250}, {"partitions": 0}, {"replication": 0}],
)
def test_what_kafka_would_refuse_is_refused_here(wrong):
    with pytest.raises(InvalidSettings):
        catalogue(**wrong)


def test_the_catalogue_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        catalogue().events.name = "other"
