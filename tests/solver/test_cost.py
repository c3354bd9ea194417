from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ontrack.solver.cost import CostWeights, combine, cosine_distance
from tests import reference as twin


def unit_rows(raw: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(raw, axis=-1, keepdims=True)
    return np.divide(raw, norms, out=np.zeros_like(raw), where=norms > 1e-6)


def test_cosine_distance_is_zero_for_the_same_direction_and_one_for_orthogonal_ones() -> None:
    vectors = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    np.testing.assert_array_equal(cosine_distance(vectors, np.array([1.0, 0.0])), [0.0, 1.0, 1.0])


def test_a_missing_text_is_far_from_every_text_and_at_another_missing_one() -> None:
    vectors = np.array([[1.0, 0.0], [0.0, 0.0]])
    np.testing.assert_array_equal(cosine_distance(vectors, np.zeros(2)), [1.0, 0.0])
    np.testing.assert_array_equal(cosine_distance(vectors, np.array([1.0, 0.0])), [0.0, 1.0])


def test_single_precision_vectors_give_double_precision_distances() -> None:
    distance = cosine_distance(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)[0])
    assert distance.dtype == np.float64
    assert cosine_distance(np.zeros((0, 3)), np.zeros(3)).shape == (0,)


def test_a_step_without_action_text_shares_out_its_weight() -> None:
    weights = CostWeights()
    args, tool = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    np.testing.assert_allclose(combine(None, args, tool, weights), [0.2 / 0.55, 0.35 / 0.55])
    np.testing.assert_allclose(combine(np.ones(2), args, tool, weights), [0.65, 0.80])
    second = np.array([False, True])
    mixed = combine(np.ones(2), args, tool, weights, second)
    np.testing.assert_allclose(mixed, [0.2 / 0.55, 0.80])


@settings(deadline=None)
@given(
    raw=hnp.arrays(np.float64, (5, 3), elements=st.floats(-1, 1)),
    seed=st.integers(0, 2**32 - 1),
    has_action=st.booleans(),
)
def test_costs_agree_with_the_slow_twin_and_stay_in_the_unit_interval(
    raw: np.ndarray, seed: int, has_action: bool
) -> None:
    vectors = unit_rows(raw)
    action = cosine_distance(vectors[1:], vectors[0])
    expected = [twin.cosine_distance(list(row), list(vectors[0])) for row in vectors[1:]]
    np.testing.assert_allclose(action, expected, atol=1e-12)
    args, tool = np.random.default_rng(seed).uniform(0, 1, (2, 4))
    weights = CostWeights(0.5, 0.25, 0.25)
    cost = combine(action if has_action else None, args, tool, weights)
    cells = [
        twin.cost_cell(action[i] if has_action else None, args[i], tool[i], (0.5, 0.25, 0.25))
        for i in range(4)
    ]
    np.testing.assert_allclose(cost, cells, atol=1e-12)
    assert ((cost >= 0) & (cost <= 1 + 1e-12)).all()


@pytest.mark.parametrize(
    "weights", [(-0.1, 0.6, 0.5), (0.5, 0.5, 0.5), (1.0, 0.0, 0.0), (float("nan"), 0.5, 0.5)]
)
def test_weights_that_make_no_cost_are_refused(weights: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"weights|beta \+ delta"):
        CostWeights(*weights)
