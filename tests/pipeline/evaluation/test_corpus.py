"""Recorded runs with outcomes, and the references each of them is compared with."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.evaluation.corpus import ReferencePlan, by_corpus, read_corpora
from ontrack.topics.errors import InvalidFile, InvalidInput
from tests.pipeline.evaluation.runs import recording, write_workplace


def corpus_line(run_id: str, task: str | None, success: bool, calls: int = 1) -> str:
    return json.dumps(
        {
            "run_id": run_id,
            "task_id": task,
            "model": "m1",
            "success": success,
            "calls": [{"name": "look", "args": {"at": n}, "result": "x"} for n in range(calls)],
        }
    )


def test_runs_are_read_with_task_model_and_outcome(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text(f"{corpus_line('r2', 'b', True, 3)}\n{corpus_line('r1', 'a', False)}\n")
    first, second = read_corpora([str(file)])
    assert (first.run_id, first.task, first.model, first.outcome) == ("r1", "a", "m1", "failure")
    assert (second.run_id, second.corpus, second.succeeded) == ("r2", "some", True)
    assert [step.seq for step in second.steps] == [0, 1, 2]
    assert {step.task_id for step in second.steps} == {"b"}


def test_a_file_of_many_runs_is_a_corpus_and_files_of_one_run_are_one_together(
    tmp_path: Path,
) -> None:
    single = tmp_path / "single"
    single.mkdir()
    for number in range(2):
        (single / f"{number}.jsonl").write_text(corpus_line(f"s{number}", "a", True) + "\n")
    many = tmp_path / "many.jsonl"
    many.write_text("\n".join(corpus_line(f"m{n}", "a", False) for n in range(3)))
    groups = by_corpus(read_corpora([str(single), str(many)]))
    assert {name: len(runs) for name, runs in groups.items()} == {
        "many": 3,
        "single": 2,
        "(all)": 5,
    }


def test_runs_without_steps_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text(f"{corpus_line('r1', 'a', True, 0)}\n{corpus_line('r2', 'a', True)}\n")
    assert [run.run_id for run in read_corpora([str(file)])] == ["r2"]


def test_runs_without_any_outcome_cannot_be_evaluated(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text('{"type": "step", "run_id": "r", "tool": "look"}\n')
    with pytest.raises(InvalidInput, match="whether it succeeded"):
        read_corpora([str(file)])
    with pytest.raises(InvalidFile):
        read_corpora([str(tmp_path / "nowhere.jsonl")])


def test_steps_are_numbered_from_0_and_parents_follow(tmp_path: Path) -> None:
    steps = [
        {"type": "step", "run_id": "r", "seq": 7, "tool": "b", "parents": [5]},
        {"type": "step", "run_id": "r", "seq": 5, "tool": "a"},
        {"type": "run_ended", "run_id": "r", "outcome": "success"},
    ]
    file = tmp_path / "some.jsonl"
    file.write_text("\n".join(json.dumps(step) for step in steps))
    (run,) = read_corpora([str(file)])
    assert [(step.tool, step.seq, step.parents) for step in run.steps] == [
        ("a", 0, None),
        ("b", 1, (0,)),
    ]
    assert not run.has_task


def test_the_workplace_makes_a_corpus(tmp_path: Path) -> None:
    runs = read_corpora([str(write_workplace(tmp_path))])
    assert sum(run.succeeded for run in runs) == 12
    assert sum(not run.succeeded for run in runs) == 6


# ------------------------------------------------------------------ references


def test_a_run_is_compared_with_other_successes_of_its_task() -> None:
    runs = [
        recording("a", "xy"),
        recording("b", "xz"),
        recording("bad", "x", success=False),
        recording("elsewhere", "x", task="u"),
    ]
    chosen = ReferencePlan(count=5).choose(runs)
    assert [each.run_id for each in chosen["a"]] == ["b"]
    assert chosen["elsewhere"] == ()
    # As many as the successes have, which cannot use themselves.
    assert len(chosen["bad"]) == 1


def test_without_equal_counts_a_failed_run_has_one_more() -> None:
    runs = [recording("a", "xy"), recording("b", "xz"), recording("bad", "x", success=False)]
    chosen = ReferencePlan(count=5, equal=False).choose(runs)
    assert {run_id: len(each) for run_id, each in chosen.items()} == {"a": 1, "b": 1, "bad": 2}


def test_references_of_the_own_model_can_be_left_out() -> None:
    runs = [recording(f"{model}{n}", "xy", model=model) for model in "pq" for n in range(2)]
    chosen = ReferencePlan(exclude_own_model=True).choose(runs)
    assert {each.model for each in chosen["p0"]} == {"q"}
    assert {each.model for each in chosen["q1"]} == {"p"}


def test_references_of_other_tasks_are_the_same_for_all_and_their_tasks_are_left_out() -> None:
    runs = [recording(f"r{n}", "xy", task=f"t{n}") for n in range(8)]
    chosen = ReferencePlan(count=3, other_tasks=True).choose(runs)
    assert len(chosen) == 5
    (common,) = {tuple(each.run_id for each in references) for references in chosen.values()}
    assert len(common) == 3
    assert not set(common) & set(chosen)


def test_runs_that_are_too_long_are_no_references() -> None:
    runs = [recording("a", "xyz"), recording("b", "x")]
    chosen = ReferencePlan(steps_max=2).choose(runs)
    assert [len(chosen[each]) for each in "ab"] == [1, 0]


@given(
    st.lists(
        st.tuples(st.sampled_from("tuv"), st.booleans(), st.sampled_from("pq")),
        min_size=1,
        max_size=14,
    ),
    st.booleans(),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_never_oneself_never_unequal_and_never_by_order(
    drawn: list[tuple[str, bool, str]], exclude: bool, count: int, shuffler: object
) -> None:
    runs = [
        recording(f"r{n}", "xy", task, success, model)
        for n, (task, success, model) in enumerate(drawn)
    ]
    plan = ReferencePlan(count, exclude_own_model=exclude)
    chosen = plan.choose(runs)
    for run in runs:
        references = chosen[run.run_id]
        assert len({each.run_id for each in references}) == len(references) <= count
        for each in references:
            assert each.succeeded
            assert each.run_id != run.run_id
            assert each.task == run.task
            assert not exclude or each.model != run.model
    for task in {run.task for run in runs}:
        sizes = {len(chosen[run.run_id]) for run in runs if run.task == task}
        assert len(sizes - {0}) <= 1
    shuffler.shuffle(runs)  # type: ignore[attr-defined]
    assert plan.choose(runs) == chosen
