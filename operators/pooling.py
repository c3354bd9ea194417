"""The alignment of a run with many references: candidates chosen, members aligned, the rest told.

Up to :attr:`~ontrack.operators.candidates.CandidateParams.all_max` references everything here is
:mod:`ontrack.operators.transport` itself. Beyond it the state's plan and scalings are the
members' only, its cost rows those of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ontrack.operators import candidates, prefix, transport
from ontrack.operators.candidates import Candidates
from ontrack.operators.references import ReferenceSet
from ontrack.operators.transport import Alignment, TransportParams, TransportState
from ontrack.solver import objective, relaxed
from ontrack.solver.problem import ReferenceArrays, SolverParams

Float = npt.NDArray[np.float64]
CostRow = npt.NDArray[np.float32]

_SUBSETS_KEPT = 16


class Part(NamedTuple):
    """Some of a run's references, and the state of their alignment.

    Parameters
    ----------
    names
        Their indices among all K.
    arrays, state
        As if there were no others; masses are those of all (m-bar).
    """

    names: Sequence[int]
    arrays: ReferenceArrays
    state: TransportState


class _Taken(NamedTuple):
    """References that have taken the step, and their signals."""

    part: Part
    said: Alignment


def members(references: ReferenceSet, state: TransportState) -> Part:
    """Return the references that a run is aligned with: all, or the members."""
    pool = state.candidates
    if pool is None:
        return Part(range(references.count), references.arrays, state)
    chosen = list(pool.members)
    own = _costs_of(state, chosen)
    return Part(chosen, _subset(references.arrays, chosen), own)


def step(
    params: TransportParams,
    references: ReferenceSet,
    state: TransportState,
    hops: prefix.Hops,
    age: Float,
    row: CostRow,
) -> tuple[TransportState, Alignment]:
    """Take one event with the members and with who comes in; shapes as for the transport's step."""
    count, rows = references.count, state.cost.shape[1] + 1
    places = candidates.room(params.candidates, count, rows, references.width)
    if state.candidates is None:
        if places == count:
            return transport.step(params, references, state, hops, age, row)
        state = _begun(params.solver, references, state)
    pool = state.candidates
    assert pool is not None
    arrays, chosen = references.arrays, params.candidates
    after, lower = relaxed.step(
        params.solver,
        arrays,
        pool.relaxed,
        row,
        state.masses(rows, arrays.mean_size),
        transport.widened(params, state),
    )
    taken = [_take(params, members(references, state), hops, age, row)]
    losses = taken[0].said.losses
    estimated, common = candidates.estimates(chosen, pool, lower, losses)
    coming = candidates.entrants(chosen, pool.members, places, estimated, losses)
    if coming:
        taken.append(_enter(params, references, state, hops, age, row, coming))
    return _joined(params, state, row, taken, estimated, lower, common, places, after)


def converge(
    params: TransportParams,
    references: ReferenceSet,
    previous: TransportState,
    current: TransportState,
    hops: prefix.Hops,
    age: Float,
) -> Alignment:
    """Solve the same prefix from cold to convergence, with the members.

    The losses of the others stay what they were estimated to be.
    """
    pool = current.candidates
    if pool is None:
        return transport.converge(params, references, previous, current, hops, age)
    now = members(references, current)
    columns = objective.column_mass(whole(references, previous).plan.astype(np.float64))
    said = transport.converge_from(
        params,
        now.arrays,
        columns[list(now.names)],
        transport.widened(params, previous),
        now.state,
        hops,
        age,
    )
    losses = pool.losses.copy()
    losses[list(now.names)] = said.losses
    return _told(params.solver, said, now.names, losses)


def whole(references: ReferenceSet, state: TransportState) -> TransportState:
    """Return the state as if all were aligned, the others as their relaxed problem has them."""
    pool = state.candidates
    if pool is None:
        return state
    everyone = relaxed.coupling(pool.relaxed, list(range(references.count)), state.cost.shape[1])
    plan, u, v = everyone.plan, everyone.u, everyone.v
    chosen = list(pool.members)
    plan[chosen], u[chosen], v[chosen] = state.plan, state.u, state.v
    return replace(state, plan=plan, u=u, v=v, candidates=None)


def parted(
    solver: SolverParams,
    references: ReferenceSet,
    pool: Candidates | None,
    collapsed: TransportState,
    begins: list[int],
) -> TransportState:
    """Return a whole state, of which rows were joined, as that of the members again.

    Parameters
    ----------
    pool
        Candidates before; None where all are aligned.
    begins
        First row, before, of each row.
    """
    if pool is None:
        return collapsed
    chosen = list(pool.members)
    mass = collapsed.masses(collapsed.cost.shape[1], references.arrays.mean_size)
    joined = relaxed.joined(solver, pool.relaxed, begins, collapsed.merged, mass)
    return replace(
        collapsed,
        plan=collapsed.plan[chosen],
        u=collapsed.u[chosen],
        v=collapsed.v[chosen],
        candidates=replace(pool, relaxed=joined),
    )


