"""Recorded formats through ``ontrack replay``, counted against tables and against the files.

Every format has a small file of made-up content beside the tests, always read. With
``ONTRACK_CORPUS`` naming a folder of real recordings, those of its ``formats`` are read as well.
"""

import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from ontrack.pipeline.cli import cli
from ontrack.pipeline.reading.readers import read_events, read_tools
from ontrack.topics.adapters import FORMATS
from ontrack.topics.errors import InvalidFile
from ontrack.topics.events import RunStarted, Step
from tests.topics.recorded import COUNTERS, every, records

OWN = Path(__file__).parent.parent / "data" / "formats"
CORPUS = Path(os.environ.get("ONTRACK_CORPUS", "")) / "formats"
needs_corpus = pytest.mark.skipif(
    "ONTRACK_CORPUS" not in os.environ,
    reason="ONTRACK_CORPUS names no folder of real recordings, which are not part of the project",
)


class Counts(NamedTuple):
    """What a file holds."""

    runs: int
    steps: int
    errors: int
    events: int


#: Our own files: runs, steps, errors, events.
OWN_FILES = {
    "atif/desk-4.json": (2, 8, 2, 12),
    "chat/anthropic.json": (1, 5, 1, 7),
    "chat/openai.jsonl": (1, 5, 1, 7),
    "claude-code/desk-3.jsonl": (1, 4, 1, 6),
    "claude-code/subagents/agent-finder7.jsonl": (1, 2, 1, 4),
    "corpus/shop.jsonl": (2, 7, 2, 11),
    "events/shop.jsonl": (1, 5, 1, 7),
    "inspect/fail.json": (1, 3, 2, 5),
    "inspect/ok.eval": (1, 4, 0, 6),
    "inspect/ok.json": (1, 4, 0, 6),
    "langfuse/legacy/observations.json": (1, 5, 1, 7),
    "langfuse/legacy/scores.json": (0, 0, 0, 0),
    "langfuse/legacy/traces.json": (0, 0, 0, 0),
    "langfuse/rows/observations_v2.jsonl": (2, 6, 2, 10),
    "langfuse/shop.trace.json": (1, 5, 1, 7),
    "openai-agents/fail.jsonl": (1, 3, 2, 5),
    "openai-agents/ok.jsonl": (1, 4, 0, 6),
    "otlp/fail.otlp.json": (1, 3, 2, 5),
    "otlp/ok.otlp.json": (1, 4, 0, 6),
    "sweagent/bell-1.traj": (1, 5, 0, 7),
    "sweagent/bell-2.traj": (1, 5, 0, 7),
    "sweagent/bell-3.traj": (1, 3, 0, 5),
    "sweagent/bell-4.traj.json": (1, 4, 0, 6),
}
#: The corpus' files of recorded runs; those of ``mcp`` hold tools.
CORPUS_FILES = {
    "claude-code/example-session-claude-01.jsonl.xz": (1, 34, 1, 36),
    "claude-code/subagents/agent-a58cc8f5c55ea93d9.jsonl.xz": (1, 128, 14, 130),
    "claude-code/subagents/agent-ae286913c0f1e919c.jsonl.xz": (1, 3, 0, 5),
    "inspect/2026-11-29T18-19-19-00-00_recorded-ok_m3Ajg4hgWRF7kzw2bwFrwd.json": (1, 6, 0, 8),
    "inspect/2026-11-29T18-19-24-00-00_recorded-ok_dUDvmzYHV7RwSagLF4ZBfp.eval": (1, 6, 0, 8),
    "inspect/2026-11-29T18-19-25-00-00_recorded-fail_NPq5f5kwMTAg3LuHwLreyE.json": (1, 27, 0, 29),
    "inspect/2026-11-29T18-19-25-00-00_recorded-fail_h6MdjTXUKYQ8xutQb2gNv3.eval": (1, 27, 0, 29),
    "langfuse/agno-2025-06-11.trace.json": (1, 1, 0, 3),
    "langfuse/autogen-2025-06-06.trace.json": (1, 0, 0, 2),
    "langfuse/beeai-2025-08-01.trace.json": (1, 2, 0, 4),
    "langfuse/claude-agent-2025-12-22.trace.json": (1, 2, 0, 4),
    "langfuse/crewai-2025-07-11.trace.json": (1, 0, 0, 2),
    "langfuse/csharp-agent-with-gemini-2026-03-09.trace.json": (1, 2, 0, 4),
    "langfuse/google-adk-2025-08-28.trace.json": (1, 1, 0, 3),
    "langfuse/google-gemini-2025-08-01.trace.json": (1, 0, 0, 2),
    "langfuse/koog-2025-08-26.trace.json": (1, 2, 0, 4),
    "langfuse/langgraph-js-2025-10-30.trace.json": (1, 1, 0, 3),
    "langfuse/langgraph-python-2025-08-22.trace.json": (1, 1, 0, 3),
    "langfuse/llamaindex-2025-06-05.trace.json": (1, 0, 0, 2),
    "langfuse/microsoft-agent-2025-12-17.trace.json": (1, 1, 0, 3),
    "langfuse/openai-agents-2025-09-30.trace.json": (1, 1, 0, 3),
    "langfuse/pydantic-ai-2025-06-06.trace.json": (1, 0, 0, 2),
    "langfuse/pydantic-ai-tools-2025-06-06.trace.json": (1, 0, 0, 2),
    "langfuse/pydantic-ai-tools-2025-12-04.trace.json": (1, 4, 0, 6),
    "langfuse/pydantic-ai-with-gemini-2025-12-24.trace.json": (1, 0, 0, 2),
    "langfuse/vercel-aisdk-2025-11-17.trace.json": (1, 1, 0, 3),
    "langfuse/vertex-ai-2025-08-01.trace.json": (1, 0, 0, 2),
    "openai-agents/openai_agents_fail.jsonl": (1, 21, 0, 23),
    "openai-agents/openai_agents_ok.jsonl": (1, 6, 0, 8),
    "otlp/otel_genai_fail.otlp.json": (1, 27, 0, 29),
    "otlp/otel_genai_ok.otlp.json": (1, 6, 0, 8),
    "sweagent/eps.traj": (1, 14, 0, 16),
    "sweagent/function_calling_simple.traj": (1, 5, 0, 7),
    "sweagent/marshmallow-code__marshmallow-1867.traj": (1, 11, 0, 13),
}
#: Calls that the Agents SDK made no span of, of the runs that all three recorded.
NOT_RECORDED = {"fail": 6, "ok": 0}


