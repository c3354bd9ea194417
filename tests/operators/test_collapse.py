"""Long runs whose oldest steps share rows, against the same runs with a row for each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.operators import collapse, finishing, prefix, snapshot, transport
from ontrack.operators.prefix import PrefixParams, PrefixState
from ontrack.operators.profiles import Profile, paper
from ontrack.operators.state import RunState
from ontrack.operators.transport import TransportState
from ontrack.solver import objective, structure
from ontrack.topics.events import Step
from ontrack.topics.verdicts import Verdict
from tests import strategies
from tests.operators.lab import SIX_STEPS, Lab, foreign, reference_of, step_of

NAMES = [node.name for node in SIX_STEPS.nodes]
TINY = PrefixParams(active_max=4, chunk=2, merged_max=3, exact_max=12)
SMALL = PrefixParams(active_max=12, chunk=4, merged_max=6, exact_max=16)
UNBOUNDED = PrefixParams(active_max=16_000, exact_max=16_000)


def with_graph(graph: PrefixParams) -> Profile:
    return replace(paper("synthetic"), prefix=graph)


def lab(graph: PrefixParams, references: int = 2) -> Lab:
    return Lab([reference_of(SIX_STEPS, k) for k in range(references)], profile=with_graph(graph))


def long_run(steps: int, seed: int = 0) -> list[Step]:
    """The task again and again, now and then a step of another world or one out of order."""
    rng = np.random.default_rng(seed)
    made = []
    for seq in range(steps):
        name = NAMES[seq % 6] if rng.random() < 0.8 else NAMES[int(rng.integers(6))]
        step = step_of(SIX_STEPS, name, f"run{seq}") if rng.random() < 0.9 else foreign(seq)
        made.append(step.model_copy(update={"seq": seq}))
    return made


def aligned(state: RunState) -> TransportState:
    assert state.transport is not None
    return state.transport


def losses(monitored: Lab, state: RunState) -> np.ndarray:
    references, found = state.knowledge.references, aligned(state)
    assert references is not None
    arrays = references.arrays
    solved = objective.diagnostic_loss(
        found.solver_cost(found.cost),
        structure.distances(state.prefix.hops),
        found.plan.astype(np.float64),
        found.masses(found.plan.shape[1], arrays.mean_size),
        arrays.nu,
        arrays,
        monitored.profile.transport.solver,
    )
    return found.full_losses(solved)


def collapsed(monitored: Lab, active_max: int = 0) -> tuple[PrefixState, TransportState]:
    state = monitored.state
    graph, found = collapse.step(
        monitored.profile.prefix,
        monitored.profile.transport.solver,
        state.knowledge.references,
        state.prefix,
        state.transport,
        active_max,
    )
    assert found is not None
    return graph, found


def test_a_long_run_keeps_few_rows_and_counts_all_its_steps() -> None:
    monitored = lab(SMALL)
    for step in long_run(60):
        monitored.feed(step)
        graph, found = monitored.state.prefix, aligned(monitored.state)
        assert len(graph.hops) <= SMALL.merged_max + SMALL.active_max + SMALL.chunk
        assert found.plan.shape[1] == found.cost.shape[1] == len(graph.hops)
        assert found.steps == graph.size == len(monitored.verdicts)
        assert sum(graph.members) == graph.first
        assert len(graph.starts) == found.merged <= SMALL.merged_max
    assert "graph_full" not in monitored.end().flags


def test_until_there_are_too_many_steps_nothing_is_other_than_without_collapse() -> None:
    whole, small = lab(UNBOUNDED), lab(SMALL)
    steps = long_run(SMALL.active_max + SMALL.chunk + 4)
    first = SMALL.active_max + SMALL.chunk
    one, two = whole.feed(*steps[:first]), small.feed(*steps[:first])
    assert replaced(one) == replaced(two)
    assert whole.state.prefix.hops.tolist() == small.state.prefix.hops.tolist()
    small.feed(*steps[first:])
    assert small.state.prefix.members == (SMALL.chunk,)


def replaced(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Without the digest of the settings, which are others."""
    return [verdict.model_copy(update={"settings": ""}) for verdict in verdicts]


def test_collapsing_keeps_all_mass_the_costs_paid_and_the_loss() -> None:
    monitored = lab(SMALL)
    monitored.feed(*long_run(48))
    before = monitored.state
    while len(before.prefix.seqs) < SMALL.active_max + SMALL.chunk:
        monitored.feed(*long_run(49)[-1:])
        monitored.feed(step_of(SIX_STEPS, "test", len(monitored.verdicts)))
        before = monitored.state
    graph, found = collapsed(monitored)
    after = replace(before, prefix=graph, transport=found)
    was = aligned(before)
    assert found.plan.sum(axis=1) == pytest.approx(was.plan.sum(axis=1), rel=1e-5)
    paid, now = [(each.plan * each.cost).sum(axis=(1, 2)) for each in (was, found)]
    assert now == pytest.approx(paid, rel=1e-4)
    assert losses(monitored, after) == pytest.approx(losses(monitored, before), abs=1e-6)
    assert found.masses(len(graph.hops), 6.0).sum() == pytest.approx(before.prefix.size / 6)


