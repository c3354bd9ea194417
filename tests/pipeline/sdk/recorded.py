"""An embedded monitor that keeps what it was fed."""

from __future__ import annotations

from typing import Any

from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.settings import Settings
from ontrack.topics.events import Event, RunEnded, Step
from ontrack.topics.knowledge import ToolContract

SETTINGS = Settings(encoder="hashing")
ORDER = {"order": "ord-12345"}
FIND = ToolContract(name="find", effect="read", produces=("result.order",))
PAY = ToolContract(name="pay", effect="destructive", consumes=("args.order",))


class Recorded(EmbeddedMonitor):
    """Fed events in their order, and what was said."""

    def __init__(self) -> None:
        super().__init__(SETTINGS, contracts=[FIND, PAY])
        self.fed: list[Event] = []
        self.said: list[Any] = []

    def feed(self, event: Event) -> list[Any]:
        self.fed.append(event)
        return super().feed(event)

    def feed_bytes(self, *args: Any, **more: Any) -> list[Any]:
        outputs = super().feed_bytes(*args, **more)
        self.said += outputs
        return outputs

    @property
    def steps(self) -> list[Step]:
        return [event for event in self.fed if isinstance(event, Step)]

    @property
    def end(self) -> RunEnded:
        (found,) = [event for event in self.fed if isinstance(event, RunEnded)]
        return found
