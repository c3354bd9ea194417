"""Rivals of the score: small cases that can be worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.encoding.encoders import CachedEncoder, HashingEncoder
from ontrack.pipeline.evaluation.baselines import (
    BASELINES,
    Case,
    Trace,
    edit_distance,
    graph_edit,
    grep_frac,
    is_search,
    linear_uot,
    markov_surprise,
    n_steps,
    node_costs,
    prerequisite_rules,
    prerequisites,
    trigram,
)
from ontrack.solver.problem import SolverParams
from ontrack.topics.events import Step

ENCODER = CachedEncoder(HashingEncoder(), 1000)


def steps(tools: str, **args: object) -> list[Step]:
    return [Step(run_id="r", seq=n, tool=tool, args=args) for n, tool in enumerate(tools)]


def case(prefix: str, *references: str) -> Case:
    known = tuple(Trace.of(steps(each), ENCODER) for each in references)
    return Case(Trace.of(steps(prefix), ENCODER), known, SolverParams())


def test_the_edit_distance_is_to_the_nearest_beginning_of_a_reference() -> None:
    assert edit_distance(case("ab", "abcd")) == 0.0
    assert edit_distance(case("axb", "abcd")) == pytest.approx(-1 / 3)
    assert edit_distance(case("ab", "xyz", "ab")) == 0.0
    assert edit_distance(case("ab")) is None


def test_the_same_tool_with_other_arguments_is_half_a_substitution() -> None:
    prefix, reference = steps("a", order=1), steps("a", order=2)
    here = Case(Trace.of(prefix, ENCODER), (Trace.of(reference, ENCODER),), SolverParams())
    assert edit_distance(here) == -0.5


words = st.text("abc", min_size=1, max_size=6)


@given(words, words)
def test_the_edit_distance_equals_a_search_over_all_edits(prefix: str, reference: str) -> None:
    def slow(own: str, other: str) -> float:
        if not own or not other:
            return float(len(own) or len(other))
        return min(
            slow(own[1:], other) + 1,
            slow(own, other[1:]) + 1,
            slow(own[1:], other[1:]) + (own[0] != other[0]),
        )

    expected = min(slow(prefix, reference[:j]) for j in range(len(reference) + 1))
    assert edit_distance(case(prefix, reference)) == pytest.approx(-expected / len(prefix))


def test_shorter_is_better_for_n_steps() -> None:
    assert n_steps(case("ab")) == -2.0


def test_a_run_that_turns_in_circles_has_few_new_pairs() -> None:
    assert markov_surprise(case("abcd")) == 1.0
    assert markov_surprise(case("ababa")) == 0.5
    assert markov_surprise(case("a")) is None


def test_searching_is_told_by_the_name_or_by_a_shells_first_word() -> None:
    assert [is_search(Step(run_id="r", tool=tool)) for tool in ("grep", "search_flights")] == [
        True,
        True,
    ]
    assert is_search(Step(run_id="r", tool="bash", args={"command": "grep -r x ."}))
    assert not is_search(Step(run_id="r", tool="bash", args={"command": "make grep"}))
    assert not is_search(Step(run_id="r", tool="edit", args={"text": "grep"}))
    both = Trace.of([Step(run_id="r", tool="grep"), Step(run_id="r", tool="edit")], ENCODER)
    assert grep_frac(Case(both, (), SolverParams())) == -0.5


def test_rules_are_what_precedes_a_tool_in_every_reference() -> None:
    assert prerequisites(["abc", "bac"]) == {
        "a": frozenset(),
        "b": frozenset(),
        "c": frozenset("ab"),
    }
    assert prerequisite_rules(case("ac", "abc", "bac")) == -0.5
    assert prerequisite_rules(case("bac", "abc", "bac")) == 0.0
    # Opposite orders leave no rule, and without a rule there is nothing to say.
    assert prerequisite_rules(case("ab", "ab", "ba")) is None


def test_the_graph_proxy_compares_tools_and_edges_with_a_beginning_of_equal_length() -> None:
    assert graph_edit(case("ab", "abcd")) == 0.0
    assert graph_edit(case("ba", "ab")) == -0.5
    assert graph_edit(case("xy", "ab")) == -1.0


def test_the_trigram_model_is_laplaces() -> None:
    # After the start, "a" follows in the one reference: (1 + 1) / (1 + 2 words).
    assert trigram(case("a", "a")) == pytest.approx(math.log(2 / 3))
    assert trigram(case("x", "a")) == pytest.approx(math.log(1 / 3))


def test_linear_transport_prefers_the_run_that_does_what_the_reference_does() -> None:
    same, other = linear_uot(case("abc", "abc")), linear_uot(case("xyz", "abc"))
    assert same is not None
    assert other is not None
    assert same > other


def test_an_additional_reference_that_is_worse_changes_little() -> None:
    alone, beside = linear_uot(case("abc", "abc")), linear_uot(case("abc", "abc", "xyz"))
    assert alone == pytest.approx(beside, abs=1e-6)


def test_costs_are_zero_between_a_step_and_itself() -> None:
    trace = Trace.of(steps("abc", order="A-17"), ENCODER)
    costs = node_costs(trace, trace)
    np.testing.assert_allclose(np.diag(costs), 0.0, atol=1e-6)
    assert costs.shape == (3, 3)
    assert (costs <= 1.0).all()


@given(words, st.lists(words, max_size=3))
def test_every_baseline_is_finite_or_nothing_and_the_same_again(
    prefix: str, references: list[str]
) -> None:
    here = case(prefix, *references)
    for name, baseline in BASELINES.items():
        found = baseline(here)
        assert found is None or math.isfinite(found), name
        assert found == baseline(here), name
