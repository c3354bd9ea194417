"""The report of the paper's tables: split, samples, figures, and what a corpus cannot carry."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ontrack.pipeline.blas import THREAD_VARIABLES
from ontrack.pipeline.cli.evaluate import command
from ontrack.pipeline.evaluation.corpus import Recording
from ontrack.pipeline.evaluation.policies import Course
from ontrack.pipeline.evaluation.ranking import WHOLE_RUN
from ontrack.pipeline.evaluation.tables_faults import breaks_rules, rows
from ontrack.pipeline.evaluation.tables_partial import table5, table9
from ontrack.pipeline.evaluation.tables_report import NONE, Table
from ontrack.pipeline.evaluation.tables_split import Split, balanced, split
from ontrack.pipeline.evaluation.tables_traces import KS, Facts
from ontrack.pipeline.evaluation.tables_variants import Variant
from ontrack.pipeline.evaluation.tables_watchings import Watchings
from ontrack.pipeline.evaluation.tables_whole import table6, table7, table8
from tests.pipeline.evaluation.runs import recording, write_tools, write_workplace

RIVALS = (
    "cosine",
    "n_steps",
    "linear_uot",
    "graph_edit",
    "trigram",
    "prerequisite_rules",
    "markov_surprise",
    "grep_frac",
)


def runs_of(tasks: int, each: int, length: int = 9) -> list[Recording]:
    """Runs of several tasks; every second one fails."""
    return [
        recording(f"r{task}-{one}", "ab" * (length // 2) + "c", f"t{task}", one % 2 == 0)
        for task in range(tasks)
        for one in range(each)
    ]


# ------------------------------------------------------------------ split


@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 9))
def test_no_task_is_in_two_parts(tasks: int, each: int, seed: int) -> None:
    runs = runs_of(tasks, each)
    part = split("c", runs, seed, 128)
    calibration = {run.key for run in part.calibration}
    evaluation = {run.key for run in part.evaluation}
    lent = {each.key for each in part.references.get(runs[0].run_id, ())}
    assert not calibration & evaluation
    if not part.same_task:
        assert not lent & (calibration | evaluation)
        assert len(lent) == part.tasks[1] <= 5
    assert sum(part.tasks) == tasks


def test_runs_with_successes_of_their_own_task_are_compared_with_these() -> None:
    part = split("c", runs_of(30, 4), 42, 128)
    assert part.same_task
    for run in part.evaluation:
        assert {each.key for each in part.references[run.run_id]} == {run.key}
        assert run.run_id not in {each.run_id for each in part.references[run.run_id]}


def test_runs_alone_in_their_task_are_all_compared_with_the_same_five() -> None:
    part = split("c", runs_of(60, 1), 42, 128)
    assert not part.same_task
    used = {tuple(each.run_id for each in part.references[r.run_id]) for r in part.evaluation}
    assert len(used) == 1
    assert part.tasks == (18, 5, 37)


def test_the_same_seed_gives_the_same_split_whatever_the_order_of_the_runs() -> None:
    runs = runs_of(30, 2)
    assert split("c", runs, 42, 128).evaluation == tuple(
        sorted(split("c", runs[::-1], 42, 128).evaluation, key=runs.index)
    )
    assert split("c", runs, 42, 128).evaluation != split("c", runs, 43, 128).evaluation


def test_a_balanced_sample_has_as_many_of_either_outcome() -> None:
    runs = [recording(f"r{n}", "ab", f"t{n}", n < 7) for n in range(30)]
    sample = balanced(runs, 50, "x")
    assert [run.succeeded for run in sample] == [True] * 7 + [False] * 7
    assert len(balanced(runs, 3, "x")) == 6


# ------------------------------------------------------------------ figures


def watchings(runs: list[Recording], severe: bool = True) -> Watchings:
    """Facts in which the scores of both profiles tell every run, and the rivals none."""
    facts = {}
    for run in runs:
        good = 1.0 if run.succeeded else 0.0
        own = dict.fromkeys(("score", "rank_score", "leak", "flags", "cost"), good)
        flagged = severe and not run.succeeded
        course = Course(
            tuple(flagged for _ in run.steps),
            None,
            (0.5,) * len(run.steps),
            (1.0,) * len(run.steps),
        )
        scores = {k: own | dict.fromkeys(RIVALS, 0.5) for k in (*KS, WHOLE_RUN)}
        facts[run.run_id] = Facts(scores, course)
    part = Split("c", (), tuple(runs), {}, True, (0, 0, 1), 0)
    return Watchings(part, {"paper": facts, "default": facts}, 42)


def test_a_score_that_tells_all_runs_has_an_area_of_one() -> None:
    made = table5([watchings(runs_of(12, 4))])
    (row,) = [row for row in made.rows if row[0] == "c, 5"]
    cells = dict(zip(made.headings, row, strict=True))
    assert (cells["paper"], cells["default"], cells["cosine"]) == ("1.000", "1.000", "0.500")
    assert cells["Δ paper"] == "+0.500 [+0.500, +0.500]"
    assert cells["within task: paper"] == "1.000 [1.000, 1.000]"


def test_a_checkpoint_that_too_few_runs_reach_says_so() -> None:
    made = table5([watchings(runs_of(12, 4))])
    reached = [row[0] for row in made.rows]
    assert reached == ["c, 5", "c, 8"]
    assert made.notes[0] == "c, k = 10: 0 successes and 0 failures; it takes 10 of either."


def test_several_seeds_agree_where_the_score_tells_all_runs() -> None:
    (row, *_) = table9([watchings(runs_of(12, 4))]).rows
    assert row[:5] == ("c, 5", "48", "1.000 ± 0.000", "1.000 ± 0.000", "0.500 ± 0.000")
    assert row[6] == "5/5"


def test_runs_with_severe_verdicts_alone_are_stopped_and_their_steps_saved() -> None:
    made = table6([watchings(runs_of(12, 4))])
    (row,) = [row for row in made.rows if row[0] == "c, flag_density_0.6, paper"]
    assert row[1].startswith("100.0 %")
    assert row[2].startswith("0.0 %")
    # Stopped at the fourth of nine steps: four of six are more than 0.6.
    assert row[3:] == ("55.6 %", "100 %")


def test_whole_runs_are_told_apart_by_every_signal_that_does() -> None:
    (row,) = table8([watchings(runs_of(12, 4))]).rows
    assert row[2].startswith("1.000")
    assert row[8].startswith("0.500")


def ended(run: Recording, reason: str | None) -> Recording:
    """The run with a recorded reason."""
    fields = {name: getattr(run, name) for name in run.__slots__}
    return Recording(**{**fields, "reason": reason})


def test_runs_that_were_cut_off_are_compared_with_those_that_were_not() -> None:
    runs = [ended(r, "done" if r.succeeded else "exit_cost") for r in runs_of(12, 4)]
    made = table7([watchings(runs)])
    (row,) = made.rows
    assert row[:3] == ("c", "48", "1.000 [1.000, 1.000]")
    assert made.notes == ["c: reasons done 24, exit_cost 24."]


def test_runs_that_do_not_say_why_they_ended_are_no_silent_gap() -> None:
    made = table7([watchings(runs_of(12, 4))])
    assert made.rows == []
    assert made.notes == ["c: its runs do not say why they ended."]
    assert "No row" in made.markdown()


# ------------------------------------------------------------------ table 4


def test_a_tool_before_one_that_always_precedes_it_breaks_a_rule() -> None:
    known = [recording("x", "abc"), recording("y", "acb")]
    assert not breaks_rules("abc", known)
    assert not breaks_rules("acb", known)
    assert breaks_rules("ba", known)
    assert not breaks_rules("zz", known)


def test_the_variants_differ_from_the_full_monitor_in_what_they_say() -> None:
    table = rows(Variant.of("paper"), Variant.of("default"))
    names = [row.name for row in table]
    assert len(names) == len(set(names)) == 8
    by_name = {row.name: row for row in table}
    assert by_name["paper: full"].variant == Variant.of("paper")
    assert not by_name["default: L1 only"].variant.references
    assert '"theta": 0.0' in by_name["paper: no structure (theta = 0)"].variant.operators


def test_cells_of_the_markdown_cannot_break_the_table() -> None:
    table = Table("t", "p", ("a", "b"), [("x|y\nz", NONE)])
    assert r"| x\|y z | – |" in table.markdown().splitlines()


# ------------------------------------------------------------------ the command


def test_the_report_has_every_table_and_the_facts_of_its_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("ONTRACK_ENCODER", "hashing")
    monkeypatch.setenv("ONTRACK_KERNEL", "numpy")
    out = tmp_path / "report.md"
    arguments = ["tables", str(write_workplace(tmp_path)), "--tools", str(write_tools(tmp_path))]
    arguments += ["--processes", "1", "--runs", "2", "--campaign-tasks", "1", "--out", str(out)]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    text = out.read_text()
    sections = [re.split(r"[:,]", line[3:])[0] for line in re.findall("^## .*", text, re.M)]
    assert sections == [
        "Table 2",
        "Table 3",
        "Campaign",
        "Corpora",
        *(f"Table {number}" for number in range(4, 10)),
    ]
    for fact in ("| seed | 42 |", "workplace 18", "hashing-256", "Python", "numpy"):
        assert fact in text
    assert "workplace, k = 20:" in text, "what cannot be carried says why"
    counts = re.findall(r"^\| workplace, paper: full \| (.*) \|$", text, re.M)
    assert counts
    assert counts[0].startswith("2/2")
