from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators import exploration
from ontrack.operators.exploration import (
    ExplorationParams,
    ExplorationSignal,
    ExplorationState,
    Match,
    classify,
)
from ontrack.operators.transport import Alignment

PARAMS = ExplorationParams()
FAR, GOOD, LEAK = [0.9, 0.9, 0.9, 0.9], 0.1, 0.9


def near(node: int) -> list[float]:
    """Cost row of a step that looks like one reference node."""
    return [0.1 if other == node else 0.9 for other in range(4)]


def alignment(
    leakages: Sequence[float],
    costs: Sequence[Sequence[float]],
    open_before: Sequence[int] = (0,),
    open_now: Sequence[int] | None = None,
    satisfied: Sequence[int] = (),
    mean_size: float = 100.0,
    attribute_cost: float = 0.0,
) -> Alignment:
    """Alignment with a chain of four reference nodes, 0 → 1 → 2 → 3.

    ``mean_size`` is larger than any prefix here, so shares are of the prefix unless it is given.
    """
    reachable = np.isin(np.arange(4), open_before)
    return Alignment(
        best=0,
        losses=np.zeros(1),
        leakages=np.array(leakages),
        coverage=0.0,
        match_cost=0.0,
        attribute_cost=attribute_cost,
        score=1.0,
        rank_score=0.0,
        all_leakages=np.array([leakages]),
        all_coverage=np.zeros(1),
        cost=np.array(costs, dtype=np.float32),
        reachable=reachable,
        reachable_now=reachable if open_now is None else np.isin(np.arange(4), open_now),
        satisfied_now=np.isin(np.arange(4), satisfied),
        parents=np.eye(4, k=-1, dtype=bool),
        mean_size=mean_size,
        frontier_stalled=False,
        converged=True,
    )


class Story:
    """Feeds one event after another; each has a leakage and a cost row."""

    def __init__(self, params: ExplorationParams = PARAMS) -> None:
        self.params, self.state = params, ExplorationState()
        self.leakages: list[float] = []
        self.costs: list[Sequence[float]] = []

    def event(
        self,
        leakage: float,
        row: Sequence[float] = FAR,
        consumed: tuple[int, ...] = (),
        **frontier: Any,
    ) -> ExplorationSignal:
        seq = 10 * len(self.leakages)
        self.leakages.append(leakage)
        self.costs.append(row)
        found = alignment(self.leakages, self.costs, **frontier)
        self.state, signal = exploration.step(self.params, self.state, seq, found, consumed)
        return signal

    def good(self, count: int) -> None:
        for _ in range(count):
            self.event(GOOD, near(0))


def test_a_step_that_leaks_explores_and_one_that_does_not_is_silent() -> None:
    story = Story()
    assert story.event(GOOD, near(0)) == ExplorationSignal(False, None, False, 0.0, ())
    signal = story.event(LEAK)
    assert signal.exploring
    assert (signal.inversion, signal.off_track, signal.evidence) == (None, False, (10,))
    assert signal.unresolved == 1 / 2


def test_a_leakage_of_exactly_the_threshold_is_no_leak() -> None:
    assert not Story().event(0.6).exploring


def test_a_step_is_cleared_when_a_later_one_consumes_its_artifact() -> None:
    story = Story()
    story.event(LEAK)
    signal = story.event(GOOD, near(0), consumed=(0,))
    assert signal.unresolved == 0
    assert story.state.pending == ()
    story.good(4)
    assert story.state.abandoned == 0


def test_an_orphan_that_uses_an_orphan_clears_nothing() -> None:
    story = Story()
    story.event(LEAK)
    story.event(LEAK, consumed=(0,))
    assert [waiting.node for waiting in story.state.pending] == [0, 1]


def test_a_step_is_absorbed_by_a_node_that_becomes_active() -> None:
    story = Story()
    story.event(LEAK, near(1), satisfied=(0,))
    assert len(story.state.pending) == 1
    story.event(GOOD, near(0), open_before=(0,), open_now=(0, 1))
    assert story.state.pending == ()


def test_a_branch_left_after_one_or_two_steps_is_abandoned_without_alarm() -> None:
    for steps in (1, 2):
        story = Story()
        signals = [story.event(LEAK) for _ in range(steps)]
        signals += [story.event(GOOD, near(0)) for _ in range(4)]
        assert not any(signal.off_track for signal in signals)
        assert story.state.abandoned == steps
        assert story.state.orphans == ()
        assert signals[-1].unresolved == 0


def test_the_third_step_of_a_branch_puts_the_run_off_track() -> None:
    story = Story()
    signals = [story.event(LEAK) for _ in range(3)]
    assert [signal.off_track for signal in signals] == [False, False, True]
    assert signals[-1].evidence == (0, 10, 20)
    assert story.state.abandoned == 0


