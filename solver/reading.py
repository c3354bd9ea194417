"""What is read off a coupling after an event, all references at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ontrack.solver.arrays import Bools, Floats
from ontrack.solver.frontier import Frontier, coverage, frontier
from ontrack.solver.objective import column_mass, leakage_of, row_mass
from ontrack.solver.problem import FIGURES, Coupling, ReferenceArrays, SolverParams


class Reading(NamedTuple):
    """Signals of one event.

    In few arrays, because numba and numpy take longer to hand over an array than to fill one.

    Parameters
    ----------
    numbers : (K, 3 t + 5 M + 6)
        Of each reference, one after the other: diagnostic loss, change of log u, coverage, mass of
        the new step's row, that mass times its total cost, and times its attribute cost; u (t) and
        v (M); the sides of its structure terms (t + 2 M); nu-hat (M); the new step's row of the
        total cost M that was solved (M); leakage of each step (t), equation (4).
    flags : (5, K, M) bool
        Satisfied, active and lookahead nodes before the event; satisfied and active after it.
    """

    numbers: Floats
    flags: Bools

    @property
    def steps(self) -> int:
        """Number of steps t, with the new one."""
        return int(self.numbers.shape[1] - 5 * self.flags.shape[2] - FIGURES) // 3

    def _of_nodes(self, place: int) -> Floats:
        """Return one of the lines of M numbers after the structure terms' sides, (K, M)."""
        width = self.flags.shape[2]
        start = FIGURES + 2 * self.steps + (3 + place) * width
        numbers: Floats = self.numbers[:, start : start + width]
        return numbers

    def _figure(self, place: int) -> Floats:
        """Return one of the six figures, (K,)."""
        figure: Floats = self.numbers[:, place]
        return figure

    @property
    def mask(self) -> Frontier:
        """Frontier, from the coupling before the event."""
        return Frontier(self._of_nodes(0), self.flags[0], self.flags[1], self.flags[2])

    @property
    def newest_cost(self) -> Floats:
        """The new step's row of the total cost M that was solved, (K, M)."""
        return self._of_nodes(1)

    @property
    def losses(self) -> Floats:
        """Diagnostic loss of each reference, (K,)."""
        return self._figure(0)

    @property
    def residual(self) -> float:
        """Largest change of log u, over all references, at their last iteration."""
        return float(max(self._figure(1).tolist()))

    @property
    def coverage(self) -> Floats:
        """Coverage rho after the event, (K,)."""
        return self._figure(2)

    @property
    def leakages(self) -> Floats:
        """Leakage of each step, (K, t)."""
        leakages: Floats = self.numbers[:, -self.steps :]
        return leakages

    @property
    def satisfied(self) -> Bools:
        """Nodes that are satisfied after the event, (K, M)."""
        flags: Bools = self.flags[3]
        return flags

    @property
    def active(self) -> Bools:
        """Nodes that are active after the event, (K, M)."""
        flags: Bools = self.flags[4]
        return flags

    def match_cost(self, reference: int, epsilon_den: float) -> tuple[float, float]:
        """Mean total and mean attribute cost of what the new step matched (Table 1)."""
        mass, priced, attributed = self.numbers[reference, 3:FIGURES].tolist()
        return priced / (mass + epsilon_den), attributed / (mass + epsilon_den)


def read(
    params: SolverParams,
    references: ReferenceArrays,
    coupling: Coupling,
    mu: Floats,
    mask: Frontier,
    newest_cost: Floats,
    attribute_cost: Floats,
    losses: Floats,
    residual: Floats,
    sides: Floats | None = None,
) -> Reading:
    """Read signals off a coupling by numpy.

    Parameters
    ----------
    coupling, mu : K references, (t,)
        After the event.
    mask
        Frontier before the event.
    newest_cost, attribute_cost : (K, M)
        The new step's rows of M and of C.
    losses, residual : (K,)
    sides : (K, t + 2 M)
        Of its structure terms, where they are known; else 0.
    """
    plan = np.asarray(coupling.plan, np.float64)
    columns, rows, newest = column_mass(plan), row_mass(plan), plan[:, -1]
    now = frontier(columns, references, params)
    figures = [
        losses,
        residual,
        coverage(columns, references),
        rows[:, -1],
        np.einsum("kj,kj->k", newest, newest_cost),
        np.einsum("kj,kj->k", newest, attribute_cost),
    ]
    count, steps, width = plan.shape
    numbers = [
        np.stack(figures, axis=1),
        coupling.u,
        coupling.v,
        np.zeros((count, steps + 2 * width)) if sides is None else sides,
        *(mask.marginal, newest_cost),
        leakage_of(rows, mu),
    ]
    flags = [mask.satisfied, mask.active, mask.lookahead, now.satisfied, now.active]
    return Reading(np.concatenate(numbers, axis=1), np.stack(flags))


class Advance(NamedTuple):
    """What one event comes to.

    Parameters
    ----------
    coupling
        State after it: plan in float32, with its structure terms.
    reading
        What the event's signals are made of.
    inner_iterations : int
        Scaling iterations until the last reference stopped.
    tolerance : float
        Change of log u at which scaling stops.
    """

    coupling: Coupling
    reading: Reading
    inner_iterations: int
    tolerance: float

    @property
    def inner_residual(self) -> float:
        """Largest change of log u, over all references, at their last iteration."""
        return self.reading.residual

    @property
    def converged(self) -> bool:
        """Whether every reference met the tolerance.

        Not converging is normal here: the next event goes on from where this one stopped.
        """
        return self.inner_residual < self.tolerance

    @property
    def mask(self) -> Frontier:
        """Frontier, from the coupling before the event."""
        return self.reading.mask

    @property
    def newest_cost(self) -> Floats:
        """The new step's row of the total cost M that was solved, (K, M)."""
        return self.reading.newest_cost

    @property
    def losses(self) -> Floats:
        """Diagnostic loss of each reference, (K,)."""
        losses: Floats = self.reading.numbers[:, 0]
        return losses
