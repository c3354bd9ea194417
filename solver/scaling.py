"""Scaling iterations of the linearised unbalanced entropic problem, equation (9).

How NaN and infinity are kept out, whatever finite costs come in:

* both denominators ``K v`` and ``K^T u`` are floored at ``TINY``, so a row or column whose kernel
  underflows gets a large but finite scaling, and its plan is still 0 because its kernel is;
* a row or column without mass has the target 0 and so the scaling 0, never 0 / 0;
* ``u`` and ``v`` are at most ``mass / TINY``, and ``u_i K_ij v_j`` is bounded by the marginal that
  was fitted last, so the products cannot overflow either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ontrack.solver.arrays import TINY, Bools, Floats

NOT_FINITE = "cost, distance and age must be finite, padding included"

BLIND_ITERATIONS = 5
"""Iterations between two looks at the stopping rule: what a streaming step takes in any case."""


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
    if not math.isfinite(kernel.sum()):
        raise ValueError(NOT_FINITE)
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
    its result does not depend on its neighbours in the batch. Looking for that after every
    iteration costs more than the iteration: some are run blindly, and each reference takes its
    result from the one at which it had to stop.

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
    count = len(kernel)
    targets = mu**exponent, (marginal**exponent)[:, None, :]
    u, v = u.copy(), v.copy()
    open_ = [True] * count if frozen is None else (~frozen).tolist()
    residual = [0.0] * count
    iterations = 0
    while iterations < iterations_max and any(open_):
        ahead = min(BLIND_ITERATIONS, iterations_max - iterations)
        us, vs = _iterate(kernel, targets, u, v, exponent, ahead)
        changes = _changes(us, mu)
        last = 0
        for index in (index for index in range(count) if open_[index]):
            met = [turn for turn in range(ahead) if changes[turn][index] < tolerance]
            stop = met[0] if met else ahead - 1
            open_[index], residual[index] = not met, changes[stop][index]
            u[index], v[index] = us[stop + 1, index, 0], vs[stop, index, 0]
            last = max(last, stop + 1)
        iterations += last
    return Scalings(u, v, iterations, np.array(residual))


def _iterate(
    kernel: Floats,
    targets: tuple[Floats, Floats],
    u: Floats,
    v: Floats,
    exponent: float,
    iterations: int,
) -> tuple[Floats, Floats]:
    """Run a number of iterations; return u before and after each, and v after each.

    Shapes (iterations + 1, K, 1, t) and (iterations, K, 1, M): row vectors on both sides, which
    numpy multiplies faster than columns.
    """
    count, steps, width = kernel.shape
    transposed = kernel.transpose(0, 2, 1)
    us, vs = np.empty((iterations + 1, count, 1, steps)), np.empty((iterations, count, 1, width))
    us[0, :, 0] = u
    v = v[:, None, :]
    for turn in range(iterations):
        u = us[turn + 1]
        np.matmul(v, transposed, out=u)
        _fit(u, targets[0], exponent)
        v = vs[turn]
        np.matmul(u, kernel, out=v)
        _fit(v, targets[1], exponent)
    return us, vs


def _changes(us: Floats, mu: Floats) -> list[list[float]]:
    """Largest change of log u of each iteration and reference; rows without mass do not count."""
    logarithm = np.maximum(us[:, :, 0], TINY)
    np.log(logarithm, out=logarithm)
    change = logarithm[1:] - logarithm[:-1]
    np.abs(change, out=change)
    if not len(mu):
        return [[0.0] * us.shape[1]] * (len(us) - 1)
    if mu.min() <= 0.0:
        change[..., mu <= 0.0] = 0.0
    largest: list[list[float]] = np.maximum.reduce(change, axis=2).tolist()
    return largest


def assemble(kernel: Floats, scalings: Scalings, share: float = 1.0) -> Floats:
    """Return the plan ``share * diag(u) K diag(v)``, (K, t, M)."""
    # Row by row first: u_i v_j alone could overflow where K_ij is 0.
    plan = kernel * (share * scalings.u)[:, :, None]
    plan *= scalings.v[:, None, :]
    return plan


def _fit(product: Floats, target: Floats, exponent: float) -> None:
    """Turn kernel products into scalings, ``mass^eta product^-eta``, in place."""
    np.maximum(product, TINY, out=product)
    np.power(product, -exponent, out=product)
    product *= target
