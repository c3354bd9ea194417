"""The broker's time, as far as a worker can know it without asking."""

from __future__ import annotations

import time
from collections.abc import Callable


class BrokerClock:
    """The time of the last message of a partition, and what has passed since.

    How long a run has been silent, or a gap open, is measured from times that the broker gave. This
    machine's wall clock may stand hours apart from the broker's, and may jump: compared with it,
    every open run can seem idle at once. The monotonic clock only measures how long ago the last
    message came, so the time told is never ahead of the broker's.

    Parameters
    ----------
    monotonic
        Seconds, from any origin.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._heard: tuple[int, float] | None = None

    def heard(self, time_ms: int) -> None:
        """Note the broker's time of a message that has just come."""
        self._heard = time_ms, self._monotonic()

    def now_ms(self) -> int | None:
        """Return the time in ms since 1970; None before any message."""
        if self._heard is None:
            return None
        time_ms, at = self._heard
        return time_ms + int((self._monotonic() - at) * 1000)
