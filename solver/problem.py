"""The types of the alignment problem: parameters, references, and the coupling as state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ontrack.solver import structure
from ontrack.solver.arrays import Bools, Floats, Hops, Ints, Reals, check_shape


@dataclass(frozen=True, slots=True)
class SolverParams:
    """Parameters of objective, frontier and iteration; the defaults are the paper's.

    Parameters
    ----------
    theta
        Weight of structure against cost, in [0, 1]; 0 is linear unbalanced transport.
    epsilon
        Entropy weight, > 0.
    lam
        Price of unmatched mass, > 0. ``2 * lam + epsilon`` is a soft threshold on cost.
    gamma
        Step towards the new coupling, in (0, 1].
    kappa
        Coverage from which a reference node counts as satisfied, in (0, 1].
    lookahead_weight, dormant_weight
        Share of nu for nodes one step ahead of the frontier, and for those beyond, in [0, 1].
    inner_iterations, inner_tolerance
        Scaling iterations a streaming step may take, and the change of log u it may stop at.
    converged_outer_max, converged_inner_max
        Iterations of the converged solve: linearisations, and scaling iterations for each.
    converged_inner_tolerance, converged_outer_tolerance
        It stops at these changes of log u and of the plan's entries.
    soft_min_temperature
        tau_sm of the soft minimum over references, > 0.

    Raises
    ------
    ValueError
        If a parameter is out of range; the message names it.
    """

    theta: float = 0.35
    epsilon: float = 0.05
    lam: float = 0.1
    gamma: float = 0.7
    kappa: float = 0.3
    lookahead_weight: float = 0.3
    dormant_weight: float = 0.01
    inner_iterations: int = 5
    inner_tolerance: float = 1e-6
    converged_outer_max: int = 10
    converged_inner_max: int = 50
    converged_inner_tolerance: float = 1e-9
    converged_outer_tolerance: float = 1e-4
    soft_min_temperature: float = 0.05

    def __post_init__(self) -> None:
        for name in ("theta", "lookahead_weight", "dormant_weight"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} must lie in [0, 1], got {value}")
        for name in ("gamma", "kappa"):
            value = getattr(self, name)
            if not 0.0 < value <= 1.0:
                raise ValueError(f"{name} must lie in (0, 1], got {value}")
        for name in ("epsilon", "lam", "soft_min_temperature"):
            value = getattr(self, name)
            if not (value > 0.0 and math.isfinite(value)):
                raise ValueError(f"{name} must be positive and finite, got {value}")
        for name in ("inner_tolerance", "converged_inner_tolerance", "converged_outer_tolerance"):
            value = getattr(self, name)
            if not (value >= 0.0 and math.isfinite(value)):
                raise ValueError(f"{name} must be finite and not negative, got {value}")
        for name in ("inner_iterations", "converged_outer_max", "converged_inner_max"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")

    @property
    def exponent(self) -> float:
        """Eta = lambda / (lambda + epsilon) of the scaling iteration, equation (9)."""
        return self.lam / (self.lam + self.epsilon)


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceArrays:
    """K references side by side, padded to M = max m_k nodes.

    Padding has no mass (``nu`` is 0), so no result depends on it.

    Parameters
    ----------
    structure : (K, M, M)
        Normalised distances D^R, symmetric; 1 where unconnected or padding.
    structure_squared : (K, M, M)
        Its elementwise square, needed at every linearisation.
    parents : (K, M, M) bool
        ``parents[k, j, i]``: node i is a parent of node j.
    valid : (K, M) bool
        Which nodes are no padding.
    sizes : (K,) int
        Real nodes m_k.
    nu : (K, M)
        Reference masses: 1 / m_k, 0 on padding.
    mean_size : float
        m-bar: an agent step carries the mass ``1 / mean_size``, equation (3).
    derived : dict
        What kernels made of these arrays and keep; no result depends on what is in it.
    """

    structure: Floats
    structure_squared: Floats
    parents: Bools
    valid: Bools
    sizes: Ints
    nu: Floats
    mean_size: float
    derived: dict[str, object] = field(default_factory=dict, init=False, repr=False)

    @property
    def count(self) -> int:
        """Number of references K."""
        return int(self.nu.shape[0])

    @property
    def width(self) -> int:
        """Padded number of nodes M."""
        return int(self.nu.shape[1])


FIGURES = 6
"""Numbers that are told of each reference before all that belongs to steps and nodes."""


class StructureTerms(NamedTuple):
    """The structure's share of the next event, left over by the loss of this one.

    A function of plan, distances and references alone: carried over or computed anew, the bits are
    the same. So nobody has to store it.

    Parameters
    ----------
    plan : (K, t, M)
        The plan that all this belongs to: with another one, nothing here is used.
    distance : (t, t)
        D^P. Where the old steps' distances are others at the next event, nothing here is used.
    numbers : (K, 3 t + 5 M + 6)
        Of each reference, one after the other: six figures, u (t), v (M); then the ``sides``:
        ``(D^P)^2 p`` (t), ``(D^R)^2 q`` (M) and q (M), with row sums p and column sums q.
    kept : (2, K, t, M)
        The plan, and ``D^P T D^R``, the ``cross`` term, in float32.
    """

    plan: Reals
    distance: Reals
    numbers: Floats
    kept: Reals

    @property
    def cross(self) -> Reals:
        """``D^P T D^R``, (K, t, M)."""
        cross: Reals = self.kept[1]
        return cross

    @property
    def sides(self) -> Floats:
        """What belongs to rows and columns, (K, t + 2 M)."""
        steps, width = self.plan.shape[1:]
        start = FIGURES + steps + width
        sides: Floats = self.numbers[:, start : start + steps + 2 * width]
        return sides


class Coupling(NamedTuple):
    """State of the alignment after t steps, one slice a reference.

    Parameters
    ----------
    plan : (K, t, M)
        Mass T_ij of agent step i matched to reference node j; >= 0, 0 on padding.
    u : (K, t)
        Row scalings of the last inner solve, the warm start of the next.
    v : (K, M)
        Column scalings of the same; 0 where the marginal was 0.
    terms
        What the next event may take over; None where nothing is known.
    """

    plan: Reals
    u: Floats
    v: Floats
    terms: StructureTerms | None = None


def empty_coupling(references: ReferenceArrays) -> Coupling:
    """Return the coupling before the first step: no rows, v = 1 on real nodes."""
    count, width = references.nu.shape
    return Coupling(
        plan=np.zeros((count, 0, width)),
        u=np.zeros((count, 0)),
        v=references.valid.astype(np.float64),
    )


def pack_references(
    hops: Sequence[npt.NDArray[np.integer]], parents: Sequence[Bools]
) -> ReferenceArrays:
    """Pad references of different lengths into one set of arrays.

    Parameters
    ----------
    hops : sequence of (m_k, m_k) int
        Hops between the nodes of each reference, ``structure.UNCONNECTED`` without a path.
    parents : sequence of (m_k, m_k) bool
        ``parents[k][j, i]``: node i is a parent of node j.

    Raises
    ------
    ValueError
        If there is no reference, one is empty, or its matrices are not what is stated above.
    """
    if not hops or len(hops) != len(parents):
        raise ValueError(
            f"expected one parents matrix for each of at least one reference, "
            f"got {len(hops)} hop matrices and {len(parents)} parents matrices"
        )
    sizes = np.array([len(matrix) for matrix in hops], dtype=np.int64)
    count, width = len(hops), int(sizes.max())
    distance = np.ones((count, width, width))
    parent = np.zeros((count, width, width), dtype=np.bool_)
    for index, (matrix, own) in enumerate(zip(hops, parents, strict=True)):
        size = len(matrix)
        _check_reference(index, matrix, own)
        distance[index, :size, :size] = structure.distances(_as_hops(matrix))
        parent[index, :size, :size] = own
    valid = np.arange(width)[None, :] < sizes[:, None]
    return ReferenceArrays(
        structure=distance,
        structure_squared=distance * distance,
        parents=parent,
        valid=valid,
        sizes=sizes,
        nu=np.where(valid, 1.0 / sizes[:, None], 0.0),
        mean_size=float(sizes.mean()),
    )


def _as_hops(matrix: npt.NDArray[np.integer]) -> Hops:
    hops: Hops = np.minimum(matrix, structure.UNCONNECTED).astype(np.int16)
    return hops


def _check_reference(index: int, matrix: npt.NDArray[np.integer], parents: Bools) -> None:
    size = len(matrix)
    if size == 0:
        raise ValueError(f"reference {index} has no nodes; a reference needs at least one")
    if size > structure.NODES_MAX:
        raise ValueError(
            f"reference {index} has {size} nodes, at most {structure.NODES_MAX} are supported"
        )
    check_shape(f"hops of reference {index}", matrix, (size, size))
    check_shape(f"parents of reference {index}", parents, (size, size))
    if (matrix < 0).any() or matrix.diagonal().any() or (matrix != matrix.T).any():
        raise ValueError(f"hops of reference {index} must be >= 0, symmetric and 0 on the diagonal")
    if parents.diagonal().any():
        raise ValueError(f"reference {index} has a node that is its own parent")
