"""A wall clock that jumps, for a worker process; the monotonic clock goes on as it is.

``libfaketime`` would do the same from outside, but needs to be installed. This replaces
``time.time``, ``time.time_ns`` and, in the pipeline's modules, ``datetime.now`` by the true time
and an offset that stands in a file, so that a test can move the clock of a running process.
"""

from __future__ import annotations

import sys
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

_true_time, _true_time_ns = time.time, time.time_ns


class _Offset:
    """Seconds in a file; 0 while there is none. Read again a few times a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at = float("-inf")
        self._seconds = 0.0

    def seconds(self) -> float:
        now = time.monotonic()
        if now - self._read_at > 0.1:
            self._read_at = now
            self._seconds = float(self._path.read_text()) if self._path.exists() else 0.0
        return self._seconds


def follow(path: Path) -> None:
    """Shift this process's wall clock by what stands in the file, from now on."""
    offset = _Offset(path)

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(seconds=offset.seconds())

    time.time = lambda: _true_time() + offset.seconds()
    time.time_ns = lambda: _true_time_ns() + round(offset.seconds() * 1e9)
    for name, module in list(sys.modules.items()):
        # After the imports: models that were built from the class keep it.
        if name.startswith("ontrack.pipeline") and getattr(module, "datetime", None) is datetime:
            module.datetime = Shifted  # type: ignore[attr-defined]


def jump(path: Path, seconds: float) -> None:
    """Move the clock of the processes that follow this file; in one piece, never half a number."""
    fresh = path.with_suffix(".new")
    fresh.write_text(repr(seconds))
    fresh.replace(path)


def prelude(root: Path, path: Path) -> str:
    """Return the lines of Python that let a worker follow the file."""
    return (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "from pathlib import Path\n"
        "import ontrack.pipeline.kafka.app, ontrack.pipeline.kafka.audit\n"
        "from tests.simulation.clock import follow\n"
        f"follow(Path({str(path)!r}))\n"
    )
