"""Structure terms in numpy: what the loss of one event leaves over for the next one's gradient."""

from __future__ import annotations

import numpy as np

from ontrack.solver import kernels
from ontrack.solver.arrays import Floats
from ontrack.solver.objective import column_mass, inner, row_mass
from ontrack.solver.problem import Coupling, ReferenceArrays


def structure_terms(
    distance: Floats, plan: Floats, references: ReferenceArrays
) -> tuple[Floats, Floats]:
    """Compute ``cross`` and ``sides`` of :class:`ontrack.solver.problem.StructureTerms`.

    Of a plan (K, t, M) and distances (t, t), both as they are stored.
    """
    # Contiguous, so that the same numbers take the same way through BLAS wherever they came from.
    distance, plan = np.ascontiguousarray(distance), np.ascontiguousarray(plan)
    rows, columns = row_mass(plan), column_mass(plan)
    of_steps = np.matmul(rows, distance * distance)
    of_nodes = np.matmul(columns[:, None, :], references.structure_squared)[:, 0, :]
    # In float32 because an open run keeps it; here already, so that it is the same carried or not.
    cross = np.matmul(np.matmul(distance, plan), references.structure).astype(np.float32)
    cross = cross.astype(np.float64)
    return cross, np.concatenate([of_steps, of_nodes, columns], axis=1)


def carried(
    coupling: Coupling, distance: Floats, references: ReferenceArrays
) -> tuple[Floats, Floats]:
    """Return the terms that the coupling brings, or new ones where they do not fit.

    Parameters
    ----------
    distance : (t, t)
        Distances of the old steps as of this event: a late edge, or a new step that joins two old
        ones, makes some of them shorter.
    """
    terms, plan = coupling.terms, coupling.plan
    # Where a compiled kernel is in force, they are its own, in its rounding.
    if (
        terms is not None
        and terms.plan is plan
        and kernels.compiled() is None
        and np.array_equal(terms.distance, distance)
    ):
        return np.asarray(terms.cross, np.float64), terms.sides
    return structure_terms(distance, np.asarray(plan, np.float64), references)


def gradient(
    cross: Floats,
    sides: Floats,
    distance: Floats,
    plan: Floats,
    references: ReferenceArrays,
) -> Floats:
    """``G`` of equation (8) at ``[T; 0]``, (K, t + 1, M).

    Only the new step's row is new.

    Parameters
    ----------
    distance : (t,)
        From the new step to the old ones.
    """
    old, width = plan.shape[1:]
    made = np.empty((len(plan), old + 1, width))
    made[:, :-1] = cross
    made[:, -1] = np.matmul(np.matmul(distance, plan)[:, None, :], references.structure)[:, 0]
    made *= -2.0
    made[:, :-1] += sides[:, :old, None]
    made[:, -1] += np.matmul(row_mass(plan), distance * distance)[:, None]
    made += sides[:, None, old : old + width]
    return made


def quadratic(cross: Floats, sides: Floats, plan: Floats) -> Floats:
    """``<G(T), T>`` of each reference, (K,), from its terms."""
    steps, width = plan.shape[1:]
    of_steps, rest = sides[:, :steps], sides[:, steps:]
    own = inner(of_steps, row_mass(plan)) + inner(rest[:, :width], rest[:, width:])
    value: Floats = own - 2.0 * inner(cross, plan)
    return value
