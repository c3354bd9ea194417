"""Settled steps: what the final solve needs of those that have no row of their own any more.

Up to a number of steps all of them are kept as they are, and the final solve is that of the whole
run. Beyond it two, then four, eight … steps in a row share one row of costs. Which steps share one
follows from their numbers alone, so it makes no difference when, or in how many pieces, it happens.

What a shared row costs: alone against a reference, step i would put ``A_ij = u_i K_ij`` on node j,
with ``K_ij = exp(-(1 - theta) C_ij / epsilon)`` and the row scaling of equation (9) for v = 1,
``u_i = (sum_j K_ij)^-eta`` (in units of its mass). Steps that share a row put the sum of their A
there, as one row of n times the mass would whose kernel is ``K = A / u``, ``u = (n / sum_j
A_j)^(lambda / epsilon)``. Sums of A are sums again, so rows can be joined in any number of stages.
Equal steps lose nothing by it: their K is n times that of one, and a run of n equal steps is solved
exactly. Everything is kept as logarithms, so that no price is too high.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ontrack.solver.problem import ReferenceArrays, SolverParams

Float = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Settled:
    """Cost rows of settled steps, oldest first.

    Parameters
    ----------
    cost
        Shape (K, G, M): attribute costs of single steps, and of shared rows what stands for them.
    spread
        What the steps of a row, each with its own scaling, add to the entropy term, for each unit
        of the row's mass, shape (K, G); 0 for single steps.
    sizes
        Steps in each row, shape (G,).
    """

    cost: npt.NDArray[np.float32]
    spread: npt.NDArray[np.float32]
    sizes: npt.NDArray[np.int32]


def nothing(count: int, width: int) -> Settled:
    """Return what there is before any step has settled."""
    return Settled(
        np.zeros((count, 0, width), np.float32),
        np.zeros((count, 0), np.float32),
        np.zeros(0, np.int32),
    )


def resolution(steps: int, exact_max: int) -> int:
    """Return how many steps share a row in the final solve.

    One up to ``exact_max`` steps; beyond, the least power of two that makes at most half as many
    rows.
    """
    if steps <= exact_max:
        return 1
    shared = 2
    while -(-steps // shared) > max(1, exact_max // 2):
        shared *= 2
    return shared


def settle(
    params: SolverParams,
    references: ReferenceArrays,
    state: Settled,
    cost: npt.NDArray[np.float32],
    shared: int,
) -> Settled:
    """Add steps at the end, then let ``shared`` of them share a row.

    Parameters
    ----------
    cost
        Attribute costs of the steps, shape (K, c, M).
    shared
        A power of two. Steps ``i shared .. (i + 1) shared - 1`` share a row once all are there.
    """
    count, steps, _ = cost.shape
    # Rows that are full already are the first ones.
    full = int(np.count_nonzero(state.sizes == shared))
    rest = Settled(
        np.concatenate([state.cost[:, full:], cost], axis=1),
        np.concatenate([state.spread[:, full:], np.zeros((count, steps), np.float32)], axis=1),
        np.concatenate([state.sizes[full:], np.ones(steps, np.int32)]),
    )
    size = 1
    while size < shared:
        rest = _paired(params, references, rest, size)
        size *= 2
    return Settled(
        np.concatenate([state.cost[:, :full], rest.cost], axis=1),
        np.concatenate([state.spread[:, :full], rest.spread], axis=1),
        np.concatenate([state.sizes[:full], rest.sizes]),
    )


def coarser_edges(
    edges: npt.NDArray[np.int32], shared: int, most: int = 4096
) -> npt.NDArray[np.int32]:
    """Return edges between steps as edges between the first steps of their rows.

    Each once where there are more than ``most``; sorting them out costs more than keeping some
    twice.
    """
    if shared == 1 or not len(edges):
        return edges
    rounded = edges - edges % np.int32(shared)
    between: npt.NDArray[np.int32] = rounded[rounded[:, 0] != rounded[:, 1]]
    if len(between) <= most:
        return between
    keys = np.unique(between[:, 0].astype(np.int64) << 32 | between[:, 1])
    return np.stack([keys >> 32, keys & 0xFFFFFFFF], axis=1).astype(np.int32)


def _paired(
    params: SolverParams, references: ReferenceArrays, state: Settled, size: int
) -> Settled:
    """Join each two neighbouring rows of ``size`` steps that belong together."""
    sizes = state.sizes
    # What lies before is a multiple of the resolution, and so of twice the size.
    starts = np.cumsum(sizes) - sizes
    fits = (sizes[:-1] == size) & (sizes[1:] == size) & (starts[:-1] % (2 * size) == 0)
    left = np.flatnonzero(fits)
    if not len(left):
        return state
    cost, spread = _joined(
        params,
        references,
        size,
        state.cost[:, left].astype(np.float64),
        state.cost[:, left + 1].astype(np.float64),
        state.spread[:, left],
        state.spread[:, left + 1],
    )
    new_cost, new_spread, new_sizes = state.cost.copy(), state.spread.copy(), sizes.copy()
    new_cost[:, left], new_spread[:, left], new_sizes[left] = cost, spread, 2 * size
    kept = np.ones(len(sizes), np.bool_)
    kept[left + 1] = False
    return Settled(new_cost[:, kept], new_spread[:, kept], new_sizes[kept])


def _joined(
    params: SolverParams,
    references: ReferenceArrays,
    size: int,
    left: Float,
    right: Float,
    left_spread: npt.NDArray[np.float32],
    right_spread: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Join pairs of rows of ``size`` steps each; shapes (K, p, M) and (K, p)."""
    sharpness = (1.0 - params.theta) / params.epsilon
    if sharpness == 0.0:  # costs have no weight
        return ((left + right) / 2).astype(np.float32), np.zeros_like(left_spread)
    valid = references.valid[:, None, :]
    alone_left, scaling_left = _alone(params, valid, left, size)
    alone_right, scaling_right = _alone(params, valid, right, size)
    both = np.logaddexp(alone_left, alone_right)
    mass = _log_sum(both, valid)
    scaling = params.lam / params.epsilon * (np.log(2.0 * size) - mass)
    cost = np.where(valid, (scaling[:, :, None] - both) / sharpness, (left + right) / 2)
    share_left = np.exp(_log_sum(alone_left, valid) - mass)
    share_right = np.exp(_log_sum(alone_right, valid) - mass)
    spread = (
        share_left * (left_spread + scaling_left)
        + share_right * (right_spread + scaling_right)
        - scaling
    )
    return cost.astype(np.float32), spread.astype(np.float32)


def _alone(
    params: SolverParams, valid: npt.NDArray[np.bool_], cost: Float, size: int
) -> tuple[Float, Float]:
    """Return log A of rows of ``size`` steps, (K, p, M), and log u, (K, p)."""
    kernel = cost * (-(1.0 - params.theta) / params.epsilon)
    scaling = params.exponent * (np.log(float(size)) - _log_sum(kernel, valid))
    return scaling[:, :, None] + kernel, scaling


def _log_sum(logarithms: Float, valid: npt.NDArray[np.bool_]) -> Float:
    """Logarithm of the sum over valid nodes, (K, p, M) to (K, p)."""
    masked = np.where(valid, logarithms, -np.inf)
    highest = masked.max(axis=2)
    total: Float = highest + np.log(np.exp(masked - highest[:, :, None]).sum(axis=2))
    return total
