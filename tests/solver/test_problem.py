from __future__ import annotations

import math

import numpy as np
import pytest

from ontrack.solver import structure
from ontrack.solver.problem import SolverParams, empty_coupling, pack_references
from tests import reference as twin
from tests.solver.problems import pack


def test_references_of_different_lengths_are_padded() -> None:
    arrays = pack((twin.Reference(2, [(0, 1)]), twin.Reference(3, [(0, 1), (1, 2)])))
    np.testing.assert_array_equal(arrays.sizes, [2, 3])
    np.testing.assert_array_equal(arrays.valid, [[True, True, False], [True, True, True]])
    np.testing.assert_allclose(arrays.nu, [[1 / 2, 1 / 2, 0], [1 / 3] * 3])
    np.testing.assert_allclose(arrays.structure[0], [[0, 0.5, 1], [0.5, 0, 1], [1, 1, 1]])
    np.testing.assert_allclose(arrays.structure_squared, arrays.structure**2)
    assert arrays.parents[1, 2, 1]
    assert arrays.parents.sum() == 3
    assert arrays.mean_size == 2.5
    assert (arrays.count, arrays.width) == (2, 3)


def test_any_large_hop_count_means_unconnected() -> None:
    hops = np.array([[0, 10**9], [10**9, 0]])
    arrays = pack_references([hops], [np.zeros((2, 2), dtype=np.bool_)])
    assert arrays.structure[0, 0, 1] == 1.0


def test_the_empty_coupling_has_no_rows_and_no_mass_on_padding() -> None:
    coupling = empty_coupling(pack((twin.Reference(1, []), twin.Reference(2, []))))
    assert coupling.plan.shape == (2, 0, 2)
    assert coupling.u.shape == (2, 0)
    np.testing.assert_array_equal(coupling.v, [[1, 0], [1, 1]])


def none(size: int) -> np.ndarray:
    return np.zeros((size, size), dtype=np.bool_)


@pytest.mark.parametrize(
    ("hops", "parents", "message"),
    [
        ([], [], "at least one reference"),
        ([np.zeros((1, 1), int)], [], "1 hop matrices and 0 parents"),
        ([np.zeros((0, 0), int)], [none(0)], "reference 0 has no nodes"),
        ([np.zeros((2, 3), int)], [none(2)], "hops of reference 0 has shape"),
        ([structure.hops_from_edges(2, [])], [none(3)], "parents of reference 0 has shape"),
        ([np.array([[0, 1], [2, 0]])], [none(2)], "symmetric"),
        ([np.array([[0, -1], [-1, 0]])], [none(2)], ">= 0"),
        ([np.array([[1]])], [none(1)], "0 on the diagonal"),
        ([np.array([[0]])], [np.array([[True]])], "own parent"),
    ],
)
def test_references_that_are_no_graphs_are_refused(
    hops: list[np.ndarray], parents: list[np.ndarray], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pack_references(hops, parents)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("theta", 1.1),
        ("theta", math.nan),
        ("epsilon", 0.0),
        ("epsilon", math.inf),
        ("lam", -1.0),
        ("gamma", 0.0),
        ("kappa", 1.5),
        ("lookahead_weight", -0.1),
        ("dormant_weight", 2.0),
        ("inner_iterations", 0),
        ("inner_tolerance", -1e-9),
        ("converged_outer_max", 0),
        ("converged_inner_max", 2.5),
        ("converged_inner_tolerance", math.nan),
        ("converged_outer_tolerance", -1.0),
        ("soft_min_temperature", 0.0),
    ],
)
def test_a_parameter_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        SolverParams(**{name: value})  # type: ignore[arg-type]


def test_the_exponent_is_lambda_over_lambda_plus_epsilon() -> None:
    assert SolverParams(lam=0.1, epsilon=0.05).exponent == pytest.approx(2 / 3)
