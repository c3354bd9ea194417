"""The objective of section 4 and everything read off it; the formula lives in this file only.

Shapes: K references padded to M nodes, t agent steps. Costs must be finite on padding too; their
value there has no effect, because no mass reaches it.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import kl_div

from ontrack.solver.arrays import TINY, Floats
from ontrack.solver.problem import ReferenceArrays, SolverParams


def linearise(distance: Floats, plan: Floats, references: ReferenceArrays) -> Floats:
    """Linearise the quadratic term at a plan, equation (8), not clipped.

    ``G_ij = sum_kl (D^P_ik - D^R_jl)^2 T_kl``, factored for the square loss: O(t^2 M + t M^2) for
    each reference. ``theta * G`` is the gradient of the quadratic term.

    Parameters
    ----------
    distance : (t, t)
        D^P, symmetric.
    plan : (K, t, M)
        T.

    Returns
    -------
    (K, t, M)
    """
    rows = plan.sum(axis=2)
    columns = plan.sum(axis=1)
    gradient: Floats = np.matmul(np.matmul(distance * -2.0, plan), references.structure)
    gradient += np.matmul(rows, distance * distance)[:, :, None]
    gradient += np.matmul(columns[:, None, :], references.structure_squared)
    return gradient


def linear_cost(cost: Floats, gradient: Floats, age: Floats, params: SolverParams) -> Floats:
    """Total cost of the linearised problem, ``M = (1 - theta) C + theta * age * max(G, 0)``.

    Parameters
    ----------
    cost, gradient : (K, t, M)
        C, and G of :func:`linearise`.
    age : (t,)
        Age weights omega in [0, 1], equation (10): they scale the rows of G.

    Returns
    -------
    (K, t, M)
    """
    total = np.maximum(gradient, 0.0)
    total *= (params.theta * age)[:, None]
    total += (1.0 - params.theta) * cost
    return total


def objective(
    cost: Floats,
    distance: Floats,
    plan: Floats,
    mu: Floats,
    marginal: Floats,
    references: ReferenceArrays,
    params: SolverParams,
) -> Floats:
    """Exact objective F(T), equation (2), with generalised KL and ``0 log 0 = 0``.

    Parameters
    ----------
    cost : (K, t, M)
    distance : (t, t)
    plan : (K, t, M)
    mu : (t,)
    marginal : (K, M)

    Returns
    -------
    (K,)
        ``inf`` where a plan puts mass on a row or column whose marginal is 0.
    """
    quadratic = _inner(linearise(distance, plan, references), plan)
    row_gap = kl_div(plan.sum(axis=2), mu[None, :]).sum(axis=1)
    column_gap = kl_div(plan.sum(axis=1), marginal).sum(axis=1)
    value: Floats = (
        (1.0 - params.theta) * _inner(cost, plan)
        + params.theta / 2.0 * quadratic
        + params.lam * (row_gap + column_gap)
        + params.epsilon * _entropy(plan)
    )
    return value


def diagnostic_loss(
    cost: Floats,
    distance: Floats,
    plan: Floats,
    mu: Floats,
    marginal: Floats,
    references: ReferenceArrays,
    params: SolverParams,
) -> Floats:
    """Diagnostic loss per reference, the surrogate that verdicts and scores are calibrated on.

    As :func:`objective`, but the two KL terms are replaced by the gap in total mass and the
    quadratic term is clipped at 0 (section 4.3, implementation notes). Shapes as there.
    """
    quadratic = np.maximum(_inner(linearise(distance, plan, references), plan), 0.0)
    total = plan.sum(axis=(1, 2))
    gap = np.abs(total - mu.sum()) + np.abs(total - marginal.sum(axis=1))
    loss: Floats = (
        (1.0 - params.theta) * _inner(cost, plan)
        + params.theta / 2.0 * quadratic
        + params.epsilon * _entropy(plan)
        + params.lam * gap
    )
    return loss


def soft_min(losses: Floats, tau: float) -> float:
    """Soft minimum over references, ``-tau log mean_k exp(-l_k / tau)``; stable for any losses."""
    lowest = float(losses.min())
    return lowest - tau * math.log(float(np.exp((lowest - losses) / tau).mean()))


def score(losses: Floats, tau: float) -> float:
    """Score of the paper, ``exp(-max(soft_min, 0))`` in (0, 1]."""
    return math.exp(-max(soft_min(losses, tau), 0.0))


def row_leakage(plan: Floats, mu: Floats) -> Floats:
    """Node leakage ``clip(1 - sum_j T_ij / mu_i, 0, 1)``, equation (4).

    Parameters
    ----------
    plan : (K, t, M)
    mu : (t,)
        A row without mass has nothing to leak: 0.

    Returns
    -------
    (K, t)
    """
    rows = plan.sum(axis=2)
    leakage: Floats = 1.0 - np.divide(rows, mu, out=np.ones_like(rows), where=mu > 0.0)
    return np.clip(leakage, 0.0, 1.0, out=leakage)


def match_cost(plan_row: Floats, linear_cost_row: Floats, epsilon_den: float = 1e-3) -> Floats:
    """Mean cost of what a row matched, ``sum_j T_j M_j / (sum_j T_j + epsilon_den)`` (Table 1).

    Parameters
    ----------
    plan_row, linear_cost_row : (K, M)

    Returns
    -------
    (K,)
    """
    matched: Floats = (plan_row * linear_cost_row).sum(axis=1) / (
        plan_row.sum(axis=1) + epsilon_den
    )
    return matched


def _inner(left: Floats, right: Floats) -> Floats:
    """Frobenius inner product of each reference's pair, (K,)."""
    product: Floats = (left * right).sum(axis=(1, 2))
    return product


def _entropy(plan: Floats) -> Floats:
    """``H(T) = sum T (log T - 1)`` of each reference, (K,).

    The floor under the logarithm makes ``0 log 0 = 0`` and is below every mass that counts.
    """
    logarithm = np.log(np.maximum(plan, TINY))
    logarithm -= 1.0
    return _inner(plan, logarithm)
