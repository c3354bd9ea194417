from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import ledger, prefix
from ontrack.operators.artifacts import ArtifactParams, Artifacts, extract
from ontrack.operators.ledger import LedgerParams, LedgerState
from ontrack.operators.prefix import Delta, PrefixParams, PrefixState
from ontrack.solver.structure import UNCONNECTED
from ontrack.topics.events import Step
from tests.operators import oracle
from tests.operators.oracle import Entered

PARAMS = PrefixParams()
Edges = tuple[tuple[int, int], ...]


def grow(
    *arrivals: tuple[int, tuple[int, ...], Edges], params: PrefixParams = PARAMS
) -> tuple[PrefixState, list[Delta]]:
    """Fold (seq, declared parents, ledger edges)."""
    state, deltas = PrefixState(), []
    for seq, parents, edges in arrivals:
        state, delta = prefix.step(params, state, seq, parents, edges)
        deltas.append(delta)
    return state, deltas


@pytest.mark.parametrize("grade", ["full", "partial", "none"])
def test_the_papers_example_gets_the_edge_5_15_in_all_three_grades(grade: str) -> None:
    steps = [
        Step(run_id="r", seq=n, tool="think", args={"word": f"w{'x' * n}"}, result="nothing")
        for n in range(16)
    ]
    steps[5] = Step(
        run_id="r", seq=5, tool="search", args={"q": "db"}, result="src/config.py:12: timeout=5"
    )
    steps[15] = Step(
        run_id="r", seq=15, tool="edit", args={"file": "src/config.py"}, result="file saved"
    )
    if grade == "partial":
        steps = [step.model_copy(update={"consumed": ()}) for step in steps]
        steps[15] = steps[15].model_copy(update={"consumed": ("src/config.py",)})
    if grade == "full":
        steps = [s.model_copy(update={"consumed": (), "produced": ()}) for s in steps]
        steps[15] = steps[15].model_copy(update={"parents": (5,)})
    ledger_state, state = LedgerState(), PrefixState()
    for node, step in enumerate(steps):
        artifacts = extract(ArtifactParams(), step, None)
        ledger_state, found = ledger.step(LedgerParams(), ledger_state, node, node, artifacts)
        state, delta = prefix.step(PARAMS, state, node, step.parents or (), found.edges)
    assert delta == Delta(node=15, consumed=(5,))
    assert state.parents[15] == (5,)
    assert [p for p in state.parents if p] == [(5,)]
    assert state.hops[5, 15] == 1


def test_a_chain_counts_its_hops() -> None:
    state, _ = grow((0, (), ()), (1, (0,), ()), (2, (1,), ()), (3, (), ()))
    assert state.hops.tolist() == [
        [0, 1, 2, UNCONNECTED],
        [1, 0, 1, UNCONNECTED],
        [2, 1, 0, UNCONNECTED],
        [UNCONNECTED] * 3 + [0],
    ]


def test_a_declared_parent_that_has_not_arrived_becomes_an_edge_when_it_does() -> None:
    state, deltas = grow((1, (0,), ()), (0, (), ()))
    assert deltas[0] == Delta(node=0)
    assert deltas[1] == Delta(node=1, retroactive=((1, 0),), consumed=(1,))
    assert state.parents == ((1,), ())
    assert state.waiting == ()


def test_a_late_edge_repairs_only_the_affected_rows() -> None:
    far_away = [(n, (n - 1,) if n in (11, 12) else (), ()) for n in (10, 11, 12)]
    before, _ = grow((0, (), ()), (1, (0,), ()), (2, (), ()), (3, (2,), ()), *far_away)
    after, delta = prefix.step(PARAMS, before, 20, (), ((1, 2),))
    assert delta.retroactive == ((1, 2),)
    assert delta.changed_rows == (0, 1, 2, 3)
    assert np.array_equal(after.hops[4:7, 4:7], before.hops[4:, 4:])


def test_a_late_node_that_joins_two_old_parts_changes_their_rows_alone() -> None:
    before, _ = grow((0, (), ()), (3, (2,), ()), (9, (), ()))
    after, delta = prefix.step(PARAMS, before, 2, (0,), ())
    assert delta == Delta(3, ((3, 1),), (0, 1), (0, 3))
    assert after.hops[0, 1] == 2


def test_an_edge_backwards_in_the_run_is_rejected_and_named() -> None:
    state, deltas = grow((0, (5,), ()), (5, (), ()))
    assert [delta.rejected for delta in deltas] == [((0, 0),), ()]
    assert state.parents == ((), ())


