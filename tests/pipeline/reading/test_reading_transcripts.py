"""Transcripts, traces and trajectories through the reader: recognised, located, flagged."""

import json

import pytest

from ontrack.pipeline.reading.readers import read_events
from ontrack.topics.errors import InvalidFile


def said(kind, *blocks, **fields):
    message = {"role": kind, "content": list(blocks)}
    return {"type": kind, "sessionId": "s", "uuid": "u", "message": message} | fields


CALL = said("assistant", {"type": "tool_use", "id": "a", "name": "Bash", "input": {}})
BACK = said("user", {"type": "tool_result", "tool_use_id": "a", "content": "ok"})
TRACE = {
    "trace": {"id": "t"},
    "observations": [{"type": "TOOL", "name": "get", "startTime": "2026-05-01T10:00:00Z",
                      "endTime": "2026-05-01T10:00:01Z"}],
}  # fmt: skip
TRAJECTORY = {
    "schema_version": "ATIF-v1.8",
    "session_id": "a",
    "steps": [{"tool_calls": [{"function_name": "get"}]}],
}


@pytest.mark.parametrize(
    ("records", "name"),
    [
        ([{"type": "file-history-snapshot"}, CALL, BACK], "claude-code"),
        ([TRACE], "langfuse"),
        ([TRAJECTORY], "atif"),
    ],
)
def test_a_file_is_recognised_and_read(tmp_path, records, name):
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    reader = read_events([str(path)])
    found = list(reader)
    assert [item.event.type for item in found] == ["run_started", "step", "run_ended"]
    assert reader.recognised == {str(path): name}
    assert not any(item.flags for item in found)


def test_a_document_over_many_lines_is_read(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(TRACE, indent=2))
    assert [item.event.run_id for item in read_events([str(path)])] == ["t"] * 3


def test_a_line_that_is_cut_off_is_named_or_makes_the_run_partial(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join([json.dumps(CALL), json.dumps(BACK)[:-20]]))
    with pytest.raises(InvalidFile, match=r"x\.jsonl:2"):
        list(read_events([str(path)]))
    bad = []
    found = list(read_events([str(path)], on_bad=lambda *what: bad.append(what[1])))
    assert bad == [2]
    assert {item.flags for item in found} == {("partial_run",)}


def test_a_subagents_file_beside_its_session_names_the_session(tmp_path):
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, [CALL, BACK])))
    (tmp_path / "sub").mkdir()
    lines = [item | {"agentId": "a7", "isSidechain": True} for item in (CALL, BACK)]
    (tmp_path / "sub" / "agent-a7.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = [item.event for item in read_events([str(tmp_path)])]
    started = {e.run_id: e.parent_run_id for e in found if e.type == "run_started"}
    assert started == {"s": None, "s:a7": "s"}
