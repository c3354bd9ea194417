"""A coordinator that is not there yet is no error; one that does not come is."""

from __future__ import annotations

import inspect
import logging

import pytest
from aiokafka.consumer import group_coordinator
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    KafkaError,
)

from ontrack.pipeline.kafka import connection, coordinators

TEXT = "Group Coordinator Request failed: %s"


def record(error: KafkaError) -> logging.LogRecord:
    return logging.LogRecord(coordinators.LOGGER, logging.ERROR, "", 0, TEXT, (error,), None)


def test_aiokafka_logs_what_is_looked_for_by_the_logger_that_is_listened_to() -> None:
    assert TEXT in inspect.getsource(group_coordinator)
    assert group_coordinator.log.name == coordinators.LOGGER
    assert connection.AIOKafkaConsumer is not None  # whoever connects has the filter
    assert [type(one) for one in group_coordinator.log.filters] == [coordinators.NotYet]


@pytest.mark.parametrize(("seconds", "said"), [(9, 0), (12, 2)])
def test_it_is_said_once_it_lasts(seconds: int, said: int) -> None:
    now_s = [100.0]
    quiet = coordinators.NotYet(lambda: now_s[0])
    told = 0
    for second in range(seconds):
        now_s[0] = 100.0 + second
        told += quiet.filter(record(GroupCoordinatorNotAvailableError()))
    assert told == said
    now_s[0] += coordinators.PATIENCE_S + 1  # it was there, and has gone
    assert not quiet.filter(record(GroupCoordinatorNotAvailableError()))


def test_all_else_is_said_at_once() -> None:
    quiet = coordinators.NotYet()
    assert quiet.filter(record(GroupAuthorizationFailedError("g")))
    plain = logging.LogRecord(coordinators.LOGGER, logging.ERROR, "", 0, "x", None, None)
    assert quiet.filter(plain)
