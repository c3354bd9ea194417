"""What both shells of the worker do alike: what is looked at from time to time, and the end."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import structlog

from ontrack.pipeline.kafka.web import check_exposure
from ontrack.pipeline.kafka.worker import Worker
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.telemetry import check_telemetry

_log = structlog.get_logger(__name__)

STOP_S_MAX = 30.0  # from the signal to the end of the process

MODES_S = 1.0  # how soon a switch to shadow mode is noticed
LAG_S = 1.0  # how often the lag is brought up to date; it costs no question to the broker


class Chore(NamedTuple):
    """What is done every so many seconds, one time after the other."""

    name: str
    every_s: float
    do: Callable[[Worker], Awaitable[object]]


def prepare(settings: Settings) -> None:
    """Refuse what cannot be, before anything is connected; make the data directory.

    Raises
    ------
    InvalidSettings
        The pages would be open to the network without a token, or telemetry is on and cannot be.
    """
    check_telemetry(settings)
    check_exposure(settings)
    Path(settings.data_dir).mkdir(parents=True, exist_ok=True)


def chores(settings: Settings, ends: Callable[[], dict[int, int]]) -> tuple[Chore, ...]:
    """Return what a shell does for its worker beside delivering.

    Parameters
    ----------
    ends
        Returns the ends of the events topic's partitions, as far as fetches have told them.
    """

    async def note_lag(worker: Worker) -> None:
        worker.note_ends(ends())

    return (
        Chore("check_watermarks", settings.watermark_check_s, Worker.check_watermarks),
        Chore("note_lag", LAG_S, note_lag),
        Chore("close_gaps", max(0.1, settings.reorder_ms / 4000), Worker.close_gaps),
        Chore("keep_modes", MODES_S, Worker.keep_modes),
    )


def leave_for_good(seconds: float) -> None:
    """End the process after a while, whatever still waits for a broker that is away.

    Nothing is lost: a worker may be killed at any time.
    """

    def leave() -> None:
        _log.error("stopped_by_force", seconds=seconds)
        os._exit(1)

    last = threading.Timer(seconds, leave)
    last.daemon = True
    last.start()
