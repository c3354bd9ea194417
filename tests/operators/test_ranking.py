from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontrack.operators import prefix, ranking, transport
from ontrack.operators.prefix import PrefixParams, PrefixState
from ontrack.operators.ranking import RankParams, RankSignal, RankState, RankWeights
from ontrack.operators.references import ReferenceSet
from ontrack.operators.transport import (
    ROLE_WEIGHTS,
    Alignment,
    TransportParams,
    TransportState,
)
from ontrack.operators.vectors import StepVectors, step_texts
from ontrack.solver.prefix_alignment import GapCosts
from ontrack.topics.events import Step
from ontrack.topics.knowledge import Reference
from tests import strategies
from tests.operators.lab import SIX_STEPS, embed, failed, foreign, reference_of, step_of
from tests.operators.test_references import compiled

PARAMS = RankParams()
ORDERED = RankParams(weights=RankWeights(order=0.25))
ALIGNING = TransportParams(cost="role", weights=ROLE_WEIGHTS)
NAMES = [node.name for node in SIX_STEPS.nodes]
WRITES = {"edit_file", "git_commit", "send_mail"}


def ranked(
    references: ReferenceSet, steps: Sequence[Step], params: RankParams = PARAMS
) -> tuple[RankState, list[RankSignal], TransportState, Alignment]:
    """Rank the prefixes of a chain of steps; beside that, the alignment at the end."""
    aligned, graph = transport.start(references), PrefixState()
    state = ranking.start(params, references)
    found: list[RankSignal] = []
    for node, step in enumerate(steps):
        graph, _ = prefix.step(PrefixParams(), graph, node, (), ((node - 1, node),) * (node > 0))
        vectors = StepVectors(*map(embed, step_texts(step, 1000)))
        row = transport.cost_row(ALIGNING, references, step, vectors)
        age = prefix.age_weights(PrefixParams(), graph)
        aligned, alignment = transport.step(ALIGNING, references, aligned, graph.hops, age, row)
        state, signal = ranking.step(
            params,
            references,
            state,
            aligned,
            alignment,
            step,
            vectors.result,
            step.tool in WRITES,
            step.error is not None,
        )
        found.append(signal)
    return state, found, aligned, alignment


def steps_of(names: Sequence[str], variant: str = "") -> list[Step]:
    return [step_of(SIX_STEPS, name, variant) for name in names]


def test_a_run_like_the_reference_ranks_above_one_that_wanders_at_every_step() -> None:
    references = compiled(reference_of(SIX_STEPS), reference_of(SIX_STEPS, 1))
    good = ranked(references, steps_of(NAMES, "ref0"))[1]
    bad = ranked(references, [foreign(number) for number in range(6)])[1]
    mixed = ranked(references, [*steps_of(NAMES[:3], "ref0"), *map(foreign, range(3))])[1]
    assert all(one.score > other.score for one, other in zip(good, bad, strict=True))
    assert good[-1].score > mixed[-1].score > bad[-1].score
    assert good[-1].coverage > 0.9


def test_with_a_weight_on_order_the_same_steps_backwards_rank_lower() -> None:
    references = compiled(reference_of(SIX_STEPS))
    steps = steps_of(NAMES, "ref0")
    forwards, backwards = (
        ranked(references, given, ORDERED)[1][-1] for given in (steps, steps[::-1])
    )
    assert forwards.order == pytest.approx(0, abs=1e-6)
    assert backwards.order is not None
    assert backwards.order > 0.5
    assert ranked(references, steps)[1][-1].order is None, "not computed where it has no weight"


def test_the_score_tells_apart_what_the_floored_score_of_the_paper_does_not() -> None:
    references = compiled(reference_of(SIX_STEPS))
    good = ranked(references, steps_of(NAMES[:4], "ref0"))[1][-1]
    other_values = [
        step.model_copy(update={"args": {"target": f"elsewhere {place}"}})
        for place, step in enumerate(steps_of(NAMES[:4], "ref0"))
    ]
    assert good.score > ranked(references, other_values)[1][-1].score + 0.05


def test_a_result_unlike_the_references_lowers_the_score() -> None:
    references = compiled(reference_of(SIX_STEPS))
    usual = step_of(SIX_STEPS, "search", "ref0")
    odd = usual.model_copy(update={"result": "something else entirely"})
    one, other = (ranked(references, [step])[1][0] for step in (usual, odd))
    assert one.effect < other.effect
    assert one.score - other.score == pytest.approx(
        PARAMS.weights.effect * (other.effect - one.effect)
    )


def test_without_any_result_there_is_no_effect_to_compare() -> None:
    silent = [step.model_copy(update={"result": None}) for step in steps_of(NAMES)]
    state, found, *_ = ranked(compiled(reference_of(SIX_STEPS)), silent)
    assert state.compared == 0
    assert found[-1].effect == 0.0


