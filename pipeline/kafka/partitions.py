"""Which partition a run's key falls into."""

from __future__ import annotations

from aiokafka.partitioner import murmur2


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key, as Kafka's default partitioner gives it.

    Source: murmur2 with the sign bit dropped, as the Java client and aiokafka do it.
    """
    return int((murmur2(key) & 0x7FFF_FFFF) % partitions)
