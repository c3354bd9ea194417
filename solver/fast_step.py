"""The streaming step by the compiled kernel: what it is handed, and what becomes of its answer.

Half of a step in turns with other work is code and data that has to be fetched anew, so little
happens here, and what a reference set needs is prepared once.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

from ontrack.solver.arrays import Bools, Floats, Ints, Reals, check_shape, plain, singles
from ontrack.solver.problem import (
    FIGURES,
    Coupling,
    ReferenceArrays,
    SolverParams,
    StructureTerms,
)
from ontrack.solver.reading import Advance, Reading

_FLOAT64, _FLOAT32 = np.dtype(np.float64), np.dtype(np.float32)
_BOOL = np.dtype(np.bool_)

_record = tuple.__new__


class _Prepared:
    """What the compiled step wants of references and parameters; never changed."""

    __slots__ = ("count", "links", "numbers", "params", "structure", "width")

    def __init__(
        self, params: SolverParams, references: ReferenceArrays, others: _Prepared | None
    ) -> None:
        """Prepare; ``others`` is the same for other parameters, if there is."""
        self.params = params
        self.count, self.width = references.nu.shape
        if others is None:
            self.structure = references.structure.astype(np.float32)
            self.links = parent_bits(references.parents)
        else:
            self.structure, self.links = others.structure, others.links
        scalars = (
            *(params.kappa, params.dormant_weight, params.theta, params.epsilon),
            *(params.exponent, params.gamma, params.lam),
            *(params.inner_iterations, params.inner_tolerance),
            *(self.count, self.width),
        )
        self.numbers = np.concatenate([np.array(scalars, np.float64), references.nu.reshape(-1)])


def parent_bits(parents: Bools) -> Ints:
    """Pack parent matrices (K, M, M) into bits, (K, M, words): bit i of row j, i is its parent."""
    count, width, _ = parents.shape
    padded = np.zeros((count, width, -(-width // 64) * 64), dtype=np.bool_)
    padded[:, :, :width] = parents
    return np.packbits(padded, axis=2, bitorder="little").view("<i8").astype(np.int64)


def advance(
    compiled: ModuleType,
    params: SolverParams,
    references: ReferenceArrays,
    coupling: Coupling,
    cost: Reals,
    distance: Reals,
    age: Floats,
    mu: Floats,
    ahead: float,
) -> Advance | None:
    """Take one event by the compiled kernel; None where it gives up, and numpy has to take it.

    That is where the range of float32 is exceeded: Gibbs kernels below e^-80, scalings above 1e30.
    It depends on this event alone. What is not finite, and shapes that do not fit together, are
    found by numpy then.

    Parameters
    ----------
    ahead
        Share of nu one step ahead of the frontier.
    coupling ... mu
        As for :func:`ontrack.solver.streaming.advance`.
    """
    plan, u, v, terms = coupling
    count, old, width = plan.shape
    steps = old + 1
    prepared = references.derived.get("compiled")
    if type(prepared) is not _Prepared or prepared.params is not params:
        others = prepared if isinstance(prepared, _Prepared) else None
        # One value, never changed: threads may ask with parameters of their own.
        prepared = references.derived["compiled"] = _Prepared(params, references, others)
    if (
        count != prepared.count
        or width != prepared.width
        or cost.shape != (count, steps, width)
        or distance.shape != (steps, steps)
        or not age.shape == mu.shape == (steps,)
    ):
        return None
    if cost.dtype is not _FLOAT32 or distance.dtype is not _FLOAT32:
        cost, distance = singles(cost, distance)
    if age.dtype is not _FLOAT64 or mu.dtype is not _FLOAT64:
        age, mu = plain(age, mu)
    if terms is None or terms.plan is not plan:
        terms = _unknown_terms(plan, u, v)
    given = prepared.numbers, ahead, old, prepared.structure, prepared.links
    kept = np.empty((2, count, steps, width), _FLOAT32)
    told = np.empty((count, FIGURES + 3 * steps + 5 * width))
    flags = np.empty((5, count, width), _BOOL)
    try:
        _, known, figures, before = terms
        iterations = compiled.advance(
            *given, before, figures, known, cost, distance, age, mu, kept, told, flags
        )
    except TypeError:
        # Not contiguous, or terms of another kernel: looking for that at every event would take
        # longer than this does at the few where it is so.
        _, known, figures, before = _unknown_terms(plan, u, v)
        cost, distance = singles(cost, distance)
        age, mu = plain(age, mu)
        iterations = compiled.advance(
            *given, before, figures, known, cost, distance, age, mu, kept, told, flags
        )
    if iterations < 0:
        return None
    plan, start = kept[0], FIGURES + steps
    # Made by tuple itself: going through what NamedTuple makes costs three microseconds in turns.
    terms = _record(StructureTerms, (plan, distance, told, kept))
    scalings = told[:, FIGURES:start], told[:, start : start + width]
    after = _record(Coupling, (plan, *scalings, terms))
    reading = _record(Reading, (told, flags))
    return _record(Advance, (after, reading, iterations, params.inner_tolerance))


def _unknown_terms(plan: Reals, u: Floats, v: Floats) -> StructureTerms:
    """Return a coupling as the kernel takes it, its structure terms to be computed."""
    count, old, width = plan.shape
    check_shape("u", u, (count, old))
    check_shape("v", v, (count, width))
    numbers = np.zeros((count, FIGURES + 3 * old + 5 * width))
    numbers[:, FIGURES : FIGURES + old] = u
    numbers[:, FIGURES + old : FIGURES + old + width] = v
    kept = np.zeros((2, count, old, width), _FLOAT32)
    kept[0] = plan
    # Distances that equal none, so nothing of this is carried over.
    return StructureTerms(plan, np.full((old, old), np.nan, _FLOAT32), numbers, kept)
