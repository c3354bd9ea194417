from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.operators import finishing, prefix, transport
from ontrack.operators.finishing import Final
from ontrack.operators.prefix import PrefixParams, PrefixState
from ontrack.operators.references import ReferenceSet
from ontrack.operators.transport import (
    ROLE_WEIGHTS,
    Alignment,
    TransportParams,
    TransportState,
)
from ontrack.operators.vectors import StepVectors, step_texts
from ontrack.solver import converged, objective
from ontrack.topics.events import Step
from ontrack.topics.knowledge import Reference
from tests import strategies
from tests.operators.lab import SIX_STEPS, Lab, embed, foreign, reference_of, step_of
from tests.operators.test_references import compiled, of_tools

PARAMS = TransportParams()
BY_ROLE = TransportParams(cost="role", weights=ROLE_WEIGHTS)
NAMES = [node.name for node in SIX_STEPS.nodes]


def row_of(references: ReferenceSet, step: Step, params: TransportParams = PARAMS) -> np.ndarray:
    vectors = StepVectors(*map(embed, step_texts(step, 1000)))
    return transport.cost_row(params, references, step, vectors)


def align(references: ReferenceSet, steps: Sequence[Step]) -> list[Alignment]:
    """Align steps that form a chain."""
    state, graph, found = transport.start(references), PrefixState(), []
    for node, step in enumerate(steps):
        edges = ((node - 1, node),) if node else ()
        graph, _ = prefix.step(PrefixParams(), graph, node, (), edges)
        age = prefix.age_weights(PrefixParams(), graph)
        row = row_of(references, step)
        state, alignment = transport.step(PARAMS, references, state, graph.hops, age, row)
        assert_sound(references, state, alignment, node + 1)
        found.append(alignment)
    return found


def assert_sound(
    references: ReferenceSet, state: TransportState, alignment: Alignment, size: int
) -> None:
    assert state.coupling.plan.shape == (references.count, size, references.width)
    assert state.cost.shape == state.coupling.plan.shape
    assert np.isfinite(state.coupling.plan).all()
    assert (state.coupling.plan >= 0).all()
    assert np.isfinite(alignment.losses).all()
    assert alignment.leakages.shape == (size,)
    for number in (alignment.leakage, alignment.coverage):
        assert 0 <= number <= 1
    assert 0 < alignment.score <= 1
    assert np.isfinite([alignment.match_cost, alignment.rank_score]).all()
    width = references.arrays.sizes[alignment.best]
    assert alignment.cost.shape == (size, width)
    assert alignment.reachable.shape == alignment.satisfied_now.shape == (width,)


def test_a_step_costs_nothing_against_itself_and_much_against_another_world() -> None:
    references = compiled(reference_of(SIX_STEPS))
    row = row_of(references, step_of(SIX_STEPS, "read", "ref0"))[0]
    assert row[1] == pytest.approx(0, abs=1e-6)
    assert row_of(references, foreign(1)).min() > 0.6


def test_the_cost_is_the_weighted_sum_of_intent_arguments_and_tool() -> None:
    references = compiled(reference_of(SIX_STEPS))
    same_but_tool = step_of(SIX_STEPS, "read", "ref0", tool="zzz")
    assert row_of(references, same_but_tool)[0, 1] == pytest.approx(0.35, abs=1e-6)
    half = step_of(SIX_STEPS, "read", "ref0", tool="open_door")
    assert row_of(references, half)[0, 1] == pytest.approx(0.35 * (1 - 0.5 / 3), abs=1e-6)


@pytest.mark.parametrize("bare", ["step", "reference", "both"])
def test_where_either_side_has_no_intent_arguments_and_tool_share_its_weight(bare: str) -> None:
    step = step_of(SIX_STEPS, "read", "ref0", tool="zzz")
    reference = reference_of(SIX_STEPS)
    if bare != "reference":
        step = step.model_copy(update={"action": None})
    if bare != "step":
        mute = tuple(s.model_copy(update={"action": None}) for s in reference.steps)
        reference = reference.model_copy(update={"steps": mute})
    assert row_of(compiled(reference), step)[0, 1] == pytest.approx(0.35 / 0.55, abs=1e-6)


def test_by_role_one_other_argument_counts_although_all_of_them_read_alike() -> None:
    step = Step(run_id="r", tool="cancel", args={"order": "#1", "reason": "late"})
    reference = of_tools("a", "cancel", "close")
    reference = reference.model_copy(
        update={"steps": tuple(s.model_copy(update={"args": step.args}) for s in reference.steps)}
    )
    references = compiled(reference)
    assert row_of(references, step, BY_ROLE)[0, 0] == 0.0
    other = step.model_copy(update={"args": {"order": "#2", "reason": "late"}})
    row = row_of(references, other, BY_ROLE)[0]
    assert row[0] == pytest.approx(0.40 * 0.5 / 0.75)
    assert row[1] == pytest.approx(1.0), "of another tool, arguments mean nothing"


