"""`ontrack references` as a user meets it, on files."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ontrack.pipeline.cli import cli
from ontrack.pipeline.reading.readers import read_references
from ontrack.pipeline.workplace import contracts, simulate_run, task_ids
from ontrack.topics import codecs
from ontrack.topics.errors import InvalidFile, InvalidInput
from ontrack.topics.events import Event, RunEnded, Step

TASK = task_ids()[0]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the developer's takes part; the small encoder keeps the tests quick."""
    for name in [name for name in os.environ if name.startswith("ONTRACK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ONTRACK_ENCODER", "hashing")
    monkeypatch.chdir(tmp_path)


def references(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["references", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def write(name: str, events: Sequence[Event]) -> str:
    Path(name).write_bytes(b"".join(codecs.encode(event) + b"\n" for event in events))
    return name


def shop_run(run_id: str, order: str, extra: int = 0, task: str = "refund") -> list[Event]:
    """Find the order, look at it as often as wanted, refund it."""
    calls = [
        ("find_order", {"customer": f"of {order}", "city": f"home of {order}"}, {"order": order}),
        *[("get_order", {"order": order}, {"order": order, "state": "paid"})] * (1 + extra),
        ("refund_order", {"order": order}, "refunded"),
    ]
    steps: list[Event] = [
        Step(
            run_id=run_id,
            task_id=task,
            seq=seq,
            time=f"2026-03-01T08:00:{seq:02}Z",
            tool=tool,
            args=args,
            result=result,
        )
        for seq, (tool, args, result) in enumerate(calls)
    ]
    return [*steps, RunEnded(run_id=run_id, outcome="success")]


def tools(**effects: str) -> str:
    known = {"find_order": "read", "get_order": "read", "refund_order": "write"} | effects
    described = [{"name": name, "effect": effect} for name, effect in known.items() if effect]
    Path("tools.json").write_text(json.dumps({"tools": described}))
    return "tools.json"


def mined_shop() -> str:
    """Three mined references, one of them from a run with a retry."""
    runs = [event for n in range(3) for event in shop_run(f"run-{n}", "A-17", extra=n == 0)]
    write("runs.jsonl", runs)
    result = references("mine", "runs.jsonl", "--tools", tools(), "-o", "refs.jsonl")
    assert result.exit_code == 0
    assert "3 runs, 3 successes of 1 tasks, 3 references" in result.stderr
    return "refs.jsonl"


def test_what_is_mined_can_be_read_as_references_and_says_how_it_was_made() -> None:
    found = read_references([mined_shop()])
    assert {len(reference.steps) for reference in found} == {3}
    (stripped,) = [reference for reference in found if reference.run_id == "run-0"]
    assert stripped.mined is not None
    assert stripped.mined.retries == (2,)
    assert stripped.mined.source == "runs.jsonl"
    assert stripped.mined.run_at is not None
    assert stripped.mined.run_at.isoformat() == "2026-03-01T08:00:00+00:00"
    assert stripped.mined.effects["refund_order"] == "write"
    assert stripped.mined.set_test is not None
    assert (stripped.mined.set_test.members, stripped.mined.set_test.blocked) == (3, 0)
    again = references("mine", "runs.jsonl", "--tools", "tools.json", "-o", "-")
    assert again.stdout_bytes == Path("refs.jsonl").read_bytes()


def test_replay_takes_what_was_mined() -> None:
    mined_shop()
    write("live.jsonl", shop_run("live", "A-17"))
    result = CliRunner().invoke(
        cli,
        ["replay", "live.jsonl", "--references", "refs.jsonl", "--tools", "tools.json", "--json"],
    )
    verdicts = [json.loads(line) for line in result.stdout.splitlines()][:3]
    assert [verdict["verdict"] for verdict in verdicts] == ["OK", "OK", "OK"]
    known = {reference.reference_id for reference in read_references(["refs.jsonl"])}
    assert {verdict["best_reference"] for verdict in verdicts} <= known


def test_failed_runs_and_runs_without_a_task_are_not_mined() -> None:
    events = shop_run("good", "A-17")
    lost = shop_run("lost", "A-17")[:-1]
    bad = [*shop_run("bad", "A-17")[:-1], RunEnded(run_id="bad", outcome="failure")]
    nameless = [event.model_copy(update={"task_id": None}) for event in shop_run("none", "A-17")]
    write("runs.jsonl", [*events, *lost, *bad, *nameless])
    result = references("mine", "runs.jsonl", "--json")
    assert [(each["task_id"], each["successes"]) for each in lines(result)] == [("refund", 1)]
    assert "4 runs, 1 successes" in result.stderr
    assert "nothing is written without --output" in result.stderr


def test_an_id_that_stands_for_two_tasks_is_told_and_can_be_split() -> None:
    orders = {"run-a": "A-17", "run-b": "A-17", "run-c": "B-20"}
    events = [event for name, order in orders.items() for event in shop_run(name, order)]
    write("runs.jsonl", events)
    told = references("mine", "runs.jsonl", "--tools", tools(), "--json")
    assert "1 task ids seem to stand for several tasks" in told.stderr
    assert "refund (2 + 1)" in told.stderr
    (whole,) = lines(told)
    assert whole["groups"] == [["run-a", "run-b"], ["run-c"]]
    assert whole["selftest"]["blocked"] == 1
    split = references("mine", "runs.jsonl", "--tools", "tools.json", "--split", "--json")
    assert [(each["task_id"], each["references"]) for each in lines(split)] == [
        ("refund#1", 2),
        ("refund#2", 1),
    ]
    assert lines(split)[0]["selftest"]["blocked"] == 0


def test_check_is_content_with_references_that_fit() -> None:
    result = references("check", mined_shop(), "--tools", "tools.json", "--json")
    assert result.exit_code == 0
    (found,) = lines(result)
    assert (found["type"], found["task_id"], found["references"]) == ("reference_set", "refund", 3)
    assert found["selftest"]["members"] == 3
    assert found["selftest"]["rules"]["values"] == {"flagged": 0, "authority": "intervene"}


def test_check_names_stale_references_and_exits_with_one() -> None:
    refs = mined_shop()
    result = references("check", refs, "--tools", tools(get_order="write", find_order=""))
    assert result.exit_code == 1
    assert "find_order is not among the tools" in result.stdout
    assert "get_order was declared read when this was mined and is write now" in result.stdout
    Path("tasks.json").write_text(json.dumps({"tasks": [{"id": "refund", "allowed": []}]}))
    result = references("check", refs, "--tools", tools(), "--tasks", "tasks.json", "--json")
    assert result.exit_code == 1
    stale = [each for each in lines(result) if each["type"] == "stale"]
    assert {(each["kind"], each["tool"]) for each in stale} == {("not_allowed", "refund_order")}


def test_check_tells_a_shorter_path_from_a_regression() -> None:
    refs = mined_shop()
    direct = [event for event in shop_run("new", "A-17") if getattr(event, "seq", 1) != 1]
    direct.append(RunEnded(run_id="new", outcome="success"))
    write("recent.jsonl", direct)
    result = references("check", refs, "--tools", "tools.json", "--runs", "recent.jsonl", "--json")
    assert result.exit_code == 0
    found = [each for each in lines(result) if each["type"] == "shorter"]
    assert [(each["run_id"], each["steps"], each["run_steps"]) for each in found] == [
        ("new", 3, 2)
    ] * 3
    assert "a shorter path, not a regression" in found[0]["text"]


def test_show_prints_steps_edges_and_provenance_but_no_values() -> None:
    result = references("show", mined_shop(), "--tools", "tools.json")
    assert result.exit_code == 0
    assert "task refund: 3 references, intervene, self-test: 0/3 members blocked" in result.stdout
    assert "mined, run run-0, of runs.jsonl, at 2026-03-01T08:00:00+00:00" in result.stdout
    assert "without retries at 2" in result.stdout
    assert "2  refund_order(order)  write  after 0" in result.stdout
    assert "A-17" not in result.stdout
    plain = references("show", "refs.jsonl", "--tools", "tools.json", "--json", "--task", "refund")
    assert [each["type"] for each in lines(plain)] == ["reference"] * 3 + ["reference_set"]


def test_contracts_alone_give_references_that_only_warn() -> None:
    write("live.jsonl", list(simulate_run(TASK, 1, None, run_id="live").events))
    described = [json.loads(codecs.encode(contract)) for contract in contracts()]
    Path("tools.json").write_text(json.dumps({"tools": described}))
    goals = ("--goal", f"{TASK}=send_mail", "--goal", f"{TASK}=move_event")
    result = references(
        "mine", "--axiomatic", "--tools", "tools.json", *goals, "-o", "axioms.jsonl"
    )
    assert result.exit_code == 0
    assert f"task {TASK}: 1 references, warn" in result.stdout
    (made,) = read_references(["axioms.jsonl"])
    assert made.provenance == "axiomatic"
    assert {"search_events", "get_event", "move_event", "send_mail"} <= {s.tool for s in made.steps}
    arguments = ["live.jsonl", "--references", "axioms.jsonl", "--tools", "tools.json", "--gate"]
    replayed = CliRunner().invoke(cli, ["replay", *arguments, "--profile=default", "--json"])
    said = [json.loads(line) for line in replayed.stdout.splitlines()]
    assert {each["authority"] for each in said if each["type"] == "verdict"} == {"warn"}
    blocked = [each["tool"] for each in said if each.get("verdict") == "BLOCK" and "tool" in each]
    assert blocked == ["set_reminder"]  # an effect that no goal asks for
    assert {each["decision"] for each in said if "decision" in each} == {"allow", "unknown"}
    assert not [each for each in said if each.get("intervention") in ("block", "halt")]


def test_tasks_may_declare_their_goals() -> None:
    tools()
    tasks = [{"id": "a", "goals": ["refund_order"]}, {"id": "b", "allowed": ["refund_order"]}]
    Path("tasks.json").write_text(json.dumps({"tasks": [*tasks, {"id": "c"}]}))
    result = references(
        "mine", "--axiomatic", "--tools", "tools.json", "--tasks", "tasks.json", "-o", "-"
    )
    assert [each["task_id"] for each in lines(result)] == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["mine"], "give either PATH… or --from-topic"),
        (["mine", "x", "--from-topic"], "give either PATH… or --from-topic"),
        (["mine", "x", "--goal", "t=y"], "--goal is for --axiomatic"),
        (["mine", "x", "--axiomatic"], "--axiomatic reads --tools and --tasks, no runs"),
        (["mine", "--axiomatic"], "--axiomatic needs --tools, and goals"),
        (["mine", "--axiomatic", "--goal", "x"], "expected TASK=NAME"),
        (["check"], "give either PATH… or --from-topic"),
        (["show"], "give either PATH… or --from-topic"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], told: str) -> None:
    result = references(*arguments)
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())


