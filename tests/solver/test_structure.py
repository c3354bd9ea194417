from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.solver import structure
from tests import reference as twin
from tests.solver.problems import dags


def oracle(n: int, edges: list[tuple[int, int]]) -> np.ndarray:
    rows = [
        [structure.UNCONNECTED if hop is None else hop for hop in row]
        for row in twin.bfs_hops(n, edges)
    ]
    return np.array(rows, dtype=np.int16).reshape(n, n)


graphs = st.integers(1, 10).flatmap(lambda n: st.tuples(st.just(n), dags(n)))


def test_a_chain_of_three_nodes() -> None:
    hops = structure.hops_from_edges(3, [(0, 1), (1, 2)])
    np.testing.assert_array_equal(hops, [[0, 1, 2], [1, 0, 1], [2, 1, 0]])
    np.testing.assert_allclose(structure.distances(hops)[0], [0.0, 1 / 2, 2 / 3])


def test_nodes_without_a_path_are_at_distance_one() -> None:
    hops = structure.hops_from_edges(2, [])
    np.testing.assert_array_equal(structure.distances(hops), [[0.0, 1.0], [1.0, 0.0]])


def test_a_new_node_with_two_parents_shortens_the_way_between_them() -> None:
    hops = structure.append_node(structure.hops_from_edges(2, []), [0, 1])
    assert hops[0, 1] == 2


def test_a_late_edge_reports_only_the_rows_it_changed() -> None:
    before = structure.hops_from_edges(5, [(0, 1), (1, 2)])
    after, rows = structure.insert_edge(before, 0, 2)
    np.testing.assert_array_equal(rows, [0, 2])
    np.testing.assert_array_equal(after, oracle(5, [(0, 1), (1, 2), (0, 2)]))
    assert before[0, 2] == 2


def test_an_edge_that_is_there_already_gives_the_same_array_back() -> None:
    hops = structure.hops_from_edges(3, [(0, 1)])
    for edge in ((0, 1), (1, 0), (2, 2)):
        same, rows = structure.insert_edge(hops, *edge)
        assert same is hops
        assert rows.size == 0


@settings(deadline=None)
@given(graphs)
def test_appending_node_by_node_equals_a_search_from_scratch(
    graph: tuple[int, list[tuple[int, int]]],
) -> None:
    n, edges = graph
    hops = np.zeros((0, 0), dtype=np.int16)
    for node in range(n):
        frozen = hops.copy()
        grown = structure.append_node(hops, [a for a, b in edges if b == node])
        np.testing.assert_array_equal(hops, frozen)
        hops = grown
        known = [edge for edge in edges if max(edge) <= node]
        np.testing.assert_array_equal(hops, oracle(node + 1, known))
        assert hops.dtype == np.int16


@settings(deadline=None)
@given(graphs, st.randoms(use_true_random=False))
def test_late_edges_in_any_order_equal_a_search_from_scratch(
    graph: tuple[int, list[tuple[int, int]]], random: object
) -> None:
    n, edges = graph
    random.shuffle(edges)  # type: ignore[attr-defined]
    hops = structure.hops_from_edges(n, [])
    for count, (source, target) in enumerate(edges, start=1):
        after, rows = structure.insert_edge(hops, target, source)
        np.testing.assert_array_equal(after, oracle(n, edges[:count]))
        np.testing.assert_array_equal(rows, np.flatnonzero((after != hops).any(axis=1)))
        hops = after


@settings(deadline=None)
@given(graphs)
def test_distances_agree_with_the_slow_twin_and_are_symmetric(
    graph: tuple[int, list[tuple[int, int]]],
) -> None:
    n, edges = graph
    distance = structure.distances(structure.hops_from_edges(n, edges))
    np.testing.assert_allclose(distance, twin.distance_matrix(n, edges), atol=1e-15)
    np.testing.assert_array_equal(distance, distance.T)
    np.testing.assert_array_equal(distance.diagonal(), 0.0)
    assert ((distance >= 0) & (distance <= 1)).all()


def test_nodes_outside_the_graph_are_refused() -> None:
    hops = structure.hops_from_edges(2, [])
    with pytest.raises(ValueError, match="node 2 is not in the graph"):
        structure.append_node(hops, [2])
    with pytest.raises(ValueError, match="node -1 is not in the graph"):
        structure.insert_edge(hops, -1, 0)
    with pytest.raises(ValueError, match="node 5 is not in the graph"):
        structure.hops_from_edges(2, [(0, 5)])


def test_the_sentinel_leaves_room_for_a_sum_over_a_new_edge() -> None:
    assert np.iinfo(np.int16).max >= 2 * structure.UNCONNECTED + 1
