"""Random alignment problems for the solver's tests: strategies local to this folder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from ontrack.solver import structure
from ontrack.solver.frontier import frontier
from ontrack.solver.problem import (
    Coupling,
    ReferenceArrays,
    SolverParams,
    empty_coupling,
    pack_references,
)
from tests import reference as twin
from tests.solver.one_step import step

Edges = list[tuple[int, int]]


@dataclass(frozen=True)
class Problem:
    """A run of t steps and K references, as plain data and as arrays.

    ``costs[k]`` is (t, m_k); ``edges`` are the run's, oldest end first; ``ages`` (t, t) holds the
    age weights at each event in the row of that event.
    """

    references: tuple[twin.Reference, ...]
    costs: tuple[np.ndarray, ...]
    edges: Edges
    steps: int
    ages: np.ndarray

    @property
    def arrays(self) -> ReferenceArrays:
        return pack(self.references)

    @property
    def mu(self) -> np.ndarray:
        return np.full(self.steps, 1.0 / self.arrays.mean_size)

    @property
    def padded_cost(self) -> np.ndarray:
        return pad_costs(self.costs)

    @property
    def distance(self) -> np.ndarray:
        return structure.distances(structure.hops_from_edges(self.steps, self.edges))

    def distance_at(self, steps: int) -> np.ndarray:
        known = [edge for edge in self.edges if max(edge) < steps]
        return structure.distances(structure.hops_from_edges(steps, known))


def pack(references: tuple[twin.Reference, ...]) -> ReferenceArrays:
    hops, parents = [], []
    for reference in references:
        hops.append(structure.hops_from_edges(reference.size, reference.edges))
        matrix = np.zeros((reference.size, reference.size), dtype=np.bool_)
        for parent, child in reference.edges:
            matrix[child, parent] = True
        parents.append(matrix)
    return pack_references(hops, parents)


def pad_costs(costs: tuple[np.ndarray, ...], filling: float = 0.5) -> np.ndarray:
    width = max(cost.shape[1] for cost in costs)
    padded = np.full((len(costs), len(costs[0]), width), filling)
    for index, cost in enumerate(costs):
        padded[index, :, : cost.shape[1]] = cost
    return padded


@st.composite
def dags(draw: st.DrawFn, size: int) -> Edges:
    pairs = [(i, j) for j in range(size) for i in range(j)]
    if not pairs:
        return []
    return draw(st.lists(st.sampled_from(pairs), max_size=2 * size, unique=True))


@st.composite
def references(draw: st.DrawFn, size_max: int = 7) -> twin.Reference:
    size = draw(st.integers(1, size_max))
    return twin.Reference(size, draw(dags(size)))


@st.composite
def problems(draw: st.DrawFn, steps_max: int = 8, size_max: int = 7, count_max: int = 3) -> Problem:
    steps = draw(st.integers(1, steps_max))
    chosen = tuple(draw(references(size_max)) for _ in range(draw(st.integers(1, count_max))))
    # Costs and ages from a seeded generator: values without ties, cheap to draw and to shrink.
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    costs = tuple(rng.uniform(0, 1, (steps, each.size)) for each in chosen)
    return Problem(chosen, costs, draw(dags(steps)), steps, rng.uniform(0, 1, (steps, steps)))


solver_params = st.builds(
    SolverParams,
    theta=st.sampled_from([0.0, 0.35, 0.8]),
    epsilon=st.sampled_from([0.02, 0.05, 0.2]),
    lam=st.sampled_from([0.01, 0.1, 0.3, 1.0]),
    gamma=st.sampled_from([0.5, 0.7, 1.0]),
    kappa=st.sampled_from([0.3, 0.6]),
    lookahead_weight=st.sampled_from([0.0, 0.3, 1.0]),
    dormant_weight=st.sampled_from([0.0, 0.01]),
)


def stream(problem: Problem, params: SolverParams, mu: np.ndarray | None = None) -> Coupling:
    """Run a problem event by event, mask included, and return the last coupling."""
    arrays, cost = problem.arrays, problem.padded_cost
    mass = problem.mu if mu is None else mu
    coupling = empty_coupling(arrays)
    for size in range(1, problem.steps + 1):
        marginal = frontier(coupling.plan.sum(axis=1), arrays, params).marginal
        coupling, _ = step(
            params,
            arrays,
            coupling,
            cost[:, :size],
            problem.distance_at(size),
            problem.ages[size - 1, :size],
            mass[:size],
            marginal,
        )
    return coupling


def alone(problem: Problem, k: int) -> Problem:
    """Keep one reference of a problem, so that nothing is padded."""
    return Problem(
        (problem.references[k],), (problem.costs[k],), problem.edges, problem.steps, problem.ages
    )


def sealed(array: np.ndarray) -> np.ndarray:
    """Copy an array and make writing to it an error."""
    copy = array.copy()
    copy.setflags(write=False)
    return copy
