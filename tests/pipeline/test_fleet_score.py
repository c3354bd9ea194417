"""The fleet's minutes add up to what ``ontrack score`` says of the same runs, offline."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ontrack.operators.fleet import due, step
from ontrack.operators.fleet_state import FleetParams, FleetState
from ontrack.pipeline.cli import cli
from ontrack.pipeline.embedded import EmbeddedMonitor
from ontrack.pipeline.settings import Settings
from ontrack.pipeline.workplace import contracts, references, simulate_run, task_ids
from ontrack.topics import codecs
from ontrack.topics.events import Event
from ontrack.topics.fleet import FleetAggregate, merge
from ontrack.topics.knowledge import Task

MINUTE = 60_000
NOON = 1_796_040_000_000
PARTITIONS = 3
FAULTS = (None, "loop", "stall", "hallucination", "inversion", "irreversible", "retry")
OUTCOMES = {"success": "passing", "failure": "failing"}


def tasks() -> list[Task]:
    """Every task with a budget; some say what they allow, and some of these leave something out."""
    writing = [tool.name for tool in contracts() if tool.effect not in (None, "read")]
    made = []
    for number, task_id in enumerate(task_ids()):
        paths = [r.steps for r in references() if r.task_id == task_id][:1]
        allowed = None if number % 3 == 2 else [{"tool": name} for name in writing]
        made.append(
            Task.model_validate(
                {
                    "id": task_id,
                    "references": [[{"tool": each.tool} for each in path] for path in paths],
                    "step_budget": 7,
                    "allowed": allowed if allowed is None or number % 2 else allowed[::2],
                }
            )
        )
    return made


def simulated() -> list[list[Event]]:
    """42 runs: all tasks, all faults; one was cancelled, one ended nobody knows how."""
    runs = [
        list(
            simulate_run(
                task_ids()[number % len(task_ids())],
                number,
                FAULTS[number % len(FAULTS)],
                run_id=f"run-{number}",
            ).events
        )
        for number in range(42)
    ]
    for number, outcome in ((3, "cancelled"), (8, "unknown")):
        runs[number][-1] = runs[number][-1].model_copy(update={"outcome": outcome})
    return runs


@pytest.fixture(scope="module")
def runs() -> list[list[Event]]:
    return simulated()


@pytest.fixture(scope="module")
def aggregates(runs: list[list[Event]]) -> list[FleetAggregate]:
    """Final lines of three partitions, of runs that went on at the same time, added up."""
    monitor = EmbeddedMonitor(Settings(encoder="hashing"), (), contracts(), tasks())
    params, states = FleetParams(), [FleetState() for _ in range(PARTITIONS)]
    now_ms = NOON
    for place in range(max(map(len, runs))):
        for number, events in enumerate(runs):
            now_ms += 1000
            for output in monitor.feed(events[place]) if place < len(events) else ():
                at = number % PARTITIONS
                states[at] = step(params, states[at], output, now_ms)
    lines: list[FleetAggregate] = []
    for number, state in enumerate(states):
        told = due(params, state, now_ms + 20 * MINUTE, number)
        while told.more:
            lines += told.lines
            told = due(params, told.state, now_ms + 20 * MINUTE, number)
        lines += told.lines
    assert len({line.minute for line in lines}) > 5
    return merge(line for line in lines if line.final)


@pytest.fixture(scope="module")
def scored(
    runs: list[list[Event]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary of ``ontrack score`` on the same runs, and its line of each."""
    folder = tmp_path_factory.mktemp("score")
    events, tools, rules = (folder / name for name in ("runs.jsonl", "tools.json", "tasks.json"))
    events.write_bytes(b"".join(codecs.encode(e) + b"\n" for run in runs for e in run))
    _write(tools, "tools", contracts())
    _write(rules, "tasks", tasks())
    result = CliRunner().invoke(
        cli, ["score", str(events), "--tools", str(tools), "--tasks", str(rules), "--json"]
    )
    assert result.exit_code == 0, result.output
    *cards, summary = [json.loads(line) for line in result.stdout.splitlines()]
    assert (summary["type"], len(cards)) == ("summary", len(runs))
    return summary, cards


def _write(path: Path, name: str, items: Any) -> None:
    path.write_text(json.dumps({name: [json.loads(codecs.encode(item)) for item in items]}))


def total(lines: list[FleetAggregate], name: str) -> Any:
    """Sum over minutes and groups."""
    values = [getattr(line, name) for line in lines]
    if not isinstance(values[0], dict):
        return sum(values)
    found: Counter[str] = Counter()
    for value in values:
        found.update(value)
    return dict(found)


def test_unsafe_rate_and_over_budget_rate_are_those_of_the_score(
    aggregates: list[FleetAggregate], scored: Any
) -> None:
    summary, cards = scored
    finished = sum(total(aggregates, "finished").values())
    unsafe, checked = total(aggregates, "unsafe_runs"), total(aggregates, "unsafe_checked")
    assert 0 < unsafe < checked < finished
    assert {"runs": unsafe, "n": finished} == _rate(summary["unsafe_rate"])
    assert {"runs": unsafe, "n": checked} == _rate(summary["unsafe_rate_checked"])
    over, budgeted = total(aggregates, "over_budget_runs"), total(aggregates, "budgeted_runs")
    assert 0 < over < budgeted
    assert {"runs": over, "n": budgeted} == _rate(summary["all"]["over_step_budget"])
    assert over == sum(card["over_budget_by"] > 0 for card in cards)


def _rate(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in ("runs", "n")}


def test_outcomes_steps_and_cost_are_those_of_the_score(
    aggregates: list[FleetAggregate], scored: Any
) -> None:
    summary, cards = scored
    finished = total(aggregates, "finished")
    assert set(finished) == {"success", "failure", "cancelled", "unknown"}
    by_column: Counter[str] = Counter()
    for outcome, count in finished.items():
        by_column[OUTCOMES.get(outcome, "other")] += count
    assert by_column == {name: each["runs"] for name, each in summary["outcomes"].items()}
    steps: Counter[str] = Counter()
    cost: Counter[str] = Counter()
    for card in cards:
        steps[card["outcome"]] += card["steps"]
        cost[card["outcome"]] += card["cost_usd"] or 0
    assert total(aggregates, "steps") == steps
    assert total(aggregates, "cost_usd") == pytest.approx(dict(cost), abs=1e-6)
    assert sum(cost.values()) > 0


def test_the_groups_are_those_of_the_score_as_well(
    aggregates: list[FleetAggregate], scored: Any
) -> None:
    _, cards = scored
    for task_id in task_ids():
        mine = [line for line in aggregates if line.group.task_id == task_id]
        of_task = [card for card in cards if card["task_id"] == task_id]
        assert total(mine, "finished") == Counter(card["outcome"] for card in of_task)
        assert total(mine, "unsafe_runs") == sum(card["unsafe_count"] > 0 for card in of_task)


def test_every_run_started_and_none_is_open_at_the_end(
    aggregates: list[FleetAggregate], runs: list[list[Event]]
) -> None:
    assert total(aggregates, "started") == len(runs)
    last: dict[Any, int] = {line.group.key: line.open_runs for line in aggregates}
    assert set(last.values()) == {0}
    steps = sum(event.type == "step" for events in runs for event in events)
    assert sum(total(aggregates, "verdicts").values()) == steps