@pytest.fixture(autouse=True)
def small_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONTRACK_ENCODER", "hashing")
    monkeypatch.delenv("ONTRACK_CORPUS", raising=False)  # is no setting


def read(path: Path) -> tuple[Counts, str]:
    """What the reader finds in a file, and the format that it takes it for."""
    reader = read_events([path])
    events = [found.event for found in reader]
    steps = [event for event in events if isinstance(event, Step)]
    errors = sum(step.error is not None for step in steps)
    runs = len({event.run_id for event in events})
    return Counts(runs, len(steps), errors, len(events)), reader.recognised[str(path)]


def replayed(path: Path) -> tuple[int, int]:
    """What ``ontrack replay`` says of a file: scorecards and verdicts."""
    done = CliRunner().invoke(cli, ["replay", str(path), "--json"])
    assert done.exit_code == 0, done.output
    kinds = [json.loads(line)["type"] for line in done.stdout.splitlines()]
    return kinds.count("scorecard"), kinds.count("verdict")


def check(root: Path, name: str, expected: tuple[int, int, int, int]) -> None:
    path, format = root / name, name.split("/")[0]
    counts, recognised = read(path)
    assert recognised == format
    assert counts == expected
    assert COUNTERS[format](path) == (counts.steps, counts.errors)
    assert replayed(path) == (counts.runs, counts.steps)


