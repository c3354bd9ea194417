"""Prefix graph: one node per step, the edges known so far, hops between all nodes.

Nodes are numbered in order of arrival, for good. The latest have a row of their own in all arrays
of a run; of long runs the older ones share rows (:func:`collapse`).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ontrack.operators import settled
from ontrack.operators.limits import require
from ontrack.solver import structure

Hops = npt.NDArray[np.int16]
Edge = tuple[int, int]


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
    active_max, chunk
        Nodes that keep a row of their own. Once there are ``chunk`` more, the oldest ``chunk``
        become one super-node.
    merged_max
        Super-nodes; of more than these, the two neighbours with the fewest steps become one.
    exact_max
        Nodes up to which a run ends with the solve of all its steps; longer ones are solved at a
        coarser resolution (:mod:`ontrack.operators.settled`).
    """

    nodes_max: int = 16_000
    age_horizon: int = 3
    waiting_max: int = 256
    active_max: int = 64
    chunk: int = 16
    merged_max: int = 24
    exact_max: int = 512

    def __post_init__(self) -> None:
        require(self, 1, 16_000, "nodes_max", "active_max", "exact_max")
        require(self, 1, 1000, "age_horizon", "waiting_max", "merged_max")
        require(self, 2, 1000, "chunk")


def _no_hops() -> Hops:
    return np.zeros((0, 0), dtype=np.int16)


def _no_seqs() -> npt.NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)


def _no_edges() -> npt.NDArray[np.int32]:
    return np.zeros((0, 2), dtype=np.int32)


@dataclass(frozen=True, slots=True)
class PrefixState:
    """The graph of a run so far: rows of super-nodes, oldest first, then one row a node.

    Parameters
    ----------
    seqs
        Sequence number of each active node, in order of arrival.
    parents
        Parent nodes of each active node.
    hops
        Dependency hops between each two rows, shape (R, R), direction ignored.
    consumed
        Bitset of active nodes of which an artifact has been consumed; bit 0 is the oldest.
    waiting
        (parent's sequence number, child node) of declared parents that have not arrived.
    latest
        Edges that the newest step brought, (producer node, consumer node).
    starts
        First node of each super-node; each ends where the next one, or the active part, begins.
    settled_seqs
        Sequence number of each node in a super-node, in order of arrival; its length is the number
        of the first active node.
    settled_edges
        Edges whose consumer is in a super-node, shape (E, 2); of runs beyond ``exact_max`` at the
        resolution of :func:`ontrack.operators.settled.resolution`.
    """

    seqs: tuple[int, ...] = ()
    parents: tuple[tuple[int, ...], ...] = ()
    hops: Hops = field(default_factory=_no_hops)
    consumed: int = 0
    waiting: tuple[Edge, ...] = ()
    latest: tuple[Edge, ...] = ()
    starts: tuple[int, ...] = ()
    settled_seqs: npt.NDArray[np.int64] = field(default_factory=_no_seqs)
    settled_edges: npt.NDArray[np.int32] = field(default_factory=_no_edges)

    @property
    def first(self) -> int:
        """Number of the oldest active node."""
        return len(self.settled_seqs)

    @property
    def size(self) -> int:
        """Number of nodes t."""
        return len(self.settled_seqs) + len(self.seqs)

    @property
    def members(self) -> tuple[int, ...]:
        """Nodes in each super-node."""
        ends = (*self.starts[1:], self.first)
        return tuple(end - start for start, end in zip(self.starts, ends, strict=False))

    @property
    def lasts(self) -> tuple[int, ...]:
        """Last node of each row."""
        ends = (*self.starts, self.first)[1:]
        return (*(end - 1 for end in ends), *range(self.first, self.size))

    def row_of(self, node: int) -> int:
        """Return the row that a node has, alone or with others."""
        if node >= self.first:
            return len(self.starts) + node - self.first
        return bisect_right(self.starts, node) - 1

    def seq_of(self, node: int) -> int:
        """Return a node's sequence number."""
        first = self.first
        return self.seqs[node - first] if node >= first else int(self.settled_seqs[node])

    def find(self, seq: int) -> int | None:
        """Return the node of a sequence number, None where it has not arrived."""
        if seq in self.seqs:
            return self.first + self.seqs.index(seq)
        found = np.flatnonzero(self.settled_seqs == seq)
        return int(found[0]) if len(found) else None


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
    retroactive: tuple[Edge, ...] = ()
    changed_rows: tuple[int, ...] = ()
    consumed: tuple[int, ...] = ()
    rejected: tuple[Edge, ...] = ()


