"""The run that code is part of, where nobody hands it down: a context variable."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

# A Monitor or a SyncMonitor; this module knows neither.
_RUN: Final[ContextVar[object | None]] = ContextVar("ontrack_run", default=None)


def current_run() -> object | None:
    """Return the run whose block this code is in; None outside of any.

    Tasks inherit it, threads only with a copied context (``asyncio.to_thread`` copies it).
    """
    return _RUN.get()


def set_current_run(run: object | None) -> object | None:
    """Make a run the current one; return the one before, to be set again at its end."""
    before = _RUN.get()
    _RUN.set(run)
    return before
