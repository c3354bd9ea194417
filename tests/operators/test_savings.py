"""The estimate of what halts saved, which two screens show."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators.fleet_state import FleetParams
from ontrack.operators.savings import RUNS_MIN, Part, part_of, steps_saved


def test_a_halted_run_saved_what_it_is_shorter_than_failed_ones() -> None:
    assert steps_saved([(4, 1)], 5, 60) == 5 * (12 - 4)
    assert steps_saved([(4, 2), (30, 3)], 5, 60) == 5 * 2 * (12 - 4)  # longer ones saved nothing
    assert steps_saved([], 5, 60) == 0


def test_with_few_failed_runs_nothing_is_said() -> None:
    assert steps_saved([(4, 1)], 4, 60) is None
    assert steps_saved([(4, 1)], 5, 0) is None
    assert steps_saved([(4, 1)], 2, 20, runs_min=2) == 2 * 6
    assert FleetParams().baseline_runs_min == RUNS_MIN  # the line and the page ask for as many


@pytest.mark.parametrize(
    ("outcome", "halted", "part"),
    [
        ("success", True, None),
        ("success", False, None),
        ("failure", True, Part.STOPPED),
        ("unknown", True, Part.STOPPED),
        ("failure", False, Part.LOST),
        ("cancelled", False, Part.LOST),
        ("unknown", False, None),
    ],
)
def test_what_an_ended_run_is_to_the_estimate(
    outcome: str, halted: bool, part: Part | None
) -> None:
    assert part_of(outcome, halted) is part


@given(
    st.lists(st.integers(1, 200), max_size=6),
    st.lists(st.integers(1, 200), min_size=RUNS_MIN, max_size=9),
)
def test_it_is_the_sum_of_differences_to_the_mean(stopped: list[int], lost: list[int]) -> None:
    mean = Fraction(sum(lost), len(lost))
    found = steps_saved([(steps, 1) for steps in stopped], len(lost), sum(lost))
    assert found is not None
    assert Fraction(found, len(lost)) == sum(max(Fraction(0), mean - steps) for steps in stopped)
