from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.solver.frontier import coverage, frontier
from ontrack.solver.problem import SolverParams
from tests import reference as twin
from tests.solver.problems import pack, references

SIX_STEPS = twin.Reference(6, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 5)])


def test_at_the_start_only_roots_are_active_and_their_children_are_ahead() -> None:
    arrays = pack((SIX_STEPS,))
    mask = frontier(np.zeros((1, 6)), arrays, SolverParams())
    np.testing.assert_array_equal(mask.active[0], [True] + [False] * 5)
    np.testing.assert_array_equal(mask.lookahead[0], [False, True, True, False, False, False])
    np.testing.assert_allclose(mask.marginal[0] * 6, [1, 0.3, 0.3, 0.01, 0.01, 0.01])


def test_both_branches_are_active_at_once_when_their_parent_is_covered() -> None:
    arrays = pack((SIX_STEPS,))
    mask = frontier(np.array([[0.1, 0, 0, 0, 0, 0]]), arrays, SolverParams())
    np.testing.assert_array_equal(mask.active[0], [True, True, True, False, False, False])


def test_a_satisfied_node_keeps_its_mass_though_its_parents_were_skipped() -> None:
    arrays = pack((SIX_STEPS,))
    mask = frontier(np.array([[0, 0, 0, 0, 0.1, 0]]), arrays, SolverParams())
    assert mask.satisfied[0, 4]
    assert not mask.active[0, 4]
    assert mask.active[0, 5]
    np.testing.assert_allclose(mask.marginal[0, 4:], [1 / 6, 1 / 6])


def test_a_stalled_frontier_can_be_widened_for_one_event() -> None:
    arrays = pack((SIX_STEPS,))
    mask = frontier(np.zeros((1, 6)), arrays, SolverParams(), lookahead_weight=0.9)
    np.testing.assert_allclose(mask.marginal[0, 1:3] * 6, 0.9)
    with pytest.raises(ValueError, match="lookahead_weight"):
        frontier(np.zeros((1, 6)), arrays, SolverParams(), lookahead_weight=1.5)


@settings(deadline=None)
@given(
    chosen=st.lists(references(), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
    ahead=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_the_mask_agrees_with_the_slow_twin(
    chosen: list[twin.Reference], seed: int, ahead: float
) -> None:
    arrays = pack(tuple(chosen))
    mass = np.random.default_rng(seed).uniform(0, 0.8, arrays.nu.shape) * arrays.nu
    params = SolverParams(lookahead_weight=ahead)
    mask = frontier(mass, arrays, params)
    rho = coverage(mass, arrays)
    for k, reference in enumerate(chosen):
        size = reference.size
        expected = twin.frontier(list(mass[k, :size]), reference, 0.3, ahead, 0.01)
        assert set(np.flatnonzero(mask.satisfied[k])) == expected.satisfied
        assert set(np.flatnonzero(mask.active[k])) == expected.active
        assert set(np.flatnonzero(mask.lookahead[k])) == expected.lookahead
        np.testing.assert_allclose(mask.marginal[k, :size], expected.marginal, atol=1e-15)
        assert not mask.marginal[k, size:].any()
        assert rho[k] == pytest.approx(twin.coverage(list(mass[k, :size]), reference))
    assert (mask.marginal <= arrays.nu).all()


def test_coverage_counts_no_node_twice() -> None:
    arrays = pack((twin.Reference(2, []),))
    np.testing.assert_allclose(coverage(np.array([[5.0, 0.25]]), arrays), [0.75])