def test_a_step_that_declares_itself_as_parent_gets_no_edge() -> None:
    state, _ = grow((0, (0,), ()), (1, (1, 0), ()))
    assert state.parents == ((), (0,))


def test_beyond_nodes_max_there_is_no_node_and_the_graph_stays() -> None:
    params = PrefixParams(nodes_max=2)
    state, deltas = grow((0, (), ()), (1, (0,), ()), (2, (1,), ()), params=params)
    assert deltas[2] == Delta(node=None)
    assert state.size == 2


def test_of_many_absent_parents_the_oldest_are_forgotten() -> None:
    params = PrefixParams(waiting_max=2)
    state, _ = grow((9, (1, 2, 3), ()), (1, (), ()), (2, (), ()), params=params)
    assert state.parents[0] == (2,)


def test_age_weights_ramp_over_the_horizon_and_clamp_at_one() -> None:
    """Prop. 4: 0 at emission, at most (t - t_i) / h_age until the horizon."""
    state, _ = grow(*((n, (), ()) for n in range(5)))
    assert prefix.age_weights(PARAMS, state).tolist() == [1, 1, 2 / 3, 1 / 3, 0]


def test_a_consumed_node_counts_in_full_at_once() -> None:
    state, _ = grow((0, (), ()), (1, (), ()), (2, (1,), ()))
    assert prefix.age_weights(PARAMS, state).tolist() == [2 / 3, 1, 0]


@st.composite
def streams(draw: st.DrawFn) -> list[Entered]:
    """Any order of arrival, one producer an id; parents absent, late, wrong or the step itself."""
    size = draw(st.integers(1, 8))
    pool, taken, steps = "abc", set[str](), []
    for seq in range(size):
        produced = draw(st.lists(st.sampled_from(pool), max_size=2, unique=True))
        fresh = tuple(artifact for artifact in produced if artifact not in taken)
        taken.update(fresh)
        consumed = draw(st.lists(st.sampled_from(pool), max_size=2, unique=True))
        parents = draw(st.lists(st.integers(0, size), max_size=2))
        steps.append(Entered(seq, Artifacts(tuple(consumed), fresh), tuple(parents)))
    return draw(st.permutations(steps))


@given(streams(), st.integers(1, 4))
def test_graph_hops_and_deltas_equal_the_oracles_after_every_event(
    arrived: list[Entered], horizon: int
) -> None:
    params = PrefixParams(age_horizon=horizon)
    ledger_state, state = LedgerState(), PrefixState()
    edges: set[oracle.Edge] = set()
    old_hops: list[list[int | None]] = []
    for count, entered in enumerate(arrived, start=1):
        node = count - 1
        ledger_state, found = ledger.step(
            LedgerParams(), ledger_state, entered.seq, node, entered.artifacts
        )
        state, delta = prefix.step(params, state, entered.seq, entered.parents, found.edges)
        before, edges = edges, oracle.all_edges(arrived[:count])
        assert {(s, t) for t, sources in enumerate(state.parents) for s in sources} == edges
        hops = oracle.hops(count, edges)
        flat = [[UNCONNECTED if h is None else h for h in row] for row in hops]
        assert state.hops.tolist() == flat
        weights = oracle.age_weights(count, horizon, edges)
        assert prefix.age_weights(params, state).tolist() == weights
        changed = [n for n, row in enumerate(old_hops) if hops[n][:node] != row]
        assert delta.changed_rows == tuple(changed)
        assert set(delta.retroactive) == {e for e in edges - before if e[1] != node}
        assert set(delta.consumed) == {source for source, _ in edges - before}
        old_hops = hops


@given(st.data())
def test_edges_between_old_nodes_in_any_number_leave_everything_exact(data: st.DataObject) -> None:
    """Edges that touch neither end of the new node: the ledger never sends them yet."""
    state, edges = PrefixState(), set[oracle.Edge]()
    for node in range(data.draw(st.integers(1, 7))):
        pairs = [(a, b) for b in range(node + 1) for a in range(b) if (a, b) not in edges]
        new = data.draw(st.lists(st.sampled_from(pairs), max_size=3, unique=True)) if pairs else []
        edges |= set(new)
        state, _ = prefix.step(PARAMS, state, node, (), tuple(new))
        expected = oracle.hops(node + 1, edges)
        assert state.hops.tolist() == [
            [UNCONNECTED if h is None else h for h in row] for row in expected
        ]