def files_of(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def told(path: Path) -> list[tuple[object, ...]]:
    """What was called in a file, and what came of it: that which encodings must agree on."""
    steps = [found.event for found in read_events([path]) if isinstance(found.event, Step)]
    return [(step.tool, step.args, step.result, step.error) for step in steps]


# ------------------------------------------------------------------ our own files


@pytest.mark.parametrize("name", OWN_FILES)
def test_a_file_of_each_format_is_replayed_and_holds_what_was_written(name: str) -> None:
    check(OWN, name, OWN_FILES[name])


def test_the_table_names_every_file_of_ours_and_every_format_has_one() -> None:
    assert files_of(OWN) == set(OWN_FILES)
    assert {name.split("/")[0] for name in OWN_FILES} == set(FORMATS) == set(COUNTERS)


@pytest.mark.parametrize("run", ["ok", "fail"])
def test_one_run_in_three_encodings_gives_equal_steps(run: str) -> None:
    inspect = told(OWN / "inspect" / f"{run}.json")
    assert told(OWN / "otlp" / f"{run}.otlp.json") == inspect
    assert told(OWN / "openai-agents" / f"{run}.jsonl") == inspect
    assert any(error for *_, error in inspect) == (run == "fail")


def test_an_archive_holds_the_same_run_as_the_log() -> None:
    events = [
        [found.event for found in read_events([OWN / "inspect" / name])]
        for name in ("ok.eval", "ok.json")
    ]
    assert events[0] == events[1]


def test_a_session_and_its_subagent_are_two_runs_of_which_one_is_the_parent() -> None:
    folder = OWN / "claude-code"
    starts = [e.event for e in read_events([folder]) if isinstance(e.event, RunStarted)]
    parents = {start.run_id: start.parent_run_id for start in starts}
    assert parents == {"desk-3": None, "desk-3:finder7": "desk-3"}


def test_an_export_with_traces_apart_is_read_as_one_folder() -> None:
    events = list(read_events([OWN / "langfuse" / "legacy"]))
    whole = list(read_events([OWN / "langfuse" / "shop.trace.json"]))
    assert [e.event for e in events if isinstance(e.event, Step)] == [
        e.event for e in whole if isinstance(e.event, Step)
    ]
    assert {found.flags for found in events} == {()}


# ------------------------------------------------------------------ the corpus


@needs_corpus
@pytest.mark.parametrize("name", CORPUS_FILES)
def test_a_real_recording_is_replayed_and_holds_what_stands_in_it(name: str) -> None:
    check(CORPUS, name, CORPUS_FILES[name])


@needs_corpus
def test_the_table_names_every_recording_of_the_corpus() -> None:
    names = {name for name in files_of(CORPUS) if not name.startswith("mcp/")}
    assert names == set(CORPUS_FILES)


@needs_corpus
@pytest.mark.parametrize("run", ["ok", "fail"])
def test_the_corpus_tells_the_same_runs_in_three_encodings(run: str) -> None:
    (log,), (archive,) = (
        list((CORPUS / "inspect").glob(f"*recorded-{run}_*{suffix}"))
        for suffix in (".json", ".eval")
    )
    calls = told(log)
    assert told(archive) == calls
    assert told(CORPUS / "otlp" / f"otel_genai_{run}.otlp.json") == calls
    recorded = told(CORPUS / "openai-agents" / f"openai_agents_{run}.jsonl")
    assert len(calls) - len(recorded) == NOT_RECORDED[run]
    if not NOT_RECORDED[run]:
        assert recorded == calls
    # What is there are the same calls in the same order, later ones with each other's results.
    rest = iter([call[:2] for call in calls])
    assert all(call[:2] in rest for call in recorded)


@needs_corpus
@pytest.mark.parametrize("server", ["everything", "filesystem", "github", "memory"])
def test_a_servers_list_of_tools_is_read_as_tools_and_refused_as_runs(server: str) -> None:
    path = CORPUS / "mcp" / f"tools_list_{server}.json"
    listed = [o for o in every(records(path)) if "inputSchema" in o]
    assert [tool.name for tool in read_tools(path)] == [tool["name"] for tool in listed]
    with pytest.raises(InvalidFile, match="no runs recognised"):
        list(read_events([path]))
