"""Logging: structured, to stderr, so that stdout stays data."""

from __future__ import annotations

import logging
import sys
from io import StringIO
from typing import TextIO

import structlog

from ontrack.pipeline.terminal import printable


def set_up_logging(level: str, as_json: bool) -> None:
    """Send structlog and the standard library's loggers to stderr, in one format."""
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
            exception_formatter=_traceback,
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
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *tidy,
                *([structlog.processors.format_exc_info] if as_json else []),
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("aiokafka", "faust", "mode"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))


def _without_controls(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Take what could steer a terminal out of every text."""
    return {
        name: printable(value, keep="\n\t") if isinstance(value, str) else value
        for name, value in event.items()
    }


def _traceback(stream: TextIO, error: structlog.typing.ExcInfo) -> None:
    """Write a traceback; the text of an exception may quote what an agent sent."""
    text = StringIO()
    structlog.dev.plain_traceback(text, error)
    stream.write(printable(text.getvalue(), keep="\n\t"))
