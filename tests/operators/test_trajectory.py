"""Trajectory distance: the published examples, the schemes against each other, a slow twin."""

from __future__ import annotations

import doctest
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import trajectory
from ontrack.operators.dependencies import declared_order
from ontrack.operators.trajectory import (
    SCHEMES,
    Scheme,
    StepWeights,
    ToolWeights,
    TrajectoryComparison,
    TrajectoryDistance,
    corpus_distance,
    fold_text,
    weights_by_effect,
)
from ontrack.topics.errors import InvalidInput
from ontrack.topics.events import Step
from ontrack.topics.knowledge import Effect, Provenance, Reference, ReferenceStep, ToolContract
from tests.strategies import arguments

Call = tuple[str, dict[str, Any]]

GOLD: list[Call] = [("search", {"q": "cat"}), ("answer", {"a": "meow"})]
DETOUR = [GOLD[0], *GOLD]

# Seed 000: the thread that a competent operator needs five calls for.
ANA = ["read_thread", "list_availability", "list_availability", "create_event", "reply"]


def distances(predicted: Any, reference: Any) -> dict[str, float]:
    return {each: TrajectoryDistance(each)(predicted, reference).distance for each in SCHEMES}


# ------------------------------------------------------------------ published examples


def test_examples_of_the_guide_run() -> None:
    guide = Path(__file__).parents[2] / "docs" / "distance.md"
    failed, tried = doctest.testfile(str(guide), module_relative=False)
    assert tried
    assert not failed


@pytest.mark.parametrize("scheme", SCHEMES)
def test_identical_runs_are_at_distance_zero(scheme: Scheme) -> None:
    assert TrajectoryDistance(scheme)(GOLD, GOLD).normalised == 0.0


def test_a_repeated_step_costs_in_order_and_is_free_in_superset() -> None:
    assert distances(DETOUR, GOLD) == {
        "in_order": 2.0,
        "exact": 10.0,
        "any_order": 2.0,
        "superset": 0.0,
    }


def test_a_detour_through_a_destructive_tool_costs_more_than_a_harmless_one() -> None:
    contracts = [
        ToolContract(name="look", effect="read"),
        ToolContract(name="note", effect="write"),
        ToolContract(name="delete", effect="destructive"),
        ToolContract(name="unannotated"),
    ]
    compare = TrajectoryDistance(weights=weights_by_effect(contracts))
    costs = [compare(["look", each], ["look"]).distance for each in ("look", "note", "delete")]
    assert costs == [1.0, 3.0, 10.0]
    assert compare(["look", "unannotated"], ["look"]).distance == 10.0  # as MCP has it
    assert compare(["look", "nobody knows"], ["look"]).distance == 1.0


# ------------------------------------------------------------------ the rows of seed 000


def test_from_exact_to_superset_what_is_let_through_is_anything_else_besides() -> None:
    extra = [*ANA[:3], *["list_availability"] * 20, *ANA[3:]]
    assert distances(extra, ANA) == {
        "in_order": 20.0,
        "exact": 30.0,
        "any_order": 20.0,
        "superset": 0.0,
    }
    more = [*extra, *["list_availability"] * 20]
    assert distances(more, ANA)["superset"] == 0.0
    assert distances(more, ANA)["in_order"] == 40.0


def test_order_counts_in_order_and_exactly_only() -> None:
    swapped = ["list_availability", "read_thread", *ANA[2:]]
    assert distances(swapped, ANA) == {
        "in_order": 2.0,
        "exact": 10.0,
        "any_order": 0.0,
        "superset": 0.0,
    }


def test_a_missing_step_counts_everywhere() -> None:
    assert distances(ANA[:4], ANA) == {
        "in_order": 1.0,
        "exact": 9.0,
        "any_order": 1.0,
        "superset": 1.0,
    }


def test_a_loop_over_one_legitimate_tool_is_seen_by_what_counts_extras() -> None:
    run_204 = [*ANA[:3], *["list_availability"] * 35, "write_file", *ANA[3:]]
    assert len(run_204) == 41
    found = distances(run_204, ANA)
    assert (found["in_order"], found["any_order"], found["superset"]) == (36.0, 36.0, 0.0)


