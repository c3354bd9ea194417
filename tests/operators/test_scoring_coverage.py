from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import scoring_coverage
from ontrack.operators.scoring_coverage import Coverage, ReferencePath

TOOLS = st.sampled_from("abcd")
RUNS = st.lists(TOOLS, max_size=9)
PATHS = st.lists(st.lists(TOOLS, min_size=1, max_size=5), min_size=1, max_size=4)
ANA = (
    "read_thread",
    "list_availability",
    "list_availability",
    "calendar.create_event",
    "mail.reply",
)


def covered(paths: list[tuple[str, ...]], tools: list[str]) -> Coverage:
    references = [ReferencePath(f"ref-{at}", tuple(path)) for at, path in enumerate(paths)]
    pointers = scoring_coverage.start(references)
    for tool in tools:
        pointers = scoring_coverage.step(references, pointers, tool)
    found = scoring_coverage.best(references, pointers)
    assert found is not None
    return found


def is_subsequence(wanted: tuple[str, ...], run: list[str]) -> bool:
    """Try every choice of places."""
    return any(
        tuple(run[place] for place in places) == wanted
        for places in combinations(range(len(run)), len(wanted))
    )


def test_a_run_that_walks_the_reference_covers_all_of_it():
    assert covered([ANA], list(ANA)) == Coverage(1.0, "ref-0", ())


def test_extra_calls_are_invisible_at_any_quantity():
    run = [tool for name in ANA for tool in ("drive.write_file",) * 20 + (name,)]
    assert covered([ANA], run + ["read_thread"] * 100).share == 1.0


def test_a_shorter_route_scores_what_it_covered_and_the_missing_steps_are_named():
    found = covered([ANA], ["read_thread", "list_availability", "mail.reply"])
    assert found.share == 0.4
    assert found.missing == ("list_availability", "calendar.create_event", "mail.reply")


def test_the_right_calls_in_the_wrong_order_do_not_cover_the_reference():
    assert covered([ANA], list(reversed(ANA))).share == 0.2


def test_of_several_valid_orders_the_one_that_was_followed_is_named():
    found = covered([("a", "b", "c"), ("b", "a", "c")], ["b", "a", "c"])
    assert found == Coverage(1.0, "ref-1", ())


def test_of_references_covered_alike_the_first_is_named():
    assert covered([("a", "b"), ("a", "c")], ["a"]).reference_id == "ref-0"


def test_without_references_there_is_no_coverage():
    assert scoring_coverage.best((), scoring_coverage.start(())) is None


def test_a_reference_without_steps_is_refused():
    with pytest.raises(ValueError, match="has no steps"):
        ReferencePath("empty", ())


@given(PATHS, RUNS)
def test_the_pointer_finds_what_trying_every_choice_of_calls_finds(paths, run):
    shares = []
    for path in map(tuple, paths):
        matched = max(n for n in range(len(path) + 1) if is_subsequence(path[:n], run))
        shares.append(matched / len(path))
    found = covered(paths, run)
    assert found.share == max(shares)
    assert found.reference_id == f"ref-{shares.index(max(shares))}"
    best = paths[shares.index(max(shares))]
    assert found.missing == tuple(best[round(max(shares) * len(best)) :])


@given(PATHS, RUNS, RUNS)
def test_coverage_lies_between_0_and_1_and_never_falls_as_a_run_goes_on(paths, run, more):
    before, after = covered(paths, run).share, covered(paths, run + more).share
    assert 0 <= before <= after <= 1