def test_a_super_node_is_as_far_from_others_as_its_nearest_step() -> None:
    state = PrefixState()
    for seq in range(6):
        state, _ = prefix.step(TINY, state, seq, (seq - 1,) if seq else (), ())
    after, change = prefix.collapse(TINY, state, 0)
    assert change is not None
    assert change.begins == (0, 2, 3, 4, 5)
    assert after.hops[0].tolist() == [0, 1, 2, 3, 4]
    assert (after.first, after.members, after.seqs) == (2, (2,), (2, 3, 4, 5))


def test_a_late_edge_of_a_collapsed_step_is_one_of_its_super_node() -> None:
    state = PrefixState()
    for seq in (0, 1, 3, 4, 5, 6):
        state, _ = prefix.step(TINY, state, seq, (2,) if seq == 3 else (), ())
    state, _ = prefix.collapse(TINY, state, 0)
    state, delta = prefix.step(TINY, state, 2, (1,), ())
    assert delta.retroactive == ((6, 2),), "3 is the third to arrive, and active"
    assert state.hops[state.row_of(6), state.row_of(1)] == 1
    late, delta = prefix.step(TINY, state, 7, (), ((6, 2), (0, 1)))
    assert delta.retroactive == ((6, 2), (0, 1))
    assert late.settled_edges.tolist() == [[0, 1]]
    assert late.find(1) == 1
    assert late.seq_of(1) == 1


def test_of_too_many_super_nodes_the_neighbours_with_the_fewest_steps_become_one() -> None:
    state = PrefixState()
    spans = []
    for seq in range(21):
        state, _ = prefix.collapse(TINY, state, 0)
        state, _ = prefix.step(TINY, state, seq, (), ())
        spans.append(state.members)
    assert list(dict.fromkeys(spans))[3:8] == [
        (2, 2, 2),
        (4, 2, 2),
        (4, 4, 2),
        (4, 4, 4),
        (4, 4, 6),
    ]


def test_what_somebody_still_looks_back_at_keeps_its_row() -> None:
    monitored = lab(SMALL)
    monitored.feed(*long_run(16))
    assert len(collapsed(monitored)[0].seqs) == 12
    assert len(collapsed(monitored, active_max=13)[0].seqs) == 16


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 999), st.integers(30, 60))
def test_what_a_collapsed_run_says_stays_near_what_it_says_whole(seed: int, steps: int) -> None:
    whole, small = lab(UNBOUNDED), lab(SMALL)
    run = long_run(steps, seed)
    pairs = list(zip(whole.feed(*run), small.feed(*run), strict=True))
    assert max(abs(one.coverage - two.coverage) for one, two in pairs) <= 0.08
    alike = [(one, two) for one, two in pairs if one.best_reference == two.best_reference]
    gaps = [abs(one.leakage - two.leakage) for one, two in alike]
    assert np.quantile(gaps, 0.9) <= 0.1
    assert max(gaps) <= 0.2
    same = sum(one.verdict == two.verdict for one, two in pairs)
    assert same >= 0.9 * len(pairs)
    one, two = whole.end(), small.end()
    assert abs(one.final_loss - two.final_loss) <= 0.1
    assert abs(one.final_coverage - two.final_coverage) <= 0.15


@settings(max_examples=40, deadline=None)
@given(strategies.runs(steps_max=24), st.integers(0, 2), st.integers(1, 6))
def test_any_order_of_any_steps_gives_sound_states_that_can_be_read_back(
    happened: strategies.Run, references: int, cut: int
) -> None:
    straight, stopped = lab(TINY, references), lab(TINY, references)
    for number, event in enumerate(happened.arrivals):
        straight.feed(event)
        stopped.feed(event)
        if number % cut == 0:
            _, read, _ = snapshot.read(snapshot.dump(stopped.state, number))
            state = stopped.state
            stopped.state = snapshot.restore(read, state.stamp, state.knowledge)
        graph = straight.state.prefix
        assert graph.size == len(straight.state.seen)
        assert len(graph.hops) == len(graph.starts) + len(graph.seqs)
        assert (graph.hops == graph.hops.T).all()
        assert not graph.hops.diagonal().any()
        if straight.state.transport is not None:
            found = straight.state.transport
            assert np.isfinite(found.plan).all()
            told = found.solver_cost(found.cost)
            assert np.isfinite(told).all()
            np.testing.assert_array_equal(found.single_cost(found.cost), told.astype(np.float32))
    assert stopped.verdicts == straight.verdicts
    assert stopped.interventions == straight.interventions
    if straight.verdicts:
        assert stopped.end() == straight.end()
    assert snapshot.dump(stopped.state, 1) == snapshot.dump(straight.state, 1)


