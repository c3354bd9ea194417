from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import stall
from ontrack.operators.stall import StallParams, StallSignal, StallState

PARAMS = StallParams()
Inputs = list[tuple[float | None, float | None]]


def fold(inputs: Inputs, params: StallParams = PARAMS) -> list[StallSignal]:
    """Fold (gain, covered steps)."""
    state, signals = StallState(), []
    for seq, (gain, covered) in enumerate(inputs):
        state, signal = stall.step(params, state, seq, gain, covered)
        signals.append(signal)
    return signals


def test_without_references_four_results_without_gain_are_a_stall() -> None:
    signals = fold([(1.0, None)] + [(0.0, None)] * 4)
    assert [signal.stalled for signal in signals] == [False] * 4 + [True]
    assert signals[-1].since == (1, 2, 3, 4)
    assert signals[-1].velocity is None


def test_a_result_with_gain_ends_the_streak() -> None:
    signals = fold([(0.0, None)] * 3 + [(0.5, None)] + [(0.0, None)] * 3)
    assert not any(signal.stalled for signal in signals)


def test_with_references_a_step_covered_within_the_window_is_progress() -> None:
    moving: Inputs = [(0.0, n / 2) for n in range(8)]
    assert not any(signal.stalled for signal in fold(moving)[4:])
    standing: Inputs = [(0.0, 3.0 + n / 10) for n in range(8)]
    assert fold(standing)[-1].stalled


def test_velocity_is_the_steps_covered_over_the_window() -> None:
    signals = fold([(1.0, n * n / 100) for n in range(7)])
    assert [signal.velocity for signal in signals[:4]] == [None] * 4
    expected = [(n * n - (n - 4) ** 2) / 100 for n in (4, 5, 6)]
    assert [signal.velocity for signal in signals[4:]] == pytest.approx(expected)


def test_a_step_without_a_result_neither_ends_nor_feeds_the_streak() -> None:
    signals = fold([(0.0, None), (None, None)] * 4)
    assert [signal.stalled for signal in signals] == [False] * 6 + [True, True]
    assert signals[-1].since == (0, 2, 4, 6)


@given(
    st.lists(st.tuples(st.none() | st.floats(0, 1), st.none() | st.floats(0, 9)), max_size=20),
    st.integers(1, 4),
)
def test_a_stall_has_its_streak_and_never_a_moving_coverage(inputs: Inputs, window: int) -> None:
    params = StallParams(window=window)
    for place, signal in enumerate(fold(inputs, params)):
        gains = [gain for gain, _ in inputs[: place + 1] if gain is not None]
        spinning = len(gains) >= window and max(gains[-window:]) <= params.gain_min
        moving = signal.velocity is not None and signal.velocity >= params.velocity_min
        assert signal.stalled == (spinning and not moving)
        assert all(inputs[seq][0] is not None for seq in signal.since)
