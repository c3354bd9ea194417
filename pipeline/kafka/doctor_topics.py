"""Doctor: whether the topics are there, and kept and replicated as the catalogue says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from ontrack.pipeline.checks import Check
from ontrack.pipeline.kafka.connection import start_admin, topics_of
from ontrack.pipeline.kafka.provision import check_topics
from ontrack.pipeline.settings import Settings

_DAY_MS: Final = 86_400_000


async def topics_check(settings: Settings) -> Check:
    """Check that all topics exist and fit together."""
    partitions = await check_topics(settings)
    detail = f"all there under {settings.topic_prefix!r}, {partitions} partitions"
    if partitions != settings.partitions:
        detail += f" (the setting says {settings.partitions}, which counts for new topics only)"
    return Check("topics", True, detail)


async def retention_check(settings: Settings) -> Check:
    """Compare what the topics keep with the catalogue; longer is fine, shorter outputs are not."""
    topics = topics_of(settings)
    found = await _configured(settings)
    events_ms = _kept_ms(found[topics.events.name])
    amiss = []
    for spec in topics:
        has, wanted = found[spec.name], spec.settings
        policy = wanted["cleanup.policy"]
        if has.get("cleanup.policy") != policy:
            amiss.append((spec.name, "cleanup.policy", has.get("cleanup.policy"), policy))
        size = wanted.get("max.message.bytes")
        if size is not None and int(has.get("max.message.bytes", 0)) < int(size):
            amiss.append((spec.name, "max.message.bytes", has.get("max.message.bytes"), size))
        lag = "min.compaction.lag.ms"
        if int(wanted.get(lag, 0)) and int(has.get(lag, 0)) < events_ms:
            amiss.append((spec.name, lag, has.get(lag), f"at least {events_ms}"))
        is_output = policy == "delete" and spec not in (topics.events, topics.proposals)
        if is_output and _kept_ms(has) < events_ms:
            amiss.append((spec.name, "retention.ms", has.get("retention.ms"), f"over {events_ms}"))
    if not amiss:
        kept = "for ever" if events_ms == float("inf") else f"{events_ms / _DAY_MS:.3g} days"
        return Check("retention", True, f"as the catalogue says; events are kept {kept}")
    told = "; ".join(f"{n}: {key} is {value}, not {wanted}" for n, key, value, wanted in amiss)
    fix = (
        "set it: kafka-configs.sh --alter --entity-type topics --entity-name "
        f"{amiss[0][0]} --add-config {amiss[0][1]}=…"
    )
    return Check("retention", False, told, fix)


async def _configured(settings: Settings) -> dict[str, dict[str, str]]:
    """Return the settings of every topic of ours, in the broker's names."""
    names = [spec.name for spec in topics_of(settings)]
    admin = await start_admin(settings)
    try:
        answers = await admin.describe_configs(
            [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        )
    finally:
        await admin.close()
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    for answer in answers:
        for _, _, _, name, entries in answer.resources:
            found[name] = {entry[0]: entry[1] for entry in entries}
    return found


def _kept_ms(config: Mapping[str, str]) -> float:
    """Return how long a topic keeps its messages; -1 is for ever."""
    value = int(config.get("retention.ms", -1))
    return float("inf") if value < 0 else value


async def replicas_check(settings: Settings) -> Check:
    """Check that every partition has a leader and all its replicas are in step."""
    admin = await start_admin(settings)
    try:
        described = await admin.describe_topics([spec.name for spec in topics_of(settings)])
    finally:
        await admin.close()
    behind, leaderless, fewest = [], [], 0
    for topic in described:
        for partition in topic["partitions"]:
            place = f"{topic['topic']}:{partition['partition']}"
            fewest = min(fewest or len(partition["replicas"]), len(partition["replicas"]))
            if partition["leader"] < 0:
                leaderless.append(place)
            elif len(partition["isr"]) < len(partition["replicas"]):
                behind.append(place)
    if leaderless or behind:
        told = [f"no leader: {', '.join(leaderless[:5])}"] if leaderless else []
        told += [f"replicas that lag behind: {', '.join(behind[:5])}"] if behind else []
        return Check("replicas", False, "; ".join(told), "see which brokers are away")
    return Check("replicas", True, f"all in step, {fewest} a partition")
