"""The objective of section 4 and everything read off it; the formula lives in this file only.

Shapes: K references padded to M nodes, t agent steps. Costs must be finite on padding too; their
value there has no effect, because no mass reaches it.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import kl_div

from ontrack.solver import kernels
from ontrack.solver.arrays import TINY, Floats, plain
from ontrack.solver.problem import ReferenceArrays, SolverParams


def linearise(distance: Floats, plan: Floats, references: ReferenceArrays) -> Floats:
    """Linearise the quadratic term at a plan, equation (8), not clipped.

    ``G_ij = sum_kl (D^P_ik - D^R_jl)^2 T_kl``, factored for the square loss: O(s t M + s M^2) for
    each reference. ``theta * G`` is the gradient of the quadratic term.

    Parameters
    ----------
    distance : (s, t)
        Rows of D^P: all (s = t), or one more than the plan has, whose own row is still empty.
    plan : (K, t, M)
        T.

    Returns
    -------
    (K, s, M)
    """
    rows, columns = row_mass(plan), column_mass(plan)
    gradient: Floats = np.matmul(np.matmul(distance * -2.0, plan), references.structure)
    of_steps = np.matmul(rows, (distance * distance).T)
    of_nodes = np.matmul(columns[:, None, :], references.structure_squared)
    # One sum of both, then one addition: broadcasting is what costs here.
    gradient += of_steps[:, :, None] + of_nodes
    return gradient


def row_mass(plan: Floats) -> Floats:
    """Mass of each step, ``T 1``, (K, t); as a product, three times as fast as numpy's sum."""
    mass: Floats = np.matmul(plan, np.ones(plan.shape[2]))
    return mass


def column_mass(plan: Floats) -> Floats:
    """Mass of each reference node, ``T^T 1``, (K, M); a product as in :func:`row_mass`."""
    mass: Floats = np.matmul(np.ones(plan.shape[1]), plan)
    return mass


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
    quadratic = inner(linearise(distance, plan, references), plan)
    row_gap = kl_div(plan.sum(axis=2), mu[None, :]).sum(axis=1)
    column_gap = kl_div(plan.sum(axis=1), marginal).sum(axis=1)
    value: Floats = (
        (1.0 - params.theta) * inner(cost, plan)
        + params.theta / 2.0 * quadratic
        + params.lam * (row_gap + column_gap)
        + params.epsilon * (_mass_log_mass(plan) - plan.sum(axis=(1, 2)))
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
    compiled = kernels.compiled()
    if compiled is not None:
        arrays = plain(cost, distance, plan, mu, marginal, references.structure)
        numbers = params.theta, params.epsilon, params.lam
        losses = np.empty(references.count)
        compiled.diagnostic_loss(*arrays, *numbers, losses)
        return losses
    quadratic = _quadratic(distance, plan, row_mass(plan), column_mass(plan), references)
    return assembled_loss(cost, plan, mu, marginal, quadratic, params)


def assembled_loss(
    cost: Floats,
    plan: Floats,
    mu: Floats,
    marginal: Floats,
    quadratic: Floats,
    params: SolverParams,
) -> Floats:
    """Put :func:`diagnostic_loss` together, given ``<G(T), T>`` (K,), which may be negative."""
    total = row_mass(plan).sum(axis=1)
    gap = np.abs(total - mu.sum()) + np.abs(total - marginal.sum(axis=1))
    loss: Floats = (
        (1.0 - params.theta) * inner(cost, plan)
        + params.theta / 2.0 * np.maximum(quadratic, 0.0)
        + params.epsilon * (_mass_log_mass(plan) - total)
        + params.lam * gap
    )
    return loss


def soft_min(losses: Floats, tau: float) -> float:
    """Soft minimum over references, ``-tau log mean_k exp(-l_k / tau)``; stable for any losses."""
    # One by one: of a few losses, numpy's calls would cost more than their arithmetic.
    values: list[float] = losses.tolist()
    lowest = min(values)
    shares = [math.exp((lowest - value) / tau) for value in values]
    return lowest - tau * math.log(sum(shares) / len(shares))


def score(losses: Floats, tau: float) -> float:
    """Score of the paper, ``exp(-max(soft_min, 0))`` in (0, 1]."""
    return score_of(soft_min(losses, tau))


def score_of(lowest: float) -> float:
    """:func:`score` of a soft minimum that is known."""
    return math.exp(-max(lowest, 0.0))


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
    return leakage_of(row_mass(plan), mu)


def leakage_of(rows: Floats, mu: Floats) -> Floats:
    """:func:`row_leakage` of row sums that are known, (K, t)."""
    leakage: Floats = 1.0 - np.divide(rows, mu, out=np.ones_like(rows), where=mu > 0.0)
    return np.clip(leakage, 0.0, 1.0, out=leakage)


def _quadratic(
    distance: Floats, plan: Floats, rows: Floats, columns: Floats, references: ReferenceArrays
) -> Floats:
    """``<G(T), T>`` of each reference, (K,), without building G.

    ``p' (D^P)^2 p + q' (D^R)^2 q - 2 <D^P T, T D^R>`` with the row sums p and column sums q.
    """
    of_steps = np.matmul(rows, distance * distance)
    of_nodes = np.matmul(columns[:, None, :], references.structure_squared)[:, 0, :]
    crossed = inner(np.matmul(distance, plan), np.matmul(plan, references.structure))
    product: Floats = inner(of_steps, rows) + inner(of_nodes, columns) - 2.0 * crossed
    return product


def inner(left: Floats, right: Floats) -> Floats:
    """Inner product of each reference's pair of arrays of one shape, (K,)."""
    count = len(left)
    product: Floats = np.matmul(left.reshape(count, 1, -1), right.reshape(count, -1, 1))
    return product[:, 0, 0]


def _mass_log_mass(plan: Floats) -> Floats:
    """``sum T log T`` of each reference, (K,): the entropy H without its ``- sum T``.

    The floor under the logarithm makes ``0 log 0 = 0`` and is below every mass that counts.
    """
    logarithm = np.maximum(plan, TINY)
    return inner(plan, np.log(logarithm, out=logarithm))
