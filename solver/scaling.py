"""Scaling iterations of the linearised unbalanced entropic problem, equation (9).

How NaN and infinity are kept out, whatever finite costs come in:

* both denominators ``K v`` and ``K^T u`` are floored at ``TINY``, so a row or column whose kernel
  underflows gets a large but finite scaling, and its plan is still 0 because its kernel is;
* a row or column without mass has the logarithm -inf and so the scaling 0, never 0 / 0;
* ``u`` and ``v`` are at most ``mass / TINY``, and ``u_i K_ij v_j`` is bounded by the marginal that
  was fitted last, so the products cannot overflow either.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ontrack.solver.arrays import TINY, Bools, Floats


@dataclass(frozen=True, slots=True, eq=False)
class Scalings:
    """Result of :func:`scale`.

    Parameters
    ----------
    u : (K, t)
        Row scalings.
    v : (K, M)
        Column scalings, fitted to ``u``.
    iterations : int
        Iterations until the last reference stopped.
    residual : (K,)
        Largest change of log u at each reference's last iteration; 0 for those that were frozen.
    """

    u: Floats
    v: Floats
    iterations: int
    residual: Floats


def gibbs_kernel(total_cost: Floats, epsilon: float) -> Floats:
    """Gibbs kernel ``exp(-M / epsilon)``, shape as M; costs above ~700 epsilon underflow to 0.

    Raises
    ------
    ValueError
        If a cost is NaN or infinite: one would spread over the whole coupling, for good.
    """
    kernel = np.multiply(total_cost, -1.0 / epsilon)
    if not np.isfinite(kernel.sum()):
        raise ValueError("cost, distance and age must be finite, padding included")
    return np.exp(kernel, out=kernel)


def scale(
    kernel: Floats,
    mu: Floats,
    marginal: Floats,
    u: Floats,
    v: Floats,
    exponent: float,
    iterations_max: int,
    tolerance: float,
    frozen: Bools | None = None,
) -> Scalings:
    """Iterate ``u = (mu / K v)^eta``, ``v = (nu-hat / K^T u)^eta`` on all references at once.

    Each reference stops by itself as soon as its own log u changes by less than the tolerance, so
    its result does not depend on its neighbours in the batch. Works on logarithms, which give the
    power and the change of log u for the price of one.

    Parameters
    ----------
    kernel : (K, t, M)
    mu : (t,)
    marginal : (K, M)
    u, v : (K, t) and (K, M)
        Warm start. Only v enters the iteration; u is what the first change is measured against.
    exponent : float
        eta = lambda / (lambda + epsilon).
    frozen : (K,) bool, optional
        References to leave out; the scalings returned for them have no meaning.
    """
    count, steps, width = kernel.shape
    row_target, column_target = exponent * _log(mu), exponent * _log(marginal)[:, None, :]
    log_u = np.log(np.maximum(u, TINY))
    # Row vectors on both sides: numpy multiplies them faster than columns.
    transposed = kernel.transpose(0, 2, 1)
    u, v = np.empty((count, 1, steps)), v[:, None, :].copy()
    product = np.empty((count, 1, steps))
    fresh, change = product[:, 0, :], np.zeros((count, steps))
    # A mask slows the ufunc down; it is needed only where some step has no mass.
    counted = True if steps and mu.min() > 0.0 else mu > 0.0
    done = [False] * count if frozen is None else frozen.tolist()
    residual = [0.0] * count
    iteration = 0
    while iteration < iterations_max and not all(done):
        iteration += 1
        np.matmul(v, transposed, out=product)
        _fit(product, row_target, exponent)
        np.subtract(fresh, log_u, out=change, where=counted)
        np.abs(change, out=change)
        for index, value in enumerate(np.maximum.reduce(change, axis=1).tolist()):
            if done[index]:
                # The same u gives the same v again, bit for bit: the reference stands still.
                fresh[index] = log_u[index]
            else:
                residual[index] = value
                done[index] = value < tolerance
        log_u[...] = fresh
        np.exp(product, out=u)
        np.matmul(u, kernel, out=v)
        _fit(v, column_target, exponent)
        np.exp(v, out=v)
    return Scalings(u[:, 0, :], v[:, 0, :], iteration, np.array(residual))


def assemble(kernel: Floats, scalings: Scalings) -> Floats:
    """Return the plan ``diag(u) K diag(v)``, (K, t, M)."""
    plan = kernel * scalings.u[:, :, None]
    plan *= scalings.v[:, None, :]
    return plan


def _fit(product: Floats, target: Floats, exponent: float) -> None:
    """Turn kernel products into log scalings, ``eta log mass - eta log product``, in place."""
    np.maximum(product, TINY, out=product)
    np.log(product, out=product)
    product *= -exponent
    product += target


def _log(mass: Floats) -> Floats:
    """Logarithm with -inf for no mass, without numpy's warning."""
    return np.log(mass, out=np.full(mass.shape, -np.inf), where=mass > 0.0)
