from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import abort
from ontrack.operators.abort import AbortParams, AbortSignal, AbortState


def fold(severe: list[bool], params: AbortParams | None = None) -> list[AbortSignal]:
    state, signals = AbortState(), []
    for seq, flag in enumerate(severe):
        state, signal = abort.step(params or AbortParams(), state, seq, flag)
        signals.append(signal)
    return signals


def test_four_severe_steps_among_six_halt_the_run_once() -> None:
    signals = fold([False, True, True, False, True, True, True, True])
    assert [signal.halt for signal in signals] == [False] * 5 + [True, False, False]
    assert signals[5].evidence == (1, 2, 4, 5)


def test_a_short_run_counts_as_if_its_window_were_full() -> None:
    assert not any(signal.halt for signal in fold([True, True, True]))
    assert fold([True] * 4)[-1].halt


def test_severe_steps_far_apart_halt_nothing() -> None:
    assert not any(signal.halt for signal in fold([True, False, False] * 10))


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 8), st.floats(0.05, 1))
def test_a_run_is_halted_at_most_once_at_a_severe_step_over_the_density(
    severe: list[bool], window: int, density: float
) -> None:
    signals = fold(severe, AbortParams(window, density))
    dense = [
        sum(severe[max(0, n - window + 1) : n + 1]) / window >= density for n in range(len(severe))
    ]
    halts = [n for n, signal in enumerate(signals) if signal.halt]
    assert halts == [n for n, crossed in enumerate(dense) if crossed][:1]
    assert all(severe[n] for n in halts)
    for n, signal in enumerate(signals):
        assert all(severe[seq] and n - window < seq <= n for seq in signal.evidence)
