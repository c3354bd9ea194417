"""Files of runs to scores: order, tasks, what passing runs say, and memory."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.operators.scoring_plan import ScoringParams
from ontrack.pipeline.scoring import score_trajectory
from ontrack.pipeline.scoring.files import Against, ScoredRun, score_files
from ontrack.pipeline.scoring.report import Report
from ontrack.topics.codecs import encode
from ontrack.topics.errors import InvalidFile, InvalidInput
from ontrack.topics.events import Event, RunEnded, RunStarted, Step
from ontrack.topics.knowledge import Reference, Task, ToolContract


def run(
    run_id: str, tools: Iterable[str], outcome: str = "success", task_id: str | None = "t"
) -> list[Event]:
    started = RunStarted(run_id=run_id, task_id=task_id)
    steps = [Step(run_id=run_id, seq=at, tool=tool) for at, tool in enumerate(tools)]
    return [started, *steps, RunEnded(run_id=run_id, outcome=outcome)]


def written(path: Path, *runs: Sequence[Event]) -> Path:
    path.write_bytes(b"".join(encode(event) + b"\n" for events in runs for event in events))
    return path


def scored(*paths: Path, **options) -> dict[str, ScoredRun]:
    return {each.run_id: each for each in score_files(paths, **options)}


def corpus_line(run_id: str, tools: Iterable[str], success: bool = True, task: str = "t") -> str:
    calls = [{"id": f"c{at}", "name": name, "args": {}} for at, name in enumerate(tools)]
    return json.dumps({"run_id": run_id, "task_id": task, "success": success, "calls": calls})


def test_a_file_is_scored_run_by_run_against_its_tasks(tmp_path):
    path = written(tmp_path / "runs.jsonl", run("short", "abc"), run("long", "abcdefgh", "failure"))
    task = Task(id="t", references=[["a", "b", "c"]])
    found = scored(path, against=Against.of(ScoringParams(), [task]))
    assert [each.outcome for each in found.values()] == ["success", "failure"]
    assert found["short"].score.step_budget == 6
    assert found["long"].score.over_budget_by == 2
    assert found["long"].reference_source == "given"


def test_a_file_gives_the_figures_that_the_function_gives(tmp_path):
    task = Task(id="t", references=[["a", "b"]], step_budget=3, allowed=["a"])
    tools = [ToolContract(name=name, declared_effect="write") for name in "abc"]
    path = written(tmp_path / "runs.jsonl", run("r", "abcabc"))
    against = Against.of(ScoringParams(), [task], tools)
    alone = score_trajectory("abcabc", task, tools, passing_steps=[6])
    assert scored(path, against=against)["r"].score == alone


def test_without_tasks_passing_runs_of_the_task_set_the_budget(tmp_path):
    runs = [run(f"p{at}", "x" * steps) for at, steps in enumerate((5, 6, 6, 7))]
    path = written(tmp_path / "runs.jsonl", *runs, run("f", "x" * 41, "failure"))
    score = scored(path)["f"].score
    assert (score.step_budget, score.passing_median) == (7, 6.0)
    assert score.budget_text == "median 6 + 2 sd of 0.82, 4 passing runs of the task"


def test_of_a_task_with_few_passing_runs_the_file_sets_the_budget_and_says_so(tmp_path):
    runs = [run(f"p{at}", "xxxxx", task_id=f"t{at}") for at in range(4)]
    path = written(tmp_path / "runs.jsonl", *runs)
    score = scored(path)["p0"].score
    assert (score.step_budget, score.budget_rule) == (5, "median_plus_sd")
    assert score.budget_text.endswith("4 passing runs of runs.jsonl")


def test_files_of_one_run_each_are_measured_against_all_of_them(tmp_path):
    paths = [
        written(tmp_path / f"{at}.jsonl", run(f"p{at}", "xxxxx", task_id=f"t{at}"))
        for at in range(4)
    ]
    assert scored(*paths)["p0"].score.budget_text.endswith("4 passing runs of all tasks")


def test_too_few_passing_runs_give_no_budget(tmp_path):
    path = written(tmp_path / "runs.jsonl", run("p", "ab"), run("f", "abab", "failure"))
    assert scored(path)["f"].score.step_budget is None


def test_passing_runs_stand_in_for_references_but_never_a_run_for_itself(tmp_path):
    path = written(
        tmp_path / "runs.jsonl", run("one", "abc"), run("two", "abd"), run("f", "ab", "failure")
    )
    found = scored(path)
    assert found["one"].score.best_reference == "two"
    assert found["one"].score.reference_coverage == pytest.approx(2 / 3)
    assert found["f"].reference_source == "passing_runs"
    assert found["f"].score.missing_steps == ("c",)
    assert found["f"].score.defects == ()  # nobody reviewed them: no duty


def test_a_run_among_the_references_sets_no_budget_for_itself(tmp_path):
    path = written(tmp_path / "runs.jsonl", run("short", "abcd"), run("long", "abcdefghijkl"))
    steps = {"short": "abcd", "long": "abcdefghijkl"}
    references = [
        Reference(
            reference_id=name, run_id=name, task_id="t", steps=[{"tool": tool} for tool in tools]
        )
        for name, tools in steps.items()
    ]
    found = scored(path, against=Against.of(ScoringParams(), references=references))
    assert (found["long"].score.step_budget, found["long"].score.over_budget_by) == (7, 5)
    assert found["short"].score.step_budget == 15
    alone = scored(path, against=Against.of(ScoringParams(), references=references[1:]))
    assert alone["long"].score.step_budget is None


def test_passing_runs_stand_in_only_where_wanted_and_nothing_is_given(tmp_path):
    path = written(tmp_path / "runs.jsonl", run("one", "abc"), run("two", "abd"))
    alone = Against.of(ScoringParams(), from_passing=False)
    assert scored(path, against=alone)["one"].score.reference_coverage is None
    reference = Reference(reference_id="gold", task_id="t", steps=[{"tool": "a"}])
    found = scored(path, against=Against.of(ScoringParams(), references=[reference]))
    assert found["one"].score.best_reference == "gold"


def test_a_stale_reference_is_not_replaced_by_passing_runs(tmp_path):
    path = written(tmp_path / "runs.jsonl", run("one", "ab"), run("two", "ab"))
    against = Against.of(
        ScoringParams(),
        [Task(id="t", references=[["a", "gone"]])],
        [ToolContract(name=name, declared_effect="read") for name in "ab"],
    )
    found = scored(path, against=against)["one"]
    assert (found.score.reference_coverage, found.score.defects) == (None, ())
    assert found.score.stale_references[0].tools == ("gone",)


def test_files_that_mean_different_tasks_by_one_id_are_told_apart(tmp_path):
    shop = [run(f"s{at}", ["find", "refund"], task_id="17") for at in range(4)]
    air = [run(f"a{at}", ["search", "book", "pay", "seat"], task_id="17") for at in range(4)]
    apart: list[str] = []
    found = scored(
        written(tmp_path / "shop.jsonl", *shop),
        written(tmp_path / "air.jsonl", *air),
        on_apart=apart.extend,
    )
    assert (found["s0"].score.step_budget, found["a0"].score.step_budget) == (2, 4)
    assert apart == ["17"]


def test_runs_of_one_task_in_several_files_count_together(tmp_path):
    paths = [written(tmp_path / f"{at}.jsonl", run(f"p{at}", "abc")) for at in range(3)]
    assert scored(*paths)["p0"].score.budget_text.endswith("3 passing runs of the task")


def test_steps_are_scored_in_their_order_whatever_the_order_of_lines(tmp_path):
    events = run("r", "abc")
    shuffled = [events[3], events[1], events[3], events[2], events[0], events[4]]
    other = run("q", "abc")
    mixed = [event for pair in zip(shuffled, [*other, other[1]], strict=True) for event in pair]
    task = Task(id="t", references=[["a", "b", "c"]])
    found = scored(
        written(tmp_path / "r.jsonl", mixed), against=Against.of(ScoringParams(), [task])
    )
    for run_id in ("r", "q"):
        assert (found[run_id].score.steps, found[run_id].score.reference_coverage) == (3, 1.0)


def test_a_lost_step_a_missing_end_and_a_late_task_are_borne(tmp_path):
    steps = [Step(run_id="r", seq=seq, tool="a") for seq in (0, 2, 5)]
    named = Step(run_id="r", seq=6, tool="a", task_id="t")
    path = written(tmp_path / "runs.jsonl", [*steps, named])
    found = scored(path, against=Against.of(ScoringParams(), [Task(id="t", step_budget=3)]))["r"]
    assert (found.score.steps, found.score.over_budget_by, found.outcome) == (4, 1, "unknown")


def test_what_follows_the_end_of_a_run_is_left_out(tmp_path):
    path = written(tmp_path / "runs.jsonl", run("r", "ab"), run("r", "abc"))
    assert scored(path)["r"].score.steps == 2


def test_a_foreign_format_is_scored_like_any_other(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join([corpus_line("r", "aab"), corpus_line("empty", "", False)]))
    found = scored(path)
    assert found["r"].score.repeat_ratio == pytest.approx(1 / 3)
    assert (found["empty"].score.steps, found["empty"].score.repeat_ratio) == (0, 0.0)


def test_standard_input_is_read_once_and_scored_all_the_same(tmp_path):
    path = written(tmp_path / "runs.jsonl", *[run(f"p{at}", "abc") for at in range(4)])
    piped = list(score_files(["-"], stdin=io.BytesIO(path.read_bytes())))
    assert [each.score for each in piped] == [each.score for each in score_files([path])]


def test_unreadable_files_and_wrong_allowances_are_told(tmp_path):
    broken = tmp_path / "runs.jsonl"
    broken.write_bytes(b'{"type": "step", "run_id": "r"}\n')
    with pytest.raises(InvalidFile, match=r"runs\.jsonl:1"):
        list(score_files([broken]))
    with pytest.raises(InvalidFile, match="no such file"):
        list(score_files([tmp_path / "none.jsonl"]))
    wrong = Task(id="t", allowed=["a"], predicates={"b": "args.x == 1"})
    with pytest.raises(InvalidInput, match="b"):
        list(score_files([broken], against=Against.of(ScoringParams(), [wrong])))


@given(
    st.lists(
        st.tuples(st.sampled_from("uv"), st.text("abc", max_size=6), st.booleans()), max_size=8
    ),
    st.randoms(use_true_random=False),
)
def test_interleaved_runs_score_as_they_do_one_after_the_other(tmp_path_factory, drawn, random):
    runs = [
        run(f"r{at}", tools, "success" if passed else "failure", task)
        for at, (task, tools, passed) in enumerate(drawn)
    ] or [run("r", "a")]
    queues = [list(events) for events in runs]
    mixed = []
    while queues:
        queue = random.choice(queues)
        mixed.append(queue.pop(0))
        queues = [each for each in queues if each]
    folder = tmp_path_factory.mktemp("mixed")
    # Which paths stand in for references depends on who ended first, so they are left out.
    against = Against.of(ScoringParams(), from_passing=False)
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    apart = scored(written(folder / "a" / "runs.jsonl", *runs), against=against)
    together = scored(written(folder / "b" / "runs.jsonl", mixed), against=against)
    assert {name: each.score for name, each in apart.items()} == {
        name: each.score for name, each in together.items()
    }


def test_memory_is_flat_in_the_number_of_runs(tmp_path):
    def peak(runs: int) -> int:
        path = tmp_path / f"{runs}.jsonl"
        path.write_text("\n".join(corpus_line(f"r{at}", "abcabcab") for at in range(runs)))
        report = Report()
        tracemalloc.start()
        for each in score_files([path]):
            report.add(each)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert report.everything.runs == runs
        return most

    peak(10)
    # The reader keeps ids, to tell runs apart; the events of one of these runs take 10 KB.
    # Twice, since a table of the interpreter may grow meanwhile.
    assert min(peak(600), peak(600)) - peak(100) < 500 * 400
