from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import loop
from ontrack.operators.loop import LoopParams, LoopSignal, LoopState
from ontrack.topics.events import ErrorInfo, Step
from tests import strategies
from tests.operators.lab import embed


def call(tool: str = "read", action: str | None = "look", **fields: Any) -> Step:
    return Step(**{"run_id": "r", "tool": tool, "action": action, **fields})


def failed(**fields: Any) -> Step:
    return call(error=ErrorInfo(message="boom"), **fields)


def fold(*events: Step, params: LoopParams | None = None) -> list[LoopSignal]:
    state, signals = LoopState(), []
    for seq, event in enumerate(events):
        vector = embed(event.action or "")
        state, signal = loop.step(params or LoopParams(), state, seq, event, vector)
        signals.append(signal)
    return signals


def scores(*events: Step, params: LoopParams | None = None) -> list[float]:
    return [signal.score for signal in fold(*events, params=params)]


def test_the_same_call_again_is_a_loop_at_once_and_names_the_earlier_ones() -> None:
    signals = fold(call(), call(tool="other"), call(), call())
    assert [signal.score for signal in signals] == [0, 0, 1, 1]
    assert signals[3].repeats == (0, 2)


def test_another_tool_or_other_arguments_are_no_repeat() -> None:
    assert scores(call(), call(tool="x"), call(args={"a": 1}), call(args={"a": 2})) == [0] * 4


def test_the_order_of_keys_does_not_hide_a_repeat() -> None:
    assert scores(
        call(args={"a": 1, "b": {"x": 1, "y": 2}}), call(args={"b": {"y": 2, "x": 1}, "a": 1})
    ) == [0, 1]


def test_a_paraphrased_intent_is_a_repeat_and_another_intent_is_not() -> None:
    assert scores(call(action="look~1"), call(action="look~2")) == [0, 1]
    assert scores(call(action="look"), call(action="verify")) == [0, 0]


def test_a_call_without_an_intent_is_compared_by_tool_and_arguments() -> None:
    assert scores(call(action=None), call(action=None)) == [0, 1]
    assert scores(call(action="look"), call(action=None)) == [0, 1]
    assert scores(call(action=None), call(action="look")) == [0, 1]


def test_an_intent_that_has_no_vector_counts_as_none() -> None:
    """An encoder knows no word of "…", so its vector is zero and its cosine with itself too."""
    state, signal = LoopState(), None
    for seq in range(2):
        state, signal = loop.step(LoopParams(), state, seq, call(action="…"), embed(""))
    assert signal is not None
    assert signal.score == 1


def test_retries_of_a_failed_step_are_exempt_up_to_r_max() -> None:
    signals = fold(failed(), failed(), failed(), failed())
    assert [signal.score for signal in signals] == [0, 0, 0, 1]
    assert [signal.exempt for signal in signals] == [False, True, True, False]


def test_a_retry_that_succeeds_ends_the_exemption() -> None:
    assert scores(failed(), call(), call()) == [0, 0, 1]


def test_without_retries_the_first_repeat_of_a_failed_step_is_a_loop() -> None:
    assert scores(failed(), failed(), params=LoopParams(retries_max=0)) == [0, 1]


def test_a_failure_of_another_call_exempts_nothing() -> None:
    assert scores(call(), failed(tool="other"), call()) == [0, 0, 1]


def test_what_left_the_window_cannot_be_repeated() -> None:
    others = [call(args={"n": n}) for n in range(3)]
    assert scores(call(), *others, call(), params=LoopParams(window=3)) == [0] * 5
    assert scores(call(), *others, call(), params=LoopParams(window=4))[-1] == 1


@given(strategies.runs(), st.integers(1, 4))
def test_a_loop_needs_an_equal_call_among_the_last_of_the_window(
    run: strategies.Run, window: int
) -> None:
    events = run.arrivals
    for place, signal in enumerate(fold(*events, params=LoopParams(window=window))):
        before = range(max(0, place - window), place)
        same = [
            n
            for n in before
            if events[n].tool == events[place].tool and events[n].args == events[place].args
        ]
        assert set(signal.repeats) <= set(same)
        assert list(signal.repeats) == sorted(signal.repeats)
        if signal.exempt or not signal.repeats:
            assert signal.score == 0
        else:
            assert signal.score == 1


def test_a_tool_declared_as_polled_may_repeat_and_the_repeats_are_still_named() -> None:
    state, signal = LoopState(), None
    for seq in range(5):
        state, signal = loop.step(LoopParams(), state, seq, call(), embed("look"), is_poll=True)
    assert signal == LoopSignal(0.0, (0, 1, 2, 3), True)
