"""The relaxed problem: an event's alignment without structure, for many references at once.

The quadratic term is what makes a step of :mod:`ontrack.solver.streaming` dear: two products of
matrices, and a Gibbs kernel that is new at every event. Without it the kernel's old rows stay as
they are, and an event costs a few products of the kernel with a vector. The relaxed loss says which
references are worth the whole step.

How it relates to the loss that it stands for: on any plan the relaxed loss is the diagnostic loss
less ``theta / 2 max(<G(T), T>, 0)``, so never above it. It is taken at a plan of its own, that of
the same iteration with theta G dropped; so it orders references and bounds none of their losses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ontrack.solver.arrays import Floats, Singles, check_shape
from ontrack.solver.frontier import frontier
from ontrack.solver.problem import Coupling, ReferenceArrays, SolverParams

_SMALLEST = 1e-37
"""Floor under products with the kernel: what float32 still holds as a normal number."""

_LOWEST, _HIGHEST = -80.0, 40.0
"""Exponents outside are taken for these: float32 holds the kernel, and no node's is 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """State of the relaxed problem after t steps, one slice a reference.

    Parameters
    ----------
    kernel : (K, t, M)
        ``exp(-(1 - theta) C / epsilon)``, 0 on padding.
    u, v : (K, t) and (K, M)
        Scalings.
    rows, columns : (K, t) and (K, M)
        Mass of each step and of each reference node. As in a streaming step, a plan moves the share
        gamma towards the new one at each event: these are the masses of the plan that has moved.
    """

    kernel: Singles
    u: Floats
    v: Floats
    rows: Floats
    columns: Floats


def start(references: ReferenceArrays) -> Relaxed:
    """Return the state before the first step."""
    count, width = references.nu.shape
    return Relaxed(
        np.zeros((count, 0, width), np.float32),
        np.zeros((count, 0)),
        references.valid.astype(np.float64),
        np.zeros((count, 0)),
        np.zeros((count, width)),
    )


def step(
    params: SolverParams,
    references: ReferenceArrays,
    state: Relaxed,
    cost: Floats | Singles,
    mu: Floats,
    lookahead_weight: float | None = None,
) -> tuple[Relaxed, Floats]:
    """Take one step; return the relaxed loss of each reference, (K,), as well.

    Parameters
    ----------
    cost : (K, M)
        The new step's costs; finite on padding too.
    mu : (t + 1,)
        Masses of all steps, > 0.
    lookahead_weight
        As for :func:`ontrack.solver.frontier.frontier`.

    Raises
    ------
    ValueError
        If shapes do not fit together, or a cost is not finite.
    """
    count, old, width = state.kernel.shape
    check_shape("cost", cost, (references.count, references.width))
    check_shape("kernel", state.kernel, (references.count, old, references.width))
    check_shape("mu", mu, (old + 1,))
    mask = frontier(state.columns, references, params, lookahead_weight)
    kernel = np.empty((count, old + 1, width), np.float32)
    kernel[:, :old] = state.kernel
    kernel[:, old] = kernel_rows(params, references, cost[:, None, :])[:, 0]
    u, v, rows, columns = (
        each.astype(np.float64) for each in _scale(params, kernel, mu, mask.marginal, state.v)
    )
    rows *= params.gamma
    columns *= params.gamma
    rows[:, :old] += (1.0 - params.gamma) * state.rows
    columns += (1.0 - params.gamma) * state.columns
    new = Relaxed(kernel, u, v, rows, columns)
    return new, loss(params, new, mu, mask.marginal)


def kernel_rows(
    params: SolverParams, references: ReferenceArrays, cost: Floats | Singles
) -> Singles:
    """Return the relaxed kernel of cost rows, (K, r, M).

    Raises
    ------
    ValueError
        If a cost is not finite.
    """
    if not np.isfinite(cost).all():
        raise ValueError("cost must be finite, padding included")
    exponents = np.asarray(cost, np.float64) * (-(1.0 - params.theta) / params.epsilon)
    kernel = np.exp(np.clip(exponents, _LOWEST, _HIGHEST, out=exponents))
    kernel *= references.valid[:, None, :]
    rows: Singles = kernel.astype(np.float32)
    return rows


def loss(params: SolverParams, state: Relaxed, mu: Floats, marginal: Floats) -> Floats:
    """Diagnostic loss of each reference without its quadratic term, (K,).

    Where ``T = diag(u) K diag(v)``, the linear and the entropy term are together
    ``epsilon (sum r log u + sum q log v - sum T)``: of the cost nothing is left but the scalings.
    """
    total = state.columns.sum(axis=1)
    of_rows = (state.rows * np.log(np.maximum(state.u, _SMALLEST))).sum(axis=1)
    of_columns = (state.columns * np.log(np.maximum(state.v, _SMALLEST))).sum(axis=1)
    gap = np.abs(total - mu.sum()) + np.abs(total - marginal.sum(axis=1))
    value: Floats = params.epsilon * (of_rows + of_columns - total) + params.lam * gap
    return value


def coupling(state: Relaxed, chosen: list[int], rows: int) -> Coupling:
    """Return the relaxed plan of some references as the coupling of their first ``rows`` steps."""
    scaled = state.u[chosen, :rows, None] * state.kernel[chosen, :rows]
    plan = scaled * state.v[chosen][:, None, :]
    # To the masses of the plan that has moved: the newest rows have come only part of the way.
    masses = plan.sum(axis=2)
    share = np.divide(
        state.rows[chosen, :rows], masses, out=np.zeros_like(masses), where=masses > 0.0
    )
    plan *= share[:, :, None]
    return Coupling(plan.astype(np.float32), state.u[chosen, :rows], state.v[chosen])


def joined(
    params: SolverParams, state: Relaxed, begins: list[int], merged: int, mu: Floats
) -> Relaxed:
    """Return the state with rows joined: sums of masses, and of the first ``merged`` one kernel.

    That kernel keeps the row's plan at the present v: ``K = T / (u v)``, and a row of the mass R
    has ``u = (mu / R)^(lambda / epsilon)``. Of a column that is closed, v = 0, the sum of the old
    rows' ``u K`` is taken, which is what T / v would be.

    Parameters
    ----------
    begins
        First of the old rows in each new one; those after ``merged`` stay single.
    mu : (R,)
        Masses of the new rows.
    """
    count, old, _ = state.kernel.shape
    plan = coupling(state, list(range(count)), old).plan.astype(np.float64)
    sums = np.add.reduceat(plan, begins, axis=1)[:, :merged]
    rows = np.add.reduceat(state.rows, begins, axis=1)
    kernel, u = state.kernel[:, begins], state.u[:, begins]
    log_u = np.log(mu[:merged] / np.maximum(rows[:, :merged], _SMALLEST))
    log_u = np.clip(log_u * (params.lam / params.epsilon), _LOWEST, -_LOWEST)
    exponents = np.log(np.maximum(sums, _SMALLEST)) - log_u[:, :, None]
    exponents -= np.log(np.maximum(state.v, _SMALLEST))[:, None]
    closed = np.broadcast_to((state.v <= 0.0)[:, None], exponents.shape)
    if closed.any():
        own = np.add.reduceat(state.u[:, :, None] * state.kernel, begins, axis=1)[:, :merged]
        alone = np.log(np.maximum(own, _SMALLEST)) - log_u[:, :, None]
        exponents[closed] = np.where(own > 0.0, alone, -np.inf)[closed]
    new = np.exp(np.clip(exponents, _LOWEST, _HIGHEST))
    new[exponents == -np.inf] = 0.0  # padding
    kernel[:, :merged], u[:, :merged] = new, np.exp(log_u)
    return Relaxed(kernel, u, state.v, rows, state.columns)


def _scale(
    params: SolverParams, kernel: Singles, mu: Floats, marginal: Floats, v: Floats
) -> tuple[Singles, Singles, Singles, Singles]:
    """Scaling iterations, equation (9); return u, v and the masses of rows and columns."""
    eta = np.float32(params.exponent)
    row_target = (mu**params.exponent).astype(np.float32)
    column_target = (marginal**params.exponent).astype(np.float32)
    columns: Singles = v.astype(np.float32)
    for _ in range(params.inner_iterations):
        rows = _fitted(np.matmul(kernel, columns[:, :, None])[:, :, 0], row_target, eta)
        products: Singles = np.matmul(rows[:, None, :], kernel)[:, 0]
        columns = _fitted(products.copy(), column_target, eta)
    row_mass: Singles = rows * np.matmul(kernel, columns[:, :, None])[:, :, 0]
    return rows, columns, row_mass, products * columns


def _fitted(product: Singles, target: Singles, exponent: np.float32) -> Singles:
    """Turn products with the kernel into scalings, ``mass^eta product^-eta``, in place."""
    np.maximum(product, _SMALLEST, out=product)
    np.power(product, -exponent, out=product)
    product *= target
    return product
