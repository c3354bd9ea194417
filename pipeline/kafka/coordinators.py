"""Coordinators: a group that finds none yet is no error at first.

A broker makes the topic of all groups' offsets when the first group asks for its coordinator, and
elects one anew when it starts. aiokafka asks again ten times a second, and logs each answer as an
error: what a first start printed, though all was well.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from aiokafka.errors import GroupCoordinatorNotAvailableError, GroupLoadInProgressError

PATIENCE_S: Final = 10.0
LOGGER: Final = "aiokafka.consumer.group_coordinator"

_EXPECTED: Final = (GroupCoordinatorNotAvailableError, GroupLoadInProgressError)


class NotYet(logging.Filter):
    """Holds back that no coordinator is there, until that has been so for a while.

    Parameters
    ----------
    clock
        Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._since_s = self._last_s = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record is to be logged."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        if not any(isinstance(argument, _EXPECTED) for argument in arguments):
            return True
        now_s = self._clock()
        if now_s - self._last_s > PATIENCE_S:
            self._since_s = now_s  # there was one in between
        self._last_s = now_s
        return now_s - self._since_s >= PATIENCE_S


def wait_for_coordinators_quietly() -> None:
    """Let all consumers of this process ask for their coordinator for a while, and say nothing."""
    logger = logging.getLogger(LOGGER)
    if not any(isinstance(one, NotYet) for one in logger.filters):
        logger.addFilter(NotYet())
