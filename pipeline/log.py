"""Logging: structured, to stderr, so that stdout stays data."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import TextIO

import structlog

from ontrack.pipeline.terminal import printable
from ontrack.topics.errors import OnTrackError


def set_up_logging(level: str, as_json: bool, show_arguments: bool = False) -> None:
    """Send structlog and the standard library's loggers to stderr, in one format.

    Parameters
    ----------
    show_arguments
        Whether tracebacks may hold the texts of errors that are not ours.
    """

    def told(exc_info: structlog.typing.ExcInfo) -> str:
        return _traceback(exc_info, show_arguments)

    def write(stream: TextIO, error: structlog.typing.ExcInfo) -> None:
        stream.write("\n" + printable(told(error), keep="\n\t"))

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            # No locals: they would put agents' arguments into the log.
            exception_formatter=write,
        )
    )
    tidy = [] if as_json else [_without_controls]
    structlog.configure(
        processors=[
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = _Stderr()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *tidy,
                *([structlog.processors.ExceptionRenderer(told)] if as_json else []),
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("aiokafka", "faust", "mode"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))


_CAUSES_MAX = 8


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is now: a command that runs inside a program may be lent another."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def _without_controls(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Take what could steer a terminal out of every text."""
    return {
        name: printable(value, keep="\n\t") if isinstance(value, str) else value
        for name, value in event.items()
    }


def _traceback(error: structlog.typing.ExcInfo, show_arguments: bool) -> str:
    """Return a traceback; the text of an error that is not ours may quote what an agent sent."""
    if show_arguments:
        return "".join(traceback.format_exception(*error)).rstrip()
    parts: list[str] = []
    link: BaseException | None = error[1]
    while link is not None and len(parts) < _CAUSES_MAX:
        named = f"{type(link).__module__}.{type(link).__qualname__}"
        if isinstance(link, OnTrackError | OSError) or named.startswith("aiokafka."):
            named += f": {link}"
        frames = "".join(traceback.format_tb(link.__traceback__))
        parts.append(f"Traceback (most recent call last):\n{frames}{named}")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\n\nthe cause of this one:\n\n".join(reversed(parts))
