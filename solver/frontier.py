"""The frontier mask: which reference nodes a prefix may be expected to match by now."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ontrack.solver import kernels
from ontrack.solver.arrays import Bools, Floats, plain, plain_flags
from ontrack.solver.problem import ReferenceArrays, SolverParams


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """The mask of one event, all arrays (K, M); padding is 0 and False.

    Parameters
    ----------
    marginal
        nu-hat: the full mass on active and satisfied nodes, a share of it elsewhere, eq. (7).
    satisfied
        Nodes with coverage >= kappa, eq. (5).
    active
        Nodes of which every parent is satisfied; roots always, eq. (6).
    lookahead
        Children of active nodes that are not active themselves, eq. (6).
    """

    marginal: Floats
    satisfied: Bools
    active: Bools
    lookahead: Bools


def frontier(
    column_mass: Floats,
    references: ReferenceArrays,
    params: SolverParams,
    lookahead_weight: float | None = None,
) -> Frontier:
    """Compute the frontier from the previous event's coupling (section 4.2).

    Parameters
    ----------
    column_mass : (K, M)
        Column sums of the coupling before this event: the lag of one step keeps mask and coupling
        from defining each other.
    lookahead_weight
        Takes the place of ``params.lookahead_weight``: a stalled frontier is widened.

    Raises
    ------
    ValueError
        If ``lookahead_weight`` is outside [0, 1].
    """
    ahead = lookahead_share(params, lookahead_weight)
    nu, valid, parents = references.nu, references.valid, references.parents
    compiled = kernels.compiled()
    if compiled is not None:
        floats = plain(column_mass, nu)
        flags = plain_flags(valid, parents)
        masks = [np.empty(nu.shape, dtype=np.bool_) for _ in range(3)]
        mask = Frontier(np.empty(nu.shape), *masks)
        compiled.frontier(
            *floats, *flags, params.kappa, ahead, params.dormant_weight, mask.marginal, *masks
        )
        return mask
    covered = np.divide(column_mass, nu, out=np.zeros_like(nu), where=valid)
    satisfied = (covered >= params.kappa) & valid
    # Products of booleans: "any parent that is not satisfied", "any parent that is active".
    blocked = np.matmul(parents, ~satisfied[:, :, None])[:, :, 0]
    active = valid & ~blocked
    lookahead = np.matmul(parents, active[:, :, None])[:, :, 0] & ~active
    share = np.where(lookahead, ahead, params.dormant_weight)
    share[active | satisfied] = 1.0
    return Frontier(nu * share, satisfied, active, lookahead)


def lookahead_share(params: SolverParams, lookahead_weight: float | None) -> float:
    """Return the share of nu on nodes ahead: the parameter's, or what takes its place.

    Raises
    ------
    ValueError
        If ``lookahead_weight`` is outside [0, 1].
    """
    ahead = params.lookahead_weight if lookahead_weight is None else lookahead_weight
    if not 0.0 <= ahead <= 1.0:
        raise ValueError(f"lookahead_weight must lie in [0, 1], got {ahead}")
    return ahead


def coverage(column_mass: Floats, references: ReferenceArrays) -> Floats:
    """Coverage rho, the progress meter of section 4.2.

    Parameters
    ----------
    column_mass : (K, M)
        Column sums of a coupling.

    Returns
    -------
    (K,)
        ``sum_j min(cov_j, 1) nu_j / sum_j nu_j``, in [0, 1].
    """
    nu = references.nu
    covered: Floats = np.minimum(column_mass, nu).sum(axis=1) / nu.sum(axis=1)
    return np.clip(covered, 0.0, 1.0)
