"""The broker's time as a worker knows it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.kafka.clock import BrokerClock


def test_it_is_the_last_messages_time_and_what_has_passed_since() -> None:
    passed = [100.0]
    clock = BrokerClock(lambda: passed[0])
    assert clock.now_ms() is None
    clock.heard(1_000_000)
    passed[0] += 2.5
    assert clock.now_ms() == 1_002_500


def test_a_jump_of_the_wall_clock_does_not_move_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = BrokerClock()
    clock.heard(1_000_000)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    now_ms = clock.now_ms()
    assert now_ms is not None
    assert 1_000_000 <= now_ms < 1_060_000


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 10**7)), min_size=1))
def test_it_is_never_ahead_of_the_broker(messages: list[tuple[int, int]]) -> None:
    """Each message takes a while to arrive; brokers' clocks go on with the monotonic one."""
    true_ms, passed_s = 10**12, [0.0]
    clock = BrokerClock(lambda: passed_s[0])
    for delay_ms, pause_ms in messages:
        true_ms += delay_ms + pause_ms
        passed_s[0] = (true_ms - 10**12) / 1000
        clock.heard(true_ms - delay_ms)
        now_ms = clock.now_ms()
        assert now_ms is not None
        assert true_ms - delay_ms <= now_ms <= true_ms
