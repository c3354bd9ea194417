"""Alignment problems of a chosen size, and the solvers that are timed on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ontrack.pipeline.bench import textbook
from ontrack.solver import converged, streaming, structure
from ontrack.solver.frontier import frontier
from ontrack.solver.problem import (
    Coupling,
    ReferenceArrays,
    SolverParams,
    empty_coupling,
    pack_references,
)

Array = npt.NDArray[np.float64]
PARAMS = SolverParams()


@dataclass(frozen=True, slots=True, eq=False)
class AlignmentStep:
    """Everything the newest event of a run needs to be aligned with K references.

    Parameters
    ----------
    references
        K references of m nodes each; no padding.
    coupling
        State after the t - 1 events before.
    cost : (K, t, m)
    distance : (t, t)
    age, mu : (t,)
    stored_cost, stored_distance
        The same in float32, as an open run keeps them.
    textbook_references, textbook_states
        The same references and state, one by one, for the textbook implementation.
    """

    references: ReferenceArrays
    coupling: Coupling
    cost: Array
    distance: Array
    age: Array
    mu: Array
    stored_cost: npt.NDArray[np.float32]
    stored_distance: npt.NDArray[np.float32]
    textbook_references: tuple[textbook.Reference, ...]
    textbook_states: tuple[textbook.State, ...]


def make_step(size: int, count: int, seed: int) -> AlignmentStep:
    """Make event t = ``size`` of a run that follows ``count`` references of ``size`` nodes.

    Run and references are executions of one random task in their own orders: a step costs little
    at its counterpart and 0.4 to 0.9 elsewhere. The state before it comes from really streaming
    the events before.
    """
    rng = np.random.default_rng(seed)
    edges = _random_edges(rng, size)
    orders = [_random_order(rng, size, edges) for _ in range(count + 1)]
    hops, parents = zip(*(_graph(order, edges) for order in orders), strict=True)
    references = pack_references(hops[1:], parents[1:])
    cost = np.stack([_costs(rng, orders[0], order) for order in orders[1:]])
    coupling = empty_coupling(references)
    # The last event's distances serve for those before as well: paths through later steps make
    # them a little short, which does not matter for a state to start from.
    distance = structure.distances(hops[0])
    for steps in range(1, size):
        coupling, _ = engine(_event(references, coupling, cost, distance, steps))
    return _event(references, coupling, cost, distance, size)


def engine(event: AlignmentStep) -> tuple[Coupling, Array]:
    """Take the fast path: frontier, streaming step, diagnostic loss; all references at once."""
    done = streaming.advance(
        PARAMS,
        event.references,
        event.coupling,
        event.stored_cost,
        event.stored_distance,
        event.age,
        event.mu,
    )
    return done.coupling, done.losses


def by_the_book(event: AlignmentStep) -> list[tuple[textbook.State, float]]:
    """Do the same by the textbook implementation, reference after reference."""
    return [
        textbook.step(PARAMS, reference, state, cost, event.distance, event.age, event.mu)
        for reference, state, cost in zip(
            event.textbook_references, event.textbook_states, event.cost, strict=True
        )
    ]


def converge(event: AlignmentStep) -> converged.ConvergedSolve:
    """Solve the prefix again from cold, as an escalation does."""
    marginal = frontier(event.coupling.plan.sum(axis=1), event.references, PARAMS).marginal
    return converged.solve(
        PARAMS, event.references, event.cost, event.distance, event.age, event.mu, marginal
    )


def pot_solver() -> Callable[[AlignmentStep], Sequence[Array]] | None:
    """Return POT's re-solve of a prefix, reference after reference; None without POT.

    Only the effort is comparable, not the plan: POT's fused unbalanced Gromov-Wasserstein couples
    two plans, and measures their entropy against the product of the marginals. Its weights are
    those of equation (2) divided by theta, and it may take as many iterations as our converged
    solve, to similar tolerances.
    """
    try:
        from ot.gromov import fused_unbalanced_gromov_wasserstein as fused
    except ImportError:
        return None

    def solve(event: AlignmentStep) -> list[Array]:
        marginals = frontier(event.coupling.plan.sum(axis=1), event.references, PARAMS).marginal
        return [
            _pot(fused, event, reference.structure, cost, marginal)
            for reference, cost, marginal in zip(
                event.textbook_references, event.cost, marginals, strict=True
            )
        ]

    return solve


def _pot(fused: Any, event: AlignmentStep, other: Array, cost: Array, marginal: Array) -> Array:
    plan: Array
    plan, _ = fused(
        event.distance,
        other,
        wx=event.mu,
        wy=marginal,
        M=cost,
        alpha=2.0 * (1.0 - PARAMS.theta) / PARAMS.theta,
        reg_marginals=PARAMS.lam / PARAMS.theta,
        epsilon=PARAMS.epsilon / PARAMS.theta,
        divergence="kl",
        unbalanced_solver="sinkhorn",
        max_iter=PARAMS.converged_outer_max,
        max_iter_ot=PARAMS.converged_inner_max,
        tol=PARAMS.converged_outer_tolerance,
        tol_ot=PARAMS.converged_inner_tolerance,
    )
    return plan


def _event(
    references: ReferenceArrays, coupling: Coupling, cost: Array, distance: Array, steps: int
) -> AlignmentStep:
    """Cut the inputs of event ``steps`` out of those of the whole run."""
    cost = np.ascontiguousarray(cost[:, :steps])
    distance = np.ascontiguousarray(distance[:steps, :steps])
    age = np.minimum(1.0, np.arange(steps - 1, -1, -1) / 3.0)
    return AlignmentStep(
        references=references,
        coupling=coupling,
        cost=cost,
        distance=distance,
        age=age,
        mu=np.full(steps, 1.0 / references.mean_size),
        stored_cost=cost.astype(np.float32),
        stored_distance=distance.astype(np.float32),
        textbook_references=tuple(
            textbook.Reference(*(np.ascontiguousarray(part) for part in parts))
            for parts in zip(references.structure, references.parents, references.nu, strict=True)
        ),
        textbook_states=tuple(
            textbook.State(*parts)
            for parts in zip(coupling.plan.astype(np.float64), coupling.u, coupling.v, strict=True)
        ),
    )


def _random_edges(rng: np.random.Generator, size: int) -> list[tuple[int, int]]:
    """Give each node one or two producers among the four before it."""
    edges = []
    for node in range(1, size):
        near = np.arange(max(0, node - 4), node)
        chosen = rng.choice(near, size=min(len(near), int(rng.integers(1, 3))), replace=False)
        edges += [(int(parent), node) for parent in chosen]
    return edges


def _random_order(rng: np.random.Generator, size: int, edges: list[tuple[int, int]]) -> list[int]:
    """Order the nodes so that producers come first, otherwise at random among the open ones."""
    waiting = {node: {a for a, b in edges if b == node} for node in range(size)}
    order: list[int] = []
    while waiting:
        free = [node for node, parents in waiting.items() if parents <= set(order)]
        order.append(free[int(rng.integers(len(free)))])
        del waiting[order[-1]]
    return order


def _graph(
    order: list[int], edges: list[tuple[int, int]]
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.bool_]]:
    place = {node: index for index, node in enumerate(order)}
    moved = [(place[a], place[b]) for a, b in edges]
    parents = np.zeros((len(order), len(order)), dtype=np.bool_)
    for parent, child in moved:
        parents[child, parent] = True
    return structure.hops_from_edges(len(order), moved), parents


def _costs(rng: np.random.Generator, run: list[int], reference: list[int]) -> Array:
    cost = rng.uniform(0.4, 0.9, (len(run), len(reference)))
    same = np.equal.outer(run, reference)
    cost[same] = rng.uniform(0.02, 0.15, int(same.sum()))
    return cost
