"""Ranking score: how well a run so far agrees with its references, for telling runs apart.

It is reported and never thresholded: no verdict rests on it. The paper's score stands at 1 for good
and mediocre prefixes alike; this one has no floor. What its weights were chosen on stands in
:class:`RankWeights`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from ontrack.operators import pooling
from ontrack.operators.limits import require
from ontrack.operators.references import ReferenceSet
from ontrack.operators.transport import Alignment, TransportState
from ontrack.operators.vectors import Vector
from ontrack.solver import prefix_alignment
from ontrack.solver.prefix_alignment import GapCosts
from ontrack.topics.events import Call

Float = npt.NDArray[np.float64]

_SAME = 1e-6  # costs and cosines that are no further apart are equal: they are float32


@dataclass(frozen=True, slots=True)
class RankWeights:
    """Weights of the parts of S; coverage is taken off, the others are added.

    Chosen on half of the tasks of two corpora of customer service runs and reported on the other
    half and on a third corpus. There the order of the steps added nothing to coverage and effects,
    so the prefix alignment has no weight, and without one it is not computed.
    """

    match: float = 0.5
    coverage: float = 1.0
    order: float = 0.0
    effect: float = 1.0
    unseen_write: float = 0.05
    error: float = 0.05

    def __post_init__(self) -> None:
        require(self, 0.0, 100.0, *(item.name for item in fields(self)))


@dataclass(frozen=True, slots=True)
class RankParams:
    """Settings of the ranking score.

    Parameters
    ----------
    leakage
        What a step costs that found no counterpart at all, beside what its match costs.
    gaps
        Prices of the prefix alignment. Passing over reference nodes is free: a shorter way to the
        same end is no worse.
    """

    weights: RankWeights = RankWeights()
    leakage: float = 0.1
    gaps: GapCosts = GapCosts(agent=1.0, reference=0.0)

    def __post_init__(self) -> None:
        require(self, 0.0, 1.0, "leakage")


@dataclass(frozen=True, slots=True)
class RankState:
    """What the score needs of earlier steps, beside the coupling.

    Parameters
    ----------
    row
        Last row of the prefix alignment, shape (K, M + 1); the first one where it has no weight.
    effect, compared
        Sum of the results' distances, and over how many steps.
    errors
        Steps that failed.
    unseen_write
        Whether an effectful call used a tool that no reference has.
    """

    row: Float
    effect: float = 0.0
    compared: int = 0
    errors: int = 0
    unseen_write: bool = False


@dataclass(frozen=True, slots=True)
class RankSignal:
    """The score of a run so far and its parts.

    Parameters
    ----------
    score
        -S: higher is better aligned. Comparable between runs of one task with the same references
        at the same step.
    match
        tcR: mean over the steps of matched cost and leakage, on the best reference; >= 0.
    coverage
        cov: share of its nodes that the best reference sees covered, in [0, 1].
    order
        softR: cost a step of the run as the beginning of a reference, on the best one; >= 0. None
        where it has no weight.
    effect
        eff: mean distance of results to those of the nearest nodes, in [0, 1].
    """

    score: float
    match: float
    coverage: float
    order: float | None
    effect: float
    unseen_write: bool
    errors: int


def start(params: RankParams, references: ReferenceSet) -> RankState:
    """Return the state before the first step."""
    return RankState(prefix_alignment.first_row(references.arrays.valid, params.gaps))


def step(
    params: RankParams,
    references: ReferenceSet,
    state: RankState,
    aligned: TransportState,
    alignment: Alignment,
    call: Call,
    result: Vector,
    is_effectful: bool,
    failed: bool,
) -> tuple[RankState, RankSignal]:
    """Take one step that has been aligned.

    ``S = a tcR - b cov + c softR + d eff + e [unseen write] + f errors`` with the weights of
    ``params``, where

    * ``tcR = min_k mean_i (sum_j T_ij C_ij / mu + leakage * l_i)``,
    * ``cov = max_k mean_j min(m_k sum_i T_ij, 1)``,
    * ``softR = min_k`` (cost of the prefix alignment) / t,
    * ``eff`` = mean of 1 - cos(result, result of a nearest reference node).

    Parameters
    ----------
    aligned
        State of the alignment after this step, costs and plan of shape (K, R, M), R >= 1. Of
        super-nodes the leakages are those that their steps had when they were collapsed.
    alignment
        What was read off the alignment at this step.
    result
        Unit vector of what the step returned, shape (d,); zero without a result.
    is_effectful
        Whether the tool changes anything, as contracts say.
    failed
        Whether the step returned an error.

    Raises
    ------
    ValueError
        If the alignment has no step or belongs to other references.
    """
    count, _, width = aligned.cost.shape
    steps = aligned.steps
    if (count, width) != references.arrays.nu.shape or steps == 0:
        raise ValueError(
            f"the alignment has shape {aligned.cost.shape}, expected {references.count} references "
            f"of {references.width} nodes and at least one step"
        )
    newest = aligned.cost[:, -1]
    row, order = state.row, None
    if params.weights.order:
        row = prefix_alignment.next_row(row, newest.astype(np.float64), params.gaps)
        reading = prefix_alignment.alignment_cost(row, references.arrays.valid)
        order = float(reading.min()) / steps
    distance = _effect(references, newest, result)
    new = RankState(
        row=row,
        effect=state.effect + (distance or 0.0),
        compared=state.compared + (distance is not None),
        errors=state.errors + failed,
        unseen_write=state.unseen_write
        or (is_effectful and call.tool not in references.roles.by_tool),
    )
    match, coverage = _transported(params, references, aligned, alignment)
    effect = new.effect / new.compared if new.compared else 0.0
    weights = params.weights
    cost = (
        weights.match * match
        - weights.coverage * coverage
        + weights.order * (order or 0.0)
        + weights.effect * effect
        + weights.unseen_write * new.unseen_write
        + weights.error * new.errors
    )
    signal = RankSignal(-cost, match, coverage, order, effect, new.unseen_write, new.errors)
    return new, signal


def _transported(
    params: RankParams,
    references: ReferenceSet,
    aligned: TransportState,
    alignment: Alignment,
) -> tuple[float, float]:
    """Return tcR and cov of a coupling, whose masses the solver has summed already."""
    _, arrays, aligned = pooling.members(references, aligned)
    plan = aligned.plan
    count, rows, width = plan.shape
    flat = count, 1, rows * width
    priced = np.matmul(plan.reshape(flat), aligned.cost.reshape(flat).transpose(0, 2, 1))[:, 0, 0]
    # Ufuncs by themselves: sum, min and max cost a microsecond or two more a call.
    leaked = np.add.reduce(alignment.all_leakages[:, aligned.merged :], axis=1)
    if aligned.shared is not None:
        leaked += np.add.reduce(aligned.shared.leaked, axis=1)
    match = (priced * arrays.mean_size + params.leakage * leaked) / aligned.steps
    return min(match.tolist()), max(alignment.all_coverage.tolist())


def _effect(
    references: ReferenceSet, newest: npt.NDArray[np.float32], result: Vector
) -> float | None:
    """Distance of a result to that of the nearest node, the best of equally near ones.

    None where either side has no result: then there is nothing to compare.
    """
    if not result.any():
        return None
    costs = np.where(references.arrays.valid, newest, np.inf).ravel()
    near = ((costs <= np.minimum.reduce(costs) + _SAME) & references.has_result).nonzero()[0]
    if not len(near):
        return None
    distance = 1.0 - max((references.results[near] @ result).tolist())
    # Equal results must tie: float32 leaves them a few 1e-8 apart.
    return min(distance, 1.0) if distance > _SAME else 0.0
