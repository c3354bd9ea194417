"""The switch between the two forms of the fast path: numpy, or loops compiled by numba.

Both do the same (docs/decisions/0008-compiled-kernel.md). numpy is in force until somebody asks for
another one, so that nothing pays for an import that it does not need.
"""

from __future__ import annotations

import importlib.util
import warnings
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np

from ontrack.solver.arrays import Bools, Floats, plain
from ontrack.solver.problem import (
    FIGURES,
    Coupling,
    ReferenceArrays,
    SolverParams,
)
from ontrack.solver.scaling import NOT_FINITE

Choice = Literal["auto", "numpy", "numba"]

_in_force: ModuleType | None = None


def use(choice: Choice) -> Literal["numpy", "numba"]:
    """Choose the kernel of this process, before its first event; return the one now in force.

    The compiled one is compiled, or loaded from numba's cache, and called once in here, so no event
    ever waits for that. May be called again: the same choice changes nothing, at no moment, so
    another thread may be solving meanwhile.

    Parameters
    ----------
    choice
        ``auto`` is numba where it is installed, else numpy. Where numba is installed but cannot be
        imported, ``auto`` warns and takes numpy.

    Raises
    ------
    ValueError
        If numba was asked for and is not installed, or for another name.
    ImportError
        If numba was asked for and cannot be imported.
    """
    global _in_force
    if choice not in ("auto", "numpy", "numba"):
        raise ValueError(f"kernel must be auto, numpy or numba, got {choice!r}")
    wanted = choice != "numpy" and (choice == "numba" or installed())
    if choice == "numba" and not installed():
        raise ValueError(
            'the kernel numba needs numba: pip install "ontrack[fast]", or choose auto or numpy'
        )
    chosen: ModuleType | None = None
    if wanted:
        try:
            chosen = _load() if _in_force is None else _in_force
        except ImportError as error:
            if choice == "numba":
                raise
            warnings.warn(f"numba cannot be imported, numpy is used: {error}", stacklevel=2)
    # In one assignment: another thread may be folding with the one in force.
    _in_force = chosen
    return "numpy" if _in_force is None else "numba"


def installed() -> bool:
    """Tell whether numba is installed, without importing it."""
    return importlib.util.find_spec("numba") is not None


def compiled() -> ModuleType | None:
    """Return :mod:`ontrack.solver.compiled` if it is in force; None for numpy."""
    return _in_force


class Iteration(NamedTuple):
    """One conditional gradient iteration: linearised, scaled, moved by the share gamma.

    Parameters
    ----------
    coupling
        Plan and scalings after it; those of a frozen reference as they were.
    total_cost : (K, t, M)
        Total cost M of the linearised problem; undefined for a frozen reference.
    iterations : int
        Scaling iterations until the last reference stopped.
    residual : (K,)
        Largest change of log u at each reference's last iteration.
    moved : (K,)
        Largest change of an entry of each plan.
    """

    coupling: Coupling
    total_cost: Floats
    iterations: int
    residual: Floats
    moved: Floats


def iterate(
    compiled: ModuleType,
    params: SolverParams,
    references: ReferenceArrays,
    coupling: Coupling,
    cost: Floats,
    distance: Floats,
    age: Floats,
    mu: Floats,
    marginal: Floats,
    iterations_max: int,
    tolerance: float,
    frozen: Bools,
) -> Iteration:
    """Iterate once by the compiled kernel, ``compiled``.

    Parameters
    ----------
    coupling
        With as many rows as there are steps.
    cost, distance, age, mu, marginal
        As for :func:`ontrack.solver.converged.solve`.
    iterations_max, tolerance
        Of the scaling.
    frozen : (K,)
        References that are left as they are.

    Raises
    ------
    ValueError
        If a cost, distance or age is not finite.
    """
    shape = references.count, len(mu), references.width
    plan, u, total_cost = np.empty(shape), np.empty(shape[:2]), np.empty(shape)
    v, residual, moved = np.empty((shape[0], shape[2])), np.zeros(shape[0]), np.zeros(shape[0])
    iterations = compiled.iterate(
        *plain(coupling.plan, coupling.u, coupling.v, cost, distance, age, mu, marginal),
        *plain(references.structure),
        params.theta,
        params.epsilon,
        params.exponent,
        params.gamma,
        iterations_max,
        tolerance,
        frozen,
        plan,
        u,
        v,
        total_cost,
        residual,
        moved,
    )
    if iterations < 0:
        raise ValueError(NOT_FINITE)
    return Iteration(Coupling(plan, u, v), total_cost, iterations, residual, moved)


def _load() -> ModuleType:
    """Import the compiled functions and call each once: the first call still looks up BLAS."""
    from ontrack.solver import compiled

    line, flag = np.ones(1), np.zeros(1, dtype=np.bool_)
    square, cube = line.reshape(1, 1), line.reshape(1, 1, 1)
    flags, links = flag.reshape(1, 1), flag.reshape(1, 1, 1)
    coupling, problem = (cube, square, square), (cube, square, line, line, square)
    results = [cube.copy(), square.copy(), square.copy(), cube.copy(), line.copy(), line.copy()]
    mask: Any = square.copy(), flags.copy(), flags.copy(), flags.copy()
    numbers, shares, limits = (0.35, 0.05, 0.7, 0.7), (0.3, 0.3, 0.01), (1, 0.0)
    compiled.iterate(*coupling, *problem, cube, *numbers, *limits, flag, *results)
    weights = 0.35, 0.05, 0.1
    rest = cube, square, cube, line, square, cube
    compiled.diagnostic_loss(*rest, *weights, line.copy())
    compiled.frontier(square, square, flags, links, *shares, *mask)
    # Called as it is, without what solver/fast_step.py does around it: that rests on this module.
    given = np.array([*(0.3, 0.01, 0.35, 0.05, 0.7, 0.7, 0.1), *(1.0, 0.0), *(1.0, 1.0), 1.0])
    single, singles = np.zeros((1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
    before = np.zeros((2, 1, 0, 1), np.float32), np.zeros((1, FIGURES + 5)), single[:0, :0]
    after = np.empty((2, 1, 1, 1), np.float32), np.empty((1, FIGURES + 8)), np.ones((5, 1, 1), bool)
    parents = np.zeros((1, 1, 1), np.int64)
    compiled.advance(given, 0.3, 0, singles, parents, *before, singles, single, line, line, *after)
    return compiled