def test_runs_of_which_none_succeeded_give_nothing_to_mine() -> None:
    bad = [*shop_run("bad", "A-17")[:-1], RunEnded(run_id="bad", outcome="failure")]
    write("runs.jsonl", bad)
    with pytest.raises(InvalidInput, match="none of the 1 runs both names a task and ended"):
        references("mine", "runs.jsonl")


def test_an_output_that_cannot_be_written_is_named() -> None:
    mined_shop()
    with pytest.raises(InvalidFile, match=r"no/such/file: cannot be written"):
        references("mine", "runs.jsonl", "-o", "no/such/file")


def test_an_unknown_task_or_runs_without_tools_are_refused() -> None:
    refs = mined_shop()
    assert "no references of task 'x'" in references("show", refs, "--task", "x").stderr
    assert "--runs needs --tools" in references("check", refs, "--runs", "runs.jsonl").stderr


def test_names_from_files_cannot_speak_to_the_terminal() -> None:
    described = {"name": "pay", "effect": "write", "consumes": ["=c\x1b[31mard"]}
    Path("tools.json").write_text(json.dumps({"tools": [described]}))
    arguments = ["mine", "--axiomatic", "--tools", "tools.json", "--goal", "T\x1b[2J=pay"]
    result = CliRunner().invoke(cli, ["references", *arguments], color=True)  # as on a terminal
    assert "T·[2J: nothing produces =c·[31mard; taken as given" in result.stderr
    assert "\x1b" not in result.stderr
