from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import gain
from ontrack.operators.gain import GainParams, GainState
from tests.operators.lab import embed


def fold(*texts: str, window: int = 256) -> list[float | None]:
    state, values = GainState(), []
    for text in texts:
        state, value = gain.step(GainParams(window), state, embed(text))
        values.append(value)
    return values


def test_the_first_result_is_all_new_and_the_same_again_brings_nothing() -> None:
    first, again = fold("a", "a")
    assert first == 1.0
    assert again == pytest.approx(0, abs=1e-3)


def test_a_paraphrase_brings_little_and_another_world_much() -> None:
    _, near, far = fold("a", "a~1", "b")
    assert near is not None
    assert far is not None
    assert near < 0.1
    assert far > 0.6


def test_the_closest_of_all_earlier_results_counts() -> None:
    assert fold("a", "b", "c", "a")[-1] == pytest.approx(0, abs=1e-3)


def test_a_step_without_a_result_has_no_gain_and_is_not_remembered() -> None:
    assert fold("", "a") == [None, 1.0]
    assert fold("a", "", "a")[1] is None


def test_what_left_the_window_is_new_again() -> None:
    last = fold("a", "b", "c", "a", window=2)[-1]
    assert last is not None
    assert last > 0.5


@given(st.lists(st.sampled_from(["", "a", "a~1", "b", "c~2"]), max_size=12), st.integers(1, 5))
def test_gain_is_one_less_the_best_cosine_in_the_window(texts: list[str], window: int) -> None:
    kept: list[np.ndarray] = []
    for text, value in zip(texts, fold(*texts, window=window), strict=True):
        vector = embed(text)
        if not text:
            assert value is None
            continue
        cosines = [float(np.dot(vector, earlier)) for earlier in kept[-window:]]
        assert value == pytest.approx(np.clip(1 - max(cosines, default=0), 0, 1), abs=2e-3)
        kept.append(vector)
