"""The slow twin of ledger and prefix: everything rebuilt from all events so far, by definition.

Shares nothing with the operators but the record of a step's artifact ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ontrack.operators.artifacts import Artifacts

Edge = tuple[int, int]


@dataclass(frozen=True)
class Entered:
    """A step as it arrived; its node is its place in the list of arrivals."""

    seq: int
    artifacts: Artifacts
    parents: tuple[int, ...] = ()


def artifact_edges(arrived: Sequence[Entered]) -> set[Edge]:
    """Each consumer hangs on the first earlier producer of an id, else on its first mention."""
    edges = set()
    for consumer, step in enumerate(arrived):
        for artifact in step.artifacts.consumed:
            earlier = [node for node, other in enumerate(arrived) if other.seq < step.seq]
            earlier.sort(key=lambda node: arrived[node].seq)
            makers = [n for n in earlier if artifact in arrived[n].artifacts.produced]
            sayers = [n for n in earlier if artifact in arrived[n].artifacts.mentioned]
            for source in (makers or sayers)[:1]:
                edges.add((source, consumer))
    return edges


def declared_edges(arrived: Sequence[Entered]) -> set[Edge]:
    """Declared parents that are there and really come earlier."""
    node_of = {step.seq: node for node, step in enumerate(arrived)}
    return {
        (node_of[parent], node)
        for node, step in enumerate(arrived)
        for parent in step.parents
        if parent in node_of and parent < step.seq
    }


def all_edges(arrived: Sequence[Entered]) -> set[Edge]:
    return artifact_edges(arrived) | declared_edges(arrived)


def hops(size: int, edges: set[Edge]) -> list[list[int | None]]:
    """Breadth-first hops from every node, direction ignored; None where there is no path."""
    table: list[list[int | None]] = []
    for start in range(size):
        row: list[int | None] = [None] * size
        row[start], queue = 0, deque([start])
        while queue:
            here = queue.popleft()
            for a, b in edges:
                other = b if a == here else a if b == here else here
                if row[other] is None:
                    row[other] = (row[here] or 0) + 1
                    queue.append(other)
        table.append(row)
    return table


def age_weights(size: int, horizon: int, edges: set[Edge]) -> list[float]:
    """Equation (10), node by node."""
    used = {source for source, _ in edges}
    return [1.0 if node in used else min(1.0, (size - 1 - node) / horizon) for node in range(size)]
