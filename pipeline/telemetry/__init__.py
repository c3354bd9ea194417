"""What the monitor tells other systems by OpenTelemetry: verdicts, own traces, metrics.

Off unless the setting ``telemetry`` is on. The SDK (the extra ``otel``) is imported only then.
"""

from ontrack.pipeline.telemetry.facade import (
    AnyTelemetry,
    NoTelemetry,
    Span,
    Telemetry,
    check_telemetry,
)

__all__ = ["AnyTelemetry", "NoTelemetry", "Span", "Telemetry", "check_telemetry"]
