"""The slow twin of the solver: plain loops, one reference at a time, nothing batched or padded.

Written from the formulas, to be obviously right; it shares nothing with ``ontrack.solver`` but the
record of parameters.
Matrices are lists of lists. Missing paths are None.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from ontrack.solver.problem import SolverParams

Matrix = list[list[float]]
Vector = list[float]

FLOOR = 1e-300


# --- costs -------------------------------------------------------------------------------------


def cosine_distance(left: Vector, right: Vector) -> float:
    if not any(left) and not any(right):
        return 0.0
    cosine = sum(a * b for a, b in zip(left, right, strict=True))
    return min(1.0, max(0.0, 1.0 - cosine))


def cost_cell(
    action: float | None, args: float, tool: float, weights: tuple[float, float, float]
) -> float:
    alpha, beta, delta = weights
    if action is None:
        return (beta * args + delta * tool) / (beta + delta)
    return alpha * action + beta * args + delta * tool


# --- structure ---------------------------------------------------------------------------------


def bfs_hops(n: int, edges: list[tuple[int, int]]) -> list[list[int | None]]:
    neighbours: list[set[int]] = [set() for _ in range(n)]
    for a, b in edges:
        neighbours[a].add(b)
        neighbours[b].add(a)
    hops: list[list[int | None]] = []
    for start in range(n):
        row: list[int | None] = [None] * n
        row[start] = 0
        queue = deque([start])
        while queue:
            node = queue.popleft()
            for other in neighbours[node]:
                if row[other] is None:
                    row[other] = row[node] + 1  # type: ignore[operator]
                    queue.append(other)
        hops.append(row)
    return hops


def distance_matrix(n: int, edges: list[tuple[int, int]]) -> Matrix:
    return [[1.0 if h is None else h / (h + 1) for h in row] for row in bfs_hops(n, edges)]


# --- one reference -----------------------------------------------------------------------------


@dataclass
class Reference:
    size: int
    edges: list[tuple[int, int]]  # parent, child

    @property
    def distance(self) -> Matrix:
        return distance_matrix(self.size, self.edges)

    @property
    def nu(self) -> Vector:
        return [1.0 / self.size] * self.size

    def parents(self, node: int) -> list[int]:
        return [a for a, b in self.edges if b == node]


def row_sums(plan: Matrix) -> Vector:
    return [sum(row) for row in plan]


def column_sums(plan: Matrix, width: int) -> Vector:
    return [sum(row[j] for row in plan) for j in range(width)]


# --- frontier ----------------------------------------------------------------------------------


@dataclass
class Frontier:
    marginal: Vector
    satisfied: set[int]
    active: set[int]
    lookahead: set[int]


def frontier(
    column_mass: Vector, reference: Reference, kappa: float, ahead: float, dormant: float
) -> Frontier:
    nodes = range(reference.size)
    satisfied = {j for j in nodes if column_mass[j] / reference.nu[j] >= kappa}
    active = {j for j in nodes if all(i in satisfied for i in reference.parents(j))}
    lookahead = {j for j in nodes if any(i in active for i in reference.parents(j))} - active
    marginal = []
    for j in nodes:
        if j in active or j in satisfied:
            marginal.append(reference.nu[j])
        elif j in lookahead:
            marginal.append(ahead * reference.nu[j])
        else:
            marginal.append(dormant * reference.nu[j])
    return Frontier(marginal, satisfied, active, lookahead)


def coverage(column_mass: Vector, reference: Reference) -> float:
    nu = reference.nu
    return sum(min(q / n, 1.0) * n for q, n in zip(column_mass, nu, strict=True)) / sum(nu)


# --- objective ---------------------------------------------------------------------------------


def gradient(distance: Matrix, plan: Matrix, reference: Reference) -> Matrix:
    other = reference.distance
    steps, nodes = range(len(plan)), range(reference.size)
    return [
        [
            sum((distance[i][k] - other[j][h]) ** 2 * plan[k][h] for k in steps for h in nodes)
            for j in nodes
        ]
        for i in steps
    ]


def linear_cost(cost: Matrix, raw_gradient: Matrix, age: Vector, theta: float) -> Matrix:
    return [
        [
            (1 - theta) * c + theta * weight * max(g, 0.0)
            for c, g in zip(cost_row, gradient_row, strict=True)
        ]
        for cost_row, gradient_row, weight in zip(cost, raw_gradient, age, strict=True)
    ]


def inner(left: Matrix, right: Matrix) -> float:
    return sum(
        a * b
        for row, other in zip(left, right, strict=True)
        for a, b in zip(row, other, strict=True)
    )


def entropy(plan: Matrix) -> float:
    return sum(x * (math.log(x) - 1) for row in plan for x in row if x > 0)


def kl(left: Vector, right: Vector) -> float:
    total = 0.0
    for a, b in zip(left, right, strict=True):
        total += b - a
        if a > 0:
            total += a * math.log(a / b)
    return total


def objective(
    cost: Matrix,
    distance: Matrix,
    plan: Matrix,
    mu: Vector,
    marginal: Vector,
    reference: Reference,
    params: SolverParams,
) -> float:
    p = params
    return (
        (1 - p.theta) * inner(cost, plan)
        + p.theta / 2 * inner(gradient(distance, plan, reference), plan)
        + p.lam * kl(row_sums(plan), mu)
        + p.lam * kl(column_sums(plan, reference.size), marginal)
        + p.epsilon * entropy(plan)
    )


def diagnostic_loss(
    cost: Matrix,
    distance: Matrix,
    plan: Matrix,
    mu: Vector,
    marginal: Vector,
    reference: Reference,
    params: SolverParams,
) -> float:
    p = params
    total = sum(row_sums(plan))
    return (
        (1 - p.theta) * inner(cost, plan)
        + max(p.theta / 2 * inner(gradient(distance, plan, reference), plan), 0.0)
        + p.epsilon * entropy(plan)
        + p.lam * (abs(total - sum(mu)) + abs(total - sum(marginal)))
    )


def soft_min(losses: Vector, tau: float) -> float:
    return -tau * math.log(sum(math.exp(-loss / tau) for loss in losses) / len(losses))


def leakage(plan: Matrix, mu: Vector) -> Vector:
    return [min(1.0, max(0.0, 1 - s / m)) for s, m in zip(row_sums(plan), mu, strict=True)]


def match_cost(plan_row: Vector, cost_row: Vector, epsilon_den: float) -> float:
    matched = sum(t * m for t, m in zip(plan_row, cost_row, strict=True))
    return matched / (sum(plan_row) + epsilon_den)


# --- iterations --------------------------------------------------------------------------------


def scaling(
    total_cost: Matrix,
    mu: Vector,
    marginal: Vector,
    u: Vector,
    v: Vector,
    params: SolverParams,
    iterations_max: int,
    tolerance: float,
) -> tuple[Matrix, Vector, Vector]:
    """Return plan, u and v."""
    epsilon, lam = params.epsilon, params.lam
    eta = lam / (lam + epsilon)
    steps, nodes = range(len(mu)), range(len(marginal))
    kernel = [[math.exp(-m / epsilon) for m in row] for row in total_cost]
    u, v = list(u), list(v)
    for _ in range(iterations_max):
        before = u
        u = [(mu[i] / max(sum(kernel[i][j] * v[j] for j in nodes), FLOOR)) ** eta for i in steps]
        v = [
            (marginal[j] / max(sum(kernel[i][j] * u[i] for i in steps), FLOOR)) ** eta
            for j in nodes
        ]
        change = max(abs(math.log(a) - math.log(b)) for a, b in zip(u, before, strict=True))
        if change < tolerance:
            break
    plan = [[u[i] * kernel[i][j] * v[j] for j in nodes] for i in steps]
    return plan, u, v


def median(values: Vector) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def blend(old: Matrix, new: Matrix, gamma: float) -> Matrix:
    return [
        [(1 - gamma) * a + gamma * b for a, b in zip(row, other, strict=True)]
        for row, other in zip(old, new, strict=True)
    ]


@dataclass
class State:
    plan: Matrix
    u: Vector
    v: Vector


def streaming_step(
    params: SolverParams,
    reference: Reference,
    state: State,
    cost: Matrix,
    distance: Matrix,
    age: Vector,
    mu: Vector,
    marginal: Vector,
) -> tuple[State, Matrix]:
    """Return the new state and the total cost that was solved."""
    p = params
    padded = [*state.plan, [0.0] * reference.size]
    total_cost = linear_cost(cost, gradient(distance, padded, reference), age, p.theta)
    u = [*state.u, median(state.u) if state.u else 1.0]
    plan, u, v = scaling(
        total_cost,
        mu,
        marginal,
        u,
        state.v,
        p,
        p.inner_iterations,
        p.inner_tolerance,
    )
    return State(blend(padded, plan, p.gamma), u, v), total_cost


def converged_solve(
    params: SolverParams,
    reference: Reference,
    cost: Matrix,
    distance: Matrix,
    age: Vector,
    mu: Vector,
    marginal: Vector,
) -> tuple[State, float]:
    """Return the state and its diagnostic loss."""
    p = params
    plan = [[m * n / sum(mu) for n in marginal] for m in mu]
    u, v = [1.0] * len(mu), [1.0] * reference.size
    for _ in range(p.converged_outer_max):
        total_cost = linear_cost(cost, gradient(distance, plan, reference), age, p.theta)
        new, u, v = scaling(
            total_cost,
            mu,
            marginal,
            u,
            v,
            p,
            p.converged_inner_max,
            p.converged_inner_tolerance,
        )
        moved = blend(plan, new, p.gamma)
        change = max(
            abs(a - b)
            for row, other in zip(moved, plan, strict=True)
            for a, b in zip(row, other, strict=True)
        )
        plan = moved
        if change < p.converged_outer_tolerance:
            break
    return State(plan, u, v), diagnostic_loss(cost, distance, plan, mu, marginal, reference, p)
