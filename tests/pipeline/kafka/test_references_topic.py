"""References from traffic: mined from the topic, published, met by new runs and by no open one."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ontrack.pipeline.cli import cli
from ontrack.pipeline.kafka.connection import topics_of
from ontrack.pipeline.kafka.sender import send_events, send_knowledge
from ontrack.pipeline.reading.readers import read_references
from ontrack.pipeline.settings import Settings
from ontrack.topics import codecs
from ontrack.topics.events import Event, RunEnded, Step
from ontrack.topics.knowledge import Provenance, Reference, ReferenceStep, ToolContract
from tests.pipeline.fleet import WorkerProcess, point_cli_at, produce, read_all, wait_for

TOOLS = ("find_order", "get_order", "refund_order")
CONTRACTS = [
    ToolContract(name=name, declared_effect="write" if name == "refund_order" else "read")
    for name in TOOLS
]


def run_of(run_id: str, outcome: str | None = "success") -> list[Event]:
    steps: list[Event] = [
        Step(run_id=run_id, task_id="refund", seq=seq, tool=tool, args={"order": "A-17"})
        for seq, tool in enumerate(TOOLS)
    ]
    return [*steps, RunEnded.model_validate({"run_id": run_id, "outcome": outcome or "unknown"})]


def ontrack(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.stderr
    return result


def told(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_worker_meets_mined_references_at_once_and_open_runs_keep_theirs(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    point_cli_at(settings, monkeypatch, tmp_path)
    topics = topics_of(settings)
    worker = WorkerProcess(settings, tmp_path)
    open_run = run_of("open")
    try:
        worker.start()
        worker.wait_ready()
        asyncio.run(send_knowledge(settings, contracts=CONTRACTS))
        asyncio.run(send_events(settings, [*run_of("one"), *run_of("two"), open_run[0]], None))
        asyncio.run(wait_for(settings, topics.scorecards.name, 2))
        mined = ontrack("references", "mine", "--from-topic", "-o", "refs.jsonl", "--json")
        time.sleep(0.05)  # the broker's clock counts milliseconds
        ontrack("send", "--references", "refs.jsonl")
        time.sleep(0.05)
        asyncio.run(send_events(settings, [*open_run[1:], *run_of("late")], None))
        asyncio.run(wait_for(settings, topics.scorecards.name, 4))
        messages = asyncio.run(read_all(settings, topics.verdicts.name))
    finally:
        worker.stop()
    assert [(each["successes"], each["references"]) for each in told(mined)] == [(2, 2)]
    references = read_references(["refs.jsonl"])
    assert {reference.run_id for reference in references} == {"one", "two"}
    for reference in references:
        assert reference.mined is not None
        assert reference.mined.source.startswith(f"{topics.events.name} ")
        assert reference.mined.run_at is not None  # when it arrived: its events name no time
    verdicts = [json.loads(message.value) for message in messages]
    known = {reference.reference_id for reference in references}
    assert {each["best_reference"] for each in verdicts if each["run_id"] == "late"} <= known
    for name in ("one", "two", "open"):
        assert {each["best_reference"] for each in verdicts if each["run_id"] == name} == {None}


def test_outcomes_of_scorecards_count_where_the_end_is_not_kept(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    point_cli_at(settings, monkeypatch, tmp_path)
    topics = topics_of(settings)
    worker = WorkerProcess(settings, tmp_path)
    try:
        worker.start()
        worker.wait_ready()
        asyncio.run(send_events(settings, run_of("judged"), None))
        (card,) = asyncio.run(wait_for(settings, topics.scorecards.name, 1))
    finally:
        worker.stop()
    value = json.loads(card.value) | {"run_id": "elsewhere", "id": "elsewhere:end"}
    asyncio.run(send_events(settings, run_of("elsewhere")[:-1], None))
    asyncio.run(send_events(settings, run_of("unknown", None), None))
    bad = [(b"x", b"{"), (b"elsewhere", json.dumps(value).encode())]
    asyncio.run(produce(settings, topics.scorecards.name, bad))
    asyncio.run(produce(settings, topics.events.name, [(b"x", b"{")]))
    (mined,) = told(ontrack("references", "mine", "--from-topic", "--json"))
    assert mined["successes"] == 2


def test_mining_again_can_replace_what_was_mined_before(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    point_cli_at(settings, monkeypatch, tmp_path)
    body = tuple(ReferenceStep(tool=tool) for tool in TOOLS)

    def reference(name: str, task: str = "refund", provenance: str = "mined") -> Reference:
        return Reference.model_validate(
            {"reference_id": name, "task_id": task, "provenance": provenance, "steps": body}
        )

    before = [reference("old"), reference("gold", provenance="gold"), reference("else", "other")]
    asyncio.run(send_knowledge(settings, before, CONTRACTS))
    Path("new.jsonl").write_bytes(codecs.encode(reference("new")) + b"\n")
    result = ontrack("send", "--references", "new.jsonl", "--replace")
    assert "1 references withdrawn" in result.stderr
    shown = told(ontrack("references", "show", "--from-topic", "--json"))
    ids = {each["reference_id"] for each in shown if each["type"] == "reference"}
    assert ids == {"new", "gold", "else"}
    checked = told(ontrack("references", "check", "--from-topic", "--json"))
    assert [(each["task_id"], each["references"]) for each in checked] == [
        ("other", 1),
        ("refund", 2),
    ]


def test_published_references_are_withdrawn_by_id_and_by_task(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    point_cli_at(settings, monkeypatch, tmp_path)
    body = tuple(ReferenceStep(tool=tool) for tool in TOOLS)
    given = [
        Reference(reference_id=name, task_id=task, provenance=Provenance.GOLD, steps=body)
        for name, task in (("a", "refund"), ("b", "refund"), ("c", "other"), ("d", "third"))
    ]
    asyncio.run(send_knowledge(settings, given, CONTRACTS))

    def published() -> set[str]:
        shown = told(ontrack("references", "show", "--from-topic", "--json"))
        return {each["reference_id"] for each in shown if each["type"] == "reference"}

    refused = CliRunner().invoke(cli, ["references", "withdraw", "a", "nobody"])
    assert refused.exit_code == 2
    assert "no reference 'nobody' is published; nothing was withdrawn" in refused.output
    dry = ontrack("references", "withdraw", "a", "--dry-run")
    assert dry.stdout == "a  refund\n"
    assert published() == {"a", "b", "c", "d"}
    result = ontrack("references", "withdraw", "a", "--task", "other")
    assert "2 references withdrawn" in result.stderr
    assert published() == {"b", "d"}
    assert CliRunner().invoke(cli, ["references", "withdraw"]).exit_code == 2
