"""``ontrack topics schema``: prints the published schemas, writes them where nobody breaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ontrack.pipeline.cli.topics import command
from ontrack.topics.schemas.records import TOPICS, record_schema, record_schema_text


def test_the_command_prints_a_schema_and_lists_them() -> None:
    runner = CliRunner()
    assert runner.invoke(command, ["schema", "verdicts"]).output == record_schema_text("verdicts")
    told = runner.invoke(command, ["schema", "--json"]).output.splitlines()
    assert [json.loads(line)["topic"] for line in told] == list(TOPICS)
    (line,) = runner.invoke(command, ["schema", "events", "--json"]).output.splitlines()
    assert json.loads(line) == record_schema("events")


def test_the_command_writes_what_breaks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = CliRunner()
    done = runner.invoke(command, ["schema", "--write", str(tmp_path)])
    assert done.exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {f"{t}.schema.json" for t in TOPICS}

    def released(topic: str) -> str:
        made = record_schema(topic)
        if topic == "verdicts":
            made["properties"]["gone"] = {"type": "string"}
        return json.dumps(made)

    monkeypatch.setattr("ontrack.topics.schemas.records.released_text", released)
    for path in tmp_path.iterdir():
        path.unlink()
    refused = runner.invoke(command, ["schema", "--write", str(tmp_path)])
    assert refused.exit_code == 1
    assert "verdicts $.gone: the field was removed" in refused.output
    assert list(tmp_path.iterdir()) == []
