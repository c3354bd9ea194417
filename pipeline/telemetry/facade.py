"""The one object that the rest of the program tells: it never waits and never fails."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Literal, Protocol

from ontrack.pipeline.metrics import Metrics
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.telemetry.evaluations import Rules, Value
from ontrack.topics.errors import InvalidSettings
from ontrack.topics.events import TraceRef
from ontrack.topics.verdicts import Output

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ontrack.pipeline.telemetry.pipes import Pipes

Role = Literal["worker", "serve"]

_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_CHOICES = {
    "OTEL_LOGS_EXPORTER": ("otlp", "none"),
    "OTEL_TRACES_EXPORTER": ("otlp", "none"),
    "OTEL_METRICS_EXPORTER": ("otlp", "none"),
    "OTEL_EXPORTER_OTLP_PROTOCOL": ("http/protobuf",),
    "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": ("http/protobuf",),
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": ("http/protobuf",),
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": ("http/protobuf",),
}


class Span(Protocol):
    """A piece of work that may be traced."""

    def set(self, name: str, value: Value) -> None:
        """Add an attribute."""

    def link(self, trace: TraceRef | None) -> None:
        """Point at a step of an agent's trace; None, and one without a span, is passed over."""


class _NoSpan:
    def set(self, name: str, value: Value) -> None:
        pass

    def link(self, trace: TraceRef | None) -> None:
        pass


_NO_SPAN = nullcontext[Span](_NoSpan())


class NoTelemetry:
    """Takes everything and does nothing: what there is while the setting is off."""

    rules = Rules()

    def tell(self, output: Output) -> None:
        """Forget it."""

    def span(
        self, name: str, attributes: Mapping[str, Value] | None = None
    ) -> AbstractContextManager[Span]:
        """Return a span that records nothing."""
        return _NO_SPAN

    async def stop(self) -> None:
        """Do nothing."""


class Telemetry:
    """Verdicts, traces and metrics on their way to a collector.

    Nothing here waits for the network: queues are bounded, what does not fit is counted in
    ``ontrack_telemetry_dropped``, and threads of their own do the sending.
    """

    def __init__(self, rules: Rules, pipes: Pipes) -> None:
        self.rules = rules
        self._pipes = pipes

    @staticmethod
    def of(settings: Settings, metrics: Metrics, role: Role) -> Telemetry | NoTelemetry:
        """Return what the settings ask for.

        Raises
        ------
        InvalidSettings
            As :func:`check_telemetry`; or an ``OTEL_…`` variable cannot be used.
        """
        check_telemetry(settings)
        if not settings.telemetry or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return NoTelemetry()
        from ontrack.pipeline.telemetry.pipes import Pipes

        rules = Rules(
            settings.telemetry_verdicts, settings.telemetry_guardrails, settings.show_arguments
        )
        ratio = settings.telemetry_traces_ratio
        try:
            pipes = Pipes(metrics, f"ontrack-{role}", settings.instance, ratio)
        except (ValueError, OSError) as error:  # also of files that the variables name
            raise InvalidSettings(f"telemetry: an OTEL_… variable: {error}") from error
        return Telemetry(rules, pipes)

    def tell(self, output: Output) -> None:
        """Send an output as an evaluation event, if it is one of those that are to be told."""
        if self._pipes.events is not None:
            evaluation = self.rules.evaluation(output)
            if evaluation is not None:
                self._pipes.events.send(evaluation)

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, Value] | None = None) -> Iterator[Span]:
        """Trace what is done inside, one time in so many as the sampling ratio says."""
        if self._pipes.traces is None:
            yield _NO_SPAN.enter_result
            return
        with self._pipes.traces.span(name, attributes) as span:
            yield span

    def close(self) -> None:
        """Send what is left, for :data:`~ontrack.pipeline.telemetry.pipes.STOP_S_MAX` at most."""
        self._pipes.close()

    async def stop(self) -> None:
        """Do so in a thread."""
        await asyncio.to_thread(self.close)


AnyTelemetry = Telemetry | NoTelemetry


def check_telemetry(settings: Settings) -> None:
    """Refuse what cannot be done, before anything starts.

    Raises
    ------
    InvalidSettings
        Telemetry is on, and its packages are not installed, or an ``OTEL_…`` variable asks for
        something else than OTLP over HTTP with protobuf.
    """
    if not settings.telemetry:
        return
    for name in _PACKAGES:
        if not _is_installed(name):
            raise InvalidSettings(
                f"telemetry is on, and the package of {name} is not installed; "
                'run `pip install "ontrack[otel]"`, or unset ONTRACK_TELEMETRY'
            )
    for variable, choices in _CHOICES.items():
        value = os.environ.get(variable)
        if value and value not in choices:
            raise InvalidSettings(
                f"{variable} is {value!r}; expected {' or '.join(choices)}: "
                "telemetry goes out by OTLP over HTTP with protobuf"
            )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a package above it
        return False