def test_by_role_the_cost_is_the_weighted_sum_of_intent_arguments_and_tool() -> None:
    references = compiled(reference_of(SIX_STEPS))
    same = row_of(references, step_of(SIX_STEPS, "read", "ref0"), BY_ROLE)[0]
    assert same[1] == pytest.approx(0, abs=1e-6)
    other_tool = step_of(SIX_STEPS, "read", "ref0", tool="zzz")
    assert row_of(references, other_tool, BY_ROLE)[0, 1] == pytest.approx(0.75, abs=1e-6)


@settings(max_examples=40)
@given(strategies.references(), strategies.steps(), st.sampled_from([PARAMS, BY_ROLE]))
def test_any_cost_lies_in_the_unit_interval_and_an_identical_call_costs_nothing(
    references: tuple[Reference, ...], step: Step, params: TransportParams
) -> None:
    found = compiled(*references)
    row = row_of(found, step, params)
    assert row.shape == (found.count, found.width)
    assert row.dtype == np.float32
    assert ((row >= 0) & (row <= 1 + 1e-6)).all()
    for k, reference in enumerate(references):
        for node, own in enumerate(reference.steps):
            again = Step(run_id="r", action=own.action, tool=own.tool, args=own.args)
            assert row_of(found, again, params)[k, node] == pytest.approx(0, abs=1e-5)


def test_a_cost_of_no_known_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="cost must be text or role"):
        TransportParams(cost="vibes")  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 10])
def test_a_good_run_aligns_with_one_reference_and_with_ten(count: int) -> None:
    references = compiled(*(reference_of(SIX_STEPS, index) for index in range(count)))
    found = align(references, [step_of(SIX_STEPS, name, "run") for name in NAMES])
    assert max(alignment.leakage for alignment in found) <= 0.24
    assert found[-1].coverage > 0.9
    assert found[-1].losses.shape == (count,)


def test_a_reference_does_not_feel_the_ones_beside_it() -> None:
    """Same length, so m-bar is the same too.

    Not to the last bit: a float32 product of another shape may round its costs differently.
    """
    steps = [step_of(SIX_STEPS, name, "run") for name in NAMES]
    one, two = reference_of(SIX_STEPS, 0), reference_of(SIX_STEPS, 1, order=NAMES[::-1])
    alone = align(compiled(one), steps)[-1]
    beside = align(compiled(one, two), steps)[-1]
    assert beside.losses[0] == pytest.approx(alone.losses[0], abs=1e-6)


def test_references_of_very_different_lengths_give_finite_signals() -> None:
    references = compiled(of_tools("a", "x"), of_tools("b", *("pqrstuvw" * 8)))
    steps = [Step(run_id="r", tool=tool) for tool in ("x", "p", "q", "zz", "x")]
    align(references, steps)


def test_steps_and_references_without_any_text_are_told_apart_by_their_tools() -> None:
    references = compiled(of_tools("a", *"xyz"), of_tools("b", *"pqr"))
    found = align(references, [Step(run_id="r", tool=tool) for tool in "pqr"])
    assert [alignment.best for alignment in found] == [1, 1, 1]


def test_a_gap_between_masked_and_unmasked_match_widens_the_lookahead() -> None:
    """Two steps that leak although a node is near: FRONTIER_STALL before the third."""
    references = compiled(reference_of(SIX_STEPS))
    early = [step_of(SIX_STEPS, name, "run") for name in ("commit", "test", "test", "edit")]
    found = align(references, early)
    assert [alignment.frontier_stalled for alignment in found] == [False, False, True, True]


def test_converging_keeps_the_mask_of_the_event() -> None:
    monitored = Lab([reference_of(SIX_STEPS)])
    monitored.feed(*(step_of(SIX_STEPS, name, "run") for name in NAMES[:3]))
    previous = monitored.state.transport
    monitored.feed(step_of(SIX_STEPS, "edit", "run"))
    current, graph = monitored.state.transport, monitored.state.prefix
    references = monitored.state.knowledge.references
    assert previous is not None
    assert current is not None
    assert references is not None
    age = prefix.age_weights(PrefixParams(), graph)
    solved = transport.converge(
        monitored.profile.transport, references, previous, current, graph.hops, age
    )
    assert solved.reachable.tolist() == [True, True, True, True, False, False]
    assert solved.converged
    assert solved.leakage < 0.24


def final_of(monitored: Lab) -> Final:
    state = monitored.state
    assert state.knowledge.references is not None
    assert state.transport is not None
    return finishing.finalise(
        monitored.profile.transport,
        state.knowledge.references,
        state.transport.cost,
        state.prefix.hops,
        state.prefix.seqs,
    )


