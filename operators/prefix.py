"""Prefix graph: one node per step, the edges known so far, hops between all nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from rpds import HashTrieMap

from ontrack.operators.limits import require
from ontrack.solver import structure

Hops = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class PrefixParams:
    """Limits of the prefix graph.

    Parameters
    ----------
    nodes_max
        Nodes a run. Steps beyond it get no node: alignment stops there, vital signs go on.
    age_horizon
        h_age of section 5: events until a node's structure counts in full.
    waiting_max
        Declared parents remembered that have not arrived; the oldest are forgotten.
    """

    nodes_max: int = 512
    age_horizon: int = 3
    waiting_max: int = 256

    def __post_init__(self) -> None:
        require(self, 1, 16_000, "nodes_max")
        require(self, 1, 1000, "age_horizon", "waiting_max")


def _no_hops() -> Hops:
    return np.zeros((0, 0), dtype=np.int16)


@dataclass(frozen=True, slots=True)
class PrefixState:
    """The graph of a run so far.

    Parameters
    ----------
    seqs
        Sequence number of each node, in order of arrival.
    parents
        Parent nodes of each node.
    ancestors
        Ancestor set of each node as a bitset (bit i = node i).
    hops
        Dependency hops between each two nodes, shape (t, t), direction ignored.
    consumed
        Bitset of nodes of which an artifact has been consumed.
    node_of
        Node by sequence number.
    waiting
        (parent's sequence number, child node) of declared parents that have not arrived.
    """

    seqs: tuple[int, ...] = ()
    parents: tuple[tuple[int, ...], ...] = ()
    ancestors: tuple[int, ...] = ()
    hops: Hops = field(default_factory=_no_hops)
    consumed: int = 0
    node_of: HashTrieMap[int, int] = field(default_factory=HashTrieMap)
    waiting: tuple[tuple[int, int], ...] = ()

    @property
    def size(self) -> int:
        """Number of nodes t."""
        return len(self.seqs)


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step changed in the graph; travels down to the operators behind.

    Parameters
    ----------
    node
        The new node, or None where the graph is full.
    retroactive
        Edges between nodes that were there before, (producer, consumer).
    changed_rows
        Old rows of the structure matrix that the step changed.
    consumed
        Nodes of which an artifact was consumed by this step.
    rejected
        Declared edges that would point backwards in the run; (node, node) for a parent that is the
        step itself or can only come after it.
    """

    node: int | None
    retroactive: tuple[tuple[int, int], ...] = ()
    changed_rows: tuple[int, ...] = ()
    consumed: tuple[int, ...] = ()
    rejected: tuple[tuple[int, int], ...] = ()


def step(
    params: PrefixParams,
    state: PrefixState,
    seq: int,
    declared_parents: tuple[int, ...],
    edges: tuple[tuple[int, int], ...],
) -> tuple[PrefixState, Delta]:
    """Append a node and enter its edges, late ones included.

    Parameters
    ----------
    seq
        The step's place in the run; edges point from lower to higher places.
    declared_parents
        Sequence numbers of the parents that the harness declared. One that has not arrived yet
        becomes an edge when it does.
    edges
        Edges from the ledger, (producer node, consumer node); the new node is ``state.size``.
    """
    node = state.size
    if node >= params.nodes_max:
        return state, Delta(node=None)
    seqs = (*state.seqs, seq)
    here = [(state.node_of[p], node) for p in declared_parents if p in state.node_of]
    absent = [(p, node) for p in declared_parents if p not in state.node_of and p < seq]
    arrived = [(node, child) for parent, child in state.waiting if parent == seq]
    waiting = [item for item in (*state.waiting, *absent) if item[0] != seq]
    wanted = list(dict.fromkeys([*here, *arrived, *edges]))
    forward = [edge for edge in wanted if seqs[edge[0]] < seqs[edge[1]]]
    rejected = (
        *(edge for edge in wanted if seqs[edge[0]] >= seqs[edge[1]]),
        *(
            (node, node)
            for parent in declared_parents
            if parent >= seq and parent not in state.node_of
        ),
    )
    hops, changed = _grow(state.hops, node, forward)
    parents = [*state.parents, ()]
    for source, target in forward:
        parents[target] = (*parents[target], source)
    ancestors = [*state.ancestors, _ancestors_of(parents[node], state.ancestors)]
    retroactive = tuple(edge for edge in forward if edge[1] != node)
    if retroactive:
        ancestors = _repair(ancestors, parents, {target for _, target in retroactive})
    consumed_nodes = tuple(dict.fromkeys(source for source, _ in forward))
    consumed = state.consumed
    for source in consumed_nodes:
        consumed |= 1 << source
    new_state = PrefixState(
        seqs,
        tuple(parents),
        tuple(ancestors),
        hops,
        consumed,
        state.node_of.insert(seq, node),
        tuple(waiting[-params.waiting_max :]),
    )
    return new_state, Delta(node, retroactive, changed, consumed_nodes, rejected)


def _grow(hops: Hops, node: int, edges: list[tuple[int, int]]) -> tuple[Hops, tuple[int, ...]]:
    """Append a row and column, enter all edges; return the matrix and the old rows changed."""
    neighbours = [a if b == node else b for a, b in edges if node in (a, b)]
    grown = structure.append_node(hops, neighbours)
    for source, target in edges:
        if node not in (source, target):
            grown, _ = structure.insert_edge(grown, source, target)
    # Only a node with two neighbours, or an edge between old nodes, can bring old nodes closer.
    if node == 0 or (len(neighbours) < 2 and len(neighbours) == len(edges)):
        return grown, ()
    return grown, tuple(np.flatnonzero((grown[:node, :node] != hops).any(axis=1)).tolist())


def age_weights(params: PrefixParams, state: PrefixState) -> npt.NDArray[np.float64]:
    """Age weights of all nodes at the newest event, shape (t,), equation (10).

    0 for the newest node, a linear ramp over ``age_horizon`` events, 1 once an artifact of the
    node has been consumed.
    """
    size = state.size
    weights = np.minimum(1.0, np.arange(size - 1, -1, -1) / params.age_horizon)
    young = range(max(0, size - params.age_horizon), size)
    for node in young:
        if state.consumed >> node & 1:
            weights[node] = 1.0
    return weights


def _ancestors_of(parents: tuple[int, ...], ancestors: tuple[int, ...]) -> int:
    bits = 0
    for parent in parents:
        bits |= ancestors[parent] | (1 << parent)
    return bits


def _repair(ancestors: list[int], parents: list[tuple[int, ...]], targets: set[int]) -> list[int]:
    """Recompute the ancestor sets below late edges, breadth first (section 5)."""
    children: dict[int, list[int]] = {}
    for node, sources in enumerate(parents):
        for source in sources:
            children.setdefault(source, []).append(node)
    repaired = list(ancestors)
    frontier = sorted(targets)
    while frontier:
        following: set[int] = set()
        for node in frontier:
            bits = _ancestors_of(parents[node], tuple(repaired))
            if bits != repaired[node]:
                repaired[node] = bits
                following.update(children.get(node, ()))
        frontier = sorted(following)
    return repaired
