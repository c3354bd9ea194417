"""Node costs: how implausible it is that a step plays the part of a reference node (eq. 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ontrack.solver.arrays import Bools, Floats


@dataclass(frozen=True, slots=True)
class CostWeights:
    """Weights of the three parts of the cost; they sum to 1, so the cost stays in [0, 1].

    Parameters
    ----------
    alpha, beta, delta
        Weight of the action's text, of the arguments, of the tool. Not all on the action: a step
        may lack one, and the others then share its weight.

    Raises
    ------
    ValueError
        If a weight is negative, they do not sum to 1, or only alpha is positive.
    """

    alpha: float = 0.45
    beta: float = 0.20
    delta: float = 0.35

    def __post_init__(self) -> None:
        weights = (self.alpha, self.beta, self.delta)
        if not all(weight >= 0.0 for weight in weights):
            raise ValueError(f"cost weights must not be negative, got {weights}")
        if not math.isclose(sum(weights), 1.0, abs_tol=1e-9):
            raise ValueError(f"cost weights must sum to 1, got {weights}, sum {sum(weights)}")
        if self.beta + self.delta <= 0.0:
            raise ValueError("beta + delta must be positive: a step without action text needs them")


def cosine_distance(vectors: npt.NDArray[np.floating], vector: npt.NDArray[np.floating]) -> Floats:
    """Cosine distance ``clip(1 - cos, 0, 1)`` of unit vectors.

    Parameters
    ----------
    vectors : (n, d)
        Unit vectors; a zero row stands for a missing text.
    vector : (d,)
        Unit vector, or zero for a missing text.

    Returns
    -------
    (n,) float64
        A missing text is at distance 1 from every text and at 0 from another missing one.
    """
    distance: Floats = vectors.dot(vector).astype(np.float64)  # a microsecond less than by @
    np.subtract(1.0, distance, out=distance)
    # numpy.clip costs more than both of these.
    np.minimum(np.maximum(distance, 0.0, out=distance), 1.0, out=distance)
    # Looking at all of it takes two microseconds; almost every vector begins with something.
    if not (vector.size and vector.item(0)) and not vector.any():
        distance[~vectors.any(axis=1)] = 0.0
    return distance


def combine(
    action: Floats | None,
    args: Floats,
    tool: Floats,
    weights: CostWeights,
    has_action: Bools | None = None,
) -> Floats:
    """Weighted sum of the three distances, equation (1).

    Parameters
    ----------
    action : (n,) or None
        Distances of the action's text; None where the step has none: the other two weights are
        then renormalised to sum to 1.
    args, tool : (n,)
        Distances of arguments and tools, in [0, 1].
    has_action : (n,) or None
        Which nodes have an action's text: at the others the weights are renormalised, too. None:
        all of them.

    Returns
    -------
    (n,) float64
        Costs in [0, 1].
    """
    rest = weights.beta * args + weights.delta * tool
    if action is None:
        return np.asarray(rest / (weights.beta + weights.delta))
    full: Floats = weights.alpha * action + rest
    if has_action is None:
        return full
    return np.where(has_action, full, rest / (weights.beta + weights.delta))
