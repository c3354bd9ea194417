"""Runs with many references, against the same runs aligned with all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.operators import pooling, run, snapshot
from ontrack.operators.candidates import CandidateParams
from ontrack.operators.prefix import PrefixParams
from ontrack.operators.profiles import Profile, paper
from ontrack.solver import kernels
from ontrack.topics.events import Step
from ontrack.topics.knowledge import Reference
from tests.operators.lab import SIX_STEPS, Lab, foreign, reference_of, step_of
from tests.operators.test_snapshot import copied

NAMES = [node.name for node in SIX_STEPS.nodes]
ALL = CandidateParams(all_max=1000)
FEW = CandidateParams(all_max=4, aligned_min=3, cells=0)


def references(count: int, seed: int = 0) -> list[Reference]:
    """The task in many wordings, most with steps left out or told twice."""
    rng, made = np.random.default_rng(seed), []
    for index in range(count):
        order = [name for name in NAMES if rng.random() < 0.8] or NAMES[:1]
        if rng.random() < 0.5:
            order.insert(int(rng.integers(len(order))), NAMES[int(rng.integers(6))])
        made.append(reference_of(SIX_STEPS, index, order=NAMES if index == 7 else order))
    return made


def profile(params: CandidateParams, graph: PrefixParams = PrefixParams()) -> Profile:  # noqa: B008
    made = paper("synthetic")
    return replace(made, prefix=graph, transport=replace(made.transport, candidates=params))


def lab(params: CandidateParams, count: int = 12, graph: PrefixParams | None = None) -> Lab:
    return Lab(references(count), profile=profile(params, graph or PrefixParams()))


def clean(times: int = 1) -> list[Step]:
    return [
        step_of(SIX_STEPS, name, f"run{turn}", seq=turn * 6 + place)
        for turn in range(times)
        for place, name in enumerate(NAMES)
    ]


def best(monitored: Lab) -> list[str | None]:
    return [verdict.best_reference for verdict in monitored.verdicts]


def test_a_run_names_the_same_best_references_as_with_all_of_them() -> None:
    whole, pruned = lab(ALL), lab(FEW)
    whole.feed(*clean())
    pruned.feed(*clean())
    assert best(pruned) == best(whole)
    assert pruned.names == whole.names
    for one, other in zip(pruned.verdicts, whole.verdicts, strict=True):
        assert one.leakage == pytest.approx(other.leakage, abs=1e-2)
    assert pruned.state.transport is not None
    assert pruned.state.transport.candidates is not None
    assert pruned.state.transport.plan.shape[0] <= 3
    assert pruned.state.transport.cost.shape[0] == 12


def test_up_to_the_limit_and_while_the_budget_lasts_nothing_is_pruned() -> None:
    for params, count in ((FEW, 4), (CandidateParams(all_max=4, cells=10_000), 12)):
        whole, same = lab(ALL, count), lab(params, count)
        whole.feed(*clean())
        same.feed(*clean())
        one, other = same.state.transport, whole.state.transport
        assert one is not None
        assert other is not None
        assert one.candidates is None
        for name in ("plan", "u", "v", "cost"):
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes()


def test_losses_of_members_are_theirs_and_those_of_the_others_near() -> None:
    whole, pruned = lab(ALL), lab(FEW)
    for event in clean():
        whole.feed(event)
        pruned.feed(event)
    known, state = whole.state.knowledge.references, pruned.state.transport
    assert known is not None
    assert state is not None
    assert state.candidates is not None
    everyone = pooling.whole(known, state)
    full = whole.state.transport
    assert full is not None
    members = list(state.candidates.members)
    np.testing.assert_allclose(everyone.plan[members], full.plan[members], atol=2e-2)
    assert np.abs(everyone.plan - full.plan).sum() / full.plan.sum() < 0.3


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from([*NAMES, "foreign"]), min_size=2, max_size=12),
    st.integers(1, 11),
)
def test_a_run_that_is_read_back_goes_on_with_the_same_bytes(names: list[str], stop: int) -> None:
    steps = [
        foreign(seq, seq=seq) if name == "foreign" else step_of(SIX_STEPS, name, seq, seq=seq)
        for seq, name in enumerate(names)
    ]
    straight, stopped = lab(FEW), lab(FEW)
    straight.feed(*steps)
    stopped.feed(*steps[:stop])
    resumed = copied(stopped)
    resumed.feed(*steps[stop:])
    assert snapshot.dump(resumed.state, 1) == snapshot.dump(straight.state, 1)
    assert resumed.end() == straight.end()


def test_the_end_is_solved_with_all_references() -> None:
    whole, pruned = lab(ALL), lab(FEW)
    whole.feed(*clean())
    pruned.feed(*clean())
    one, other = pruned.end(), whole.end()
    assert (one.best_reference, one.final_score) == (other.best_reference, other.final_score)


def test_long_runs_are_collapsed_with_their_members() -> None:
    graph = PrefixParams(active_max=6, chunk=2, merged_max=3, exact_max=12)
    whole, pruned = lab(ALL, graph=graph), lab(FEW, graph=graph)
    steps = clean(times=4)
    whole.feed(*steps)
    pruned.feed(*steps)
    state = pruned.state.transport
    assert state is not None
    assert state.merged
    assert state.candidates is not None
    assert state.candidates.relaxed.kernel.shape[1] == state.cost.shape[1]
    assert state.steps == len(steps)
    same = [one == other for one, other in zip(best(pruned), best(whole), strict=True)]
    assert np.mean(same) > 0.9
    assert pruned.end().final_score == whole.end().final_score


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_long_runs_of_anything_keep_finite_plans_of_a_mass_like_theirs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    monitored = lab(FEW, graph=PrefixParams(active_max=6, chunk=2, merged_max=3, exact_max=12))
    for seq in range(30):
        name = NAMES[int(rng.integers(6))]
        known = step_of(SIX_STEPS, name, f"run{seq}", seq=seq)
        monitored.feed(known if rng.random() < 0.8 else foreign(seq, seq=seq))
        state, references = monitored.state.transport, monitored.state.knowledge.references
        assert state is not None
        assert references is not None
        everyone = pooling.whole(references, state)
        assert np.isfinite(everyone.plan).all()
        assert (everyone.plan >= 0).all()
        total = everyone.plan.sum(axis=(1, 2))
        assert (total <= 2.0 * state.steps / references.arrays.mean_size).all()
        assert np.isfinite(state.solver_cost(state.cost)).all()
        if state.candidates is not None:
            assert np.isfinite(state.candidates.losses).all()


def test_the_gate_asks_the_best_member() -> None:
    whole, pruned = lab(ALL), lab(FEW)
    steps = clean()
    whole.feed(*steps[:4])
    pruned.feed(*steps[:4])
    for call in (steps[4], steps[0], foreign(1)):
        assert pruned.propose(call).decision == whole.propose(call).decision


def test_an_escalated_solve_takes_the_members() -> None:
    monitored = lab(FEW)
    states = []
    for event in [*clean()[:4], foreign(1, seq=4)]:
        states.append(monitored.state.transport)
        monitored.feed(event)
    known, state = monitored.state.knowledge.references, monitored.state.transport
    graph = monitored.state.prefix
    assert known is not None
    assert state is not None
    assert states[-1] is not None
    assert state.candidates is not None
    params = monitored.profile.transport
    said = pooling.converge(params, known, states[-1], state, graph.hops, np.ones(graph.size))
    assert said.best in state.candidates.members
    assert said.losses.shape == (12,)
    assert said.leakage > 0.5
    assert said.cost.shape[1] == known.arrays.sizes[said.best]


def test_who_returns_to_another_way_is_found_there() -> None:
    """Whose first steps fit one reference and whose later ones another, which was dropped."""
    other = [*NAMES[:1], "test", "commit", "test", "commit", "test"]
    orders: Sequence[Sequence[str]] = [NAMES, *([NAMES[:5]] * 6), *([NAMES[:4]] * 4), other]
    made = [reference_of(SIX_STEPS, index, order=order) for index, order in enumerate(orders)]
    steps = [step_of(SIX_STEPS, name, f"x{seq}", seq=seq) for seq, name in enumerate(other)]
    found = []
    for params in (ALL, FEW):
        monitored = Lab(made, profile=profile(params))
        monitored.feed(*steps)
        found.append(best(monitored))
    assert found[0][-1] == "six-11"
    assert found[1][-3:] == found[0][-3:]
    assert run.end(profile(FEW), monitored.state, run.RunEnded(run_id="r")).best_reference


@pytest.mark.parametrize("kernel", ["numpy", "numba"])
def test_a_run_that_begins_to_choose_drops_what_it_carried_over_of_all(
    kernel: kernels.Choice,
) -> None:
    chosen = kernels.use(kernel)
    try:
        # One step of 12 references of at most 7 nodes fits; two do not.
        monitored = lab(CandidateParams(all_max=4, aligned_min=3, cells=12 * 7))
        monitored.feed(*clean())
    finally:
        kernels.use("numpy")
    transported = monitored.state.transport
    assert chosen == kernel
    assert transported is not None
    assert transported.candidates is not None
    assert transported.terms is None