def test_a_wrong_argument_is_a_share_of_a_call_but_not_the_required_one() -> None:
    wrong = [("search", {"q": "dog"}), GOLD[1]]
    assert distances(wrong, GOLD) == {
        "in_order": 1.0,
        "exact": 8.0,
        "any_order": 1.0,
        "superset": 2.0,
    }


@given(st.lists(st.sampled_from(ANA), max_size=12))
def test_steps_that_an_ordered_subsequence_covers_are_not_missing_in_order(run: list[str]) -> None:
    pointer = 0
    for name in run:
        if pointer < len(ANA) and name == ANA[pointer]:
            pointer += 1
    rows = TrajectoryDistance()(run, ANA).alignment
    missing = sum(i is None for i, _, _ in rows)
    assert missing <= len(ANA) - pointer


# ------------------------------------------------------------------ arguments and weights


def test_arguments_cost_what_their_weights_say() -> None:
    weights = StepWeights({"refund": ToolWeights(step=10.0, arguments={"amount": 20.0})})
    compare = TrajectoryDistance(weights=weights)
    gold = [("refund", {"amount": 5, "note": "x"})]
    assert compare([("refund", {"amount": 50, "note": "x"})], gold).distance == 20.0
    assert compare([("refund", {"amount": 5, "note": "y"})], gold).distance == 1.0
    assert compare([("refund", {"amount": 5})], gold).distance == 1.0
    assert compare([], gold).distance == 31.0


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, None, False),
        ("1", 1, False),
        ([1, "a"], [1.0, "a"], True),
        ([1, 2], [2, 1], False),
        ({"a": 1, "b": [True]}, {"b": [True], "a": 1}, True),
        ({"a": True}, {"a": 1}, False),
        (float("nan"), None, False),
    ],
)
def test_values_are_compared_as_json(one: Any, other: Any, equal: bool) -> None:
    for scheme in SCHEMES:
        compare = TrajectoryDistance(scheme)
        assert (compare([("t", {"x": one})], [("t", {"x": other})]).distance == 0.0) is equal
        assert compare([("t", {"x": one})], [("t", {"x": one})]).distance == 0.0


def test_null_is_not_a_missing_argument() -> None:
    assert TrajectoryDistance()([("t", {"x": None})], ["t"]).distance == 1.0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_canonicaliser_reaches_every_text_of_the_arguments(scheme: Scheme) -> None:
    one = [("t", {"x": " New  York", "y": ["A", {"z": "B"}]})]
    other = [("t", {"x": "new york", "y": ["a", {"z": "b"}]})]
    assert TrajectoryDistance(scheme)(one, other).distance > 0.0
    assert TrajectoryDistance(scheme, canonicaliser=fold_text)(one, other).distance == 0.0


def test_steps_references_mappings_pairs_and_names_are_all_calls() -> None:
    compare = TrajectoryDistance()
    written = ReferenceStep(tool="t", args={"x": 1})
    forms: list[Any] = [
        Step(run_id="r", tool="t", args={"x": 1}),
        written,
        ("t", {"x": 1}),
        {"tool": "t", "args": {"x": 1}},
    ]
    for one, other in itertools.product(forms, forms):
        assert compare([one, "u"], [other, "u"]).distance == 0.0
    reference = Reference(
        reference_id="a", task_id="b", provenance=Provenance.GOLD, steps=(written,)
    )
    assert compare([forms[0]], reference).distance == 0.0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("search", "a list of calls, not str"),
        (5, "a list of calls, not int"),
        ([3], "step 0 is no call"),
        (["a", {"name": "b"}], "step 1 is no call"),
        ([("t", {"x": {1, 2}})], "argument 'x' of 't': expected a JSON value, got set"),
    ],
)
def test_what_is_no_trajectory_is_named(wrong: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        TrajectoryDistance()(wrong, [("t", {"x": 1})])


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="scheme must be one of in_order, exact"):
        TrajectoryDistance("best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dag goes with in_order"):
        TrajectoryDistance("superset", dag=True)
    with pytest.raises(ValueError, match="weight of argument 'x' must be finite"):
        ToolWeights(arguments={"x": float("inf")})
    with pytest.raises(ValueError, match="weight of step must be finite and not negative"):
        ToolWeights(step=-1.0)


