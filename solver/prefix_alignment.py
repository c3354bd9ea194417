"""Prefix alignment: what it costs to read a run so far as the beginning of a reference.

An edit distance whose substitutions cost what the nodes differ by. Steps without a counterpart and
skipped reference nodes have a price each; what of the reference is still to come is free. One row a
step, all references at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ontrack.solver.arrays import Bools, Floats, check_shape


@dataclass(frozen=True, slots=True)
class GapCosts:
    """Prices of what has no counterpart.

    Parameters
    ----------
    agent
        A step that the reference does not have. At most as much as a match can cost, no step
        would ever be left over.
    reference
        A reference node that the run passed over.

    Raises
    ------
    ValueError
        If a price is negative or not finite.
    """

    agent: float = 1.0
    reference: float = 0.2

    def __post_init__(self) -> None:
        for name in ("agent", "reference"):
            value = getattr(self, name)
            if not (value >= 0.0 and math.isfinite(value)):
                raise ValueError(f"gap cost {name} must be finite and not negative, got {value}")


def first_row(valid: Bools, gaps: GapCosts) -> Floats:
    """Return the row before the first step: cost of having passed over the first j nodes.

    Parameters
    ----------
    valid : (K, M) bool
        Which nodes are no padding.

    Returns
    -------
    (K, M + 1) float64
    """
    count, width = valid.shape
    return np.tile(np.arange(width + 1) * gaps.reference, (count, 1))


def next_row(row: Floats, cost: Floats, gaps: GapCosts) -> Floats:
    """Return the row after one more step.

    ``D[i, j] = min(D[i-1, j-1] + C[i, j], D[i-1, j] + agent, D[i, j-1] + reference)``. The last of
    the three runs along the row; taking ``j * reference`` off turns it into a running minimum.

    Parameters
    ----------
    row : (K, M + 1)
        Before the step; not changed.
    cost : (K, M)
        Cost of matching the step to each node; finite on padding too, where it has no effect on
        what :func:`alignment_cost` reads.

    Raises
    ------
    ValueError
        If the shapes do not fit together.
    """
    count, width = cost.shape
    check_shape("row", row, (count, width + 1))
    new: Floats = row + gaps.agent
    np.minimum(new[:, 1:], row[:, :-1] + cost, out=new[:, 1:])
    passed = np.arange(width + 1) * gaps.reference
    new -= passed
    np.minimum.accumulate(new, axis=1, out=new)
    new += passed
    return new


def alignment_cost(row: Floats, valid: Bools) -> Floats:
    """Return what the best reading of the run so far costs for each reference, (K,).

    The rest of a reference is free: the minimum over where in it the run may be by now.

    Parameters
    ----------
    row : (K, M + 1)
    valid : (K, M) bool
    """
    reachable: Floats = np.minimum(
        row[:, 0], np.where(valid, row[:, 1:], np.inf).min(axis=1, initial=np.inf)
    )
    return reachable