def batch(references: ReferenceSet, steps: Sequence[Step], params: TransportParams) -> Final:
    """The batch evaluator: everything from the finished run, nothing from the stream."""
    graph = compiled(
        Reference(
            reference_id="run",
            task_id="t",
            steps=tuple(strategies.ReferenceStep.of(step) for step in steps),
        )
    )
    rows = [row_of(references, step) for step in steps]
    cost = np.stack(rows, axis=1).astype(np.float64)
    solved = converged.finalise(params.solver, references.arrays, cost, graph.arrays.structure[0])
    best = int(solved.losses.argmin())
    covered = np.minimum(solved.coupling.plan.sum(axis=1), references.arrays.nu).sum(axis=1)
    covered = covered / references.arrays.nu.sum(axis=1)
    temperature = params.solver.soft_min_temperature
    return Final(
        best,
        objective.soft_min(solved.losses, temperature),
        objective.score(solved.losses, temperature),
        float(covered[best]),
        solved.converged,
    )


def numbered(names: Sequence[str]) -> list[Step]:
    return [step_of(SIX_STEPS, name, "run", seq=n) for n, name in enumerate(names)]


@settings(max_examples=30)
@given(st.permutations(range(7)), st.integers(1, 3))
def test_the_final_solve_equals_the_batch_evaluators_bit_for_bit_however_the_run_arrived(
    order: list[int], count: int
) -> None:
    """Prop. 1: with late steps and retroactive edges on the way."""
    steps = [*numbered(NAMES), foreign(1, seq=6)]
    monitored = Lab([reference_of(SIX_STEPS, index) for index in range(count)])
    monitored.feed(*(steps[place] for place in order))
    references = monitored.state.knowledge.references
    assert references is not None
    assert final_of(monitored) == batch(references, steps, monitored.profile.transport)


def test_the_verdict_path_leaves_no_trace_in_the_final_solve() -> None:
    monitored = Lab([reference_of(SIX_STEPS)])
    steps = numbered(NAMES)
    monitored.feed(*steps)
    rows = [row_of(monitored.state.knowledge.references, step) for step in steps]  # type: ignore[arg-type]
    bare = finishing.finalise(
        monitored.profile.transport,
        monitored.state.knowledge.references,  # type: ignore[arg-type]
        np.stack(rows, axis=1),
        monitored.state.prefix.hops,
        monitored.state.prefix.seqs,
    )
    assert bare == final_of(monitored)
    card = monitored.end()
    assert card.final_score == round(bare.score, 6)
    assert card.final_coverage == round(bare.coverage, 6)


def test_reordering_within_an_antichain_gives_the_same_final_score() -> None:
    """Prop. 2: read and schema may come in either order."""
    orders = [NAMES, ["search", "schema", "read", "edit", "test", "commit"]]
    finals = []
    for order in orders:
        monitored = Lab([reference_of(SIX_STEPS, index) for index in range(3)])
        monitored.feed(*numbered(order))
        finals.append(final_of(monitored))
    assert finals[0].score == pytest.approx(finals[1].score, abs=1e-12)
    assert finals[0].loss == pytest.approx(finals[1].loss, abs=1e-12)


@settings(max_examples=40)
@given(strategies.references(count_max=3), strategies.runs(steps_max=6))
def test_any_run_against_any_references_gives_sound_numbers(
    references: tuple[Reference, ...], run: strategies.Run
) -> None:
    align(compiled(*references), run.arrivals)


@settings(max_examples=20)
@given(st.floats(0.01, 1.0), st.floats(0.0, 1.0))
def test_any_calibration_gives_sound_numbers(lam: float, theta: float) -> None:
    solver = replace(PARAMS.solver, lam=lam, theta=theta)
    references = compiled(reference_of(SIX_STEPS))
    state, graph = transport.start(references), PrefixState()
    for node, step in enumerate([*numbered(NAMES[:3]), foreign(1), foreign(2)]):
        graph, _ = prefix.step(PrefixParams(), graph, node, (), ())
        state, alignment = transport.step(
            replace(PARAMS, solver=solver),
            references,
            state,
            graph.hops,
            prefix.age_weights(PrefixParams(), graph),
            row_of(references, step),
        )
        assert_sound(references, state, alignment, node + 1)


def test_the_structure_of_a_step_counts_as_far_as_its_age_weight_says() -> None:
    """Prop. 4: without age the graph has no influence on the coupling, with it it has."""
    references = compiled(reference_of(SIX_STEPS))
    rows = [row_of(references, step) for step in numbered(NAMES[:3])]
    loose, chained = PrefixState(), PrefixState()
    for node in range(3):
        loose, _ = prefix.step(PrefixParams(), loose, node, (), ())
        edges = ((node - 1, node),) if node else ()
        chained, _ = prefix.step(PrefixParams(), chained, node, (), edges)

    def plan(graph: PrefixState, weight: float) -> np.ndarray:
        state = transport.start(references)
        for size, row in enumerate(rows, start=1):
            hops, age = graph.hops[:size, :size], np.full(size, weight)
            state, _ = transport.step(PARAMS, references, state, hops, age, row)
        return state.coupling.plan

    assert np.array_equal(plan(loose, 0.0), plan(chained, 0.0))
    assert not np.allclose(plan(loose, 1.0), plan(chained, 1.0), atol=1e-4)