def test_errors_and_writes_that_no_reference_has_cost_their_weight() -> None:
    references = compiled(reference_of(SIX_STEPS))
    read = step_of(SIX_STEPS, "read")
    error = ranked(references, [failed(read), read])[1]
    assert [signal.errors for signal in error] == [1, 1]
    mail = foreign(1, tool="send_mail")
    written, looked = (
        ranked(references, [mail.model_copy(update={"tool": tool})])[1][0]
        for tool in ("send_mail", "look_mail")
    )
    assert (written.unseen_write, looked.unseen_write) == (True, False)
    assert looked.score - written.score == pytest.approx(PARAMS.weights.unseen_write, abs=1e-6)
    seen = ranked(references, steps_of(NAMES))[1][-1]
    assert not seen.unseen_write, "a write that references have is none"


def test_the_score_is_the_weighted_sum_of_its_parts() -> None:
    weights = RankWeights(0.3, 0.7, 0.9, 0.2, 0.5, 0.4)
    references = compiled(reference_of(SIX_STEPS))
    steps = [*steps_of(NAMES[:3]), failed(foreign(1, tool="send_mail"))]
    last = ranked(references, steps, RankParams(weights=weights))[1][-1]
    assert last.order is not None
    cost = 0.3 * last.match - 0.7 * last.coverage + 0.9 * last.order + 0.2 * last.effect
    assert last.score == pytest.approx(-(cost + 0.5 * 1 + 0.4 * 1))


def test_the_alignment_of_other_references_is_refused() -> None:
    one, two = compiled(reference_of(SIX_STEPS)), compiled(*map(reference_of, [SIX_STEPS] * 2))
    step = step_of(SIX_STEPS, "read")
    _, _, other, said = ranked(two, [step])
    begun, result = ranking.start(PARAMS, one), embed("x")
    for aligned in (transport.start(one), other):
        with pytest.raises(ValueError, match="the alignment has shape"):
            ranking.step(PARAMS, one, begun, aligned, said, step, result, False, False)


def test_weights_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match=r"RankWeights\.effect"):
        RankWeights(effect=-0.1)
    with pytest.raises(ValueError, match=r"RankParams\.leakage"):
        RankParams(leakage=1.5)


def from_scratch(
    references: ReferenceSet, steps: Sequence[Step], aligned: TransportState, params: RankParams
) -> RankSignal:
    """The parts of S by their formulas, cell by cell."""
    arrays = references.arrays
    sizes, mu, count = arrays.sizes.tolist(), 1.0 / arrays.mean_size, len(steps)
    plan, cost = aligned.plan.astype(float), aligned.cost.astype(float)
    match, coverage, order = [], [], []
    for k, size in enumerate(sizes):
        total = 0.0
        for i in range(count):
            matched = sum(plan[k, i, j] for j in range(size)) / mu
            leak = min(max(1.0 - matched, 0.0), 1.0)
            priced = sum(plan[k, i, j] * cost[k, i, j] for j in range(size)) / mu
            total += priced + params.leakage * leak
        match.append(total / count)
        seen = [min(size * plan[k, :, j].sum(), 1.0) for j in range(size)]
        coverage.append(sum(seen) / size)
        table = np.arange(size + 1) * params.gaps.reference
        for i in range(count):
            new = [table[0] + params.gaps.agent]
            for j in range(size):
                kept = min(table[j + 1] + params.gaps.agent, table[j] + cost[k, i, j])
                new.append(min(kept, new[j] + params.gaps.reference))
            table = np.array(new)
        order.append(table.min() / count)
    return RankSignal(0.0, min(match), max(coverage), min(order), 0.0, False, 0)


@settings(max_examples=40)
@given(strategies.references(), strategies.runs(late=False, duplicates=False))
def test_any_run_gets_finite_parts_that_agree_with_their_formulas(
    references: tuple[Reference, ...], run: strategies.Run
) -> None:
    params = RankParams(weights=RankWeights(order=0.5), gaps=GapCosts(0.8, 0.1))
    found = compiled(*references)
    steps = run.steps
    state, signals, aligned, _ = ranked(found, steps, params)
    expected, last = from_scratch(found, steps, aligned, params), signals[-1]
    for name in ("match", "coverage", "order"):
        assert getattr(last, name) == pytest.approx(getattr(expected, name), abs=1e-4)
    for signal in signals:
        assert np.isfinite(signal.score)
        assert 0.0 <= signal.coverage <= 1.0 + 1e-6
        assert 0.0 <= signal.effect <= 1.0
        assert signal.match >= 0.0
    assert state.row.shape == (found.count, found.width + 1)
    assert state.errors == sum(step.error is not None for step in steps)


@settings(max_examples=25)
@given(strategies.references(), strategies.runs(), st.randoms(use_true_random=False))
def test_the_order_of_the_references_does_not_matter(
    references: tuple[Reference, ...], run: strategies.Run, random: Random
) -> None:
    shuffled = list(references)
    random.shuffle(shuffled)
    one = ranked(compiled(*references), run.steps, ORDERED)[1][-1]
    other = ranked(compiled(*shuffled), run.steps, ORDERED)[1][-1]
    assert one.score == pytest.approx(other.score, abs=1e-4)


def test_the_state_stays_the_same_size_however_long_the_run() -> None:
    references = compiled(reference_of(SIX_STEPS))
    short, long = (ranked(references, steps_of(NAMES * times), ORDERED)[0] for times in (1, 6))
    assert short.row.shape == long.row.shape
