"""Foreign formats of recorded runs, one a file, each turning a record into events.

A format has a name, ``recognise(head)`` for the first parsed object of a file, and
``events(record, origin)``, a generator of events. None of them reads anything. Where a record
holds several runs, or a run stands in several records, ``runs()`` starts what takes a file's
records one by one and gives back whole runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ontrack.topics.adapters import (
    atif,
    chat,
    claude_code,
    corpus,
    events,
    inspect_log,
    langfuse,
    openai_agents,
    otlp,
    sweagent,
)
from ontrack.topics.adapters.parts import Origin
from ontrack.topics.adapters.traces import PARTIAL, Run, Runs
from ontrack.topics.events import Event


class Adapter(NamedTuple):
    """A foreign format."""

    name: str
    recognise: Callable[[object], bool]
    events: Callable[[object, Origin], Iterator[Event]]
    runs: Callable[[], Runs] | None = None


#: In the order in which they are asked: a trajectory of mini-SWE-agent is also a conversation.
_RECORDS = tuple(
    Adapter(module.NAME, module.recognise, module.events) for module in (corpus, sweagent, chat)
)
#: Formats of which a file's records are no runs.
_TRACES = tuple(
    Adapter(module.NAME, module.recognise, module.events, module.runs)
    for module in (otlp, openai_agents, inspect_log, claude_code, langfuse, atif)
)
FOREIGN = (*_RECORDS, *_TRACES)
FORMATS = (events.NAME, *(adapter.name for adapter in FOREIGN))

__all__ = ["FOREIGN", "FORMATS", "PARTIAL", "Adapter", "Origin", "Run", "Runs"]
