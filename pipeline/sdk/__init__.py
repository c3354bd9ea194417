"""What a Python agent needs: a run, tools that report themselves, spans that are watched.

::

    from ontrack.pipeline.sdk import Monitor, SyncMonitor, tool, OnTrackSpanProcessor

:class:`OnTrackSpanProcessor` needs the packages of the extra ``otel`` and is imported when it is
asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ontrack.pipeline.sdk.client import Blocked, Monitor
from ontrack.pipeline.sdk.current import current_run
from ontrack.pipeline.sdk.declared import declare, declared_contracts
from ontrack.pipeline.sdk.http_channel import HttpChannel, ServeUnavailable
from ontrack.pipeline.sdk.sync import ForkedRun, SyncMonitor
from ontrack.pipeline.sdk.tools import monitored, tool

if TYPE_CHECKING:
    from ontrack.pipeline.sdk.span_processor import OnTrackSpanProcessor

__all__ = [
    "Blocked",
    "ForkedRun",
    "HttpChannel",
    "Monitor",
    "OnTrackSpanProcessor",
    "ServeUnavailable",
    "SyncMonitor",
    "current_run",
    "declare",
    "declared_contracts",
    "monitored",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name != "OnTrackSpanProcessor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ontrack.pipeline.sdk.span_processor import OnTrackSpanProcessor

    return OnTrackSpanProcessor
