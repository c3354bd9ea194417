"""Section 4.3 as one would write it down from the paper: one reference at a time, plain numpy.

The yardstick of ``ontrack bench step``. It is written for reading, formula by formula, with neither
batching nor buffers, and shares nothing with :mod:`ontrack.solver` but the record of parameters. A
test holds it to the engine's results.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ontrack.solver.problem import SolverParams

Array = npt.NDArray[np.float64]

FLOOR = 1e-300


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """One reference of m steps.

    Parameters
    ----------
    structure : (m, m)
        D^R.
    parents : (m, m) bool
        ``parents[j, i]``: i is a parent of j.
    nu : (m,)
        Masses, 1 / m each.
    """

    structure: Array
    parents: npt.NDArray[np.bool_]
    nu: Array


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Plan (t, m) and scalings (t,), (m,) after t steps."""

    plan: Array
    u: Array
    v: Array


def step(
    params: SolverParams,
    reference: Reference,
    state: State,
    cost: Array,
    distance: Array,
    age: Array,
    mu: Array,
) -> tuple[State, float]:
    """Frontier, one conditional gradient iteration, and the diagnostic loss after it.

    Parameters
    ----------
    cost : (t + 1, m)
        Node costs, the new step's row last.
    distance : (t + 1, t + 1)
        D^P.
    age, mu : (t + 1,)
        Age weights and masses of the steps.
    """
    marginal = frontier(params, reference, state.plan.sum(axis=0))
    padded = np.vstack([state.plan, np.zeros(len(marginal))])
    gradient = linearise(distance, padded, reference.structure)
    total = (1 - params.theta) * cost
    total = total + params.theta * age[:, None] * np.maximum(gradient, 0)
    kernel = np.exp(-total / params.epsilon)
    u = np.append(state.u, np.median(state.u) if len(state.u) else 1.0)
    u, v = scale(params, kernel, mu, marginal, u, state.v)
    plan = (1 - params.gamma) * padded + params.gamma * u[:, None] * kernel * v[None, :]
    loss = diagnostic_loss(params, cost, distance, plan, mu, marginal, reference.structure)
    return State(plan, u, v), loss


def frontier(params: SolverParams, reference: Reference, column_mass: Array) -> Array:
    """Masked reference masses nu-hat (m,), equations (5) to (7)."""
    satisfied = column_mass / reference.nu >= params.kappa
    active = ~(reference.parents & ~satisfied).any(axis=1)
    lookahead = (reference.parents & active).any(axis=1) & ~active
    share = np.where(lookahead, params.lookahead_weight, params.dormant_weight)
    share = np.where(active | satisfied, 1.0, share)
    return np.asarray(share * reference.nu)


def linearise(distance: Array, plan: Array, structure: Array) -> Array:
    """G (t, m) of equation (8), in the factored form of the square loss."""
    p, q = plan.sum(axis=1), plan.sum(axis=0)
    of_steps = np.outer(distance**2 @ p, np.ones(len(q)))
    of_nodes = np.outer(np.ones(len(p)), structure**2 @ q)
    return of_steps + of_nodes - 2 * distance @ plan @ structure.T


def scale(
    params: SolverParams, kernel: Array, mu: Array, marginal: Array, u: Array, v: Array
) -> tuple[Array, Array]:
    """Inner iterations of equation (9)."""
    eta = params.lam / (params.lam + params.epsilon)
    for _ in range(params.inner_iterations):
        before = u
        u = (mu / np.maximum(kernel @ v, FLOOR)) ** eta
        v = (marginal / np.maximum(kernel.T @ u, FLOOR)) ** eta
        if np.abs(np.log(u) - np.log(before)).max() < params.inner_tolerance:
            break
    return u, v


def diagnostic_loss(
    params: SolverParams,
    cost: Array,
    distance: Array,
    plan: Array,
    mu: Array,
    marginal: Array,
    structure: Array,
) -> float:
    """Loss of one reference after section 4.3: total-mass gap for the KL terms, clipped at 0."""
    linear = (1 - params.theta) * np.sum(cost * plan)
    quadratic = params.theta / 2 * np.sum(linearise(distance, plan, structure) * plan)
    entropy = params.epsilon * np.sum(plan * (np.log(np.maximum(plan, FLOOR)) - 1))
    gap = abs(plan.sum() - mu.sum()) + abs(plan.sum() - marginal.sum())
    return float(linear + max(quadratic, 0.0) + entropy + params.lam * gap)
