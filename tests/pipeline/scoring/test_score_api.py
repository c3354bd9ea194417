"""``score_trajectory`` and ``unsafe_actions`` as a notebook meets them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ontrack.operators.scoring_extras import Extras
from ontrack.pipeline.scoring import score_trajectory, unsafe_actions
from ontrack.topics.errors import InvalidInput
from ontrack.topics.events import RunEnded, RunStarted, Step
from ontrack.topics.knowledge import Task, ToolContract

ANA = ["read_thread", "list_availability", "list_availability", "calendar.create_event"]


def test_the_example_of_the_document_prints_what_it_says(capsys):
    text = (Path(__file__).parents[3] / "docs" / "scoring.md").read_text()
    code, printed = re.search(
        r"```python\n(.*?)```\n\nprints\n\n```\n(.*?)```", text, re.S
    ).groups()
    exec(compile(code, "docs/scoring.md", "exec"), {})
    assert capsys.readouterr().out == printed


def test_forty_one_calls_stand_against_a_median_of_six():
    task = {"id": "ana", "step_budget": {"rule": "median_plus_sd", "value": 2}}
    score = score_trajectory(["list_availability"] * 41, task, passing_steps=[5, 6, 6, 6, 8])
    assert (score.steps, score.passing_median, score.step_budget) == (41, 6.0, 8)
    assert score.over_budget_by == 33


def test_names_mappings_and_events_of_one_run_score_alike():
    task = Task(id="ana", references=[ANA])
    names = score_trajectory(ANA, task)
    assert names == score_trajectory([{"tool": name} for name in ANA], task)
    events = [Step(run_id="r", seq=at, tool=name) for at, name in enumerate(ANA)]
    whole = [RunStarted(run_id="r"), *events, RunEnded(run_id="r")]
    assert names == score_trajectory(whole, task)


def test_steps_out_of_order_are_scored_in_order_and_each_once():
    steps = [Step(run_id="r", seq=at, tool=name) for at, name in enumerate(ANA)]
    task = Task(id="ana", references=[ANA])
    assert score_trajectory([steps[2], steps[0], *reversed(steps)], task).reference_coverage == 1.0
    assert score_trajectory([steps[2], steps[0], *reversed(steps)], task).steps == 4


def test_without_numbers_the_order_given_counts():
    mixed = [{"tool": "b", "seq": 5}, {"tool": "a"}]
    assert score_trajectory(mixed, {"id": "t", "references": [["b", "a"]]}).reference_coverage == 1


def test_contracts_come_by_name_or_with_it_as_mappings_or_models():
    task = {"id": "t", "allowed": []}
    by_name = {"look": {"effect": "read"}, "send": {"effect": "write"}}
    listed = [{"name": "look", "effect": "read"}, ToolContract(name="send", effect="write")]
    for contracts in (by_name, listed):
        found = unsafe_actions(["look", "send"], task, contracts)
        assert [(each.seq, each.tool, each.effect) for each in found] == [(1, "send", "write")]


def test_the_functions_leave_what_they_are_given_alone():
    run = [{"tool": "look", "args": {"day": "Mon"}}] * 3
    task = {"id": "t", "step_budget": 1, "allowed": ["look"]}
    before = (repr(run), repr(task))
    assert score_trajectory(run, task).extras == Extras(redundant_repeat=2)
    assert (repr(run), repr(task)) == before


@pytest.mark.parametrize(
    ("run", "task", "contracts", "words"),
    [
        ([{"args": {}}], {"id": "t"}, (), r"run\[0\].*tool"),
        ([{"type": "run_ended"}], {"id": "t"}, (), r"run\[0\]: expected a step"),
        (["a"], {"references": []}, (), "id"),
        (["a"], {"id": "t", "step_budget": -1}, (), "step_budget"),
        (["a"], {"id": "t"}, [{"effect": "read"}], "name"),
        (["a"], {"id": "t", "allowed": [], "predicates": {"a": "True"}}, (), "allowed"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(run, task, contracts, words):
    with pytest.raises(InvalidInput, match=words):
        score_trajectory(run, task, contracts)


@pytest.mark.parametrize(
    ("value", "found"),
    [("Ana", True), (" ANA ", True), (7, True), ("7", True), ("2026-01-01", False), (12.5, False)],
)
def test_dates_and_decimals_are_never_seen_and_names_and_numbers_are(value, found):
    task = {"id": "t", "allowed": [{"tool": "write", "when": "seen(args.x)"}]}
    result = {"name": "ana", "n": 7, "day": "2026-01-01", "price": 12.5}
    steps = [{"tool": "look", "result": result}, {"tool": "write", "args": {"x": value}}]
    breaches = unsafe_actions(steps, task, {"look": {"effect": "read"}})
    assert bool(breaches) is not found
