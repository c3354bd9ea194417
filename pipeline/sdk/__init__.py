"""The public API for Python: runs, tools that report themselves, the monitor and its values.

::

    from ontrack.pipeline.sdk import EmbeddedMonitor, Monitor, SyncMonitor, tool

``__all__`` is what the promise in CONTRIBUTING.md is about; modules below may move. Each name is
loaded when it is asked for, so that ``Step`` alone costs neither numpy nor aiohttp;
:class:`OnTrackSpanProcessor` needs the packages of the extra ``otel``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ontrack.pipeline.embedded import EmbeddedMonitor
    from ontrack.pipeline.gating.answers import GateAnswer
    from ontrack.pipeline.reading.readers import (
        read_references,
        read_tasks,
        read_tools,
        references_from_successes,
    )
    from ontrack.pipeline.scoring.api import score_trajectory, unsafe_actions
    from ontrack.pipeline.sdk.client import Blocked, Monitor
    from ontrack.pipeline.sdk.current import current_run
    from ontrack.pipeline.sdk.declared import declare, declared_contracts
    from ontrack.pipeline.sdk.http_channel import HttpChannel, ServeUnavailable
    from ontrack.pipeline.sdk.span_processor import OnTrackSpanProcessor
    from ontrack.pipeline.sdk.sync import ForkedRun, SyncMonitor
    from ontrack.pipeline.sdk.tools import monitored, tool
    from ontrack.pipeline.settings import Settings, load_settings
    from ontrack.topics.errors import InvalidEvent, InvalidInput, InvalidSettings, OnTrackError
    from ontrack.topics.events import Agent, Proposal, RunEnded, RunResumed, RunStarted, Step
    from ontrack.topics.knowledge import Reference, ReferenceStep, Task, ToolContract
    from ontrack.topics.verdicts import (
        DeadLetter,
        Decision,
        Intervention,
        InterventionName,
        Output,
        Scorecard,
        Verdict,
        VerdictName,
    )

__all__ = [
    "Agent",
    "Blocked",
    "DeadLetter",
    "Decision",
    "EmbeddedMonitor",
    "ForkedRun",
    "GateAnswer",
    "HttpChannel",
    "Intervention",
    "InterventionName",
    "InvalidEvent",
    "InvalidInput",
    "InvalidSettings",
    "Monitor",
    "OnTrackError",
    "OnTrackSpanProcessor",
    "Output",
    "Proposal",
    "Reference",
    "ReferenceStep",
    "RunEnded",
    "RunResumed",
    "RunStarted",
    "Scorecard",
    "ServeUnavailable",
    "Settings",
    "Step",
    "SyncMonitor",
    "Task",
    "ToolContract",
    "Verdict",
    "VerdictName",
    "current_run",
    "declare",
    "declared_contracts",
    "load_settings",
    "monitored",
    "read_references",
    "read_tasks",
    "read_tools",
    "references_from_successes",
    "score_trajectory",
    "tool",
    "unsafe_actions",
]

# The imports above, for the running program; a test holds the two together.
_NAMES = {
    "ontrack.pipeline.embedded": "EmbeddedMonitor",
    "ontrack.pipeline.gating.answers": "GateAnswer",
    "ontrack.pipeline.reading.readers": (
        "read_references read_tasks read_tools references_from_successes"
    ),
    "ontrack.pipeline.scoring.api": "score_trajectory unsafe_actions",
    "ontrack.pipeline.sdk.client": "Blocked Monitor",
    "ontrack.pipeline.sdk.current": "current_run",
    "ontrack.pipeline.sdk.declared": "declare declared_contracts",
    "ontrack.pipeline.sdk.http_channel": "HttpChannel ServeUnavailable",
    "ontrack.pipeline.sdk.span_processor": "OnTrackSpanProcessor",
    "ontrack.pipeline.sdk.sync": "ForkedRun SyncMonitor",
    "ontrack.pipeline.sdk.tools": "monitored tool",
    "ontrack.pipeline.settings": "Settings load_settings",
    "ontrack.topics.errors": "InvalidEvent InvalidInput InvalidSettings OnTrackError",
    "ontrack.topics.events": "Agent Proposal RunEnded RunResumed RunStarted Step",
    "ontrack.topics.knowledge": "Reference ReferenceStep Task ToolContract",
    "ontrack.topics.verdicts": (
        "DeadLetter Decision Intervention InterventionName Output Scorecard Verdict VerdictName"
    ),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:  # a checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
