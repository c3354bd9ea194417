"""Structure matrices: dependency hops between nodes, kept exact while the graph grows.

The state is the matrix of hop counts (int16, direction ignored). The normalised distance is
``D = h / (h + 1)`` and 1 where two nodes are not connected, so entries never rescale as nodes
arrive (section 1 of the paper's notation).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ontrack.solver.arrays import Floats, Hops, Ints, Singles

UNCONNECTED = 16_383
"""Hop count of two nodes without a path. Twice it, plus one, is the largest int16: sums of two hop
counts over one new edge cannot overflow."""

NODES_MAX = UNCONNECTED
"""A path over n nodes has at most n - 1 hops, which must stay below the sentinel."""


def _distance_table() -> Floats:
    hops = np.arange(UNCONNECTED + 1, dtype=np.float64)
    table = hops / (hops + 1.0)
    table[UNCONNECTED] = 1.0
    return table


_DISTANCE = _distance_table()
_SINGLE_DISTANCE = _DISTANCE.astype(np.float32)


def append_node(hops: Hops, neighbours: Sequence[int]) -> Hops:
    """Append a node that is joined to some old nodes; hops stay exact.

    A path between two old nodes can only get shorter by running through the new node, so one
    minimum over ``row_a + row_b`` repairs all pairs.

    Parameters
    ----------
    hops : (t, t) int16
        Hops between the old nodes; not changed.
    neighbours : sequence of int
        Old nodes the new one shares an edge with, in any order, repeats allowed.

    Returns
    -------
    (t + 1, t + 1) int16

    Raises
    ------
    ValueError
        If a neighbour is not an old node, or the graph is full.
    """
    size = len(hops)
    if size >= NODES_MAX:
        raise ValueError(f"a graph holds at most {NODES_MAX} nodes; start a new run or collapse it")
    grown = np.full((size + 1, size + 1), UNCONNECTED, dtype=np.int16)
    grown[:size, :size] = hops
    grown[size, size] = 0
    if not len(neighbours):
        return grown
    _check_nodes(neighbours, size)
    row = hops[neighbours[0]] if len(neighbours) == 1 else hops[list(neighbours)].min(axis=0)
    row = np.minimum(row + np.int16(1), np.int16(UNCONNECTED))
    grown[size, :size] = row
    grown[:size, size] = row
    if len(neighbours) > 1:
        old = grown[:size, :size]
        np.minimum(old, row[:, None] + row[None, :], out=old)
    return grown


def insert_edge(hops: Hops, i: int, k: int) -> tuple[Hops, Ints]:
    """Insert an edge between two nodes that are there already; hops stay exact.

    A shortest path uses the new edge at most once, in one direction or the other.

    Parameters
    ----------
    hops : (t, t) int16
        Not changed.
    i, k : int
        The nodes, in either order. A loop (``i == k``) changes nothing.

    Returns
    -------
    hops : (t, t) int16
        A new array, or the very same one if no distance changed.
    changed_rows : (r,) int64
        Rows that differ from before, ascending.

    Raises
    ------
    ValueError
        If i or k is not a node.
    """
    _check_nodes((i, k), len(hops))
    if hops[i, k] <= 1:
        return hops, np.empty(0, dtype=np.int64)
    through = (hops[:, i] + np.int16(1))[:, None] + hops[k][None, :]
    shorter = np.minimum(hops, through)
    np.minimum(shorter, through.T, out=shorter)
    return shorter, np.flatnonzero((shorter != hops).any(axis=1))


def distances(hops: Hops) -> Floats:
    """Normalise hop counts: ``h / (h + 1)``, 1 where unconnected; same shape, float64."""
    table = _DISTANCE
    return table.take(hops)


def single_distances(hops: Hops) -> Singles:
    """Do the same in float32, for the streaming step."""
    table = _SINGLE_DISTANCE
    return table.take(hops)


def hops_from_edges(n: int, edges: Iterable[tuple[int, int]]) -> Hops:
    """Count the hops between all nodes of a finished graph.

    Parameters
    ----------
    n : int
        Number of nodes.
    edges : iterable of (int, int)
        Edges in any direction and order; loops are ignored.

    Returns
    -------
    (n, n) int16

    Raises
    ------
    ValueError
        If an edge names a node outside 0..n-1.
    """
    older: list[list[int]] = [[] for _ in range(n)]
    for source, target in edges:
        _check_nodes((source, target), n)
        if source != target:
            older[max(source, target)].append(min(source, target))
    hops = np.zeros((0, 0), dtype=np.int16)
    for neighbours in older:
        hops = append_node(hops, neighbours)
    return hops


def _check_nodes(nodes: Sequence[int], size: int) -> None:
    for node in nodes:
        if not 0 <= node < size:
            raise ValueError(f"node {node} is not in the graph, which has nodes 0..{size - 1}")
