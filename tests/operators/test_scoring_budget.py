from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators.scoring_budget import Budget, Observed, budget_of
from ontrack.operators.scoring_coverage import ReferencePath
from ontrack.topics.knowledge import StepBudget

FIVE = ReferencePath("ana", ("read", "list", "list", "create", "reply"))
COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=30)


def test_a_reference_of_five_calls_gives_a_budget_of_eight():
    budget = budget_of(None, [FIVE], None)
    assert budget == Budget(8, "reference_plus", 3, "reference of 5 calls + 3")
    assert (budget.over(8), budget.over(9), budget.over(41)) == (0, 1, 33)


def test_the_longest_of_several_valid_orders_sets_the_length():
    assert budget_of(None, [ReferencePath("short", ("a",)), FIVE], None).steps == 8


def test_a_task_may_set_its_own_margin():
    assert budget_of(StepBudget(rule="reference_plus", value=9), [FIVE], None).steps == 14


def test_a_number_that_somebody_chose_is_the_budget():
    budget = budget_of(StepBudget(rule="fixed", value=14), [FIVE], None)
    assert (budget.steps, budget.rule, budget.text) == (14, "fixed", "14 by the task")


def test_a_budget_that_is_no_whole_number_is_exceeded_by_the_next_call():
    budget = budget_of(StepBudget(rule="fixed", value=6.5), [], None)
    assert (budget.over(6), budget.over(7)) == (0, 1)


def test_without_a_reference_passing_runs_set_the_budget():
    observed = Observed.of([5, 6, 6, 6, 7])
    budget = budget_of(None, [], observed)
    assert (budget.steps, budget.rule) == (7, "median_plus_sd")
    assert budget.text == "median 6 + 2 sd of 0.71, 5 passing runs of the task"


@pytest.mark.parametrize("steps", [[], [4], [4, 9]])
def test_too_few_passing_runs_tell_no_spread_and_give_no_budget(steps):
    assert budget_of(None, [], Observed.of(steps)) is None


def test_a_rule_that_cannot_be_followed_is_not_replaced_by_another():
    observed = Observed.of([5, 6, 6])
    assert budget_of(StepBudget(rule="reference_plus", value=3), [], observed) is None
    assert budget_of(StepBudget(rule="median_plus_sd", value=2), [FIVE], None) is None


def test_runs_that_all_took_the_same_have_no_deviation():
    assert budget_of(None, [], Observed.of([6] * 9)).steps == 6


@given(COUNTS)
def test_sums_of_step_counts_are_those_of_the_standard_library(steps):
    observed = Observed.of(steps)
    assert observed.runs == len(steps)
    assert observed.median == statistics.median(steps)
    deviation = statistics.stdev(steps) if len(steps) > 1 else 0.0
    assert observed.sd == pytest.approx(deviation, abs=1e-9)


@given(COUNTS)
def test_counts_by_value_say_the_same_as_counts_one_by_one(steps):
    counted = {value: steps.count(value) for value in reversed(steps)}
    assert Observed.of(counted) == Observed.of(steps)


@given(COUNTS)
def test_a_budget_at_the_median_flags_no_more_than_half_of_the_runs(steps):
    budget = budget_of(StepBudget(rule="median_plus_sd", value=0), [], Observed.of(steps), 3, 2, 1)
    assert sum(budget.over(taken) > 0 for taken in steps) <= len(steps) / 2
