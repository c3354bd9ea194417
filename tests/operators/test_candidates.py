"""Which of many references are aligned: room, who comes in, who stays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators.candidates import (
    CandidateParams,
    Candidates,
    entrants,
    estimates,
    kept,
    room,
)
from ontrack.solver.relaxed import Relaxed

PARAMS = CandidateParams(all_max=4, aligned_min=3, cells=100, entrants_max=1, keep=0.1, margin=0.02)
NOTHING = Relaxed(
    np.zeros((5, 0, 2), np.float32),
    np.zeros((5, 0)),
    np.zeros((5, 2)),
    np.zeros((5, 0)),
    np.zeros((5, 2)),
)


def test_few_references_are_all_aligned_and_many_as_the_budget_allows() -> None:
    assert room(PARAMS, 4, 1000, 50) == 4
    assert room(PARAMS, 10, 1, 10) == 10
    assert room(PARAMS, 10, 2, 10) == 5
    assert room(PARAMS, 10, 1000, 10) == 3


def test_an_estimate_adds_what_members_had_in_common_and_a_part_of_what_a_reference_had() -> None:
    state = Candidates((0, 2), NOTHING, np.array([0.0, 0.1, 0.0, 0.0, 0.0]), np.zeros(5))
    below = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    estimated, common = estimates(PARAMS, state, below, np.array([1.5, 3.25]))
    assert common == 0.25
    np.testing.assert_allclose(estimated, below + 0.25 + [0.0, 0.07, 0.0, 0.0, 0.0])


def test_who_is_near_comes_in_where_there_is_room_and_else_only_who_beats_a_member() -> None:
    estimated = np.array([9.0, 0.01, 0.015, 0.5, 9.0])
    losses = np.array([0.0, 0.012])
    assert entrants(PARAMS, (0, 4), 4, estimated, losses) == [1, 2]
    assert entrants(PARAMS, (0, 4), 3, estimated, losses) == [1]
    assert entrants(PARAMS, (0, 4), 2, estimated, losses) == [1]
    assert entrants(PARAMS, (0, 4), 2, estimated, np.array([0.0, 0.005])) == []


def test_those_that_fall_behind_are_dropped_but_never_the_two_best() -> None:
    assert kept(PARAMS, 3, np.array([0.0, 0.05, 0.5])) == [0, 1]
    assert kept(PARAMS, 3, np.array([0.9, 0.5, 0.0])) == [1, 2]
    assert kept(PARAMS, 2, np.array([0.03, 0.02, 0.0])) == [1, 2]


@given(
    st.lists(st.floats(-1, 1), min_size=5, max_size=5),
    st.sets(st.integers(0, 4), min_size=2, max_size=4),
    st.integers(2, 5),
)
def test_entrants_are_no_members_and_the_best_are_always_kept(
    estimated: list[float], chosen: set[int], places: int
) -> None:
    members = tuple(sorted(chosen))
    losses = np.array([estimated[name] + 0.01 for name in members])
    coming = entrants(PARAMS, members, places, np.array(estimated), losses)
    assert not set(coming) & chosen
    assert coming == sorted(coming)
    assert len(coming) <= max(places - len(members), 0) + PARAMS.entrants_max
    going = kept(PARAMS, places, losses)
    assert 2 <= len(going) <= max(places, 2)
    assert int(losses.argmin()) in going


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="aligned_min"):
        CandidateParams(aligned_min=1)
    with pytest.raises(ValueError, match="memory"):
        CandidateParams(memory=1.5)