def test_two_short_branches_are_not_one_long_one() -> None:
    story = Story()
    signals = []
    for leakage in (LEAK, LEAK, GOOD, LEAK, LEAK, GOOD, GOOD, GOOD):
        signals.append(story.event(leakage, FAR if leakage == LEAK else near(0)))
    assert not any(signal.off_track for signal in signals)
    assert story.state.abandoned == 4


def test_orphans_within_the_budget_are_tolerated() -> None:
    story = Story()
    story.good(20)
    signals = [story.event(LEAK) for _ in range(5)]
    assert not any(signal.off_track for signal in signals)
    assert signals[-1].unresolved == 5 / 25
    while signals[-1].unresolved <= 0.25:
        signals.append(story.event(LEAK))
    assert [signal.off_track for signal in signals[5:]] == [False] * (len(signals) - 6) + [True]


def test_a_prefix_longer_than_its_references_does_not_dilute_what_is_wrong() -> None:
    story = Story()
    for _ in range(20):
        story.event(GOOD, near(0), mean_size=6.0)
    signals = [story.event(LEAK, mean_size=6.0) for _ in range(3)]
    assert [signal.off_track for signal in signals] == [False, False, True]
    assert signals[-1].unresolved == 3 / 6


def test_a_run_that_returned_to_the_task_is_not_accused_again() -> None:
    story = Story()
    for _ in range(4):
        story.event(LEAK)
    story.good(2)
    assert not story.event(GOOD, near(0)).off_track


def test_a_step_before_its_producers_is_an_inversion_at_its_emission() -> None:
    story = Story()
    story.event(GOOD, near(0))
    signal = story.event(LEAK, near(3), satisfied=(0,))
    assert signal.inversion == 10
    assert not signal.exploring
    assert story.state.pending == ()


def test_a_future_step_whose_producers_are_there_is_premature_and_clears_on_expiry() -> None:
    story = Story()
    first = story.event(LEAK, near(1), satisfied=(0,))
    assert first.exploring
    signals = [story.event(GOOD, near(0), satisfied=(0,)) for _ in range(3)]
    assert story.state == ExplorationState(branches=((0, 1),))
    assert not any(signal.off_track or signal.inversion for signal in signals)


def test_a_step_seen_in_another_light_on_expiry_is_an_inversion_then() -> None:
    """It matched nothing at emission; the reference followed since shows where it belonged."""
    story = Story()
    assert story.event(LEAK).exploring
    story.event(GOOD, near(0))
    story.costs[0] = near(3)
    assert story.event(GOOD, near(0)).inversion == 0


@pytest.mark.parametrize(
    ("row", "satisfied", "match"),
    [
        (FAR, (), Match.ORPHAN),
        (near(0), (), Match.REACHABLE),
        (near(1), (0,), Match.PREMATURE_VALID),
        (near(2), (0,), Match.INVERSION),
        ([0.46, 0.9, 0.9, 0.9], (), Match.ORPHAN),
    ],
)
def test_the_secondary_check_looks_at_the_nearest_node_under_the_unmasked_cost(
    row: list[float], satisfied: tuple[int, ...], match: Match
) -> None:
    assert classify(PARAMS, alignment([LEAK], [row], satisfied=satisfied), 0) is match


@given(
    st.lists(st.tuples(st.sampled_from([GOOD, LEAK]), st.integers(-1, 3)), min_size=1, max_size=30),
    st.integers(1, 4),
)
def test_no_step_waits_longer_than_its_grace_and_mass_is_a_share(
    events: list[tuple[float, int]], grace: int
) -> None:
    story = Story(ExplorationParams(grace=grace))
    for node, (leakage, place) in enumerate(events):
        signal = story.event(leakage, FAR if place < 0 else near(place))
        assert 0 <= signal.unresolved <= 1  # of the prefix: the references are longer here
        assert all(node - waiting.node < grace - 1 for waiting in story.state.pending)
        assert len(story.state.branches) <= grace + 1
        assert not (signal.exploring and signal.inversion == 10 * node)
        assert signal.exploring <= (leakage == LEAK)


def test_an_early_step_that_is_matched_dearly_instead_of_leaking_is_an_inversion_too() -> None:
    """Texts of one domain are never orthogonal: the mass goes to open nodes, at a high cost."""
    story = Story()
    story.event(GOOD, near(0), satisfied=(0,))
    assert story.event(GOOD, near(3), attribute_cost=0.7).inversion == 10
    again = Story()
    again.event(GOOD, near(0), satisfied=(0,))
    assert again.event(GOOD, near(3), attribute_cost=0.2).inversion is None


def test_a_node_that_was_open_already_absorbs_nothing() -> None:
    """The step leaked although its node was open: only a node that opens now can be its place."""
    story = Story()
    story.event(LEAK, near(0), open_before=(0,), open_now=(0,))
    story.event(GOOD, near(1), open_before=(0, 1), open_now=(0, 1))
    assert [waiting.node for waiting in story.state.pending] == [0]