# ------------------------------------------------------------------ corpus


def test_a_corpus_is_a_ratio_of_sums() -> None:
    compare = TrajectoryDistance()
    found = [compare(["a"], ["b"]), compare(["a"] * 9, ["a"] * 9)]
    assert [each.normalised for each in found] == [1.0, 0.0]
    assert corpus_distance(found) == pytest.approx(0.1)
    assert corpus_distance([]) == 0.0
    assert corpus_distance([compare([], [])]) == 0.0


# ------------------------------------------------------------------ DAG mode


def recorded(*steps: tuple[str, tuple[int, ...] | None]) -> list[Step]:
    return [
        Step(run_id="r", seq=seq, tool=tool, parents=parents)
        for seq, (tool, parents) in enumerate(steps)
    ]


def test_independent_steps_of_the_reference_may_come_in_any_order() -> None:
    reference = recorded(("weather", ()), ("hotels", ()), ("book", (0, 1)))
    swapped, too_early = ["hotels", "weather", "book"], ["book", "weather", "hotels"]
    dag = TrajectoryDistance(dag=True)
    assert dag(swapped, reference).distance == 0.0
    assert TrajectoryDistance()(swapped, reference).distance == 2.0
    assert dag(too_early, reference).distance == 2.0
    assert TrajectoryDistance("any_order")(too_early, reference).distance == 0.0
    assert dag(too_early, reference).is_exact


def test_what_consumes_an_artifact_comes_after_the_last_that_produced_it() -> None:
    def step(seq: int, **fields: Any) -> Step:
        return Step(run_id="r", seq=seq, tool="t", **fields)

    steps = [
        step(0, consumed=(), produced=("x",)),
        step(1, consumed=(), produced=("x",)),
        step(2, consumed=("x", "from elsewhere")),
        step(3, parents=(0, 99)),
        step(4),
    ]
    edges = {(j, k) for j, row in enumerate(declared_order(steps)) for k in row.nonzero()[0]}
    assert edges == {(1, 2), (0, 3), (0, 4), (1, 4), (2, 4), (3, 4)}


calls = st.tuples(st.sampled_from("ab"), st.dictionaries(st.sampled_from("xy"), st.booleans()))
trajectories = st.lists(calls, max_size=5)


@given(trajectories, trajectories)
def test_without_declared_dependencies_dag_mode_is_in_order(run: Any, reference: Any) -> None:
    dag, plain = TrajectoryDistance(dag=True), TrajectoryDistance()
    assert dag(run, reference) == plain(run, reference)
    steps = [
        Step(run_id="r", seq=seq, tool=tool, args=args, parents=(seq - 1,) if seq else ())
        for seq, (tool, args) in enumerate(reference)
    ]
    assert dag(run, steps) == plain(run, reference)
    assert dag(run, steps).alignment == plain(run, reference).alignment


@given(trajectories, trajectories)
def test_declared_independence_makes_dag_mode_any_order(run: Any, reference: Any) -> None:
    steps = [Step(run_id="r", tool=tool, args=args, parents=()) for tool, args in reference]
    found = TrajectoryDistance(dag=True)(run, steps)
    assert found.distance == TrajectoryDistance("any_order")(run, reference).distance


# ------------------------------------------------------------------ properties


WEIGHTS = StepWeights(
    {"a": ToolWeights(step=2.0, arguments={"x": 4.0}), "b": ToolWeights(argument=0.5)}
)


@given(st.lists(st.tuples(st.sampled_from("abc"), arguments()), max_size=6))
def test_a_trajectory_is_at_distance_zero_from_itself(run: list[Call]) -> None:
    copy = [(tool, dict(reversed(args.items()))) for tool, args in run]
    for scheme in SCHEMES:
        assert TrajectoryDistance(scheme)(run, copy).distance == 0.0


