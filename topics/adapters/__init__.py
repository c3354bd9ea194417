"""Foreign formats of recorded runs, one a file, each turning a record into events.

A format has a name, ``recognise(head)`` for the first parsed object of a file, and
``events(record, origin)``, a generator of events. None of them reads anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ontrack.topics.adapters import chat, corpus, events, sweagent
from ontrack.topics.adapters.parts import Origin
from ontrack.topics.events import Event


class Adapter(NamedTuple):
    """A foreign format."""

    name: str
    recognise: Callable[[object], bool]
    events: Callable[[object, Origin], Iterator[Event]]


#: In the order in which they are asked: a trajectory of mini-SWE-agent is also a conversation.
FOREIGN = tuple(
    Adapter(module.NAME, module.recognise, module.events) for module in (corpus, sweagent, chat)
)
FORMATS = (events.NAME, *(adapter.name for adapter in FOREIGN))

__all__ = ["FOREIGN", "FORMATS", "Adapter", "Origin"]
