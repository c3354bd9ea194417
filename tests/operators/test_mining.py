from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators.mining import CallSequence as Calls
from ontrack.operators.mining import MiningParams, Success, choose, distance, mine
from ontrack.topics.knowledge import Effect, Provenance, ReferenceStep, ToolContract
from tests.operators.shop import CONTRACTS, shop_run

PARAMS = MiningParams()


def calls(text: str) -> Calls:
    """A letter a tool, or a letter and a digit: ``a1`` and ``a2`` differ in their arguments."""
    words = text.split()
    return Calls(tuple(word[0] for word in words), tuple(word.encode() for word in words))


def success(name: str, *steps: tuple[str, str], at: datetime | None = None) -> Success:
    body = tuple(ReferenceStep(tool=tool, args={"order": order}) for tool, order in steps)
    return Success(name, body, "runs.jsonl", at)


def test_a_mined_reference_says_where_it_comes_from() -> None:
    run = [ReferenceStep.of(step) for step in shop_run()]
    again = (*run[:2], run[1], *run[2:])
    when = datetime(2026, 3, 1, 8, tzinfo=UTC)
    runs = [Success("first", tuple(again), "runs.jsonl.xz", when), Success("second", tuple(run))]
    found = mine(PARAMS, CONTRACTS, "refund", runs)
    (first,) = [item for item in found.references if item.run_id == "first"]
    assert [step.tool for step in first.steps] == ["find_user", "get_order", "refund_order"]
    assert (first.task_id, first.provenance) == ("refund", Provenance.MINED)
    assert first.mined is not None
    assert (first.mined.source, first.mined.run_at) == ("runs.jsonl.xz", when)
    assert (first.mined.successes, first.mined.retries, first.mined.dead_ends) == (2, (2,), ())
    assert first.mined.effects == {
        "find_user": Effect.READ,
        "get_order": Effect.READ,
        "refund_order": Effect.WRITE,
    }


def test_the_distance_counts_calls_and_arguments() -> None:
    assert distance(calls("a1 b1"), calls("a1 b1")) == 0.0
    assert distance(calls("a1 b1"), calls("a1 b2")) == 0.25
    assert distance(calls("a1 b1"), calls("a1 c1")) == 0.5
    assert distance(calls("a1 b1"), calls("a1")) == 0.5
    assert distance(calls("a1"), calls("")) == 1.0
    assert distance(calls(""), calls("")) == 0.0


WORDS = st.lists(st.sampled_from(("a1", "a2", "b1", "c1")), max_size=7).map(" ".join)


@given(WORDS, WORDS)
def test_the_distance_is_what_the_textbook_recursion_gives(one: str, other: str) -> None:
    left, right = one.split(), other.split()

    def slow(i: int, j: int) -> float:
        if not i or not j:
            return float(i + j)
        same, tool = left[i - 1] == right[j - 1], left[i - 1][0] == right[j - 1][0]
        swap = 0.0 if same else 0.5 if tool else 1.0
        return min(slow(i - 1, j) + 1, slow(i, j - 1) + 1, slow(i - 1, j - 1) + swap)

    longest = max(len(left), len(right), 1)
    expected = slow(len(left), len(right)) / longest
    assert distance(calls(one), calls(other)) == pytest.approx(expected)
    assert distance(calls(other), calls(one)) == pytest.approx(expected)


def test_the_most_central_run_comes_first_then_the_one_farthest_from_it() -> None:
    runs = ["a1 b1 c1", "a1 b1 c1 d1", "a1 b1", "x1 y1 z1"]
    kept = choose(PARAMS, [calls(text) for text in runs])
    assert [runs[place] for place in kept[:2]] == ["a1 b1 c1", "x1 y1 z1"]
    assert sorted(kept) == [0, 1, 2, 3]


def test_the_shorter_one_is_kept_at_a_tie() -> None:
    runs = [calls("a1 b1 c1 d1"), calls("a1 b1")]
    assert choose(MiningParams(keep_min=1, keep_max=1), runs) == [1]


def test_three_that_agree_are_kept_and_no_fourth() -> None:
    assert len(choose(PARAMS, [calls("a1 b1")] * 8)) == 3
    assert len(choose(PARAMS, [*[calls("a1 b1")] * 8, calls("a1 c1")])) == 3


@given(st.lists(WORDS, min_size=1, max_size=14))
def test_those_kept_are_spread_as_far_first_traversal_spreads_them(texts: list[str]) -> None:
    runs = [calls(text) for text in texts]
    kept = choose(PARAMS, runs)
    assert len(kept) == len(set(kept)) >= min(3, len(runs))
    gaps = [
        min(distance(runs[place], runs[before]) for before in kept[:at])
        for at, place in enumerate(kept)
        if at
    ]
    assert all(left >= right - 1e-9 for left, right in pairwise(gaps))
    left_out = set(range(len(runs))) - set(kept)
    if len(kept) < PARAMS.keep_max:
        assert all(min(distance(runs[at], runs[k]) for k in kept) == 0 for at in left_out)


def test_of_very_many_runs_some_are_compared_and_the_result_is_the_same_each_time() -> None:
    runs = [calls(f"a{number % 7} b{number % 5}") for number in range(300)]
    kept = choose(PARAMS, runs)
    assert len(kept) == 10
    assert choose(PARAMS, runs) == kept


def test_the_order_of_the_runs_does_not_matter_and_mining_again_gives_the_same() -> None:
    runs = [
        success("r1", ("find", "A-1"), ("pay", "A-1")),
        success("r2", ("find", "A-1"), ("find", "A-1"), ("pay", "A-1")),
        success("r3", ("look", "A-1"), ("pay", "A-1")),
    ]
    found = mine(PARAMS, {}, "t", runs)
    for order in permutations(runs):
        assert mine(PARAMS, {}, "t", order).references == found.references
    once_more = [Success(item.run_id or "", item.steps, "runs.jsonl") for item in found.references]
    again = mine(PARAMS, {}, "t", once_more)
    by_run = {item.run_id: item.steps for item in found.references}
    assert {item.run_id: item.steps for item in again.references} == by_run
    assert {item.reference_id for item in again.references} == {
        item.reference_id for item in found.references
    }


def test_a_run_that_is_too_long_is_no_reference_and_is_counted() -> None:
    short = MiningParams(steps_max=2)
    runs = [success("r1", ("a", "1"), ("b", "1"), ("c", "1")), success("r2", ("a", "1"))]
    found = mine(short, {}, "t", runs)
    assert [item.run_id for item in found.references] == ["r2"]
    assert found.too_long == 1


def test_dead_ends_are_what_one_of_five_successes_did_alone() -> None:
    read = ToolContract(name="look", declared_effect="read")
    runs = [success(f"r{number}", ("pay", "A-1")) for number in range(4)]
    runs.append(success("wanderer", ("look", "B-9"), ("pay", "A-1")))
    found = mine(PARAMS, {"look": read}, "t", runs)
    assert all(len(item.steps) == 1 for item in found.references)