@settings(max_examples=15, deadline=None)
@given(st.integers(5, 40), st.integers(0, 99), st.data())
def test_the_end_is_the_batch_evaluators_bit_for_bit_at_any_length(
    length: int, seed: int, data: st.DataObject
) -> None:
    """Prop. 1: up to ``exact_max`` of the whole run, beyond at its resolution."""
    steps = data.draw(st.permutations(long_run(length, seed)))
    monitored = lab(TINY)
    rows, edges = [], set[tuple[int, int]]()
    for step in steps:
        monitored.feed(step)
        rows.append(aligned(monitored.state).cost[:, -1])
        edges |= set(monitored.state.prefix.latest)
    references = monitored.state.knowledge.references
    assert references is not None
    params, graph = monitored.profile.transport, monitored.state.prefix
    cost, seqs = np.stack(rows, axis=1), tuple(step.seq or 0 for step in steps)
    at_once = finishing.batch(
        params,
        TINY,
        references,
        cost,
        np.array(sorted(edges), np.int32).reshape(-1, 2),
        seqs,
    )
    found = finishing.finish(params, TINY, references, aligned(monitored.state), graph)
    assert found == at_once
    if length <= TINY.exact_max:
        hops = structure.hops_from_edges(length, sorted(edges))
        assert found == finishing.finalise(params, references, cost, hops, seqs)


def test_a_run_takes_no_more_memory_for_being_longer() -> None:
    monitored, sizes = lab(SMALL), []
    for step in long_run(160):
        monitored.feed(step)
        found, graph = aligned(monitored.state), monitored.state.prefix
        assert found.shared is None or found.settled is not None
        arrays = [found.plan, found.cost, found.u, graph.hops]
        arrays += [] if found.settled is None else [found.settled.cost]
        sizes.append(sum(array.nbytes for array in arrays))
    assert max(sizes[80:]) <= 1.05 * max(sizes[:80])


def test_without_references_the_graph_is_bounded_too() -> None:
    monitored = lab(TINY, references=0)
    monitored.feed(*long_run(40))
    assert monitored.state.transport is None
    assert len(monitored.state.prefix.hops) <= 9
    assert monitored.state.prefix.size == 40


@pytest.mark.parametrize("late", [False, True])
def test_dependencies_on_steps_long_ago_do_not_pay_a_row_for_taking_mass(late: bool) -> None:
    """Structure that gets cheaper after rows were joined once let their mass grow to infinity."""
    monitored = lab(PrefixParams(active_max=4, chunk=2, merged_max=3))
    references, transported = monitored.state.knowledge.references, monitored.profile.transport
    assert references is not None
    graph_params, rng = PrefixParams(active_max=4, chunk=2, merged_max=3), np.random.default_rng(1)
    graph, found = PrefixState(), transport.start(references)
    for seq in range(400):
        graph, moved = collapse.step(graph_params, transported.solver, references, graph, found, 3)
        assert moved is not None
        parents = tuple(int(seq - back) for back in rng.integers(0, 100, 2) if back <= seq)
        known = tuple((int(a), int(b)) for a, b in rng.integers(0, seq + 1, (1, 2)))
        graph, _ = prefix.step(graph_params, graph, seq, parents, known if late else ())
        row = rng.random((2, references.width)) * 0.9
        row[:, seq % references.width] *= 0.1
        age = prefix.age_weights(graph_params, graph)
        found, said = transport.step(
            transported, references, moved, graph.hops, age, row.astype(np.float32)
        )
        assert np.isfinite(said.losses).all()
        # All steps together have the mass (seq + 1) / m-bar; demand may draw some more.
        assert found.plan.sum(axis=(1, 2)).max() <= 2.0 * (seq + 1) / references.arrays.mean_size


def test_nodes_that_were_closed_while_steps_were_joined_open_at_their_price() -> None:
    """Without any mass beyond the frontier there is no price to read costs off there."""
    found = []
    for limits in (UNBOUNDED, PrefixParams(active_max=8, chunk=4, merged_max=4)):
        monitored = lab(limits, references=1)
        references, params = monitored.state.knowledge.references, monitored.profile.transport
        assert references is not None
        params = replace(params, solver=replace(params.solver, dormant_weight=0.0))
        graph, aligned, covered = PrefixState(), transport.start(references), []
        for seq in range(48):
            graph, moved = collapse.step(limits, params.solver, references, graph, aligned, 3)
            assert moved is not None
            graph, _ = prefix.step(limits, graph, seq, (seq - 1,) if seq else (), ())
            row = np.full((1, 6), 0.9, np.float32)
            row[:, seq // 8] = 0.05
            age = prefix.age_weights(limits, graph)
            aligned, said = transport.step(params, references, moved, graph.hops, age, row)
            covered.append(said.coverage)
        found.append(covered)
    assert found[1] == pytest.approx(found[0], abs=0.02)