def step(
    params: PrefixParams,
    state: PrefixState,
    seq: int,
    declared_parents: tuple[int, ...],
    edges: tuple[Edge, ...],
) -> tuple[PrefixState, Delta]:
    """Append a node and enter its edges, late ones included.

    An edge of a node that has no row of its own any more is one of its super-node.

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
    known = {parent: state.find(parent) for parent in declared_parents}
    here = [(found, node) for found in known.values() if found is not None]
    absent = [(p, node) for p in declared_parents if known[p] is None and p < seq]
    arrived = [(node, child) for parent, child in state.waiting if parent == seq]
    waiting = [item for item in (*state.waiting, *absent) if item[0] != seq]
    forward: list[Edge] = []
    backward: list[Edge] = []
    for edge in dict.fromkeys([*here, *arrived, *edges]):
        source, target = (seq if end == node else state.seq_of(end) for end in edge)
        (forward if source < target else backward).append(edge)
    impossible = [(node, node) for p in declared_parents if p >= seq and known[p] is None]
    rows = [(state.row_of(source), state.row_of(target)) for source, target in forward]
    hops, changed = _grow(state.hops, rows)
    sources = tuple(dict.fromkeys([source for source, _ in forward]))
    parents, settled_edges = _entered(state, forward)
    # By the constructor: dataclasses.replace takes four times as long.
    new_state = PrefixState(
        seqs=(*state.seqs, seq),
        parents=parents,
        hops=hops,
        consumed=_marked(state, sources),
        waiting=tuple(waiting[-params.waiting_max :]),
        latest=tuple(forward),
        starts=state.starts,
        settled_seqs=state.settled_seqs,
        settled_edges=settled_edges,
    )
    retroactive = tuple(edge for edge in forward if edge[1] != node)
    return new_state, Delta(node, retroactive, changed, sources, (*backward, *impossible))


def _grow(hops: Hops, edges: list[Edge]) -> tuple[Hops, tuple[int, ...]]:
    """Append a row and column, enter all edges; return the matrix and the old rows changed."""
    row = len(hops)
    neighbours = [a if b == row else b for a, b in edges if row in (a, b)]
    grown = structure.append_node(hops, neighbours)
    for source, target in edges:
        if row not in (source, target):
            grown, _ = structure.insert_edge(grown, source, target)
    # Only a node with two neighbours, or an edge between old nodes, can bring old nodes closer.
    if row == 0 or (len(neighbours) < 2 and len(neighbours) == len(edges)):
        return grown, ()
    return grown, tuple(np.flatnonzero((grown[:row, :row] != hops).any(axis=1)).tolist())


def _entered(
    state: PrefixState, edges: list[Edge]
) -> tuple[tuple[tuple[int, ...], ...], npt.NDArray[np.int32]]:
    """Return the parents of active nodes and of the new one, and the edges of settled nodes.

    Both with the new edges in them.
    """
    first, parents = state.first, [*state.parents, ()]
    late: list[Edge] = []
    for source, target in edges:
        if target >= first:
            parents[target - first] = (*parents[target - first], source)
        else:
            late.append((source, target))
    if not late:
        return tuple(parents), state.settled_edges
    return tuple(parents), np.concatenate([state.settled_edges, np.array(late, np.int32)])


def _marked(state: PrefixState, sources: tuple[int, ...]) -> int:
    consumed = state.consumed
    for source in sources:
        if source >= state.first:
            consumed |= 1 << source - state.first
    return consumed


def age_weights(params: PrefixParams, state: PrefixState) -> npt.NDArray[np.float64]:
    """Age weights of all rows at the newest event, shape (R,), equation (10).

    0 for the newest node, a linear ramp over ``age_horizon`` events, 1 once an artifact of the
    node has been consumed; 1 for super-nodes.
    """
    active, horizon = len(state.seqs), params.age_horizon
    weights = np.ones(len(state.starts) + active)
    latest = max(0, active - horizon)
    consumed = state.consumed >> latest  # of the nodes on the ramp alone: the set may be long
    for age in range(active - latest):
        if not consumed >> active - latest - 1 - age & 1:
            weights[-1 - age] = age / horizon
    return weights


@dataclass(frozen=True, slots=True)
class Collapse:
    """How rows become fewer.

    Parameters
    ----------
    begins
        Old row with which each new row begins; a new row takes all up to the next one.
    shared
        Super-nodes among the new rows: the first ones.
    chunk
        Active nodes that became a super-node.
    resolution
        Steps that share a row in the final solve.
    """

    begins: tuple[int, ...]
    shared: int
    chunk: int
    resolution: int


def collapse(
    params: PrefixParams, state: PrefixState, active_max: int
) -> tuple[PrefixState, Collapse | None]:
    """Collapse the oldest chunk of active nodes where there are too many.

    Hops between super-nodes are those between their nearest members.

    Parameters
    ----------
    active_max
        Nodes that keep a row: at least ``params.active_max``, and as many as anybody looks back.
    """
    if len(state.seqs) < max(active_max, params.active_max) + params.chunk:
        return state, None
    chunk, shared, first = params.chunk, len(state.starts), state.first
    begins, starts = list(range(shared + 1)), [*state.starts, first]
    ends = [*starts[1:], first + chunk]
    while len(starts) > params.merged_max:
        spans = [ends[place + 1] - starts[place] for place in range(len(starts) - 1)]
        place = spans.index(min(spans))
        ends[place] = ends[place + 1]
        del begins[place + 1], starts[place + 1], ends[place + 1]
    begins += range(shared + chunk, len(state.hops))
    hops = np.minimum.reduceat(np.minimum.reduceat(state.hops, begins, axis=0), begins, axis=1)
    stride = settled.resolution(state.size, params.exact_max)
    new_state = replace(
        state,
        seqs=state.seqs[chunk:],
        parents=state.parents[chunk:],
        hops=hops,
        consumed=state.consumed >> chunk,
        starts=tuple(starts),
        settled_seqs=np.concatenate([state.settled_seqs, np.array(state.seqs[:chunk], np.int64)]),
        settled_edges=settled.coarser_edges(_edges_upto(state, chunk), stride),
    )
    return new_state, Collapse(tuple(begins), len(starts), chunk, stride)


def all_edges(state: PrefixState) -> npt.NDArray[np.int32]:
    """Return all edges, (producer node, consumer node), shape (E, 2)."""
    return _edges_upto(state, len(state.parents))


def _edges_upto(state: PrefixState, active: int) -> npt.NDArray[np.int32]:
    """Return the edges whose consumer is settled, or one of the first ``active`` active nodes."""
    own = [
        (source, state.first + place)
        for place, sources in enumerate(state.parents[:active])
        for source in sources
    ]
    return np.concatenate([state.settled_edges, np.array(own, np.int32).reshape(-1, 2)])