@given(trajectories, trajectories)
def test_in_order_exact_and_any_order_are_symmetric(one: Any, other: Any) -> None:
    for scheme in ("in_order", "exact", "any_order"):
        compare = TrajectoryDistance(scheme, WEIGHTS)
        assert compare(one, other).distance == pytest.approx(compare(other, one).distance)


@given(trajectories, trajectories, trajectories)
def test_in_order_and_any_order_obey_the_triangle_inequality(a: Any, b: Any, c: Any) -> None:
    for scheme in ("in_order", "any_order"):
        compare = TrajectoryDistance(scheme, WEIGHTS)
        way = compare(a, b).distance + compare(b, c).distance
        assert compare(a, c).distance <= way + 1e-9


@given(trajectories, trajectories)
def test_schemes_are_ordered(run: Any, reference: Any) -> None:
    found = {each: TrajectoryDistance(each, WEIGHTS)(run, reference) for each in SCHEMES}
    assert found["any_order"].distance <= found["in_order"].distance + 1e-9
    assert found["in_order"].distance <= found["exact"].distance + 1e-9
    for each in found.values():
        assert 0.0 <= each.normalised <= 1.0
        assert sum(cost for *_, cost in each.alignment) == pytest.approx(each.distance)
        everybody(each, len(run), len(reference))


def everybody(found: TrajectoryComparison, steps: int, nodes: int) -> None:
    assert sorted(i for i, _, _ in found.alignment if i is not None) == list(range(steps))
    assert sorted(j for _, j, _ in found.alignment if j is not None) == list(range(nodes))


@given(trajectories, trajectories)
def test_superset_is_zero_only_where_every_reference_call_is_made(run: Any, reference: Any) -> None:
    rest = list(run)
    contained = True
    for call in reference:
        if call in rest:
            rest.remove(call)
        else:
            contained = False
    assert (TrajectoryDistance("superset")(run, reference).distance == 0.0) is contained


@given(trajectories, trajectories)
def test_exact_is_zero_only_for_the_same_calls(run: Any, reference: Any) -> None:
    assert (TrajectoryDistance("exact")(run, reference).distance == 0.0) is (run == reference)


# ------------------------------------------------------------------ slow twins


def mass(call: Call) -> float:
    weights = WEIGHTS.of(call[0])
    return weights.step + sum(weights.of(name) for name in call[1])


def pair_cost(one: Call, other: Call) -> float:
    if one[0] != other[0]:
        return mass(one) + mass(other)
    names = {*one[1], *other[1]}
    differ = [name for name in names if one[1].get(name) is not other[1].get(name)]
    return sum(WEIGHTS.of(one[0]).of(name) for name in differ)


def edit_distance(run: list[Call], reference: list[Call]) -> float:
    if not (run and reference):
        return sum(map(mass, [*run, *reference]))
    return min(
        edit_distance(run[1:], reference[1:]) + pair_cost(run[0], reference[0]),
        edit_distance(run[1:], reference) + mass(run[0]),
        edit_distance(run, reference[1:]) + mass(reference[0]),
    )


@given(st.lists(calls, max_size=4), st.lists(calls, max_size=4))
def test_distances_are_those_of_the_definitions(run: list[Call], reference: list[Call]) -> None:
    def distance(scheme: Scheme) -> float:
        return TrajectoryDistance(scheme, WEIGHTS)(run, reference).distance

    orders = [list(each) for each in itertools.permutations(reference)]
    assert distance("in_order") == pytest.approx(edit_distance(run, reference))
    best = min(edit_distance(run, order) for order in orders)
    assert distance("any_order") == pytest.approx(best)
    free = list(run)
    missed = 0.0
    for call in reference:
        if call in free:
            free.remove(call)
        else:
            missed += mass(call)
    assert distance("superset") == pytest.approx(missed)


@pytest.mark.parametrize("effect", list(Effect))
def test_every_effect_has_a_weight(effect: Effect) -> None:
    assert trajectory.EFFECT_WEIGHTS[effect] >= 1.0
