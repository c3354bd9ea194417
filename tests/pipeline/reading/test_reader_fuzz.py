"""Damaged files of tools, tasks and references: read as they stand, or refused by name."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ontrack.pipeline.reading.plain_files import plain_text
from ontrack.pipeline.reading.readers import read_references, read_tasks, read_tools
from ontrack.topics.errors import InvalidFile
from tests.topics.test_adapter_fuzz import cut, flipped, replaced

TOOLS = {
    "tools": [
        {"name": "find_order", "effect": "read", "produces": ["result.order"]},
        {"name": "issue_refund", "effect": "destructive", "consumes": ["args.order"]},
        {
            "name": "send_mail",
            "annotations": {"readOnlyHint": False, "destructiveHint": False},
            "inputSchema": {"type": "object", "properties": {"to": {"type": "string"}}},
        },
    ]
}
TASKS = {
    "tasks": [
        {
            "id": "refund",
            "references": [["find_order", "issue_refund", "send_mail"]],
            "step_budget": {"rule": "reference_plus", "value": 3},
            "allowed": [{"tool": "issue_refund", "when": "seen(args.order)"}, "send_mail"],
            "predicates": {"send_mail": "seen(args.to)"},
            "vars": {"desk": "north"},
            "cost_usd_max": 0.5,
        }
    ]
}
REFERENCE = {
    "type": "reference",
    "reference_id": "r1",
    "task_id": "refund",
    "provenance": "gold",
    "steps": [{"tool": "find_order", "args": {"customer": "Ada"}}, {"tool": "issue_refund"}],
}

T = TypeVar("T")

fuzzed = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


def attempted(read: Callable[[Path], Sequence[T]], path: Path) -> Sequence[T]:
    """What is read of a file; nothing where it is refused by name, and no other error."""
    refusal = None
    try:
        return read(path)
    except InvalidFile as error:
        refusal = str(error)
    assert refusal.startswith(f"{path}:")
    return ()


def written(kind: dict[str, object], suffix: str) -> bytes:
    return plain_text(kind, f"x{suffix}").encode()


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".toml"])
@fuzzed
@given(st.data())
def test_damaged_tools_are_read_as_they_stand_or_refused(
    tmp_path: Path, suffix: str, data: st.DataObject
) -> None:
    raw = written(TOOLS, suffix)
    path = tmp_path / f"tools{suffix}"
    path.write_bytes(data.draw(cut(raw) | flipped(raw)))
    tools = attempted(read_tools, path)
    text = path.read_text(errors="replace")
    # JSON and YAML escape what does not stand in a text as it is.
    assert [tool for tool in tools if tool.name not in text and "\\" not in text] == []


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".toml"])
@fuzzed
@given(st.data())
def test_damaged_tasks_are_read_as_they_stand_or_refused(
    tmp_path: Path, suffix: str, data: st.DataObject
) -> None:
    raw = written(TASKS, suffix)
    path = tmp_path / f"tasks{suffix}"
    path.write_bytes(data.draw(cut(raw) | flipped(raw)))
    tasks = attempted(read_tasks, path)
    text = path.read_text(errors="replace")
    assert [task for task in tasks if task.id not in text and "\\" not in text] == []


@fuzzed
@given(st.data())
def test_any_value_in_the_place_of_another_is_read_or_refused_in_every_reader(
    tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / "x.json"
    for kind, reader in ((TOOLS, read_tools), (TASKS, read_tasks)):
        damaged = json.loads(data.draw(replaced([json.dumps(kind).encode()])) or b"null")
        path.write_text(json.dumps(damaged))
        attempted(reader, path)
        (tmp_path / "x.yaml").write_text(yaml.safe_dump(damaged))
        attempted(reader, tmp_path / "x.yaml")


@fuzzed
@given(st.data())
def test_damaged_references_are_read_as_they_stand_or_refused(
    tmp_path: Path, data: st.DataObject
) -> None:
    line = json.dumps(REFERENCE).encode()
    path = tmp_path / "x.jsonl"
    path.write_bytes(data.draw(cut(line) | flipped(line) | replaced([line, line])))
    for reference in attempted(lambda path: read_references([path]), path):
        assert len(reference.steps) <= 4
        assert json.dumps(reference.task_id)[1:-1] in path.read_text(errors="replace")
