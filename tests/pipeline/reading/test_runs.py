"""Recorded runs from their events: one rule for the end of a run and the order of its steps."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.comparing import read_runs
from ontrack.pipeline.evaluation.corpus import read_corpora
from ontrack.pipeline.mining import successes_in
from ontrack.pipeline.reading.event_reader import SourceEvent
from ontrack.pipeline.reading.readers import read_references, references_from_successes
from ontrack.pipeline.reading.runs import KeptSteps, by_run, in_order
from ontrack.pipeline.scoring.files import score_files
from ontrack.topics import codecs
from ontrack.topics.codecs import DEFAULT_LIMITS
from ontrack.topics.events import Event, RunEnded, Step


def source(event: Event) -> SourceEvent:
    return SourceEvent(event, codecs.encode(event), (), "runs.jsonl", 1)


def test_steps_come_by_number_each_once_and_what_follows_the_end_is_left_out() -> None:
    events: list[Event] = [
        Step(run_id="a", seq=1, tool="second"),
        Step(run_id="b", tool="other"),
        Step(run_id="a", seq=0, tool="first", task_id="t"),
        Step(run_id="a", seq=1, tool="again"),
        RunEnded(run_id="a", outcome="success"),
        Step(run_id="a", seq=2, tool="late"),
    ]
    runs = list(by_run(map(source, events), lambda _head: KeptSteps()))
    assert [(head.run_id, head.place, head.task_id, head.outcome) for head, _ in runs] == [
        ("a", 0, "t", "success"),
        ("b", 1, None, "unknown"),
    ]
    assert [step.tool for step in runs[0][1].in_order()] == ["first", "second"]


@given(st.lists(st.tuples(st.none() | st.integers(0, 9), st.integers())))
def test_an_order_is_by_number_or_as_it_was(items: list[tuple[int | None, int]]) -> None:
    found = in_order(items, lambda item: item[0])
    if any(number is None for number, _ in items):
        assert found == items
    else:
        assert [number for number, _ in found] == sorted({number for number, _ in items})
        assert dict(found) == dict(reversed(items))


def test_every_reader_of_runs_sees_the_same_run(tmp_path: Path) -> None:
    steps = [(1, "pay"), (0, "look"), (1, "pay_twice"), (2, "tell")]
    events: list[Event] = [
        Step(run_id="a", seq=seq, tool=tool, task_id="t", args={"n": seq}) for seq, tool in steps
    ]
    events += [RunEnded(run_id="a", outcome="success"), Step(run_id="a", seq=3, tool="late")]
    path = tmp_path / "runs.jsonl"
    path.write_bytes(b"\n".join(map(codecs.encode, events)))
    paths, tools = [str(path)], ["look", "pay", "tell"]

    (reference,) = read_references(paths)
    (success,) = references_from_successes(paths)
    ((mined,),) = successes_in(paths).by_task().values()
    (compared,) = read_runs(paths, DEFAULT_LIMITS)
    (recorded,) = read_corpora(paths)
    for run in (reference, success, mined, compared, recorded):
        assert [step.tool for step in run.steps] == tools
    (scored,) = score_files(paths)
    assert scored.score.steps == 3
    assert json.loads(path.read_bytes().splitlines()[-1])["tool"] == "late"
