"""One message, as it came from a topic or a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ontrack.topics.events import Notice
from ontrack.topics.verdicts import Output

#: What a record gives: outputs, and notices that belong into the log of events.
Said = Output | Notice


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
