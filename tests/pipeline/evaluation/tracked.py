"""Slow twins for what tracking reads off a plan."""

from collections.abc import Sequence

import numpy as np

from ontrack.solver import structure
from ontrack.solver.problem import ReferenceArrays, pack_references


def arrays_of(sizes: Sequence[int]) -> ReferenceArrays:
    """References of these sizes, each a chain."""
    hops, parents = [], []
    for size in sizes:
        chain = [(node, node + 1) for node in range(size - 1)]
        hops.append(structure.hops_from_edges(size, chain))
        matrix = np.zeros((size, size), dtype=np.bool_)
        for parent, child in chain:
            matrix[child, parent] = True
        parents.append(matrix)
    return pack_references(hops, parents)


def slow_signals(plan: np.ndarray, width: int) -> tuple[float, float]:
    """Leakage of the last row, and coverage, of a plan against a reference of ``width`` nodes."""
    matched = 0.0
    for mass in plan[-1].tolist():
        matched += mass
    leakage = min(1.0, max(0.0, 1.0 - matched * width))
    covered = 0.0
    for node in range(width):
        got = 0.0
        for row in plan.tolist():
            got += row[node]
        covered += min(got, 1.0 / width)
    return leakage, covered