def _begun(solver: SolverParams, references: ReferenceSet, state: TransportState) -> TransportState:
    """Return a state in which all are aligned as one in which all are members."""
    count = references.count
    plan = state.plan.astype(np.float64)
    from_plan = relaxed.Relaxed(
        relaxed.kernel_rows(solver, references.arrays, state.solver_cost(state.cost)),
        state.u,
        state.v,
        objective.row_mass(plan),
        objective.column_mass(plan),
    )
    pool = Candidates(tuple(range(count)), from_plan, np.zeros(count), np.zeros(count))
    # What was carried over is of all, and would be kept, unused, to the end of the run.
    return replace(state, candidates=pool, terms=None)


def _take(
    params: TransportParams, part: Part, hops: prefix.Hops, age: Float, row: CostRow
) -> _Taken:
    state, said = transport.step_with(
        params, part.arrays, part.state, hops, age, row[list(part.names)]
    )
    return _Taken(part._replace(state=state), said)


def _enter(
    params: TransportParams,
    references: ReferenceSet,
    state: TransportState,
    hops: prefix.Hops,
    age: Float,
    row: CostRow,
    coming: list[int],
) -> _Taken:
    """Let references come in: from their relaxed plan, some steps again, then this one."""
    pool = state.candidates
    assert pool is not None
    old = state.cost.shape[1]
    begin = max(state.merged, old - params.candidates.retaken)
    coupling = relaxed.coupling(pool.relaxed, coming, begin)
    own = _costs_of(state, coming)
    begun = replace(
        own,
        plan=coupling.plan,
        u=coupling.u,
        v=coupling.v,
        cost=own.cost[:, :begin],
    )
    part = Part(coming, _subset(references.arrays, coming), begun)
    for again in range(begin, old):
        upto = again + 1
        made = _take(params, part, hops[:upto, :upto], age[:upto], state.cost[:, again])
        part = made.part._replace(state=replace(made.part.state, gap_streak=state.gap_streak))
    return _take(params, part, hops, age, row)


def _joined(
    params: TransportParams,
    state: TransportState,
    row: CostRow,
    taken: list[_Taken],
    estimated: Float,
    lower: Float,
    common: float,
    places: int,
    after: relaxed.Relaxed,
) -> tuple[TransportState, Alignment]:
    """Put the parts together: the best one's signals, all losses, and who goes on."""
    pool = state.candidates
    assert pool is not None
    names = [name for each in taken for name in each.part.names]
    order = sorted(range(len(names)), key=names.__getitem__)
    ordered = [names[place] for place in order]
    losses = np.concatenate([each.said.losses for each in taken])[order]
    going = candidates.kept(params.candidates, places, losses)
    places_kept = [order[place] for place in going]
    all_losses, shift = estimated.copy(), pool.shift.copy()
    all_losses[ordered] = losses
    shift[ordered] = losses - lower[ordered] - common
    states = [each.part.state for each in taken]
    leading = min(taken, key=lambda each: (float(each.said.losses.min()), _best_of(each)))
    new = replace(
        state,
        plan=np.concatenate([each.plan for each in states])[places_kept],
        u=np.concatenate([each.u for each in states])[places_kept],
        v=np.concatenate([each.v for each in states])[places_kept],
        cost=np.concatenate([state.cost, row[:, None, :]], axis=1),
        gap_streak=leading.part.state.gap_streak,
        candidates=Candidates(tuple(ordered[place] for place in going), after, shift, all_losses),
    )
    said = replace(
        leading.said,
        all_leakages=np.concatenate([each.said.all_leakages for each in taken])[places_kept],
        all_coverage=np.concatenate([each.said.all_coverage for each in taken])[places_kept],
    )
    return new, _told(params.solver, said, leading.part.names, all_losses)


def _best_of(taken: _Taken) -> int:
    return taken.part.names[taken.said.best]


def _told(solver: SolverParams, said: Alignment, names: Sequence[int], losses: Float) -> Alignment:
    """Return what a part of the references said as said among all."""
    rank = objective.soft_min(losses, solver.soft_min_temperature)
    score = objective.score_of(rank)
    return replace(said, best=names[said.best], losses=losses, score=score, rank_score=-rank)


def _costs_of(state: TransportState, chosen: list[int]) -> TransportState:
    """Return a state with the cost rows of some references; plan and scalings as they are."""
    shared = state.shared
    if shared is not None:
        shared = replace(
            shared,
            shift=shared.shift[chosen],
            leaked=shared.leaked[chosen],
            offset=shared.offset[chosen],
        )
    return replace(state, cost=state.cost[chosen], shared=shared, settled=None, candidates=None)


def _subset(arrays: ReferenceArrays, chosen: list[int]) -> ReferenceArrays:
    """Return the arrays of some references; the latest few are kept with those of all."""
    kept = arrays.derived.setdefault("subsets", {})
    assert isinstance(kept, dict)
    name = tuple(chosen)
    found: ReferenceArrays | None = kept.get(name)
    if found is None:
        found = ReferenceArrays(
            structure=arrays.structure[chosen],
            structure_squared=arrays.structure_squared[chosen],
            parents=arrays.parents[chosen],
            valid=arrays.valid[chosen],
            sizes=arrays.sizes[chosen],
            nu=arrays.nu[chosen],
            mean_size=arrays.mean_size,
        )
        if len(kept) >= _SUBSETS_KEPT:
            kept.clear()
        kept[name] = found
    return found
